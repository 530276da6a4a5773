"""Target groups: the format of Prometheus' file_sd and http_sd.

Input: bytes, and what to call them in messages. Output: `Found` targets in order. Invariant: what is not wholly
understood raises `SourceError` with the place; no input makes this large, or slower than `MAX_NODES` of YAML.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import orjson
import yaml

MAX_FOUND = 10_000  # targets from one source
MAX_NODES = 200_000  # of YAML, which is slow: 10,000 targets with five labels each
MAX_LABELS = 64
MAX_TEXT = 1_024
_LABEL = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]{0,63}", re.ASCII)


class SourceError(Exception):
    """A source could not be read. The text is one line that names it."""


@dataclass(frozen=True, slots=True)
class Found:
    """A target as a source names it: an address, and labels without the ``__`` ones."""

    address: str
    labels: Mapping[str, str] = field(default_factory=dict)


def parse_groups(where: str, content: bytes, is_given_up: Callable[[], bool] = lambda: False) -> list[Found]:
    """Targets of ``[{"targets": [...], "labels": {...}}]`` in JSON or YAML. Raises `SourceError`.

    ``__scheme__`` and ``__metrics_path__`` shape the address as in Prometheus; other labels that begin with ``__`` are
    dropped. ``is_given_up`` is asked now and then.
    """
    groups = _document(where, content, is_given_up)
    if not isinstance(groups, list):
        raise SourceError(f'{where}: expected a list of {{"targets": [...], "labels": {{...}}}}')
    found = []
    for index, group in enumerate(groups):
        place = f"{where}: [{index}]"
        if not isinstance(group, dict) or not isinstance(group.get("targets"), list):
            raise SourceError(f"{place}: expected targets: a list of addresses")
        unknown = sorted(set(map(str, group)) - {"targets", "labels"})
        if unknown:
            raise SourceError(f"{place}: unknown key {unknown[0][:60]}; known are targets, labels")
        labels = _labels(place, group.get("labels"))
        kept = {name: value for name, value in labels.items() if not name.startswith("__")}
        found += [Found(_address(place, target, labels), kept) for target in group["targets"]]
        if len(found) > MAX_FOUND:
            raise SourceError(f"{where}: more than {MAX_FOUND} targets")
    return found


def _document(where: str, content: bytes, is_given_up: Callable[[], bool]) -> object:
    try:
        return orjson.loads(content)
    except orjson.JSONDecodeError as not_json:
        if content.lstrip()[:1] in (b"[", b"{") or not content.strip():
            raise SourceError(f"{where}: not JSON: {not_json}"[:300]) from None
    try:
        loader = _Yaml(content)
        loader.is_given_up = is_given_up
        return loader.get_single_data()
    except (yaml.YAMLError, UnicodeDecodeError, ValueError, RecursionError) as error:
        raise SourceError(f"{where}: neither JSON nor YAML: {' '.join(str(error).split())[:200]}") from None


class _Yaml(yaml.SafeLoader):
    """SafeLoader without aliases, which can make a small file an endless one."""

    is_given_up: Callable[[], bool]
    nodes = 0

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        if self.check_event(yaml.AliasEvent):
            raise yaml.YAMLError("aliases are not accepted")
        self.nodes += 1
        if self.nodes > MAX_NODES:
            raise yaml.YAMLError(f"more than {MAX_NODES} nodes: write it as JSON")
        if self.is_given_up():
            raise yaml.YAMLError("no caller waits for it any more")
        return super().compose_node(parent, index)


def _labels(place: str, labels: object) -> Mapping[str, str]:
    if labels is None:
        return {}
    if not isinstance(labels, dict) or len(labels) > MAX_LABELS:
        raise SourceError(f"{place}: expected labels: at most {MAX_LABELS} names with texts")
    for name, value in labels.items():
        if not isinstance(name, str) or not isinstance(value, str) or max(len(name), len(value)) > MAX_TEXT:
            raise SourceError(f"{place}: labels: {str(name)[:60]}: expected text (quote it)")
        if not _LABEL.fullmatch(name):  # it is written as it is, so it could say anything
            raise SourceError(f"{place}: labels: {name[:60]!r} is no label name such as cluster")
    return labels


def _kind(value: object) -> str:
    """Return the text in place of an address; only a number is shown, since anything else may hold a password."""
    if isinstance(value, str):
        return f"a text of {len(value)} characters"
    return str(value)[:60] if isinstance(value, int | float) else type(value).__name__


def _address(place: str, target: object, labels: Mapping[str, str]) -> str:
    if not isinstance(target, str) or not target or len(target) > MAX_TEXT:
        raise SourceError(f"{place}: targets: expected an address such as host:8000, got {_kind(target)}")
    if "://" in target or not ("__scheme__" in labels or "__metrics_path__" in labels):
        return target
    return f"{labels.get('__scheme__', 'http')}://{target}{labels.get('__metrics_path__', '/metrics')}"
