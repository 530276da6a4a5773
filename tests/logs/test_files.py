import gzip
import os
from pathlib import Path

import pytest

from vllm_vitals.logs.checkpoint import FileMark
from vllm_vitals.logs.files import GRACE_DELETED, GRACE_SUCCEEDED, FileFollower


class Follower:
    """A follower, with what it has given so far by stream."""

    def __init__(
        self, *patterns: Path, marks: list[FileMark] | None = None, from_end: bool = False, most: int = 100
    ) -> None:
        self.follower = FileFollower([str(one) for one in patterns], marks or [], from_end, most)
        self.streams: dict[int, bytes] = {}
        self.marks: dict[tuple[int, int], FileMark] = {}
        self.ended: list[int] = []

    def read(self) -> "Follower":
        while chunks := self.follower.poll():
            for chunk in chunks:
                self.streams[chunk.key] = self.streams.get(chunk.key, b"") + chunk.data
                identity = (chunk.mark.device, chunk.mark.inode)
                self.marks[identity] = chunk.mark
                if chunk.last:
                    self.ended.append(chunk.key)
                    del self.marks[identity]
        return self

    def all(self) -> bytes:
        return b"".join(self.streams.values())


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "app.log"
    path.write_bytes(b"".join(b"line %d\n" % number for number in range(100)))
    return path


def append(path: Path, data: bytes) -> None:
    with path.open("ab") as stream:
        stream.write(data)


def test_a_file_is_followed_as_it_grows(log: Path) -> None:
    one = Follower(log.parent / "*.log").read()
    assert one.all() == log.read_bytes()
    append(log, b"more")
    assert one.read().all() == log.read_bytes()
    assert len(one.streams) == 1


def test_a_file_that_appears_later_is_read_from_its_beginning(log: Path) -> None:
    one = Follower(log.parent / "*.log", from_end=True).read()
    assert one.all() == b""
    (log.parent / "late.log").write_bytes(b"early bytes\n")
    assert one.read().all() == b"early bytes\n"


def test_compressed_files_are_left_alone_by_name_and_by_content(log: Path) -> None:
    (log.parent / "app.log.1.gz").write_bytes(gzip.compress(b"old\n"))
    (log.parent / "app.log.2").write_bytes(gzip.compress(b"older\n"))
    one = Follower(log.parent / "app.log*").read()
    assert one.all() == log.read_bytes()


@pytest.mark.parametrize("pattern", ["app.log", "app.log*"])
def test_rotation_by_rename_loses_and_repeats_nothing(log: Path, pattern: str) -> None:
    whole = log.read_bytes()
    one = Follower(log.parent / pattern).read()
    append(log, b"before\n")
    log.rename(log.parent / "app.log.1")
    append(log.parent / "app.log.1", b"still written to the old file\n")
    log.write_bytes(b"new file\n")
    assert one.read().all() == whole + b"before\nstill written to the old file\n" + b"new file\n"
    for _ in range(GRACE_SUCCEEDED + 1):
        one.read()
    assert one.ended == ([0] if pattern == "app.log" else [])
    assert one.read().all().count(b"before") == 1


def test_a_renamed_file_without_a_successor_is_followed_on(log: Path) -> None:
    one = Follower(log).read()
    log.rename(log.parent / "elsewhere")
    for _ in range(GRACE_DELETED * 2):
        one.read()
    append(log.parent / "elsewhere", b"a redirect keeps writing\n")
    assert one.read().all().endswith(b"a redirect keeps writing\n")


@pytest.mark.parametrize("pattern", ["app.log", "app.log*"])
@pytest.mark.parametrize("looked_between", [True, False])
def test_rotation_by_copytruncate_loses_and_repeats_nothing(log: Path, pattern: str, looked_between: bool) -> None:
    one = Follower(log.parent / pattern).read()
    append(log, b"unread tail\nhalf a ")
    whole = log.read_bytes()
    (log.parent / "app.log.1").write_bytes(whole)
    if looked_between:
        one.read()
        assert one.all() == whole
    os.truncate(log, 0)
    append(log, b"line after\n")
    one.read()
    assert one.streams[0] == whole
    assert one.all() == whole + b"line after\n"
    for _ in range(GRACE_SUCCEEDED + 1):
        one.read()
    assert one.read().all() == whole + b"line after\n"


def test_truncation_without_a_copy_is_said_and_survived(log: Path) -> None:
    one = Follower(log).read()
    log.write_bytes(b"fresh\n")
    assert one.read().streams[1] == b"fresh\n"
    assert any("was truncated" in notice for notice in one.follower.notices)
    assert one.ended == [0]


def test_truncation_is_seen_even_when_the_file_has_grown_past_the_old_end(log: Path) -> None:
    one = Follower(log).read()
    log.write_bytes(b"other content\n" * 1000)
    assert one.read().all().count(b"other content") == 1000


def test_a_deleted_file_ends_after_a_while(log: Path) -> None:
    one = Follower(log).read()
    log.unlink()
    for _ in range(GRACE_DELETED + 1):
        one.read()
    assert one.ended == [0]
    assert one.marks == {}


def test_a_restart_goes_on_where_the_marks_are(log: Path) -> None:
    one = Follower(log).read()
    append(log, b"meanwhile\n")
    assert Follower(log, marks=list(one.marks.values())).read().all() == b"meanwhile\n"


@pytest.mark.parametrize("pattern", ["app.log", "app.log*"])
@pytest.mark.parametrize("how", ["rename", "copytruncate"])
def test_rotation_while_nobody_watched(log: Path, pattern: str, how: str) -> None:
    one = Follower(log.parent / pattern).read()
    append(log, b"tail\n")
    if how == "rename":
        log.rename(log.parent / "app.log.1")
    else:
        (log.parent / "app.log.1").write_bytes(log.read_bytes())
    log.write_bytes(b"new\n")
    again = Follower(log.parent / pattern, marks=list(one.marks.values())).read()
    assert sorted(again.all().splitlines()) == [b"new", b"tail"]
    third = Follower(log.parent / pattern, marks=list(again.marks.values())).read()
    assert third.all() == b""


def test_a_copy_that_was_read_is_not_read_again_after_a_restart(log: Path) -> None:
    pattern = log.parent / "app.log*"
    one = Follower(pattern).read()
    (log.parent / "app.log.1").write_bytes(log.read_bytes())
    log.write_bytes(b"new\n")
    one.read()
    assert Follower(pattern, marks=list(one.marks.values())).read().all() == b""


def test_a_reused_inode_is_not_taken_for_the_old_file(log: Path) -> None:
    one = Follower(log).read()
    (mark,) = one.marks.values()
    log.write_bytes(b"wholly different\n" * 100)
    again = Follower(log, marks=[mark]).read()
    assert again.all() == b"wholly different\n" * 100


def test_a_file_that_vanished_meanwhile_is_said(log: Path) -> None:
    one = Follower(log).read()
    log.unlink()
    again = Follower(log, marks=list(one.marks.values())).read()
    assert any("is gone" in notice for notice in again.follower.notices)


def test_two_names_of_one_file_are_one_file(log: Path) -> None:
    (log.parent / "link.log").symlink_to(log)
    os.link(log, log.parent / "hard.log")
    assert Follower(log.parent / "*.log").read().all() == log.read_bytes()


def test_too_many_files_are_said_once(tmp_path: Path) -> None:
    for number in range(5):
        (tmp_path / f"{number}.log").write_bytes(b"x\n")
    one = Follower(tmp_path / "*.log", most=3).read()
    one.read()
    assert one.all() == b"x\n" * 3
    assert len([notice for notice in one.follower.notices if "narrow the pattern" in notice]) == 2
    one.follower.close()


def test_a_link_that_is_turned_to_new_files_is_followed_and_the_old_ones_are_let_go(tmp_path: Path) -> None:
    link, said = tmp_path / "current.log", b""
    one = Follower(link, most=3)
    for number in range(10):
        target = tmp_path / f"2026-04-{number:02}"
        target.write_bytes(b"day %d\n" % number)
        beside = tmp_path / "beside"
        beside.symlink_to(target)
        beside.replace(link)
        one.read()
        append(target, b"late word of day %d\n" % number)
        said += target.read_bytes()
        for _ in range(GRACE_SUCCEEDED + 1):
            one.read()
    assert one.all() == said
    assert one.follower.notices == []
    assert one.ended == list(range(9))


def test_a_name_that_changes_between_look_and_opening_is_no_other_file(
    log: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other, opening = tmp_path / "other.log", os.open
    other.write_bytes(b"other\n")
    link = tmp_path / "x.link"
    link.symlink_to(log)
    targets = [other, log, other]

    def swapped(path: str, flags: int, *more: int) -> int:
        if targets and path == str(log):
            path = str(targets.pop())
        return opening(path, flags, *more)

    before = len(os.listdir("/proc/self/fd"))
    one = Follower(log, other, link)
    monkeypatch.setattr(os, "open", swapped)
    for _ in range(5):
        one.read()
    assert sorted(one.streams.values()) == sorted([log.read_bytes(), b"other\n"])
    assert len(os.listdir("/proc/self/fd")) == before + 2
    one.follower.close()
    assert len(os.listdir("/proc/self/fd")) == before


def test_what_takes_a_files_place_and_is_none_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log, pipe, opening = tmp_path / "a.log", tmp_path / "pipe", os.open
    log.write_bytes(b"x\n")
    os.mkfifo(pipe)
    monkeypatch.setattr(
        os, "open", lambda path, flags, *more: opening(pipe if path == str(log) else path, flags, *more)
    )
    before = len(os.listdir("/proc/self/fd"))
    one = Follower(log).read()
    assert (one.all(), len(one.follower.notices), len(os.listdir("/proc/self/fd"))) == (b"", 1, before)


def test_links_in_circles_come_to_an_end(log: Path) -> None:
    for name in ("a", "b", "c"):
        (log.parent / name).symlink_to(log.parent)
    one = Follower(log.parent / "**" / "*.log", most=5).read()
    assert one.all() == log.read_bytes()
    assert [notice for notice in one.follower.notices if "narrow them" in notice]


def test_a_poll_gives_no_more_than_its_share_and_leaves_no_file_behind(tmp_path: Path) -> None:
    from vllm_vitals.logs.files import CHUNK, POLL_BYTES

    count = 2 * POLL_BYTES // CHUNK
    for number in range(count):
        (tmp_path / f"{number:03}.log").write_bytes(b"x" * 2 * CHUNK)
    follower, lengths = FileFollower([str(tmp_path / "*.log")], []), []
    seen: set[int] = set()
    while chunks := follower.poll():
        lengths.append(sum(len(chunk.data) for chunk in chunks))
        seen |= {chunk.key for chunk in chunks}
        if len(lengths) == 2:
            assert len(seen) == count
    assert max(lengths) == POLL_BYTES
    assert sum(lengths) == count * 2 * CHUNK
    follower.close()


def test_directories_and_pipes_are_no_files(tmp_path: Path) -> None:
    (tmp_path / "dir.log").mkdir()
    os.mkfifo(tmp_path / "pipe.log")
    assert Follower(tmp_path / "*.log").read().all() == b""
