"""The ``review:`` section of the config file: what GPUs cost and what was promised to whom.

Input: plain values of the YAML file. Output: a frozen `ReviewSettings`. Invariant: no price and no objective has a
default that could be mistaken for the user's own; what is not given is absent from the report.
"""

import re
from collections.abc import Mapping
from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

Indicator = Literal["ttft", "tpot", "inter_token", "e2e", "queue_time"]
Positive = Annotated[float, Field(gt=0)]
LabelName = Annotated[str, Field(pattern=r"^[a-zA-Z_][a-zA-Z0-9_]*$", max_length=64)]

# The histogram behind each indicator, by the catalogue's name.
HISTOGRAM_OF: Mapping[Indicator, str] = {
    "ttft": "ttft_seconds",
    "tpot": "tpot_seconds",
    "inter_token": "inter_token_latency_seconds",
    "e2e": "e2e_latency_seconds",
    "queue_time": "queue_time_seconds",
}


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class OutputLength(_Model):
    """The output lengths, in tokens, for which an SLO was promised."""

    mean: Positive
    p99: Positive


class Slo(_Model):
    """``share`` of the requests of models matching ``models`` meet ``indicator`` <= ``seconds``.

    The keys are those of the alerting rules' ``slos``, so that one text serves both.
    """

    name: Annotated[str, Field(min_length=1, max_length=100)]
    indicator: Indicator
    seconds: Positive
    share: Annotated[float, Field(gt=0, lt=1)]
    output_tokens: OutputLength | None = None
    models: Annotated[str, Field(max_length=256)] = ".+"

    @model_validator(mode="after")
    def _pattern(self) -> Self:
        try:
            re.compile(self.models)
        except re.error as error:
            raise PydanticCustomError(
                "value_error", "models is not a regular expression: {why}", {"why": str(error)}
            ) from None
        return self

    def covers(self, model_name: str) -> bool:
        """Whether this objective speaks of the model."""
        return re.fullmatch(self.models, model_name) is not None


class ModelSettings(_Model):
    """What is special about one model. ``settings`` are server settings that no metric tells, such as max_num_seqs."""

    gpus: Positive | None = None
    gpu_hour_price: Positive | None = None
    settings: dict[LabelName, int | float] = {}


class ReviewSettings(_Model):
    """``gpus`` are those of one engine (data-parallel rank); ``gpu_hour_price`` is in ``currency``."""

    currency: Annotated[str, Field(min_length=1, max_length=8)] = "USD"
    gpus: Positive = 1
    gpu_hour_price: Positive | None = None
    slos: list[Slo] = []
    identity_labels: list[LabelName] = []
    models: dict[str, ModelSettings] = {}

    def gpus_of(self, model_name: str) -> float:
        """GPUs that one engine of the model holds."""
        own = self.models.get(model_name)
        return self.gpus if own is None or own.gpus is None else own.gpus

    def price_of(self, model_name: str) -> float | None:
        """Price of a GPU-hour for the model, where known."""
        own = self.models.get(model_name)
        return self.gpu_hour_price if own is None or own.gpu_hour_price is None else own.gpu_hour_price

    def slos_of(self, model_name: str) -> tuple[Slo, ...]:
        """The objectives that speak of the model."""
        return tuple(slo for slo in self.slos if slo.covers(model_name))
