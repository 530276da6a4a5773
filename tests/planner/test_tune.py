"""A tuning session: runs A, B, A of one knob, what they decide, and what they teach the error bars."""

import json
import shutil
from pathlib import Path

import pytest

from tests.planner.test_command import ran
from tests.planner.test_compare import LESS, UNEVEN, made
from vllm_vitals.cli import record
from vllm_vitals.cli.observe import Tally
from vllm_vitals.planner.experiment import aba
from vllm_vitals.planner.tune import journal as journals
from vllm_vitals.planner.tune import loop
from vllm_vitals.planner.tune.journal import Journal, JournalError, Run, Trial
from vllm_vitals.planner.tune.session import not_in_force
from vllm_vitals.planner.whatif import measured
from vllm_vitals.planner.whatif.measured import Foretold, MeasuredError, Pair, bars

TRACES = Path(__file__).parent.parent / "data" / "measured"
A, B = (TRACES / name / "metrics.jsonl.gz" for name in ("tune2_baseline", "tune2_kv_plus50"))
STARTED = ("--set", "max_num_seqs=32", "--set", "max_num_batched_tokens=256", "--set", "max_model_len=2048",
           "--set", "scheduler_reserve_full_isl=false")  # fmt: skip


def pair(predicted: float, seen: float, error: float = 0.25) -> Pair:
    each = Foretold(predicted=predicted, error=error, measured=seen)
    return Pair(
        vllm="0.32.0", knob="max_num_seqs", before="48", after="36", trust="good", metrics={"generated": each}
    )  # fmt: skip


# ---------------------------------------------------------------- what was measured puts the bars right


def test_near_pairs_narrow_the_bars_far_ones_widen_them_and_none_leave_them() -> None:
    assert bars([]).of("generated", 0.25) == 0.25
    near, nearer = (bars([pair(1.2, 1.21)] * n).of("generated", 0.25) for n in (1, 8))
    assert 0.1 <= nearer < near < 0.25
    assert bars([pair(1.2, 1.21)]).of("ttft_mean", 0.25) == 0.25
    assert bars([pair(1.2, 2.4)]).of("generated", 0.25) > 0.25


def test_a_bar_is_never_narrower_than_two_runs_of_one_setting_differ() -> None:
    assert bars([pair(1.2, 1.2)] * 100).of("generated", 0.08) == 0.05
    assert bars([pair(1.2, 1.2)] * 100).of("generated", 0.03) == 0.03


def test_a_wild_pair_counts_only_so_far() -> None:
    assert bars([pair(1.0, 1e6)]).factors == bars([pair(1.0, 1e9)]).factors
    assert pair(0.0, 0.0).metrics["generated"].miss == 0


def test_the_file_reads_back_and_holds_no_name(tmp_path: Path) -> None:
    path = tmp_path / "measured.json"
    path.write_bytes(measured.to_bytes([pair(1.2, 1.1)]))
    assert measured.read(path) == [pair(1.2, 1.1)]
    assert set(json.loads(path.read_bytes())["pairs"][0]) == {"vllm", "knob", "before", "after", "trust", "metrics"}


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"{", "not a file of measured pairs"),
        (b"[]", "not a file of measured pairs"),
        (b'{"schema": 9, "pairs": []}', "another version"),
        (b'{"schema": 1, "pairs": [{"knob": "x"}]}', "not a file of measured pairs"),
        (measured.to_bytes([pair(1.2, 1.1)]).replace(b"1.1", b"-1"), "not a file of measured pairs"),
        (b" " * (measured.MAX_BYTES + 1), "larger than"),
    ],
)
def test_a_file_that_is_none_is_refused_in_one_line(tmp_path: Path, content: bytes, said: str) -> None:
    path = tmp_path / "x.json"
    path.write_bytes(content)
    with pytest.raises(MeasuredError, match=said) as error:
        measured.read(path)
    assert "\n" not in str(error.value)


# ---------------------------------------------------------------- A, B, A


def test_a_gain_over_both_runs_of_a_is_kept() -> None:
    found = aba.judge(made(), made(LESS, whole=70.0), made())
    assert (found.decision, found.drift) == ("keep", "")
    assert found.found.changed == {"max_num_seqs": ("64", "48")}


def test_what_drifts_from_a_to_a_as_far_as_b_is_not_enough() -> None:
    found = aba.judge(made(), made(LESS, whole=70.0), made(whole=70.0))
    assert found.decision != "keep"
    assert found.drift or found.decision == "not enough"


def test_a_gain_over_both_counts_although_they_differ() -> None:
    assert aba.judge(made(), made(LESS, whole=40.0), made(whole=90.0)).decision == "keep"


def test_runs_of_a_under_two_settings_are_refused() -> None:
    found = aba.judge(made(), made(LESS), made({"max_num_seqs": "56"}))
    assert (found.decision, "max_num_seqs" in found.why) == ("not comparable", True)


def test_the_first_run_says_how_long_all_must_be() -> None:
    sees, more = aba.enough(made())
    assert sees is not None
    assert sees < 0.15
    assert more is None
    sees, more = aba.enough(made(wave=UNEVEN))
    assert sees is not None
    assert sees > 0.15
    assert more is not None
    assert more > 60


# ---------------------------------------------------------------- the order of things


def run(role: str, **settings: str) -> Run:
    return Run(file="x.jsonl.gz", role=role, settings=settings, at=0.0)  # type: ignore[arg-type]


def begun(*runs: Run, **trial: object) -> Journal:
    first = Trial(knob="max_num_seqs", before="48", value="36", first=0, **trial)  # type: ignore[arg-type]
    return Journal(seconds=600, warm_up=60, repeats=10, runs=list(runs), trials=[first])


def test_a_session_goes_a_b_a_and_says_what_to_change() -> None:
    empty = Journal(seconds=600, warm_up=60, repeats=10)
    first = loop.step(empty, {"block_size": "16"})
    assert isinstance(first, loop.Take)
    assert (first.role, first.settings) == ("A", {"block_size": "16"})
    assert "11\N{NO-BREAK SPACE}minutes" in first.text
    second = loop.step(begun(run("A", block_size="16")), {})
    assert isinstance(second, loop.Take)
    assert second.settings == {"block_size": "16", "max_num_seqs": "36"}
    assert "set max_num_seqs=36 (from 48) and restart the server; leave block_size=16" in second.text
    third = loop.step(begun(run("A"), run("B", max_num_seqs="36"), changed=1), {})
    assert isinstance(third, loop.Take)
    assert (third.role, third.settings) == ("A", {})
    assert "set max_num_seqs back to 48 and restart" in third.text
    assert isinstance(loop.step(begun(*[run("A")] * 3, changed=1, again=2), {}), loop.Decide)


def test_what_needs_no_restart_asks_for_none() -> None:
    trial = Trial(knob="gateway_concurrency", before="", value="6", first=0)
    found = loop.step(Journal(seconds=600, warm_up=0, repeats=10, runs=[run("A")], trials=[trial]), {})
    assert isinstance(found, loop.Take)
    assert "restart" not in found.text


def test_a_kept_change_stays_for_the_next_knob_and_one_rolled_back_goes() -> None:
    runs = (run("A"), run("B", max_num_seqs="36"), run("A"))
    kept = begun(*runs, changed=1, again=2, decision="keep")
    assert kept.base == 1
    following = kept.with_trial(Trial(knob="watermark", before="0", value="0.05", first=kept.base))
    found = loop.step(following, {})
    assert isinstance(found, loop.Take)
    assert found.settings == {"max_num_seqs": "36", "watermark": "0.05"}
    assert begun(*runs, changed=1, again=2, decision="roll back").base == 2


@pytest.mark.parametrize(
    ("said", "wanted", "wrong"),
    [
        ({"num_gpu_blocks": "192"}, {"num_gpu_blocks": "288"}, "num_gpu_blocks=192, not 288"),
        ({"watermark": "0.050"}, {"watermark": "0.05"}, ""),
        ({"enable_prefix_caching": "True"}, {"enable_prefix_caching": "true"}, ""),
        ({}, {"max_num_seqs": "36"}, ""),
    ],
)
def test_a_setting_that_the_server_contradicts_is_named(
    said: dict[str, str], wanted: dict[str, str], wrong: str
) -> None:
    assert wrong in not_in_force(said, wanted)
    assert bool(wrong) == bool(not_in_force(said, wanted))


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"{", "not a file that vllm-vitals tune wrote"),
        (b'{"schema": 7}', "another version"),
        (b'{"schema": 1, "seconds": 1.0, "warm_up": 0.0, "repeats": 10, "trials": '
         b'[{"knob": "a", "before": "", "value": "b", "first": 3}]}', "names a run that it does not hold"),
        (b'{"schema": 1, "seconds": 1.0, "warm_up": 0.0, "repeats": 10, "runs": [{"file": "../../etc/passwd", '
         b'"role": "A", "settings": {}, "at": 0.0}]}', "is missing"),
    ],
)  # fmt: skip
def test_a_folder_that_cannot_be_continued_is_refused(tmp_path: Path, content: bytes, said: str) -> None:
    (tmp_path / journals.FILE).write_bytes(content)
    with pytest.raises(JournalError, match=said):
        journals.read(tmp_path)


# ---------------------------------------------------------------- as typed


def test_recordings_of_a_b_a_decide_and_a_folder_is_continued(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    folder = tmp_path / "session"
    code, out, err = ran(
        capsys, "tune", "-o", folder, "--recording", A, "--between", "20s,110s", "--quick", *STARTED,
        "--change", "num_gpu_blocks_override=288",
    )  # fmt: skip
    assert (code, err) == (0, "")
    assert "Next: Run 2 (B): set num_gpu_blocks_override=288" in " ".join(out.split())
    assert "simulated: tokens/s +" in out
    code, out, _ = ran(
        capsys, "tune", "-o", folder, "--recording", B, "--recording", A, "--between", "20s,110s", "--quick"
    )  # fmt: skip
    assert code == 0
    assert "KEEP" in out
    report = (folder / "report.md").read_text()
    assert "**keep**" in report
    assert "To keep: num_gpu_blocks_override=288" in report
    assert "| tokens/s" not in report  # metrics go by their names
    assert "generated tokens/s | +" in report
    assert "generated tokens" in (folder / "trial-1.md").read_text()
    shared = measured.read(folder / "measured.json")
    assert [each.knob for each in shared] == ["num_gpu_blocks_override"]
    assert 1.35 < shared[0].metrics["generated"].measured < 1.55
    assert sorted(p.name for p in folder.glob("*.gz")) == ["1-a.jsonl.gz", "2-b.jsonl.gz", "3-a.jsonl.gz"]


def test_a_server_is_recorded_one_run_a_call_where_nobody_can_answer(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def take(target: object, output: Path, seconds: float, force: bool) -> tuple[Tally, bool]:
        asked.append(seconds)
        shutil.copyfile(A, output)
        return Tally(good=50), False

    monkeypatch.setattr(record, "take", take)
    arguments = ("tune", "http://localhost:8000", "-o", tmp_path, "--change", "seed=1", "--for", "85s", "--warm-up",
                 "20s")  # fmt: skip
    code, out, _ = ran(capsys, *arguments)
    assert (code, asked) == (0, [2.0, 105.0])
    assert "seed is not simulated" in out
    assert "Next: Run 2 (B): set seed=1 and restart the server" in " ".join(out.split())
    assert "localhost" not in (tmp_path / journals.FILE).read_text()
    code, out, _ = ran(capsys, *arguments)
    assert asked == [2.0, 105.0] * 2
    assert "Next: Run 3 (A again): set seed back" in " ".join(out.split())


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "which server?"),
        (("http://x:1", "--recording", A), "give either a URL or --recording"),
        (("http://x:1", "--between", "1s,2s"), "--between is for --recording"),
        (("--recording", A, "--change", "max_num_seq=4"), "did you mean max_num_seqs"),
        (("--recording", A, "--change", "max_num_seqs=x"), "expected a whole number above 0"),
        (("--recording", "/nowhere"), "/nowhere: No such file"),
        (("--recording", A, "--measured", "/nowhere.json"), "/nowhere.json: No such file"),
    ],
)
def test_what_makes_no_sense_is_refused(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, arguments: tuple[str, ...], said: str
) -> None:
    code, _, err = ran(capsys, "tune", "-o", tmp_path, *arguments)
    assert (code, said in err) == (2, True), err


def test_whatif_refuses_a_file_that_is_none(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    path.write_text("{}]")
    code, _, err = ran(capsys, "whatif", "--recording", A, "--measured", path)
    assert (code, "not a file of measured pairs" in err) == (2, True), err
