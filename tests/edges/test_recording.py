import gzip
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vllm_vitals.core.snapshot import DOWN_REASONS, SCRAPE_ERRORS, Scrape
from vllm_vitals.recordings import recording
from vllm_vitals.scrape import reasons

RECORDINGS = Path(__file__).parent.parent / "data" / "recordings"


def read_to_the_error(path: Path) -> tuple[list[Scrape], str]:
    seen = []
    try:
        for scrape in recording.read(path):
            seen.append(scrape)
    except recording.RecordingError as error:
        return seen, str(error)
    return seen, ""


def test_a_real_recording_reads_as_bodies_and_reasons() -> None:
    scrapes = list(recording.read(RECORDINGS / "restart_under_load" / "metrics.jsonl.gz"))
    assert len(scrapes) == 53
    assert [s.reason for s in scrapes].count("refused") == 18
    assert all((s.body is None) == bool(s.reason) for s in scrapes)
    assert scrapes[0].body is not None
    assert b"vllm:num_requests_running" in scrapes[0].body


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    scrapes = [
        Scrape(1.5, 0.01, b"# a\nvllm:x 1\n"),
        Scrape(2.5, 0.02, None, "refused", "connection refused"),
        Scrape(3.5, 0.0, "snow ☃\n".encode()),
        Scrape(4.5, 5.0, None, "timeout", "no answer in 5 s"),
    ]
    path = tmp_path / "r.jsonl.gz"
    path.write_bytes(recording.to_bytes(iter(scrapes)))
    assert list(recording.read(path)) == scrapes


def test_a_body_that_is_not_utf8_is_recorded_as_an_encoding_error(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl.gz"
    path.write_bytes(recording.to_bytes(iter([Scrape(1.0, 0.0, b"vllm:x\xff 1\n")])))
    (scrape,) = recording.read(path)
    assert (scrape.body, scrape.reason) == (None, "encoding")


def test_a_cut_off_recording_gives_every_whole_scrape_then_one_clear_line(tmp_path: Path) -> None:
    whole = (RECORDINGS / "engine_hang" / "metrics.jsonl.gz").read_bytes()
    path = tmp_path / "cut.jsonl.gz"
    path.write_bytes(whole[: len(whole) // 2])
    seen, error = read_to_the_error(path)
    assert 10 < len(seen) < 58
    assert "cut off or damaged after line" in error
    assert "\n" not in error


def test_a_writer_that_is_never_closed_loses_no_scrape(tmp_path: Path) -> None:
    path = tmp_path / "crash.jsonl.gz"
    with path.open("wb") as file:
        writer = recording.Writer(file)
        for at in range(5):
            writer.write(Scrape(float(at), 0.0, b"vllm:x 1\n"))
        on_disk = path.read_bytes()
    path.write_bytes(on_disk)
    seen, error = read_to_the_error(path)
    assert [s.at for s in seen] == [0, 1, 2, 3, 4]
    assert "after line 5" in error


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"not json\n", "line 1 is not a scrape"),
        (b'{"t": 1, "status": 200, "text": ""}\n[1]\n', "line 2 is not a scrape"),
        (b'{"t": "noon", "status": 200}\n', "line 1 is not a scrape"),
        (b'{"status": 200}\n', "line 1 is not a scrape"),
        (b'{"t": 1, "status": 200, "text": 5}\n', "line 1 is not a scrape"),
        (b"\x1f\x8bnot gzip at all", "cut off or damaged"),
    ],
)
def test_what_is_not_a_recording_is_one_line(tmp_path: Path, content: bytes, says: str) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_bytes(content)
    with pytest.raises(recording.RecordingError, match=says) as raised:
        list(recording.read(path))
    assert str(path) in str(raised.value)
    assert "\n" not in str(raised.value)


def test_a_missing_file_and_a_folder_are_one_line_each(tmp_path: Path) -> None:
    for path, says in ((tmp_path / "none", "No such file"), (tmp_path, "Is a directory")):
        with pytest.raises(recording.RecordingError, match=says):
            list(recording.read(path))


def test_a_line_without_end_is_refused_before_memory_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recording, "MAX_LINE_BYTES", 1000)
    path = tmp_path / "long.jsonl.gz"
    line = json.dumps({"t": 1, "status": 200, "text": "x" * 2000})
    path.write_bytes(gzip.compress(f"{line}\n".encode()))
    with pytest.raises(recording.RecordingError, match="line 1 is longer than 1000 bytes"):
        list(recording.read(path))


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("Connection refused", "refused"),
        ("[Errno 111] Connect call failed", "refused"),
        ("[Errno -2] Name or service not known", "dns"),
        ("Temporary failure in name resolution", "dns"),
        ("[Errno 113] No route to host", "unreachable"),
        ("TimeoutError()", "timeout"),
        ("read timed out", "timeout"),
        ("context deadline exceeded", "timeout"),
        ("SSLCertVerificationError", "tls"),
        ("certificate verify failed", "tls"),
        ("HTTP 500 Internal Server Error", "http_error"),
        ("HTTP 401", "unauthorized"),
        ("404, message='Not Found'", "not_found"),
        ("HTTP 307 Temporary Redirect", "redirect"),
        ("Response payload is not completed", "truncated"),
        ("something new", "protocol"),
        ("timeout: no answer in 5 s", "timeout"),
    ],
)
def test_error_texts_of_many_clients_map_to_reasons(text: str, reason: str) -> None:
    assert reasons.of_text(text)[0] == reason


@given(st.text())
def test_every_text_has_exactly_one_reason_and_nonsense_is_never_down(text: str) -> None:
    reason, detail = reasons.of_text(text)
    assert reason in SCRAPE_ERRORS
    assert "\n" not in detail
    assert reasons.of_text("\N{SNOWMAN}")[0] not in DOWN_REASONS


def test_the_target_is_named_after_the_folder_only_where_the_file_says_nothing() -> None:
    assert recording.target_name(Path("a/spiral_chunked/metrics.jsonl.gz")) == "spiral_chunked"
    assert recording.target_name(Path("a/b/node-7.jsonl.gz")) == "node-7"
