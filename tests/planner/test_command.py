"""The commands as a person types them."""

import json
import re
import sys
from pathlib import Path

import pytest

from tests.planner import week
from tests.planner.conftest import RECORDINGS
from vllm_vitals.cli.main import main

SPIRAL = str(RECORDINGS / "spiral_chunked/metrics.jsonl.gz")
Ran = tuple[int, str, str]


def ran(capsys: pytest.CaptureFixture[str], *arguments: object) -> Ran:
    with pytest.raises(SystemExit) as ended:
        main([str(argument) for argument in arguments])
    said = capsys.readouterr()
    return int(ended.value.code or 0), said.out, said.err


def test_review_writes_three_files(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, week_url: tuple[object, str]
) -> None:
    code, out, err = ran(
        capsys, "review", "--prometheus", week_url[1], "--until", week.END, "--since", "2d", "--model", "chat",
        "-o", tmp_path,
    )  # fmt: skip
    assert (code, err) == (0, "")
    names = {path.suffix: path for path in tmp_path.iterdir()}
    assert set(names) == {".html", ".md", ".json"}
    assert "chat: act: 25.0 minutes death spiral in 1 incident." in out
    chat = json.loads(names[".json"].read_bytes())["models"][0]
    assert chat["versus_before"]
    assert chat["trends"]
    assert chat["whatif"]["rows"] or chat["no_whatif"]
    assert "What each would do" in names[".html"].read_text()


def test_without_matplotlib_the_page_has_no_charts_and_all_figures(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, week_url: tuple[object, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    code, _, err = ran(
        capsys, "review", "--prometheus", week_url[1], "--until", week.END, "--model", "code", "--no-before",
        "--no-whatif", "--format", "html", "-o", tmp_path,
    )  # fmt: skip
    assert code == 0
    assert err == "vllm-vitals: the HTML report has no charts: they need matplotlib, in the extra vllm-vitals[review]\n"
    page = next(tmp_path.iterdir()).read_text()
    assert "<figure>" not in page
    assert "Without charts: they need matplotlib" in page
    assert "Running on the busiest engine, daily peak" in page


def test_review_prints_one_format(capsys: pytest.CaptureFixture[str], week_url: tuple[object, str]) -> None:
    code, out, _ = ran(
        capsys, "review", "--prometheus", week_url[1], "--until", week.END, "--since", "2d", "--model", "code",
        "--format", "md", "-o", "-", "--no-before", "--no-whatif", "--trend", "0d",
    )  # fmt: skip
    assert code == 0
    assert out.startswith("# Capacity review")
    assert "## chat" not in out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["review"], "give --prometheus URL"),
        (["review", "--prometheus", "x", "--format", "pdf"], "expected some of html, md, json, got pdf"),
        (["review", "--prometheus", "x", "-o", "-"], "choose it with --format"),
        (["review", "--prometheus", "x", "--since", "a week"], '"a week" is no duration: write one such as'),
        (["review", "--prometheus", "x", "--until", "tomorrow"], "expected a time such as"),
        (["review", "--prometheus", "ftp://x"], "expected an address"),
        (["review", "--prometheus", "x", "--header", "nonsense"], "expected 'Name: value'"),
        (["review", "--prometheus", "x", "--bearer-token-file", "/nowhere"], "/nowhere: No such file"),
        (["review", "--prometheus", "https://x", "--ca-file", "/nowhere"], "/nowhere: No such file"),
        (["review", "--prometheus", "https://x", "--ca-file", __file__], "test_command.py: holds no certificate"),
        (["review", "--prometheus", "x", "-o", __file__], "test_command.py is not a directory: -o names the one"),
        (["whatif"], "give either --prometheus URL or --recording FILE"),
        (["whatif", "--recording", "/nowhere.jsonl"], "/nowhere.jsonl: No such file"),
        (["snapshot", "--recording", "x", "-o", "y", "--set", "seqs"], "expected NAME=VALUE"),
        (["compare", "/nowhere.json", "/nowhere.json"], "/nowhere.json: No such file"),
        (["review", "--prometheus", "x", "--until", "2026-13-01"], "expected a time such as"),
        (["review", "--prometheus", "x", "--timeout", "60"], '"60" is no duration: write 60s'),
        (["whatif", "--recording", SPIRAL, "--between", "60,120"], '--between: "60" is no duration: write 60s'),
        (["review", "--prometheus", "x", "--since", "0d"], "expected at least 1s and at most 3650d, got 0d"),
        (["review", "--prometheus", "x", "--until", "nan"], "expected a time such as"),
        *(
            (["whatif", "--recording", SPIRAL, *options], said)
            for options, said in (
                (["--set", "foo=1"], "--set foo: not simulated; known are max_num_seqs, "),
                (["--set", "max_num_seq=1"], "no such setting; did you mean max_num_seqs?"),
                (["--set", "max_num_seqs=1", "--set", "max_num_seqs=2"], "--set max_num_seqs is given twice"),
                (["--model", "nope"], "--model: nothing matches 'nope'; there is tiny"),
                (["--target", "nope"], "--target: nothing matches 'nope'; there is spiral_chunked"),
                (["--model", "("], "--model: not a regular expression"),
                (["--since", "1w"], "--since is for --prometheus; choose a part of a recording with --between"),
                (["--user", "me"], "--user is for --prometheus"),
                (["--between", "100s,50s"], "--between: FROM must come before TO, got '100s,50s'"),
                (
                    ["--between", "1000s,2000s"],
                    "outside the data: 200 s from 2026-11-29T14:03:51Z on",
                ),
            )
        ),
        *(
            (["snapshot", "--recording", SPIRAL, "-o", "/nowhere/a.json", *options], said)
            for options, said in (
                (["--set", "foo=1"], "--set foo: not a setting of vLLM that this release knows"),
                (["--set", "max_num_seqs=abc"], "--set max_num_seqs: expected a whole number above 0, got 'abc'"),
                (["--set", "scheduler_reserve_full_isl=maybe"], "expected true or false, got 'maybe'"),
                (["--set", "watermark=2"], "expected a share from 0 to below 1"),
                (["--between", "1000s,2000s"], "no vLLM engine between 1000 s and 2000 s in 204 s of recording"),
                ([], "/nowhere/a.json: No such file or directory"),
            )
        ),
    ],
)
def test_mistakes_are_one_line_with_the_mend(
    capsys: pytest.CaptureFixture[str], arguments: list[str], said: str
) -> None:
    code, out, err = ran(capsys, *arguments)
    assert code == 2
    assert out == ""
    assert said in err
    assert "Traceback" not in err
    assert len(err.splitlines()) <= 2


def test_nobody_listens(capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = ran(capsys, "whatif", "--prometheus", "http://me:hunter2@127.0.0.1:9", "--timeout", "1s")
    assert code == 2
    assert "connection refused" in err
    assert "hunter2" not in err


def test_the_tuning_experiment_from_two_recordings(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    for name, reserve in (("spiral_chunked", "false"), ("same_load_reserved", "true")):
        code, _, err = ran(
            capsys, "snapshot", "--recording", RECORDINGS / name / "metrics.jsonl.gz", "--between", "65s,2m25s",
            "--set", f"scheduler_reserve_full_isl={reserve}", "-o", tmp_path / f"{name}.json",
        )  # fmt: skip
        assert (code, err) == (0, "")
    pair = tmp_path / "spiral_chunked.json", tmp_path / "same_load_reserved.json"
    code, out, _ = ran(capsys, "compare", *pair)
    assert code == 4
    assert out.startswith("NOT ENOUGH: none beyond the noise, but cannot see less than")
    assert re.search(r"preemptions a request +11\.2 +0\.2 ", out)
    code, out, _ = ran(capsys, "compare", *pair, "--format", "md")
    assert code == 4
    assert "**not enough**: none beyond the noise, but cannot see less than" in out
    assert "| preemptions a request | 11.2 | 0.2 |" in out
    code, out, _ = ran(capsys, "compare", "--json", *reversed(pair))
    assert code == 4
    found = json.loads(out)
    assert found["decision"] == "not enough"
    assert found["more"] > 0


def test_a_snapshot_is_not_written_over_unasked(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "before.json"
    path.write_text("the only baseline")
    take = ("snapshot", "--recording", SPIRAL, "-o", path)
    code, _, err = ran(capsys, *take)
    assert (code, path.read_text()) == (2, "the only baseline")
    assert err == f"vllm-vitals: {path} exists: choose another name, or give --force\n"
    code, _, err = ran(capsys, *take, "--force")
    assert (code, err) == (0, "")
    assert json.loads(path.read_bytes())["model_name"] == "tiny"
    code, _, err = ran(capsys, *take[:-1], "/dev/full", "--force")
    assert (code, err) == (2, "vllm-vitals: /dev/full: No space left on device\n")


def test_a_knob_that_no_metric_tells_may_be_any_of_vllms(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    given = ("--set", "enforce_eager=true", "--set", "VLLM_ATTENTION_BACKEND=FLASHINFER")
    code, _, err = ran(capsys, "snapshot", "--recording", SPIRAL, *given, "-o", tmp_path / "a.json")
    assert (code, err) == (0, "")
    kept = json.loads((tmp_path / "a.json").read_bytes())["settings"]
    assert (kept["enforce_eager"], kept["VLLM_ATTENTION_BACKEND"]) == ("true", "FLASHINFER")


@pytest.mark.parametrize("command", ["snapshot", "whatif"])
def test_that_a_recording_breaks_off_is_said(capsys: pytest.CaptureFixture[str], tmp_path: Path, command: str) -> None:
    cut = tmp_path / "cut.jsonl.gz"
    cut.write_bytes(Path(SPIRAL).read_bytes()[:20_000])
    code, _, err = ran(capsys, command, "--recording", cut, *(["-o", tmp_path / "a"] if command == "snapshot" else []))
    assert code == 2
    assert f"missing: the rest of the recording: {cut}: cut off or damaged after line 3" in err


def test_what_was_read_before_a_break_is_used(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    cut = tmp_path / "cut.jsonl.gz"
    cut.write_bytes(Path(SPIRAL).read_bytes()[:-20_000])
    code, _, err = ran(capsys, "snapshot", "--recording", cut, "-o", tmp_path / "a.json")
    assert code == 0
    assert json.loads((tmp_path / "a.json").read_bytes())["vitals"]["generated tokens"]["value"] > 200
    assert err.count("cut off or damaged") == 1


def test_a_comparison_that_means_nothing_exits_3(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    for name in ("spiral_chunked", "truncation_mix"):
        ran(capsys, "snapshot", "--recording", RECORDINGS / name / "metrics.jsonl.gz", "-o", tmp_path / f"{name}.json")
    code, out, _ = ran(capsys, "compare", tmp_path / "spiral_chunked.json", tmp_path / "truncation_mix.json")
    assert code == 3
    assert "another workload" in out


def test_whatif_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = ran(
        capsys, "whatif", "--recording", RECORDINGS / "saturated_no_preemption/metrics.jsonl.gz", "--format", "json",
        "--between", "60s,120s", "--set", "max_num_seqs=4", "--set", "max_num_batched_tokens=2048",
        "--set", "scheduler_reserve_full_isl=true",
    )  # fmt: skip
    assert code == 0
    found = json.loads(out)
    assert (found["schema"], found["model_name"]) == (1, "tiny")
    double = next(row for row in found["rows"] if (row["knob"], row["setting"]) == ("max_num_seqs", "4 → 8"))
    assert double["metrics"]["generated"]["value"] > found["rows"][0]["metrics"]["generated"]["value"]


def test_whatif_from_prometheus(capsys: pytest.CaptureFixture[str], week_url: tuple[object, str]) -> None:
    code, out, _ = ran(
        capsys, "whatif", "--prometheus", week_url[1], "--until", week.END, "--since", "2d", "--model", "chat",
        "--focus", "peak", "--set", "max_model_len=32768", "--set", "scheduler_reserve_full_isl=true",
    )  # fmt: skip
    assert code == 0
    assert "Trust is" in out
    assert re.search(r"^Assumed: .*max_num_batched_tokens=", out, re.MULTILINE)
