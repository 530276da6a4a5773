"""JSON files of ours that say which version wrote them: a model of pydantic, with its schema's number under ``schema``.

Input: a file's content. Output: the model. Invariant: another version's file and one that is none of ours are told
apart, each in one line.
"""

from pathlib import Path
from typing import TypeVar

import orjson
from pydantic import BaseModel, ValidationError

_Model = TypeVar("_Model", bound=BaseModel)


def parse(
    path: Path, content: bytes, model: type[_Model], schema: int, error: type[Exception], wrote: str, again: str = ""
) -> _Model:
    """Return what a file holds. Raises ``error``: ``wrote`` ends "not a file ...", ``again`` says how to go on."""
    try:
        document = orjson.loads(content)
        if isinstance(document, dict) and document.get("schema") not in (None, schema):
            raise error(f"{path}: written by another version (schema {document['schema']}){again}")
        return model.model_validate_json(content)  # as JSON: an array is a tuple there
    except (orjson.JSONDecodeError, ValidationError):
        raise error(f"{path}: not a file {wrote}") from None
