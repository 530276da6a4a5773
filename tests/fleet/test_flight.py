import errno
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import CapturingLogger

from vllm_vitals.core.snapshot import EngineKey, EngineSnapshot, Scrape, TargetSnapshot
from vllm_vitals.core.states import State
from vllm_vitals.core.target_evaluator import TargetEvaluator
from vllm_vitals.recordings import flight as module
from vllm_vitals.recordings import recording
from vllm_vitals.recordings.flight import Flight, FlightRecorder, file_name, make_room
from vllm_vitals.recordings.ring_buffer import ScrapeRingBuffer, pack, unpack, unroll

RECORDINGS = Path(__file__).parent.parent / "data" / "recordings"


def at_once(work: Callable[[], None]) -> None:
    work()


def body(n: int) -> bytes:
    return b"# TYPE vllm:x counter\nvllm:x %d\nvllm:y 1\n" % n


def poll(recorder: FlightRecorder, at: float, state: State, target: str = "a:8000") -> None:
    scrape = Scrape(at, 0.1, body(int(at)))
    engine = EngineSnapshot(EngineKey(target, "m", "0"), state, at, at)
    recorder.observe(scrape, TargetSnapshot(target, True, at, 0.1, engines=(engine,)))


def story(
    recorder: FlightRecorder, states: str, start: float = 1_000.0, step: float = 10.0, target: str = "a:8000"
) -> float:
    """One poll a letter: h healthy, t thrashing, s stalled, d death_spiral."""
    letters = {"h": State.HEALTHY, "t": State.THRASHING, "s": State.STALLED, "d": State.DEATH_SPIRAL}
    for n, letter in enumerate(states):
        poll(recorder, start + n * step, letters[letter], target)
    return start + len(states) * step


@pytest.fixture
def log() -> CapturingLogger:
    return CapturingLogger()


def times(file: Path) -> list[float]:
    return [scrape.at for scrape in recording.read(file)]


# the tape


lines = st.lists(
    st.sampled_from([b"a 1", b"a 2", b"", b"b \xff", b"12 3", b" 1", b" ", b"a", b"a=1", b"a b 2", b"=3"]), max_size=6
)


@given(lines, lines)
def test_packing_gives_back_every_byte(first: list[bytes], then: list[bytes]) -> None:
    one, two = b"\n".join(first), b"\n".join(then)
    assert unpack(pack(one, two), two) == one


def scrapes_of(name: str) -> Iterator[Scrape]:
    return recording.read(RECORDINGS / name / "metrics.jsonl.gz")


@pytest.mark.parametrize("name", ["restart_under_load", "dp2_pressure"])
def test_a_tape_gives_back_real_scrapes_byte_for_byte(name: str) -> None:
    tape, seen = ScrapeRingBuffer(60.0, 10**7), []
    for scrape in scrapes_of(name):
        tape.push(scrape)
        seen.append(scrape)
    expected = [s for s in seen if s.at >= seen[-1].at - 60.0]
    assert unroll(tape.copy()) == expected
    assert len(expected) < len(seen)


def test_of_a_counter_that_moved_only_its_number_is_kept() -> None:
    """100 targets hold 6,000 scrapes: their text would be 15 MB more."""
    first, *_, before, last = (scrape.body or b"" for scrape in scrapes_of("dp2_pressure"))
    assert len(first) > 20_000
    assert len(pack(before, last)) < 2_000


def test_five_minutes_of_a_real_engine_fit_the_default_memory() -> None:
    tape, scrapes = ScrapeRingBuffer(300.0, 10**9), list(scrapes_of("spiral_chunked"))
    for scrape in scrapes:
        tape.push(scrape)
    per_scrape = (tape.nbytes - len(scrapes[-1].body or b"")) / (len(scrapes) - 1)
    assert per_scrape * 60 + 60_000 < Flight("x").memory_per_target


@given(st.lists(st.integers(0, 4_000), min_size=1, max_size=40), st.integers(1, 3_000))
def test_a_tape_never_holds_more_than_it_may(sizes: list[int], limit: int) -> None:
    tape = ScrapeRingBuffer(1e9, limit)
    for n, size in enumerate(sizes):
        tape.push(Scrape(float(n), 0.0, None if size % 7 == 3 else b"x" * size))
        assert tape.nbytes <= limit
        unroll(tape.copy())


# the recorder


def test_before_and_after_an_incident_are_on_disk(tmp_path: Path, log: CapturingLogger) -> None:
    recorder = FlightRecorder(Flight(str(tmp_path), before=50, after=30), log, at_once)
    story(recorder, "hhhhhhhhhh" + "tttttttt")
    (file,) = tmp_path.iterdir()
    assert file.name == "a_8000-19700101T001820Z-thrashing.jsonl.gz"
    assert times(file) == [1_050, 1_060, 1_070, 1_080, 1_090, 1_100, 1_110, 1_120, 1_130]
    assert [s.body for s in recording.read(file)] == [body(int(t)) for t in times(file)]
    assert [call.args[0] for call in log.calls] == ["flight_recorded"]


def test_a_calm_engine_writes_nothing(tmp_path: Path, log: CapturingLogger) -> None:
    recorder = FlightRecorder(Flight(str(tmp_path / "never")), log, at_once)
    story(recorder, "h" * 50)
    recorder.close()
    assert not (tmp_path / "never").exists()


def test_a_worse_state_during_a_recording_makes_it_longer_not_two(tmp_path: Path, log: CapturingLogger) -> None:
    recorder = FlightRecorder(Flight(str(tmp_path), before=50, after=30), log, at_once)
    story(recorder, "hh" + "tt" + "dddddddd")
    (file,) = tmp_path.iterdir()
    assert times(file)[-1] == 1_040 + 30


def test_an_engine_that_flaps_for_ever_does_not_record_for_ever(tmp_path: Path, log: CapturingLogger) -> None:
    recorder = FlightRecorder(Flight(str(tmp_path), before=20, after=100), log, at_once)
    story(recorder, "hs" * 200)
    recorder.close()
    longest = max(times(file)[-1] - times(file)[0] for file in tmp_path.iterdir())
    assert longest <= 20 + 6 * 100 + 10


def test_the_spiral_recording_is_recorded_from_before_its_onset(tmp_path: Path, log: CapturingLogger) -> None:
    recorder, judge = (
        FlightRecorder(Flight(str(tmp_path), before=60, after=20), log, at_once),
        TargetEvaluator("real:8000"),
    )
    originals = list(scrapes_of("spiral_chunked"))
    for scrape in originals:
        recorder.observe(scrape, judge.observe(scrape))
    recorder.close()
    files = sorted(tmp_path.iterdir())
    assert files
    kept = list(recording.read(files[0]))
    assert kept == [s for s in originals if kept[0].at <= s.at <= kept[-1].at]
    assert kept[-1].at - kept[0].at >= 60


def test_a_recording_that_was_cut_off_by_a_kill_replays_up_to_the_cut(tmp_path: Path, log: CapturingLogger) -> None:
    recorder = FlightRecorder(Flight(str(tmp_path), before=50, after=1_000), log, at_once)
    story(recorder, "hhhttt")
    (file,) = tmp_path.iterdir()
    seen = []
    with pytest.raises(recording.RecordingError, match="read up to there"):
        seen.extend(scrape.at for scrape in recording.read(file))
    assert seen == [1_000, 1_010, 1_020, 1_030, 1_040, 1_050]
    recorder.close()


def test_the_number_of_files_is_capped_and_a_noisy_target_pushes_out_its_own(
    tmp_path: Path, log: CapturingLogger
) -> None:
    recorder = FlightRecorder(Flight(str(tmp_path), before=10, after=10, max_files=4), log, at_once)
    at = story(recorder, "hsss", target="quiet:1")
    for _ in range(10):
        at = story(recorder, "hsss", start=at, target="noisy:1")
    names = sorted(file.name for file in tmp_path.iterdir())
    assert len(names) == 4
    assert [name for name in names if name.startswith("quiet")] == ["quiet_1-19700101T001650Z-stalled.jsonl.gz"]


def test_the_bytes_are_capped(tmp_path: Path, log: CapturingLogger) -> None:
    recorder = FlightRecorder(Flight(str(tmp_path), before=10, after=10, max_bytes=4_000), log, at_once)
    at = 1_000.0
    for _ in range(30):
        at = story(recorder, "hsss", start=at)
        assert sum(file.stat().st_size for file in tmp_path.iterdir()) <= 4_000
    assert len(list(tmp_path.iterdir())) > 1


def test_files_of_others_are_left_alone(tmp_path: Path) -> None:
    for name in ("notes.txt", "my.jsonl.gz", "a_1-20260101T000000Z-healthy.jsonl.gz"):
        (tmp_path / name).write_bytes(b"x" * 100)
    (tmp_path / "a_1-20260101T000000Z-stalled.jsonl.gz").write_bytes(b"x")
    make_room(tmp_path, 0, 0)
    assert len(list(tmp_path.iterdir())) == 3


class FullDisk(recording.Writer):
    """A disk that fills up after the first scrape."""

    def write(self, scrape: Scrape) -> None:
        if self.scrapes:
            raise OSError(errno.ENOSPC, "No space left on device")
        super().write(scrape)


def test_a_full_disk_is_one_line_and_nothing_else_breaks(
    tmp_path: Path, log: CapturingLogger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module.recording, "Writer", FullDisk)
    recorder = FlightRecorder(Flight(str(tmp_path), before=50, after=30), log, at_once)
    at = story(recorder, "hhhtttttttt")
    (call,) = log.calls
    assert call.args == ("flight_recording_failed",)
    assert call.kwargs["why"] == "No space left on device"
    monkeypatch.undo()
    story(recorder, "hhhtttttttt", start=at)
    assert [call.args[0] for call in log.calls] == ["flight_recording_failed", "flight_recorded"]


def test_a_directory_that_cannot_be_made_is_one_line(tmp_path: Path, log: CapturingLogger) -> None:
    (tmp_path / "file").write_text("")
    recorder = FlightRecorder(Flight(str(tmp_path / "file" / "flight")), log, at_once)
    story(recorder, "hhhttttt")
    assert [(call.args[0], call.kwargs["why"]) for call in log.calls] == [
        ("flight_recording_failed", "Not a directory")
    ]


def test_a_whole_fleet_in_trouble_opens_a_bounded_number_of_files(tmp_path: Path, log: CapturingLogger) -> None:
    recorder = FlightRecorder(Flight(str(tmp_path)), log, at_once)
    for n in range(50):
        story(recorder, "hs", target=f"t{n}:8000")
    assert len(list(tmp_path.iterdir())) == module.MAX_OPEN
    assert sum(call.args[0] == "flight_not_recorded" for call in log.calls) == 50 - module.MAX_OPEN
    recorder.close()


def test_a_target_that_leaves_takes_its_memory_along_and_its_recording_is_whole(
    tmp_path: Path, log: CapturingLogger
) -> None:
    recorder = FlightRecorder(Flight(str(tmp_path), after=1_000), log, at_once)
    story(recorder, "hhtt")
    recorder.forget(["a:8000"])
    (file,) = tmp_path.iterdir()
    assert times(file) == [1_000, 1_010, 1_020, 1_030]
    assert recorder._tapes == {}


def test_the_real_worker_writes_what_the_instant_one_does(tmp_path: Path, log: CapturingLogger) -> None:
    recorder = FlightRecorder(Flight(str(tmp_path), before=50, after=30), log)
    story(recorder, "hhhtttttttt")
    recorder.close()
    (file,) = tmp_path.iterdir()
    assert times(file) == [1_000, 1_010, 1_020, 1_030, 1_040, 1_050, 1_060]


@pytest.mark.parametrize("target", ["../../etc/passwd", "a/b:1", "\n", "名前:8000", ".hidden", "x" * 500, ""])
def test_no_target_name_leads_out_of_the_directory(target: str) -> None:
    name = file_name(target, 0.0, State.STALLED)
    assert Path(name).name == name
    assert not name.startswith(".")
    assert len(name) < 140
