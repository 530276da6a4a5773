"""YAML without its traps: a key given twice is an error, and so is a file that is not a mapping.

Input: a file, or bytes and a name for messages. Output: plain dicts, lists and scalars. Invariant: whatever is wrong
comes out as `YamlError`, one line with the file and the place; no file is read beyond its bound.
"""

from collections.abc import Hashable
from pathlib import Path
from typing import Any

import yaml

from vllm_vitals import whole_file

MAX_BYTES = 8 * 1024 * 1024


class YamlError(Exception):
    """The file cannot be read, or is not the YAML that we accept; the message is one line."""


class _Loader(yaml.SafeLoader):
    """SafeLoader that refuses duplicate keys (PyYAML silently keeps the last) and aliases (they can explode)."""

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        if self.check_event(yaml.AliasEvent):
            raise _problem("aliases are not accepted", self.peek_event().start_mark)  # type: ignore[no-untyped-call]
        return super().compose_node(parent, index)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen: set[object] = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if not isinstance(key, str):
                raise _problem(f"a key must be text, got {key!r}: quote it", key_node.start_mark)
            if key in seen:
                raise _problem(f"the key {key!r} is given twice", key_node.start_mark)
            seen.add(key)
        return super().construct_mapping(node, deep=True)


def _problem(text: str, mark: yaml.Mark) -> yaml.MarkedYAMLError:
    return yaml.constructor.ConstructorError(None, None, text, mark)


def read(path: Path, most: int = MAX_BYTES) -> dict[str, Any]:
    """Return the mapping that a file of at most so many bytes holds."""
    return load(str(path), whole_file.read(path, most, YamlError))


def load(name: str, content: bytes) -> dict[str, Any]:
    """Return the mapping that ``content`` holds; an empty file is an empty mapping."""
    try:
        document = yaml.load(content, Loader=_Loader)  # noqa: S506 - a SafeLoader
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        place = f":{mark.line + 1}:{mark.column + 1}" if mark is not None else ""
        raise YamlError(f"{name}{place}: {' '.join((error.problem or 'not YAML').split())}") from None
    except (yaml.YAMLError, UnicodeDecodeError, ValueError, RecursionError) as error:
        raise YamlError(f"{name}: not YAML: {' '.join(str(error).split())[:200]}") from None
    if document is None:
        return {}
    if not isinstance(document, dict):
        raise YamlError(f"{name}: expected keys and values at the top, got a {type(document).__name__}")
    return document
