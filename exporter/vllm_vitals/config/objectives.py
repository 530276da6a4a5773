"""What was promised to whom: one type of SLO for the review, the alerts and the dashboards.

Input: one entry of ``slos``. Output: an `Slo`. Invariant: the same text means the same to every reader.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field

from vllm_vitals.config.values import SECTION, Duration, Pattern, Positive, Share, matching

Indicator = Literal["ttft", "tpot", "inter_token", "e2e", "queue_time"]

# The histogram behind each indicator, by the catalogue's name.
HISTOGRAM_OF: Mapping[Indicator, str] = {
    "ttft": "ttft_seconds",
    "tpot": "tpot_seconds",
    "inter_token": "inter_token_latency_seconds",
    "e2e": "e2e_latency_seconds",
    "queue_time": "queue_time_seconds",
}


@dataclass(frozen=True, slots=True)
class OutputLength:
    """The output lengths, in tokens, for which an SLO was promised."""

    __pydantic_config__ = SECTION

    mean: Positive
    p99: Positive


_Name = Annotated[str, matching("[A-Za-z0-9_][A-Za-z0-9_ ./:-]{0,99}", "a name of letters, digits, spaces and _./:-")]


@dataclass(frozen=True, slots=True)
class Availability:
    """Promise that ``share`` of the requests of models matching ``models`` end without an error of the engine."""

    __pydantic_config__ = SECTION

    name: _Name
    share: Annotated[Share, Field(gt=0, lt=1)]
    models: Pattern = ".+"


@dataclass(frozen=True, slots=True)
class Slo:
    """Promise that ``share`` of the requests of models matching ``models`` meet ``indicator`` <= ``seconds``.

    Alerts need a bucket bound of that histogram; the build says where ``seconds`` is none. ``output_tokens`` is the
    length that the promise assumes: when it no longer holds, VLLMOutputStragglers says so. The name becomes a label
    value, and stands in PromQL and in Alertmanager's templates.
    """

    __pydantic_config__ = SECTION

    name: _Name
    indicator: Indicator
    seconds: Annotated[Duration, Field(alias="threshold")]
    share: Annotated[Share, Field(gt=0, lt=1)]
    output_tokens: OutputLength | None = None
    models: Pattern = ".+"

    def covers(self, model_name: str) -> bool:
        """Return whether this objective covers the model."""
        return re.fullmatch(self.models, model_name) is not None
