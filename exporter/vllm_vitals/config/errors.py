"""What is wrong with a config file, in one exact line per problem.

Input: pydantic's findings. Output: lines with the key's path, what was expected and what was there. Invariant: a value
of a secret is never among them: secrets stand in files, not in the config.
"""

import difflib
import re
from collections.abc import Iterable
from dataclasses import is_dataclass
from typing import Any, get_args, get_type_hints

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from vllm_vitals.config.renamed import mend, renamed
from vllm_vitals.config.show import show


class ConfigError(Exception):
    """The config cannot be used. The text is one line per problem, each naming the file and the key's path."""


def explain(name: str, error: ValidationError, model: type[Any]) -> list[str]:
    """Say every problem in a line of its own: file, path of the key, what was expected and what was got.

    ``model`` is the pydantic model or the dataclass that the file was held against.
    """
    problems = error.errors()
    old = {problem["loc"][:-1]: renamed(_keys_of(problem)) for problem in problems if problem["type"] in _UNKNOWN}
    return unique(
        f"{name}: {_path(problem)}: {_reason(problem, model)}"
        for problem in problems
        if problem["type"] not in _MISSING or problem["loc"][-1] != old.get(problem["loc"][:-1])
    )


def _keys_of(problem: ErrorDetails) -> list[str]:
    """Return the path of a problem without the places in lists."""
    return [part for part in problem["loc"] if isinstance(part, str)]


def unique(lines: Iterable[str]) -> list[str]:
    """Return the lines in their order, each once."""
    return list(dict.fromkeys(lines))


def _path(problem: ErrorDetails) -> str:
    path = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in problem["loc"] if part != "[key]")
    return path.lstrip(".") or "the file"


def _reason(problem: ErrorDetails, model: type[Any]) -> str:
    kind, context = problem["type"], problem.get("ctx", {})
    if kind in _UNKNOWN:
        if now := mend(_keys_of(problem)):
            return now
        known = _known_keys(model, problem["loc"])
        close = difflib.get_close_matches(str(problem["loc"][-1]), known, 1)
        return "unknown key" + (
            f"; did you mean {close[0]}?" if close else f"; known are {', '.join(known)}" if len(known) < 15 else ""
        )
    if kind in _MISSING:
        return "is needed"
    if kind == "literal_error":
        return f"expected {context['expected']}, got {show(problem['input'])}"
    if kind in _OWN:
        return problem["msg"]
    if kind == "value_error":
        return problem["msg"].removeprefix("Value error, ")
    what = _EXPECTED.get(kind)
    if kind in _BOUNDS:
        unit = ("B" if problem["input"].endswith("B") else "s") if isinstance(problem["input"], str) else ""
        what = _BOUNDS[kind].format(**context) + unit
    got = show(problem["input"])
    return f"expected {what}, got {got}{_unquoted(kind, problem['input'])}" if what else problem["msg"]


def _unquoted(kind: str, value: object) -> str:
    """Return the mend for a number or a truth that stands in quotes: text is never converted."""
    if isinstance(value, str):
        number = kind in ("float_type", "int_type") and re.fullmatch(r"-?\d{1,18}(\.\d{1,18})?", value)
        if number or (kind == "bool_type" and value in ("true", "false")):
            return f": write {value} without quotes"
    return ""


_UNKNOWN = ("extra_forbidden", "unexpected_keyword_argument")
_MISSING = ("missing", "missing_argument")
# Refusals whose words are ours already.
_OWN = frozenset(
    {"duration", "size", "share", "address", "auth", "label", "pair", "pattern", "path", "header", "moved"}
)
_EXPECTED = {
    "string_type": "text (quote it)",
    "float_type": "a number",
    "int_type": "a whole number",
    "bool_type": "true or false",
    "list_type": "a list",
    "tuple_type": "a list",
    "dataclass_type": "keys and values",
    "float_parsing": "a number",
    "int_parsing": "a whole number",
    "int_from_float": "a whole number",
    "bool_parsing": "true or false",
    "dict_type": "keys and values",
    "model_type": "keys and values",
    "model_attributes_type": "keys and values",
}


_BOUNDS = {
    "greater_than": "more than {gt:g}",
    "greater_than_equal": "at least {ge:g}",
    "less_than": "less than {lt:g}",
    "less_than_equal": "at most {le:g}",
    "too_short": "at least {min_length} of them",
}


def _known_keys(model: type[Any], location: tuple[int | str, ...]) -> list[str]:
    """Return the keys that the model at ``location`` within ``model`` knows."""
    for part in location[:-1]:
        if annotation := _keys(model).get(str(part)):
            model = _model_in(annotation) or model
    return list(_keys(model))


def keys_of(model: type[Any]) -> set[str]:
    """Return the keys that a model or a dataclass has in a file."""
    return set(_keys(model))


def _keys(model: type[Any]) -> dict[str, Any]:
    """Return the keys of a model or dataclass, with their types."""
    if issubclass(model, BaseModel):
        return {field.alias or name: field.annotation for name, field in model.model_fields.items()}
    hints = get_type_hints(model, include_extras=True)
    return {_alias(hint) or name: hint for name, hint in hints.items() if name in model.__dataclass_fields__}


def _alias(hint: object) -> str:
    """Return the key of a dataclass's field in a file, where that is not its name."""
    names = (part.alias for part in getattr(hint, "__metadata__", ()) if isinstance(part, FieldInfo))
    return next(filter(None, names), "")


def _model_in(annotation: object) -> type[Any] | None:
    """Return the model that an annotation such as ``list[TargetConfig]`` or ``Tls | None`` holds."""
    if isinstance(annotation, type) and (is_dataclass(annotation) or issubclass(annotation, BaseModel)):
        return annotation
    return next(filter(None, map(_model_in, get_args(annotation))), None)
