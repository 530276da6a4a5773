"""The examples in docs/logs.md are accepted as they stand."""

import re
from pathlib import Path

import pytest
import yaml

from vllm_vitals.logs.config import LogsConfig
from vllm_vitals.logs.events import RESULTS
from vllm_vitals.logs.schema import SHIPPED, LogMapping, compile_schema

TEXT = (Path(__file__).parents[2] / "docs" / "logs.md").read_text()
BLOCKS = [yaml.safe_load(block) for block in re.findall(r"```yaml\n(.*?)```", TEXT, re.S)]


def test_the_config_example_is_a_config() -> None:
    config = LogsConfig.model_validate(BLOCKS[0]["logs"])
    assert [source.name for source in config.sources] == ["vllm-0", "gateway", "shipper"]
    assert [schema.name for schema in config.schemas_of(config.sources[1])] == ["envoy_ai_gateway"]


def test_the_mapping_example_is_a_mapping() -> None:
    assert compile_schema(LogMapping.model_validate(BLOCKS[1])).name == "my_gateway"


@pytest.mark.parametrize("word", [*RESULTS, *SHIPPED])
def test_every_result_and_shipped_mapping_is_told(word: str) -> None:
    assert f"`{word}`" in TEXT
