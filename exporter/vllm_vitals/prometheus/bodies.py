"""Samples that a Prometheus keeps, put together again as the pages that were scraped.

Input: series with their samples. Output: by time of scrape (epoch s, to the millisecond) the body of a page that holds
the same values. Invariant: what was not kept is not on the page; labels that Prometheus added are not, either.
"""

from collections.abc import Collection, Iterable, Mapping

from vllm_vitals.prometheus.promapi import Series
from vllm_vitals.vllm.lookup import WIRE

# Whole families of histograms come first: a page that ends with one looks cut off where a part of it was not kept.
_ORDER = {"histogram": 0, "series": 1, "counter": 1, "gauge": 3}
_CONFIG = (2, "", "")


class Pages:
    """Builds pages of one server. ``added`` are the labels that its scrape config put on every series."""

    def __init__(self, added: Collection[str]) -> None:
        self._added = frozenset(added)
        self._heads: dict[tuple[tuple[str, str], ...], tuple[tuple[int, str, str], bytes]] = {}

    def build(self, series: Iterable[Series]) -> dict[float, bytes]:
        """Return a body by time. Two series that only an added label tells apart: the first is taken."""
        rows: dict[float, dict[bytes, tuple[tuple[int, str, str], str]]] = {}
        for each in series:
            order, head = self._head(each.labels)
            for at, value in each.points:
                rows.setdefault(round(float(at), 3), {}).setdefault(head, (order, value))
        return {at: _body(rows[at]) for at in sorted(rows)}

    def _head(self, labels: Mapping[str, str]) -> tuple[tuple[int, str, str], bytes]:
        ident = tuple(labels.items())
        if ident not in self._heads:
            name = labels.get("__name__", "")
            own = {key: value for key, value in labels.items() if key not in self._added and key != "__name__"}
            inside = ",".join(f'{key}="{escape(own[key])}"' for key in sorted(own))
            self._heads[ident] = _order(name), f"{name}{{{inside}}} ".encode()
        return self._heads[ident]


def _order(name: str) -> tuple[int, str, str]:
    spelling = WIRE.get(name)
    if spelling is None:
        return _CONFIG[0], name, name
    base = name[: -len(spelling.part) - 1] if spelling.part else name
    return _ORDER[spelling.family.kind], base, name


def _body(rows: Mapping[bytes, tuple[tuple[int, str, str], str]]) -> bytes:
    lines: list[bytes] = []
    family = ""
    for (kind, base, _), head, value in sorted((order, head, value) for head, (order, value) in rows.items()):
        if base != family:
            family = base
            lines.append(b"# TYPE %b %b" % (base.encode(), (b"histogram", b"counter", b"gauge", b"gauge")[kind]))
        lines.append(head + value.encode())
    return b"\n".join(lines) + b"\n"


def escape(value: str) -> str:
    """Return a label's value as a page and PromQL write it."""
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
