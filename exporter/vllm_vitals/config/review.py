"""The section ``review``: what GPUs cost and what was promised to whom.

Input: plain values of the YAML file. Output: a frozen `ReviewSettings`. Invariant: no price and no objective has a
default that could be mistaken for the user's own; what is not given is absent from the report.
"""

from typing import Annotated

from pydantic import Field

from vllm_vitals.config.objectives import Slo
from vllm_vitals.config.values import LabelName, Positive, Strict


class ModelSettings(Strict):
    """What is special about one model. ``settings`` are server settings that no metric tells, such as max_num_seqs."""

    gpus: Positive | None = None
    gpu_hour_price: Positive | None = None
    settings: dict[LabelName, int | float] = Field(default_factory=dict)


class ReviewSettings(Strict):
    """``gpus`` are those of one engine (data-parallel rank); ``gpu_hour_price`` is in ``currency``."""

    currency: Annotated[str, Field(min_length=1, max_length=8)] = "USD"
    gpus: Positive = 1
    gpu_hour_price: Positive | None = None
    slos: list[Slo] = Field(default_factory=list)
    identity_labels: list[LabelName] = Field(default_factory=list)
    models: dict[str, ModelSettings] = Field(default_factory=dict)

    def gpus_of(self, model_name: str) -> float:
        """GPUs that one engine of the model holds."""
        own = self.models.get(model_name)
        return self.gpus if own is None or own.gpus is None else own.gpus

    def price_of(self, model_name: str) -> float | None:
        """Price of a GPU-hour for the model, where known."""
        own = self.models.get(model_name)
        return self.gpu_hour_price if own is None or own.gpu_hour_price is None else own.gpu_hour_price

    def slos_of(self, model_name: str) -> tuple[Slo, ...]:
        """Return the objectives that cover the model."""
        return tuple(slo for slo in self.slos if slo.covers(model_name))
