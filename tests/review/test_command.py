"""The commands as a person types them."""

import json
from pathlib import Path

import pytest

from exporter.cli import main
from tests.review import week
from tests.review.conftest import RECORDINGS

Ran = tuple[int, str, str]


def ran(capsys: pytest.CaptureFixture[str], *arguments: object) -> Ran:
    with pytest.raises(SystemExit) as ended:
        main([str(argument) for argument in arguments])
    said = capsys.readouterr()
    return int(ended.value.code or 0), said.out, said.err


def test_review_writes_three_files(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, week_url: tuple[object, str]
) -> None:
    code, out, err = ran(capsys, "review", "--prometheus", week_url[1], "--until", week.END, "-o", tmp_path)
    assert (code, err) == (0, "")
    names = {path.suffix: path for path in tmp_path.iterdir()}
    assert set(names) == {".html", ".md", ".json"}
    assert "chat: act: 26.0 minutes death spiral in 1 incident." in out
    chat = json.loads(names[".json"].read_bytes())["models"][0]
    assert chat["versus_before"]
    assert chat["trends"]
    assert chat["whatif"]["rows"] or chat["no_whatif"]
    assert "What each would do" in names[".html"].read_text()


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
        (["review", "--prometheus", "x", "--since", "a week"], "expected a span such as 7d"),
        (["review", "--prometheus", "x", "--until", "tomorrow"], "expected a time such as"),
        (["review", "--prometheus", "ftp://x"], "expected an address"),
        (["review", "--prometheus", "x", "--header", "nonsense"], "expected 'Name: value'"),
        (["review", "--prometheus", "x", "--bearer-token-file", "/nowhere"], "/nowhere: No such file"),
        (["whatif"], "give either --prometheus URL or --recording FILE"),
        (["whatif", "--recording", "/nowhere.jsonl"], "/nowhere.jsonl: No such file"),
        (["snapshot", "--recording", "x", "-o", "y", "--set", "seqs"], "expected NAME=VALUE"),
        (["compare", "/nowhere.json", "/nowhere.json"], "/nowhere.json: No such file"),
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
    code, _, err = ran(capsys, "whatif", "--prometheus", "http://me:hunter2@127.0.0.1:9", "--timeout", "1")
    assert code == 2
    assert "connection refused" in err
    assert "hunter2" not in err


def test_the_tuning_experiment_from_two_recordings(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    for name, reserve in (("spiral_chunked", "false"), ("same_load_reserved", "true")):
        code, _, err = ran(
            capsys, "snapshot", "--recording", RECORDINGS / name / "metrics.jsonl.gz", "--between", "65,145",
            "--set", f"scheduler_reserve_full_isl={reserve}", "-o", tmp_path / f"{name}.json",
        )  # fmt: skip
        assert (code, err) == (0, "")
    pair = tmp_path / "spiral_chunked.json", tmp_path / "same_load_reserved.json"
    code, out, _ = ran(capsys, "compare", *pair)
    assert code == 0
    assert "**keep**: better: preemptions a request" in out
    code, out, _ = ran(capsys, "compare", "--json", *reversed(pair))
    assert code == 1
    assert json.loads(out)["decision"] == "roll back"


def test_a_comparison_that_means_nothing_exits_3(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    for name in ("spiral_chunked", "truncation_mix"):
        ran(capsys, "snapshot", "--recording", RECORDINGS / name / "metrics.jsonl.gz", "-o", tmp_path / f"{name}.json")
    code, out, _ = ran(capsys, "compare", tmp_path / "spiral_chunked.json", tmp_path / "truncation_mix.json")
    assert code == 3
    assert "another workload" in out


def test_whatif_from_a_recording(capsys: pytest.CaptureFixture[str]) -> None:
    settings = (
        "max_num_seqs=48",
        "max_num_batched_tokens=128",
        "scheduler_reserve_full_isl=false",
        "max_model_len=2048",
    )
    code, out, _ = ran(
        capsys, "whatif", "--recording", RECORDINGS / "spiral_chunked/metrics.jsonl.gz", "--format", "json",
        *(part for setting in settings for part in ("--set", setting)),
    )  # fmt: skip
    assert code == 0
    rows = json.loads(out)["rows"]
    assert any(row["note"] == "ends the loop of preemptions" and "reserve" in row["knob"] for row in rows)


def test_whatif_from_prometheus(capsys: pytest.CaptureFixture[str], week_url: tuple[object, str]) -> None:
    code, out, _ = ran(
        capsys, "whatif", "--prometheus", week_url[1], "--until", week.END, "--since", "2d", "--model", "chat",
        "--focus", "peak", "--set", "max_model_len=32768",
    )  # fmt: skip
    assert code == 0
    assert "Trust is" in out
    assert "Assumed: max_num_batched_tokens=2048" in out
