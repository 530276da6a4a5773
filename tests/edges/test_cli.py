"""The command line as a person meets it: verdicts, exit codes, one-line errors, never a traceback."""

import asyncio
import gzip
import io
import json
import os
import re
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import structlog
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from rich.console import Console

from tests.edges.servers import RECORDINGS, bodies, plays, says, serving
from tests.programs import PATIENCE_S
from vllm_vitals import log
from vllm_vitals.cli import main, observe, verdict
from vllm_vitals.core.snapshot import EngineKey, EngineSnapshot, TargetSnapshot
from vllm_vitals.core.states import State
from vllm_vitals.core.thresholds import Thresholds
from vllm_vitals.recordings import recording, replay
from vllm_vitals.scrape.target import Target

ROOT = Path(__file__).parent.parent.parent
SPIRAL = RECORDINGS / "spiral_chunked" / "metrics.jsonl.gz"


def called(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as ended:
        main.main(arguments)
    seen = capsys.readouterr()
    assert "Traceback" not in seen.out + seen.err
    code = ended.value.code
    assert isinstance(code, int)
    return code, seen.out, seen.err


def program(*arguments: str, **more: Any) -> "subprocess.CompletedProcess[str]":
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "exporter")}
    return subprocess.run(
        [sys.executable, "-m", "vllm_vitals", *arguments], env=environment, capture_output=True, text=True,
        timeout=PATIENCE_S, check=False, **more,
    )  # fmt: skip


def test_a_recording_of_a_spiral_is_critical_with_evidence_and_a_knob(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = called(capsys, "check", "--replay", str(SPIRAL))
    assert (code, err) == (2, "")
    assert "DEATH SPIRAL" in out
    assert "preemptions per finished request" in out
    assert "gateway_concurrency down" in out
    assert "why: preempt, requeue, preempt again; watch" in out
    assert re.search(r"first token p99 [\d.]+ s \([\d.]+ s to [\d.]+ s\)", out)  # never without its bounds
    assert "how to set each: docs/knobs.md" in out
    assert "not known:" in out
    assert "\x1b[" not in out


def test_a_calm_recording_is_zero(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = called(capsys, "check", "--replay", str(RECORDINGS / "truncation_mix" / "metrics.jsonl.gz"))
    assert code == 0
    assert "HEALTHY" in out


MISTAKES: list[tuple[list[str], int, str]] = [
    (["check"], 3, "nothing to check: give a URL"),
    (["check", "--replay", "nowhere.gz"], 3, "nowhere.gz: No such file or directory"),
    (["check", "http://u:S3CRET@h:99999"], 3, "targets[0].url: the port of the address"),
    (["check", "a", "--for", "30"], 3, "'--for': \"30\" is no duration: write 30s"),
    (["check", "a", "--for", "0s"], 3, "'--for': expected at least 1ms, got 0s"),
    (["check", "a", "--for", "4s"], 3, "--for: a verdict needs 5s at least"),
    (["check", "a", "--interval", "1:30"], 3, "'--interval': \"1:30\" is no duration: write one such as 30s"),
    (["check", "a", "--interval", "9" * 400 + "s"], 3, "is longer than 10000d"),
    (["check", "a", "--user", "u"], 3, "--user and --password-file belong together"),
    (["check", "a", "--bearer-token-file", "t", "--user", "u", "--password-file", "p"], 3, "not both"),
    (["check", "a", "--header", "x"], 3, "--header: expected 'Name: value', got 'x'"),
    (["check", "a", "--header", "Authorization: x"], 3, "a secret stands in a file: give bearer_token_file"),
    (["check", "--bearer-token-file", "t"], 3, "are for URLs on the command line: give a URL"),
    (["check", "--replay", "b", "--ca-file", "c"], 3, "are for live servers, not for --replay"),
    (["check", "http://${VLLM}:8000"], 3, "targets[0].url: ${VLLM} is not filled in"),
    (["check", "a", "--replay", "b"], 3, "give either URLs or --replay"),
    (["check", "--replay", "b", "--for", "30s"], 3, "--for and --interval are for live servers"),
    (["check", "--replay", "b", "--interval", "2s"], 3, "--for and --interval are for live servers"),
    (["check", "--replay", "/dev/null"], 3, "/dev/null: no scrape in it"),
    (["run"], 2, "nothing to watch: give a URL"),
    (["run", "a", "--listen", "nonsense"], 2, "listen: expected host:port"),
    (["run", "--config", "nowhere.yaml"], 2, "nowhere.yaml: No such file or directory"),
    (["run", "a", "--listen", "9840"], 2, 'write "127.0.0.1:9840" to be read from this machine'),
    (["run", "a", "--interval", "nan"], 2, "'--interval': \"nan\" is no duration"),
    (["run", "--config", "/dev/null"], 2, "/dev/null: no targets, discovery or logs.sources, and no URL"),
    (["record", "a"], 2, "Missing option '-o'"),
    (["record", "-o", "b"], 2, "which server? give its URL or name: such as http://localhost:8000"),
    (["record", "a", "-o", "b", "--interval", "inf"], 2, "'--interval': \"inf\" is no duration"),
    (["record", "a", "-o", "/dev/full", "--force", "--for", "1s"], 2, "/dev/full: No space left on device"),
    (["config", "check", "nowhere.yaml"], 2, "nowhere.yaml: No such file or directory"),
    (["cheque"], 2, "No such command 'cheque'"),
    (["check", "--nonsense"], 3, "No such option"),
]


@pytest.mark.parametrize(("arguments", "code", "says_so"), MISTAKES, ids=[" ".join(case[0])[:40] for case in MISTAKES])
def test_a_mistake_is_one_line_and_its_exit_code(
    capsys: pytest.CaptureFixture[str], arguments: list[str], code: int, says_so: str
) -> None:
    ended, out, err = called(capsys, *arguments)
    assert (ended, out) == (code, "")
    assert says_so in err
    assert len([line for line in err.splitlines() if not line.startswith("Try:")]) == 1
    assert "S3CRET" not in err


def test_help_is_quick_to_load_and_names_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = called(capsys, "--help")
    assert code == 0
    for command in ("run", "check", "record", "config"):
        assert f"  {command} " in out


def test_a_port_that_is_taken_is_one_line() -> None:
    async def run() -> "subprocess.CompletedProcess[str]":
        async with serving(says(b"")) as taken:
            return await asyncio.to_thread(program, "run", "a", "--listen", taken.removeprefix("http://"))

    done = asyncio.run(run())
    assert done.returncode == 2
    assert "address already in use" in done.stderr.lower()
    assert "Traceback" not in done.stderr


def test_a_bug_of_ours_is_one_line_too(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise ZeroDivisionError("nobody saw this coming")

    monkeypatch.setattr("vllm_vitals.recordings.replay.judge", broken)
    code, _, err = called(capsys, "check", "--replay", str(SPIRAL))
    assert code == 3
    assert err.startswith("vllm-vitals: a bug in vllm-vitals: ZeroDivisionError: nobody saw this coming at broken:")


@pytest.mark.parametrize("arguments", [f"check --replay {SPIRAL}", f"check --replay {SPIRAL} --json", "--help"])
def test_a_reader_that_is_gone_before_we_write_makes_it_141_as_a_shell_has_it(arguments: str) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, "-m", "vllm_vitals", *arguments.split()]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "exporter")}
    try:
        done = subprocess.run(
            command, env=environment, stdout=writing, stderr=subprocess.PIPE, timeout=PATIENCE_S, check=False
        )
    finally:
        os.close(writing)
    assert (done.returncode, done.stderr) == (141, b"")


@pytest.mark.parametrize("encoding", ["latin-1", "ascii"])
def test_an_encoding_without_our_signs_changes_neither_the_verdict_nor_its_code(encoding: str) -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "exporter"), "PYTHONIOENCODING": encoding}
    done = subprocess.run(
        [sys.executable, "-m", "vllm_vitals", "check", "--replay", str(SPIRAL)],
        env=environment, capture_output=True, timeout=PATIENCE_S, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (2, b"")
    assert b"  * preemptions per finished request: 11." in done.stdout
    assert done.stdout.isascii()


def test_the_shown_verdict_of_a_recording_and_its_exit_code_are_those_of_its_worst(
    capsys: pytest.CaptureFixture[str],
) -> None:
    code, out, _ = called(capsys, "check", "--replay", str(RECORDINGS / "restart_under_load" / "metrics.jsonl.gz"))
    assert "\nDOWN  restart_under_load" in out
    assert code == 2
    assert "worst" in called(capsys, "check", "--help")[1]


def test_the_worst_of_a_recording_is_what_the_exit_code_ranks_and_not_what_is_unknown() -> None:
    polls = [snapshot(state) for state in (State.UNKNOWN, State.HEALTHY, State.BLIND, State.PREEMPTING, State.HEALTHY)]
    assert worst_moment(polls) is polls[3]
    assert worst_moment(polls[:3]) is polls[2]
    assert worst_moment(polls[:2]) is polls[1]
    assert worst_moment([]) is None


def worst_moment(polls: list[TargetSnapshot]) -> TargetSnapshot | None:
    worst = replay.WorstMoment()
    for poll in polls:
        worst.add(poll)
    return worst.poll


def test_an_empty_recording_is_one_line(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    for name, content in (("a.jsonl", b""), ("a.jsonl.gz", gzip.compress(b""))):
        (tmp_path / name).write_bytes(content)
        code, out, err = called(capsys, "check", "--replay", str(tmp_path / name))
        assert (code, out) == (3, "")
        assert err == f"vllm-vitals: {tmp_path / name}: no scrape in it: give a file that `vllm-vitals record` wrote\n"


def test_what_was_read_is_said_only_where_something_was(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file, scrape = tmp_path / "r.jsonl", b'{"t": 1, "status": 200, "dur": 0.1, "text": ""}\n'
    for content, read in ((b"no\n", False), (scrape + b"no\n", True)):
        file.write_bytes(content)
        _, _, err = called(capsys, "check", "--replay", str(file))
        assert "is not a scrape" in err
        assert ("read up to there" in err) is read


def test_a_reader_that_goes_away_is_no_error() -> None:
    command = f"{sys.executable} -m vllm_vitals check --replay {SPIRAL} --json | head -c 100"
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "exporter")}
    done = subprocess.run(
        ["bash", "-c", command], env=environment, capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    assert done.stderr == ""
    assert done.stdout.startswith('{"recording"')


def test_a_live_server_is_judged_and_json_is_one_object() -> None:
    async def run() -> "subprocess.CompletedProcess[str]":
        async with serving(plays(iter([*bodies()[40:]] * 5))) as url:
            return await asyncio.to_thread(
                program, "check", url, "http://127.0.0.1:1", "--for", "5s", "--interval", "2s", "--json"
            )

    done = asyncio.run(run())
    answer = json.loads(done.stdout)
    assert done.returncode == 2
    assert done.stderr == ""
    down, live = answer["targets"]
    assert down["engines"][0]["state"] == "down"
    assert live["engines"][0]["values"]["preemptions_per_second"] > 1
    assert live["engines"][0]["evidence"]


def test_a_file_for_the_daemon_serves_a_look_whatever_its_intervals_are(tmp_path: Path) -> None:
    file = tmp_path / "c.yaml"
    file.write_text(
        'interval: "30s"\ntimeout: "20s"\ntargets: [{url: "127.0.0.1:1", interval: "1m", timeout: "50s"}]\n'
    )
    done = program("check", "--config", str(file), "--for", "5s", "--interval", "10ms")
    assert (done.returncode, done.stderr) == (2, "")
    assert "DOWN" in done.stdout


def test_a_look_scrapes_at_its_own_pace_and_four_times_at_least() -> None:
    slow = Target("t", "http://t/metrics", interval=60.0, timeout=50.0)
    assert observe.at_pace(slow, 2.0, 30.0).interval == 2.0
    assert observe.at_pace(slow, 30.0, 30.0).interval == 10.0
    assert observe.at_pace(slow, 30.0, 300.0).thresholds.fast_window == 120.0


def test_only_dead_servers_end_the_look_early(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = called(capsys, "check", "http://127.0.0.1:1", "--for", "10m", "--interval", "10ms")
    assert code == 2
    assert "DOWN" in out
    assert "refuses connections" in out


def test_what_is_recorded_replays(tmp_path: Path) -> None:
    file = tmp_path / "r.jsonl.gz"

    async def run() -> "subprocess.CompletedProcess[str]":
        async with serving(plays(iter(bodies()))) as url:
            return await asyncio.to_thread(program, "record", url, "-o", str(file), "--for", "2s", "--interval", "50ms")

    done = asyncio.run(run())
    assert done.returncode == 0, done.stderr
    scrapes = list(recording.read(file))
    assert [scrape.body for scrape in scrapes] == list(bodies()[: len(scrapes)])
    assert len(scrapes) >= 3
    again = program("record", "a", "-o", str(file))
    assert again.returncode == 2
    assert "exists: choose another name" in again.stderr


def test_a_dead_server_leaves_no_recording_and_says_why_once(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = tmp_path / "r.jsonl.gz"
    code, out, err = called(capsys, "record", "127.0.0.1:1", "-o", str(file), "--for", "50ms", "--interval", "10ms")
    assert (code, out) == (2, "")
    assert "gave no metrics, so no recording is kept: refused" in err
    assert err.count("refuses connections") == 1
    assert not file.exists()


def test_what_was_recorded_before_ctrl_c_is_whole_and_said(tmp_path: Path) -> None:
    file, heard = tmp_path / "r.jsonl.gz", asyncio.Event()
    replies = plays(iter(bodies()))

    async def reply(request: bytes, writer: asyncio.StreamWriter) -> None:
        if heard.is_set():  # the second: the first is in the file
            recorder.send_signal(signal.SIGINT)
            await asyncio.Event().wait()
        heard.set()
        await replies(request, writer)

    async def run() -> tuple[bytes, bytes]:
        nonlocal recorder
        async with serving(reply) as url:
            recorder = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "vllm_vitals", "record", url, "-o", str(file), "--interval", "50ms",
                stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
                env={**os.environ, "PYTHONPATH": str(ROOT / "exporter")},
                preexec_fn=partial(signal.signal, signal.SIGINT, signal.SIG_DFL),  # a job in the background ignores it
            )  # fmt: skip
            return await asyncio.wait_for(recorder.communicate(), PATIENCE_S)

    recorder: asyncio.subprocess.Process
    out, err = asyncio.run(run())
    assert (recorder.returncode, err) == (0, b"")
    assert b": 1 scrape of 127.0.0.1:" in out
    assert out.endswith(b", 0 failed, interrupted\n")
    assert [scrape.body for scrape in recording.read(file)] == [bodies()[0]]


def test_config_check_finds_what_cannot_be_written_and_whom_no_log_belongs_to(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    file, inside = tmp_path / "c.yaml", tmp_path / "file" / "inside"
    sources = "[{name: a, push: true, target: gone}, {name: b, push: true, target: there}]"
    text = f"targets: [{{url: a, name: there}}]\nflight_recorder: {{directory: {inside}}}\n"
    file.write_text(f"{text}logs: {{checkpoint: {inside / 'c.json'}, sources: {sources}}}\n")
    code, _, err = called(capsys, "config", "check", str(file))
    assert code == 0
    assert err.splitlines() == [
        f"{file}: note: flight_recorder.directory: {inside} cannot be written by this user now",
        f"{file}: note: logs.checkpoint: {inside / 'c.json'} cannot be written by this user now",
        f'{file}: note: logs.sources[0].target: no target is called "gone"',
    ]
    file.write_text(f"targets: [a]\nflight_recorder: {{directory: {tmp_path / 'new' / 'deeper'}}}\n")
    assert called(capsys, "config", "check", str(file))[2] == ""


class Screen(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminal_that_wants_no_colour_gets_none(monkeypatch: pytest.MonkeyPatch) -> None:
    said = {}
    for wish in ("", "1"):
        monkeypatch.setenv("NO_COLOR", wish)
        log.configure("info", screen := Screen())
        try:
            log.get_logger().info("listening", url="http://x")
        finally:
            structlog.reset_defaults()
        said[wish] = screen.getvalue()
    assert "\x1b[" in said[""]
    assert "\x1b[" not in said["1"]
    assert "listening" in said["1"]


def test_config_check_says_ok_or_every_problem(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    good, bad = tmp_path / "good.yaml", tmp_path / "bad.yaml"
    good.write_text("targets: [{url: a, bearer_token_file: /nowhere/token}]\n")
    bad.write_text("interva: 5s\ntimeout: 5\n")
    code, out, err = called(capsys, "config", "check", str(good))
    assert (code, out) == (0, f"{good}: ok, 1 target\n")
    assert "/nowhere/token cannot be read" in err
    code, out, err = called(capsys, "config", "check", str(bad))
    assert (code, out) == (2, "")
    assert err.splitlines() == [
        f"vllm-vitals: {bad}: timeout: 5 is no duration: write 5s",
        f"vllm-vitals: {bad}: interva: unknown key; did you mean interval?",
    ]


def snapshot(*states: State) -> TargetSnapshot:
    engines = tuple(EngineSnapshot(EngineKey("t", "m", str(i)), state, 1.0, 1.0) for i, state in enumerate(states))
    return TargetSnapshot("t", True, 1.0, 0.1, engines=engines)


@pytest.mark.parametrize(
    ("states", "code"),
    [
        ((State.HEALTHY,), 0),
        ((State.IDLE, State.ASLEEP), 0),
        ((State.HEALTHY, State.PREEMPTING), 1),
        ((State.UNKNOWN, State.HEALTHY), 3),
        ((State.BLIND, State.SATURATED), 1),
        ((State.DOWN, State.HEALTHY), 2),
        ((State.DEATH_SPIRAL, State.UNKNOWN), 2),
        ((), 3),
    ],
)
def test_the_exit_code_is_the_worst_engines(states: tuple[State, ...], code: int) -> None:
    assert verdict.exit_code([snapshot(*states)]) == code


def test_a_short_look_shortens_windows_and_what_must_hold_and_nothing_else() -> None:
    hurried = observe.hurried(Thresholds(), 30.0)
    assert (hurried.fast_window, hurried.hold, hurried.stall_after, hurried.spiral_silence) == (27.0, 3.0, 21.0, 15.0)
    assert observe.hurried(Thresholds(), 5.0).min_span == 4.5
    assert observe.hurried(Thresholds(), 3600.0) == Thresholds()


def test_no_name_can_paint_on_the_terminal() -> None:
    console = Console(record=True, width=200, force_terminal=True)
    evil = "\x1b]0;owned\x07[bold red]model[/]"
    engine = EngineSnapshot(EngineKey("t", evil, "0"), State.IDLE, 1.0, 1.0)
    verdict.print_verdict(console, [TargetSnapshot("t", True, 1.0, 0.1, engines=(engine,))])
    text = console.export_text(styles=True)
    assert "\x1b]0;" not in text
    assert "[bold red]model[/]" in text


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(st.binary(max_size=400))
def test_any_bytes_as_a_recording_or_a_config_end_in_words(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, content: bytes
) -> None:
    file = tmp_path / "f"
    file.write_bytes(content)
    for arguments in (["check", "--replay", str(file)], ["config", "check", str(file)]):
        _, _, err = called(capsys, *arguments)
        assert "a bug in" not in err
