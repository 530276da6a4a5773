"""docs/adoption.md and docs/from-vllm.md: files are what they say they are, and names are those of what exists."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.programs import find
from tests.rules.tools import run
from tests.typed import typed
from vllm_vitals.catalog import METRICS
from vllm_vitals.rules.runbook import GUIDANCE
from vllm_vitals.vllm.families import FAMILIES, UNREAD

ROOT = Path(__file__).parent.parent
TEXT = (ROOT / "docs" / "adoption.md").read_text()
BLOCKS: list[Any] = [yaml.safe_load(block) for block in re.findall(r"```yaml\n(.*?)```", TEXT, re.DOTALL)]


def scrape_configs() -> list[Any]:
    inside = [block["receivers"]["prometheus"]["config"] for block in BLOCKS if "receivers" in block]
    return [block for block in BLOCKS if "scrape_configs" in block] + inside


@pytest.mark.parametrize("config", scrape_configs(), ids=["prometheus", "opentelemetry"])
def test_prometheus_takes_the_scrape_configs(config: Any, tmp_path: Path) -> None:
    file = tmp_path / "prometheus.yml"
    file.write_text(yaml.safe_dump(config))
    done = run(find("promtool"), "check", "config", str(file))
    assert done.returncode == 0, done.stderr
    (job,) = config["scrape_configs"]
    assert (job["job_name"], job["honor_labels"]) == ("vllm-vitals", True)


def test_what_datadog_is_told_to_take_is_served() -> None:
    (instance,) = next(block["instances"] for block in BLOCKS if "instances" in block)
    served = {metric.full_name for metric in METRICS}
    assert {name for entry in instance["metrics"] for name in entry} <= served


def test_every_command_is_one_that_there_is() -> None:
    for words in re.findall(r"^vllm-vitals (.+)$", TEXT, re.MULTILINE):
        command, *options = re.findall(r"^\w+ \w+|--[\w-]+", words)
        shown = typed(*command.split(), "--help").stdout
        assert all(option in shown for option in options), words


FROM_VLLM = (ROOT / "docs" / "from-vllm.md").read_text()
DASHBOARDS = {"Overview": "overview", "Engine": "engine", "Workload": "workload", "Capacity": "capacity"}


def rows(after: str) -> list[list[str]]:
    """The cells of the table that follows a heading."""
    table = FROM_VLLM.partition(after)[2].partition("\n\n|")[2].partition("\n\n")[0]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()[2:]]


def test_each_dashboard_that_is_named_reads_the_series_that_is_named() -> None:
    known = {name.text for family in (*FAMILIES, *UNREAD) for name in family.names}
    served = {metric.full_name for metric in METRICS}
    table = rows("## vLLM's example dashboards")
    assert len(table) > 10
    for _, _, raw, dashboard, ours in table:
        assert set(re.findall(r"`(\w+)`", raw)) <= known, raw
        shown = (ROOT / "dashboards" / f"vllm-vitals-{DASHBOARDS[dashboard]}.json").read_text()
        for name in re.findall(r"`(vllm_vitals_\w+)`", ours):
            assert name in served, name
            assert name.removesuffix("_total") in shown, (name, dashboard)  # or what is recorded from it


def test_each_alert_that_takes_the_place_of_a_rule_is_there() -> None:
    named = set(re.findall(r"\bVLLM[A-Z]\w+", FROM_VLLM))
    assert len(named) > 10
    assert named <= set(GUIDANCE)
