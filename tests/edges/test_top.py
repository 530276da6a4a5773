"""The live view: what is remembered, what keys do, what is drawn, and the whole of it in a pseudo-terminal."""

import asyncio
import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests import fed_time
from tests.programs import DEADLINE_S, PATIENCE_S
from tests.typed import typed
from vllm_vitals.core.snapshot import TargetSnapshot
from vllm_vitals.core.states import State
from vllm_vitals.recordings import recording
from vllm_vitals.recordings.replay import judge
from vllm_vitals.scrape.target import Target
from vllm_vitals.serve import views
from vllm_vitals.top.draw import Canvas, draw, sparkline
from vllm_vitals.top.memory import MAX_ENGINES, POINTS, SIGNS, Book
from vllm_vitals.top.sources import Daemon, Recording, Servers
from vllm_vitals.top.view import SORTS, View, keys

ROOT = Path(__file__).parent.parent.parent
SPIRAL = ROOT / "tests/data/recordings/spiral_chunked/metrics.jsonl.gz"


def target(
    name: str, state: str = "healthy", at: float = 1.0, up: bool = True, **values: float | None
) -> dict[str, Any]:
    known = {"requests_running": 1.0, "requests_waiting": 0.0, "kv_cache_usage_max_ratio": 0.5, **values}
    engine = {
        "target": name, "model_name": "m", "engine": "0", "state": state, "since": at, "values": known,
        "evidence": [{"text": "preemptions per finished request: 9"}],
        "advice": [{"when": "now", "knob": "gateway_concurrency", "direction": "down", "size": "to 4", "watch": "R"}],
        "unknown": ["client disconnects"],
    }  # fmt: skip
    return {"target": name, "up": up, "last_scrape": at, "engines": [engine], "settings": {"block_size": "16"}}


def screen(book: Book, view: View, width: int = 80, height: int = 24, blocks: bool = True) -> list[str]:
    shown = view.ordered(book.entries.values())
    return [line.plain for line in draw(book, shown, view, "test", Canvas(width, height, blocks))]


def press(view: View, book: Book, *pressed: str) -> None:
    for key in pressed:
        view.press(key, view.ordered(book.entries.values()))


@pytest.fixture
def three() -> Book:
    book = Book()
    book.take(10.0, [target("a:1"), target("b:1", "death_spiral", requests_waiting=40.0), target("c:1", "saturated")])
    return book


def test_the_worst_engine_comes_first_with_its_proof_and_what_to_do(three: Book) -> None:
    lines = screen(three, View())
    assert len(lines) == 24
    assert "1 death spiral" in lines[0]
    assert [line.split()[0] for line in lines[2:5]] == [">", "saturated", "healthy"]
    assert "death spiral" in lines[2]
    text = "\n".join(lines)
    assert "DEATH SPIRAL" in text
    assert "now: gateway_concurrency down: to 4" in text
    assert "preemptions per finished request: 9" in text


def test_the_chosen_engine_stays_chosen_when_the_order_changes(three: Book) -> None:
    view = View()
    press(view, three, "down")
    assert view.chosen == ("c:1", "m", "0")
    three.take(20.0, [target("a:1"), target("b:1"), target("c:1", "stalled")])
    assert screen(three, view)[2].startswith("> stalled")
    press(view, three, "down", "down", "down", "up", "end")
    assert view.ordered(three.entries.values())[-1].key == view.chosen


def test_enter_shows_one_engine_and_escape_goes_back(three: Book) -> None:
    view = View()
    press(view, three, "enter")
    text = "\n".join(screen(three, view, height=40))
    proof = ("DEATH SPIRAL", "watch R", "states: death spiral", "not known: client", "block_size 16")
    for part in (*proof, *(sign.title for sign in SIGNS)):
        assert part in text
    press(view, three, "down", "down")
    assert view.scroll == 2
    press(view, three, "escape")
    assert not view.one


def test_a_filter_is_typed_kept_and_cleared(three: Book) -> None:
    view = View()
    press(view, three, "/", "q", "backspace", *"spiral b:")
    assert not view.done
    assert len(view.ordered(three.entries.values())) == 1
    assert "filter: spiral b:" in screen(three, view)[-1]
    press(view, three, "enter")
    assert "only: spiral b:" in screen(three, view)[-1]
    press(view, three, "/", *"zz", "enter")
    assert any("no engine matches" in line for line in screen(three, view))
    press(view, three, "escape")
    assert len(view.ordered(three.entries.values())) == 3


def test_sorting_goes_through_every_order(three: Book) -> None:
    view = View()
    seen = {}
    for _ in SORTS:
        seen[view.sort] = [entry.key[0] for entry in view.ordered(three.entries.values())]
        press(view, three, "s")
    assert view.sort == "state"
    assert seen["name"] == ["a:1", "b:1", "c:1"]
    assert seen["waiting"][0] == "b:1"


def test_errors_of_the_server_s_log_stand_with_one_engine_the_newest_first() -> None:
    book = Book()
    told = {**target("a:1"), "log_errors": [
        {"at": 40.0 + n, "kind": "other", "text": f"error {n}\x1b[2J"} for n in range(9)
    ]}  # fmt: skip
    book.take(100.0, [told])
    lines = screen(book, View(one=True), 100, 40)
    (first,) = [number for number, line in enumerate(lines) if "errors in its log" in line]
    assert [line.split(": ")[1][:7] for line in lines[first + 1 : first + 7]] == [f"error {n}" for n in range(8, 2, -1)]
    assert "52 s ago other: error 8" in lines[first + 1]
    book.take(110.0, [{**told, "log_errors": []}])
    assert any("no error since the daemon reads it" in line for line in screen(book, View(one=True), 100, 40))
    book.take(120.0, [{**told, "log_errors": [5, {"at": "x"}]}, {**target("b:1"), "log_errors": 7}])
    assert any("? ago None: None" in line for line in screen(book, View(one=True), 100, 40))


def test_a_tall_terminal_has_room_for_all_of_the_chosen_engine(three: Book) -> None:
    three.entries["b:1", "m", "0"].engine["evidence"].extend({"text": f"proof {n}"} for n in range(9))
    assert "proof 8" in "\n".join(screen(three, View(), height=24))
    assert "proof 8" not in "\n".join(screen(three, View(), height=12))


def test_pause_and_help_and_quit(three: Book) -> None:
    view = View()
    press(view, three, "p", "?")
    lines = screen(three, view)
    assert "PAUSED" in lines[0]
    assert any("choose an engine" in line for line in lines)
    press(view, three, "?", " ", "q")
    assert (view.paused, view.help, view.done) == (False, False, True)


def test_keys_are_told_from_bytes() -> None:
    assert list(keys(b"\x1b[A\x1b[6~j\r\x1b\xc3\xa4\x1b[15;2~q")) == [
        "up", "page down", "j", "enter", "escape", "ä", "q",
    ]  # fmt: skip


@pytest.mark.parametrize(("width", "height"), [(80, 24), (200, 50), (40, 10), (20, 5), (10, 2)])
@pytest.mark.parametrize("one", [False, True])
def test_no_line_is_wider_or_more_than_the_terminal(width: int, height: int, one: bool) -> None:
    book = Book()
    for poll in judge("spiral", recording.read(SPIRAL)):
        book.take(poll.at, [views.target(poll, poll.at)])
    lines = screen(book, View(one=one), width, height)
    assert len(lines) == height
    assert max(map(len, lines)) <= width


def test_a_wide_terminal_shows_more_vital_signs(three: Book) -> None:
    narrow, wide = screen(three, View())[1], screen(three, View(), width=200)[1]
    assert narrow.count("preempt/s") == 1
    assert "TPOT p99" not in narrow
    assert "truncated" in wide


def test_what_lies_below_the_first_bucket_is_said_so_and_is_not_the_gap_between_tokens() -> None:
    book = Book()
    known = {"tpot_p99_seconds": None, "tpot_p99_seconds_lower": 0.0, "tpot_p99_seconds_upper": 0.01}
    book.take(1.0, [target("a:1", **known, tpot_p99_seconds_inter_token=0.0236)])
    text = "\n".join(screen(book, View(one=True), height=40))
    assert "<10 ms" in text
    assert "23.6" not in text
    book.take(2.0, [target("a:1", tpot_p99_seconds=None, tpot_p99_seconds_inter_token=0.0236, at=2.0)])
    assert "23.6 ms" in "\n".join(screen(book, View(one=True), height=40))


def test_60_columns_hold_the_usage_of_the_cache_and_help_is_read_to_its_end(three: Book) -> None:
    assert "50%" in screen(three, View(), 60, 20)[2]
    assert "or end it" in " ".join(" ".join(screen(three, View(help=True), 60, 20)).split())
    assert "PAUSED" in screen(three, View(paused=True), 40, 10)[0]


def test_without_utf_8_nothing_but_ascii_is_drawn(three: Book) -> None:
    view = View()
    for _ in range(2):
        drawn = "\n".join(screen(three, view, blocks=False)).replace("–", "")
        assert drawn.isascii()
        press(view, three, "enter")


def test_absent_is_a_gap_and_never_zero() -> None:
    assert sparkline([0.0, None, 5.0, 10.0], 6, Canvas(80, 24)) == "  ▁ ▅█"
    book = Book()
    for at in (1.0, 2.0, 2.0):  # the third answer has no new scrape
        book.take(at, [target("a:1", at=at)])
    assert list(book.entries["a:1", "m", "0"].signs["preempt/s"]) == [None, None]
    book.take(3.0, [target("a:1", "down", at=2.0, up=False, kv_cache_usage_max_ratio=0.9)])
    assert list(book.entries["a:1", "m", "0"].signs["KV usage"]) == [0.5, 0.5, None]
    assert [state for _, state in book.entries["a:1", "m", "0"].runs] == [State.HEALTHY, State.DOWN]


def test_memory_is_bounded_and_what_is_gone_is_forgotten() -> None:
    book = Book()
    for at in range(2 * POINTS):
        book.take(float(at), [target("a:1", at=float(at))])
    assert len(book.entries["a:1", "m", "0"].signs["KV usage"]) == POINTS
    book.take(1.0, [target(f"t{n}:1") for n in range(MAX_ENGINES + 3)])
    assert (len(book.entries), book.left_out) == (MAX_ENGINES, 3)
    assert ("a:1", "m", "0") not in book.entries


def test_what_a_server_says_cannot_paint_on_the_terminal() -> None:
    book = Book()
    hostile = target("a\x1b[2J:1", "new_state")
    hostile["engines"][0]["evidence"] = [{"text": "x\x1b]0;title\x07"}]
    book.take(1.0, [hostile])
    for one in (False, True):
        assert not re.search(r"[\x00-\x1f\x7f]", "".join(screen(book, View(one=one))))


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "nothing to watch"),
        (("http://a:1", "--replay", SPIRAL), "give one of: URLs, --daemon, --replay"),
        (("--replay", SPIRAL), "top needs a terminal"),
        (("--replay", SPIRAL, "--speed", "0"), "--speed"),
    ],
)
def test_a_wrong_call_is_one_line(arguments: Sequence[object], said: str) -> None:
    done = typed("top", *arguments)
    assert done.exit_code == 2
    assert said in done.stderr.splitlines()[0]


class Terminal:
    """A pseudo-terminal with ``top``, or another command, in it."""

    def __init__(
        self, arguments: Sequence[str], width: int, height: int, command: str = "top", **environment: str
    ) -> None:
        self.ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", height, width, 0, 0))
        base = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES", "NO_COLOR")}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "vllm_vitals", command, *arguments], stdin=theirs, stdout=theirs, stderr=theirs,
            env={**base, "TERM": "xterm-256color", "PYTHONPATH": str(ROOT / "exporter"), **environment},
            start_new_session=True,
        )  # fmt: skip
        self.before = termios.tcgetattr(theirs)
        self.theirs, self.said = theirs, b""

    def until(self, text: str) -> None:
        """Read until the text was drawn."""
        end = time.monotonic() + DEADLINE_S
        while text.encode() not in self.said:
            assert time.monotonic() < end, self.said[-3000:]
            assert self.process.poll() is None or select.select([self.ours], [], [], 0)[0], self.said[-3000:]
            if select.select([self.ours], [], [], 0.2)[0]:
                self.said += os.read(self.ours, 65536)

    def press(self, pressed: bytes) -> None:
        """Press keys; what was drawn before does not count."""
        self.said = b""
        os.write(self.ours, pressed)

    def end(self) -> int:
        """Return how it ended; the terminal is as before."""
        end = time.monotonic() + DEADLINE_S
        while self.process.poll() is None:  # what it still writes has to be read, or it waits
            assert time.monotonic() < end, self.said[-3000:]
            if select.select([self.ours], [], [], 0.1)[0]:
                self.said += os.read(self.ours, 65536)
        code = self.process.returncode
        assert termios.tcgetattr(self.theirs) == self.before
        return code


@pytest.fixture
def terminals() -> Iterator[list[Terminal]]:
    opened: list[Terminal] = []
    yield opened
    for each in opened:
        if each.process.poll() is None:
            each.process.kill()
            each.process.wait(PATIENCE_S)
        os.close(each.ours), os.close(each.theirs)


def test_in_a_terminal_keys_work_and_everything_is_put_back(terminals: list[Terminal]) -> None:
    terminal = Terminal(["--replay", str(SPIRAL), "--speed", "1000"], 80, 24)
    terminals.append(terminal)
    terminal.until(", end")
    terminal.until("> ")
    terminal.press(b"\r")
    terminal.until("esc back")
    terminal.until("recomputed")
    terminal.press(b"\x1b")
    terminal.until("enter one engine")
    terminal.press(b"/nothing\r")
    terminal.until("no engine matches")
    terminal.press(b"q")
    assert terminal.end() == 0


def test_the_demo_opens_as_top_does_and_ends_with_what_to_do_next(terminals: list[Terminal]) -> None:
    terminal = Terminal(["--speed", "100", "--listen", "127.0.0.1:0"], 100, 30, command="demo")
    terminals.append(terminal)
    terminal.until("The scenario has ended")
    terminal.until("recomputed")
    terminal.press(b"q")
    assert terminal.end() == 0
    assert b"vllm-vitals check http://localhost:8000" in terminal.said.rpartition(b"\x1b[?1049l")[2]


def test_no_color_has_no_colour(terminals: list[Terminal]) -> None:
    terminal = Terminal(["--replay", str(SPIRAL), "--speed", "1000"], 200, 50, NO_COLOR="1")
    terminals.append(terminal)
    terminal.until(", end")
    assert not re.search(rb"\x1b\[[\d;]*3[0-7]m", terminal.said)
    terminal.press(b"q")
    assert terminal.end() == 0


def test_a_recording_that_cannot_be_read_is_one_line(terminals: list[Terminal], tmp_path: Path) -> None:
    broken = tmp_path / "broken.jsonl"
    broken.write_text("{}\n")
    terminal = Terminal(["--replay", str(broken)], 80, 24)
    terminals.append(terminal)
    terminal.until("is not a scrape")
    assert terminal.end() == 2
    assert b"Traceback" not in terminal.said


def test_a_recording_is_wound_on_and_back_and_its_end_is_not_the_end() -> None:
    async def run() -> list[tuple[float, float]]:
        source, book, seen = Recording(SPIRAL, 1.0, None), Book(), list[tuple[float, float]]()
        start = next(recording.read(SPIRAL)).at
        said = asyncio.Event()

        def changed() -> None:
            seen.append((book.at - start, float(len(book.entries))))
            said.set()

        async def at(*seconds: float) -> None:
            for each in seconds:
                said.clear()
                source.seek(each)
                while not (seen and abs(seen[-1][0] - source._goal) <= 2.1):
                    await said.wait()
                    said.clear()

        playing = asyncio.create_task(source.run(book, changed))
        await at(90.0, -60.0, 30.0)
        source.seek(1e6)
        while ", end" not in source.title:
            await asyncio.sleep(0.01)
        await at(-1e9)
        playing.cancel()
        return seen

    seen = fed_time.run(run())
    assert len(seen) < 20  # what was wound over is not drawn
    assert [round(at, -1) for at, _ in seen if at > 1][:1] == [90]
    assert min(at for at, _ in seen[1:]) < 2


def test_a_servers_recording_is_begun_and_ended_by_one_key(tmp_path: Path) -> None:
    server = Target("gpu-1:8000", "http://gpu-1:8000/metrics")
    source, scrapes = Servers([server], tmp_path), list(recording.read(SPIRAL))[:3]
    assert "into" in source.save("gpu-1:8000")
    for scrape in scrapes:
        source._tape(scrape, TargetSnapshot("gpu-1:8000", True, scrape.at, 0.1))
        source._tape(scrape, TargetSnapshot("another:8000", True, scrape.at, 0.1))
    assert source.save("gpu-1:8000").endswith(".jsonl.gz: 3 scrapes")
    (file,) = tmp_path.iterdir()
    assert file.name.startswith("gpu-1_8000-")
    assert [scrape.body for scrape in recording.read(file)] == [scrape.body for scrape in scrapes]
    assert "No such file" in Servers([server], tmp_path / "none").save("gpu-1:8000")


def test_keys_ask_the_source_and_the_answer_stands_on_the_last_line(three: Book) -> None:
    view = View()
    press(view, three, "]", "{", "w")
    assert (view.seek, view.save, view.chosen) == (-270.0, True, ("b:1", "m", "0"))
    view.note = "recording b:1"
    assert "recording b:1" in screen(three, view)[-1]
    press(view, three, "down")
    assert "recording b:1" not in screen(three, view)[-1]
    assert "only a recording" in Daemon(Target("d", "http://d/metrics"), 1.0).seek(1.0)
    assert "vllm-vitals record" in Daemon(Target("d", "http://d/metrics"), 1.0).save("d")
