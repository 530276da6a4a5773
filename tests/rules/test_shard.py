"""`rules build --shard`: every server is in one shard, whole models, and the fleet's own rules stand once."""

import re
from pathlib import Path

import pytest
import yaml

from tests.programs import find
from tests.rules.test_native import rows, server, up
from tests.rules.tools import promtool_test, run
from tests.typed import typed

SECONDS = 300


def built(folder: Path, *options: str) -> list[str]:
    """The rule files that the command writes."""
    (config := folder / "alerts.yaml").write_text("alerts: {identity_labels: [namespace]}\n")
    out = folder / ("cut" if options else "whole")
    done = typed("rules", "build", "--config", config, "-o", out, *options)
    assert done.exit_code == 0, done.stderr
    files = sorted(path for path in out.glob("*.yml") if "alertmanager" not in path.name)
    assert {path.name for path in files} <= set(re.findall(r"`([\w.-]+\.yml)`", (out / "README.md").read_text()))
    return [str(path) for path in files]


def of(namespace: str) -> list[dict[str, str]]:
    """A server of this namespace; all share one address and one model name."""
    label = f'{{namespace="{namespace}",' if namespace else "{"
    both = {**server(waiting=5), **up()}
    return rows({name.replace("{", label, 1): row for name, row in both.items()}, SECONDS)


def test_shards_say_together_what_the_whole_says(tmp_path: Path) -> None:
    cut = built(tmp_path, "--shard", "namespace=team-a", "--shard", "namespace=team-b")
    checked = ("--config", tmp_path / "alerts.yaml", "-o", tmp_path / "cut", "--shard", "namespace=team-a")
    assert typed("rules", "check", *checked, "--shard", "namespace=team-b").exit_code == 0
    assert typed("rules", "check", *checked).exit_code == 1
    inputs = [one for name in ("team-a", "team-b", "team.c", "") for one in of(name)]
    # every series that the rules record, and ours that they read, by its name
    asked = 'count by (__name__) ({__name__=~".*vllm_.+"})'
    said = []
    for name, files in (("whole", built(tmp_path)), ("cut", cut)):
        ordered = [file for which in ("native", "recording", "alerts") for file in files if f"/{which}" in file]
        order = [group["name"] for file in ordered for group in yaml.safe_load(Path(file).read_text())["groups"]]
        check = {"expr": f"sort({asked})", "eval_time": f"{SECONDS}s", "exp_samples": []}
        test = {"interval": "15s", "input_series": inputs, "promql_expr_test": [check]}
        document = {"rule_files": files, "evaluation_interval": "15s", "group_eval_order": order, "tests": [test]}
        found = promtool_test(document, tmp_path, name)
        said.append(sorted(re.findall(r"\{__name__=\"([\w:]+)\"\} ([\d.E+]+)", found)))
    assert said[0] == said[1]
    assert dict(said[0])["vllm_vitals_state"] == "6.4E+01"


def test_every_mode_and_format_cuts_and_promtool_takes_it(tmp_path: Path) -> None:
    for mode in ("daemon", "native"):
        (folder := tmp_path / mode).mkdir()
        assert (
            run(find("promtool"), "check", "rules", *built(folder, "--mode", mode, "--shard", "namespace=a")).returncode
            == 0
        )
    for form in ("operator", "victoria-metrics", "mimir"):
        (folder := tmp_path / form).mkdir()
        files = built(folder, "--format", form, "--shard", "namespace=Team_A")
        named = [yaml.safe_load(Path(file).read_text()) for file in files]
        names = [one.get("metadata", one).get("name") or one["namespace"] for one in named]
        assert len(set(names)) == len(names)
        assert form == "mimir" or all(re.fullmatch("[a-z0-9-]+", name) for name in names)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--shard", "team=a"], "team is none of alerts.identity_labels"),
        (["--shard", "namespace"], "give LABEL=VALUE"),
        (["--shard", 'namespace=a"b'], "give LABEL=VALUE"),
        (["--shard", "namespace=rest"], "not rest"),
        (["--shard", "namespace=a", "--shard", "namespace=a"], "the same value twice"),
        (["--shard", "namespace=a", "--shard", "zone=b"], "zone is none of"),
        (["--shard", "namespace=a", "--format", "grafana"], "leave --shard or --format grafana out"),
    ],
)
def test_what_cannot_be_cut_is_one_line(options: list[str], said: str, tmp_path: Path) -> None:
    (config := tmp_path / "alerts.yaml").write_text("alerts: {identity_labels: [namespace]}\n")
    done = typed("rules", "build", "--config", config, "-o", tmp_path / "out", *options)
    assert done.exit_code == 2
    assert said in done.stderr
    assert not (tmp_path / "out").exists()
