"""The review as JSON: every number of the report, for scripts.

Input: a `Review`. Output: bytes, with ``schema`` 1. Invariant: what is not known is null, and infinity (above the last
bucket) is null as well, with the reason beside it.
"""

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from math import isfinite
from typing import Any

import orjson
from pydantic import BaseModel

from vllm_vitals.core.sample import Histogram
from vllm_vitals.core.snapshot import Reading
from vllm_vitals.planner.review.report import ModelReview, Review

SCHEMA = 1


def render(review: Review) -> bytes:
    """UTF-8, indented."""
    document = {"schema": SCHEMA, **plain(review)}
    return orjson.dumps(document, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)


def plain(value: Any) -> Any:
    """Dataclasses, models and mappings as plain values, in their own order; verdicts are computed in."""
    if isinstance(value, Histogram):
        return {"bounds": list(value.bounds), "counts": list(value.counts), "sum": value.sum}
    if is_dataclass(value) and not isinstance(value, type):
        own = {field.name.rstrip("_"): plain(getattr(value, field.name)) for field in fields(value)}
        return {**own, "verdict": value.verdict} if isinstance(value, ModelReview) else own
    if isinstance(value, BaseModel):
        return value.model_dump()
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, Reading):
        return plain(value._asdict())
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, float):
        return value if isfinite(value) else None
    return value
