"""What is wrong with a config file, in one exact line per problem.

Input: pydantic's findings. Output: lines with the key's path, what was expected and what was there. Invariant: a value
of a secret is never among them: secrets stand in files, not in the config.
"""

import difflib
from dataclasses import is_dataclass
from typing import Any, get_args, get_type_hints

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails


def explain(name: str, where: str, error: ValidationError, model: type[Any]) -> str:
    """Every problem on its own line: file, path of the key (after ``where``), what was expected and what was got.

    ``model`` is the pydantic model or the dataclass that the file was held against.
    """
    problems = [f"{name}: {where}{_path(problem)}: {_reason(problem, model)}" for problem in error.errors()]
    return "\n".join(dict.fromkeys(problems))


def _path(problem: ErrorDetails) -> str:
    path = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in problem["loc"] if part != "[key]")
    return path.lstrip(".") or "the file"


def _reason(problem: ErrorDetails, model: type[Any]) -> str:
    kind, context = problem["type"], problem.get("ctx", {})
    if kind in ("extra_forbidden", "unexpected_keyword_argument"):
        known = _known_keys(model, problem["loc"])
        close = difflib.get_close_matches(str(problem["loc"][-1]), known, 1)
        return "unknown key" + (
            f"; did you mean {close[0]}?" if close else f"; known are {', '.join(known)}" if len(known) < 15 else ""
        )
    if kind in ("missing", "missing_argument"):
        return "is needed"
    if kind == "literal_error":
        return f"expected {context['expected']}, got {show(problem['input'])}"
    if kind in ("duration", "size", "address", "auth", "label", "pair"):
        return problem["msg"]
    if kind == "value_error":
        return problem["msg"].removeprefix("Value error, ")
    what = _BOUNDS[kind].format(**context) if kind in _BOUNDS else _EXPECTED.get(kind)
    return f"expected {what}, got {show(problem['input'])}" if what else problem["msg"]


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
    "string_pattern_mismatch": "a label name such as cluster",
}


_BOUNDS = {
    "greater_than": "more than {gt:g}",
    "greater_than_equal": "at least {ge:g}",
    "less_than": "less than {lt:g}",
    "less_than_equal": "at most {le:g}",
    "too_short": "at least {min_length} of them",
}


def _known_keys(model: type[Any], location: tuple[int | str, ...]) -> list[str]:
    """The keys that the model at ``location`` within ``model`` knows."""
    for part in location[:-1]:
        if annotation := _keys(model).get(str(part)):
            model = _model_in(annotation) or model
    return list(_keys(model))


def _keys(model: type[Any]) -> dict[str, Any]:
    """The keys of a model or dataclass, with their types."""
    if issubclass(model, BaseModel):
        return {name: field.annotation for name, field in model.model_fields.items()}
    return {name: hint for name, hint in get_type_hints(model).items() if name in model.__dataclass_fields__}


def _model_in(annotation: object) -> type[Any] | None:
    """The model that an annotation such as ``list[TargetConfig]`` or ``Tls | None`` holds."""
    if isinstance(annotation, type) and (is_dataclass(annotation) or issubclass(annotation, BaseModel)):
        return annotation
    return next(filter(None, map(_model_in, get_args(annotation))), None)


def show(value: object) -> str:
    """A value as a person typed it, short; never more than 60 characters of it."""
    text = {True: "true", False: "false", None: "nothing"}.get(value) if isinstance(value, bool | None) else None
    if text is None:
        text = (
            f'"{value}"'
            if isinstance(value, str)
            else type(value).__name__
            if isinstance(value, dict | list)
            else str(value)
        )
    return text if len(text) <= 60 else text[:57] + "..."
