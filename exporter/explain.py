"""What is wrong with a config file, in one exact line per problem.

Input: pydantic's findings. Output: lines with the key's path, what was expected and what was there. Invariant: a value
of a secret is never among them: secrets stand in files, not in the config.
"""

import difflib
from typing import get_args

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails


def explain(name: str, where: str, error: ValidationError, model: type[BaseModel]) -> str:
    """Every problem on its own line: file, path of the key (after ``where``), what was expected and what was got."""
    problems = [f"{name}: {where}{_path(problem)}: {_reason(problem, model)}" for problem in error.errors()]
    return "\n".join(dict.fromkeys(problems))


def _path(problem: ErrorDetails) -> str:
    path = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in problem["loc"] if part != "[key]")
    return path.lstrip(".") or "the file"


def _reason(problem: ErrorDetails, model: type[BaseModel]) -> str:
    kind, context = problem["type"], problem.get("ctx", {})
    if kind == "extra_forbidden":
        known = _known_keys(model, problem["loc"])
        close = difflib.get_close_matches(str(problem["loc"][-1]), known, 1)
        return "unknown key" + (
            f"; did you mean {close[0]}?" if close else f"; known are {', '.join(known)}" if len(known) < 15 else ""
        )
    if kind == "missing":
        return "is needed"
    if kind == "literal_error":
        return f"expected {context['expected']}, got {show(problem['input'])}"
    if kind in ("duration", "size", "address", "auth", "label", "pair"):
        return problem["msg"]
    if kind == "value_error":
        return problem["msg"].removeprefix("Value error, ")
    what = _EXPECTED.get(kind)
    return f"expected {what}, got {show(problem['input'])}" if what else problem["msg"]


_EXPECTED = {
    "string_type": "text (quote it)",
    "float_type": "a number",
    "int_type": "a whole number",
    "bool_type": "true or false",
    "list_type": "a list",
    "dict_type": "keys and values",
    "model_type": "keys and values",
    "model_attributes_type": "keys and values",
    "string_pattern_mismatch": "a label name such as cluster",
}


def _known_keys(model: type[BaseModel], location: tuple[int | str, ...]) -> list[str]:
    """The keys that the model at ``location`` within ``model`` knows."""
    for part in location[:-1]:
        if part in model.model_fields:
            model = _model_in(model.model_fields[str(part)].annotation) or model
    return list(model.model_fields)


def _model_in(annotation: object) -> type[BaseModel] | None:
    """The model that an annotation such as ``list[TargetConfig]`` or ``Tls | None`` holds."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
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
