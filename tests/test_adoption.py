"""docs/adoption.md: its files are what they say they are, and name what exists."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.programs import find
from tests.rules.tools import run
from tests.typed import typed
from vllm_vitals.catalog import METRICS

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
