"""Log shapes as data: a YAML mapping of JMESPath expressions, checked once and compiled to plain functions.

Input: mappings (shipped in ``schemas/``, or a user's). Output: `Schema`, which says whether it knows a record, and
reads it. Invariant: a mapping that cannot be used is refused before the first line is read.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import tzinfo
from importlib import resources
from typing import Annotated, Any, Literal, Self

import jmespath
from jmespath.exceptions import JMESPathError
from pydantic import AfterValidator, Field, model_validator

from vllm_vitals.config import strict_yaml
from vllm_vitals.config.values import Strict, matching
from vllm_vitals.logs import values
from vllm_vitals.logs.events import RequestFinished
from vllm_vitals.logs.paths import Getter, getter

SHIPPED = ("vllm", "litellm", "envoy_ai_gateway", "openai_usage")

# Mapping field -> event field and how to read it; the fields that are not here are instants.
_CONVERT: Mapping[str, tuple[str, Callable[[Any], Any]]] = {
    "request_id": ("request_id", values.text),
    "model": ("model", values.text),
    "route": ("route", values.text),
    "prompt_tokens": ("prompt_tokens", values.tokens),
    "completion_tokens": ("completion_tokens", values.tokens),
    "reasoning_tokens": ("reasoning_tokens", values.tokens),
    "returned_tokens": ("returned_tokens", values.tokens),
    "max_tokens": ("max_tokens", values.cap_tokens),
    "predicted_tokens": ("predicted_tokens", values.predicted),
    "finish_reason": ("finish_reason", values.finish_reason),
    "reasoning_only": ("reasoning_only", values.truth),
    "ttft_s": ("ttft_s", values.seconds),
    "ttft_ms": ("ttft_s", values.milliseconds),
    "e2e_s": ("e2e_s", values.seconds),
    "e2e_ms": ("e2e_s", values.milliseconds),
}


def _compiles(expression: str) -> str:
    try:
        jmespath.compile(expression)
    except JMESPathError as error:
        raise ValueError(f"not a JMESPath expression: {str(error).splitlines()[0]}") from None
    return expression


Path = Annotated[str, AfterValidator(_compiles)]


class Fields(Strict):
    """Where a response record holds what; every entry is a JMESPath expression over the whole record."""

    time: Path | None = None
    request_id: Path | None = None
    model: Path | None = None
    route: Path | None = None
    prompt_tokens: Path | None = None
    completion_tokens: Path | None = None
    reasoning_tokens: Path | None = None
    returned_tokens: Path | None = None
    max_tokens: Path | None = None
    predicted_tokens: Path | None = None
    finish_reason: Path | None = None
    reasoning_only: Path | None = None
    ttft_s: Path | None = None
    ttft_ms: Path | None = None
    e2e_s: Path | None = None
    e2e_ms: Path | None = None
    start: Path | None = None
    first_token: Path | None = None
    end: Path | None = None


class Envelope(Strict):
    """Where a vLLM record holds its message, time, level and logger."""

    message: Path
    time: Path
    level: Path
    logger: Path


class LogMapping(Strict):
    """One log shape: of kind vllm with an ``envelope``, or of kind response with ``keys`` and ``fields``.

    A record that has all of ``keys`` at its top level is of this shape. ``skip``, ``failed`` and
    ``aborted`` are conditions: true for any value that JMESPath calls true.
    """

    name: Annotated[str, matching("[a-z][a-z0-9_]{0,40}", "a name such as my_gateway")]
    about: str = ""
    kind: Literal["response", "vllm"] = "response"
    keys: list[str] = Field(default_factory=list)
    skip: Path | None = None
    failed: Path | None = None
    aborted: Path | None = None
    fields: Fields | None = None
    envelope: Envelope | None = None

    @model_validator(mode="after")
    def _complete(self) -> Self:
        if self.kind == "vllm" and self.envelope is None:
            raise ValueError("a mapping of kind vllm needs an envelope")
        if self.kind == "response" and (self.fields is None or not self.keys):
            raise ValueError("a mapping of kind response needs keys and fields")
        return self


@dataclass(frozen=True, slots=True)
class Schema:
    """A compiled mapping. ``fields`` and ``envelope`` are functions of the record."""

    name: str
    kind: Literal["response", "vllm"]
    keys: frozenset[str]
    fields: Mapping[str, Getter]
    envelope: tuple[Getter, Getter, Getter, Getter] | None
    skip: Getter | None
    failed: Getter | None
    aborted: Getter | None

    def response(self, record: Mapping[str, Any], zone: tzinfo, near: float) -> RequestFinished | None:
        """Read the event that a record of this shape holds, None where it is none of ours.

        Raises `values.ImpossibleError` for numbers that cannot be true.
        """
        if self.skip is not None and values.truth(self.skip(record)):
            return None
        found: dict[str, Any] = {}
        instants: dict[str, Any] = {}
        for name, read in self.fields.items():
            value = read(record)
            if value is not None:
                convert = _CONVERT.get(name)
                if convert is None:
                    instants[name] = value
                else:
                    field, change = convert
                    found[field] = change(value)
        if instants:
            _add_times(found, instants, zone, near)
        if self.failed is not None and values.truth(self.failed(record)):
            found["finish_reason"] = "error"
        if self.aborted is not None and values.truth(self.aborted(record)):
            found["finish_reason"] = "abort"
        if not found.get("route"):
            found["route"] = route_of(found.get("request_id", ""))
        found.setdefault("at", None)
        return RequestFinished(**found)


def _add_times(found: dict[str, Any], instants: Mapping[str, Any], zone: tzinfo, near: float) -> None:
    """Add the event's time, and durations that nobody said outright as the difference of two instants."""
    at = {name: values.epoch(value, zone, near) for name, value in instants.items()}
    if "time" in at:
        found["at"] = at["time"]
    start = at.get("start")
    for duration, name in (("ttft_s", "first_token"), ("e2e_s", "end")):
        if start is not None and duration not in found and (until := at.get(name)) is not None:
            found[duration] = values.seconds(until - start)


def route_of(request_id: str) -> str:
    """Tell the route that vLLM's request id tells (``entrypoints/openai``: the prefix names the API)."""
    for prefix, route in (
        ("chatcmpl-", "/v1/chat/completions"),
        ("cmpl-", "/v1/completions"),
        ("resp_", "/v1/responses"),
    ):
        if request_id.startswith(prefix):
            return route
    return ""


def compile_schema(mapping: LogMapping) -> Schema:
    """Make a mapping's paths functions."""
    fields = {} if mapping.fields is None else mapping.fields.model_dump(exclude_none=True)
    envelope = None
    if mapping.envelope is not None:
        parts = mapping.envelope
        envelope = (getter(parts.message), getter(parts.time), getter(parts.level), getter(parts.logger))
    return Schema(
        mapping.name,
        mapping.kind,
        frozenset(mapping.keys),
        {name: getter(path) for name, path in fields.items()},
        envelope,
        *(None if path is None else getter(path) for path in (mapping.skip, mapping.failed, mapping.aborted)),
    )


def shipped(names: Iterable[str] = SHIPPED) -> list[Schema]:
    """Read the shapes that come with the product, in the order in which they are tried."""
    folder = resources.files("vllm_vitals.logs") / "schemas"
    return [
        compile_schema(
            LogMapping.model_validate(strict_yaml.load(f"{name}.yaml", (folder / f"{name}.yaml").read_bytes()))
        )
        for name in names
    ]
