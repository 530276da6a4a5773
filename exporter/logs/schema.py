"""Log shapes as data: a YAML mapping of JMESPath expressions, checked once and compiled to plain functions.

Input: mappings (shipped in ``schemas/``, or a user's). Output: `Schema`, which says whether it knows a record, and
reads it. Invariant: a compiled path answers exactly as JMESPath does.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import tzinfo
from importlib import resources
from typing import Annotated, Any, Literal, Self, cast

import jmespath
from jmespath.exceptions import JMESPathError
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from exporter import strict_yaml
from exporter.logs import values
from exporter.logs.events import RequestFinished

Getter = Callable[[Any], Any]
SHIPPED = ("vllm", "litellm", "envoy_ai_gateway", "openai_usage")


def _compiles(expression: str) -> str:
    try:
        jmespath.compile(expression)
    except JMESPathError as error:
        raise ValueError(f"not a JMESPath expression: {str(error).splitlines()[0]}") from None
    return expression


Path = Annotated[str, AfterValidator(_compiles)]


class Fields(BaseModel):
    """Where a response record holds what; every entry is a JMESPath expression over the whole record."""

    model_config = ConfigDict(extra="forbid", frozen=True)

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


class Envelope(BaseModel):
    """Where a vLLM record holds its message, time, level and logger."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    message: Path
    time: Path
    level: Path
    logger: Path


class LogMapping(BaseModel):
    """One log shape: of kind vllm with an ``envelope``, or of kind response with ``keys`` and ``fields``.

    A record that has all of ``keys`` at its top level is of this shape.

    ``skip``, ``failed`` and ``aborted`` are conditions: true for any value that JMESPath calls true.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str = Field(pattern=r"^[a-z][a-z0-9_]{0,40}$")
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
        """The event that a record of this shape holds, None where it is none of ours.

        Raises `values.ImpossibleError` for numbers that cannot be true.
        """
        if self.skip is not None and truth(self.skip(record)):
            return None
        raw = {name: getter(record) for name, getter in self.fields.items()}
        reason = values.finish_reason(raw.get("finish_reason"))
        if self.failed is not None and truth(self.failed(record)):
            reason = "error"
        if self.aborted is not None and truth(self.aborted(record)):
            reason = "abort"
        at = values.epoch(raw.get("time"), zone, near)
        ttft, e2e = _times(raw, zone, near)
        request_id = values.text(raw.get("request_id"))
        return RequestFinished(
            at,
            request_id,
            values.text(raw.get("model")),
            values.text(raw.get("route")) or route_of(request_id),
            values.tokens(raw.get("prompt_tokens")),
            values.tokens(raw.get("completion_tokens")),
            values.tokens(raw.get("reasoning_tokens")),
            values.tokens(raw.get("returned_tokens")),
            values.cap_tokens(raw.get("max_tokens")),
            reason,
            ttft,
            e2e,
            values.predicted(raw.get("predicted_tokens")),
            reasoning_only=truth(raw.get("reasoning_only")),
        )


def _times(raw: Mapping[str, Any], zone: tzinfo, near: float) -> tuple[float | None, float | None]:
    """TTFT and end-to-end s: said outright, or the difference of two instants."""
    ttft = (
        values.seconds(raw["ttft_ms"], 1000.0) if raw.get("ttft_ms") is not None else values.seconds(raw.get("ttft_s"))
    )
    e2e = values.seconds(raw["e2e_ms"], 1000.0) if raw.get("e2e_ms") is not None else values.seconds(raw.get("e2e_s"))
    if raw.get("start") is None:
        return ttft, e2e
    start, first, end = (values.epoch(raw.get(name), zone, near) for name in ("start", "first_token", "end"))
    if ttft is None and start is not None and first is not None:
        ttft = values.seconds(first - start)
    if e2e is None and start is not None and end is not None:
        e2e = values.seconds(end - start)
    return ttft, e2e


def route_of(request_id: str) -> str:
    """The route that vLLM's request id tells (``entrypoints/openai``: the prefix names the API)."""
    for prefix, route in (
        ("chatcmpl-", "/v1/chat/completions"),
        ("cmpl-", "/v1/completions"),
        ("resp_", "/v1/responses"),
    ):
        if request_id.startswith(prefix):
            return route
    return ""


def truth(value: Any) -> bool:
    """JMESPath's idea of true: 0 is, empty text and containers are not."""
    return value is not None and value is not False and value not in ("", [], {})


def compile_schema(mapping: LogMapping) -> Schema:
    """A mapping with its paths made functions."""
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
    """The shapes that come with the product, in the order in which they are tried."""
    folder = resources.files("exporter.logs") / "schemas"
    return [
        compile_schema(
            LogMapping.model_validate(strict_yaml.load(f"{name}.yaml", (folder / f"{name}.yaml").read_bytes()))
        )
        for name in names
    ]


def getter(path: str) -> Getter:
    """A function that answers as ``jmespath.search(path, record)`` does.

    Names, indices, literals, ``||``, ``&&``, ``!`` and ``==`` become plain look-ups, some ten times as fast; a path
    with anything else stays JMESPath's.
    """
    parsed = jmespath.compile(path)
    return _plain(cast("dict[str, Any]", parsed.parsed)) or parsed.search


def _plain(node: dict[str, Any]) -> Getter | None:
    parts = [_plain(child) for child in node.get("children", ())]
    ready = [part for part in parts if part is not None]
    if len(ready) < len(parts):
        return None
    match node["type"]:
        case "field":
            return _field(node["value"])
        case "index":
            return _index(node["value"])
        case "literal":
            return lambda _record: node["value"]
        case "not_expression":
            return lambda record: not truth(ready[0](record))
        case kind if kind in _PAIRS and len(ready) == 2 and node.get("value", "eq") == "eq":
            return _PAIRS[kind](*ready)
    return None


def _field(name: str) -> Getter:
    return lambda record: record.get(name) if isinstance(record, dict) else None


def _index(position: int) -> Getter:
    def look_up(record: Any) -> Any:
        return record[position] if isinstance(record, list) and -len(record) <= position < len(record) else None

    return look_up


def _chain(first: Getter, second: Getter) -> Getter:
    return lambda record: second(first(record))


def _either(left: Getter, right: Getter) -> Getter:
    def look_up(record: Any) -> Any:
        value = left(record)
        return value if truth(value) else right(record)

    return look_up


def _both(left: Getter, right: Getter) -> Getter:
    def look_up(record: Any) -> Any:
        value = left(record)
        return right(record) if truth(value) else value

    return look_up


def _equal(left: Getter, right: Getter) -> Getter:
    def look_up(record: Any) -> Any:
        one, other = left(record), right(record)
        return one == other and isinstance(one, bool) == isinstance(other, bool)

    return look_up


_PAIRS: Mapping[str, Callable[[Getter, Getter], Getter]] = {
    "subexpression": _chain,
    "index_expression": _chain,
    "or_expression": _either,
    "and_expression": _both,
    "comparator": _equal,
}
