"""How the API server counts its answers: what prometheus-fastapi-instrumentator adds to vLLM's ``/metrics``.

Input: handler, method, status and duration of every answer. Output: text. Statuses are grouped by class, a stream that
fails later is still the 2xx that it began as, and ``/metrics``, ``/health`` and their like are left out
(vllm/entrypoints/serve/instrumentator/metrics.py). Sizes of bodies are not simulated. Invariant: a series exists from
its first answer on, never before.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterable

from prometheus_client import utils

from vllm_vitals.simulator.stats import Histogram
from vllm_vitals.vllm.routes import HTTP_REQUESTS

_number: Callable[[float], str] = utils.floatToGoString

# prometheus-fastapi-instrumentator's defaults.
_FINE = (0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 2.5, 3.0, 3.5, 4.0, 4.5, 5.0, 7.5, 10.0, 30.0,
         60.0)  # fmt: skip
_COARSE = (0.1, 0.5, 1.0)
_TOTAL = "Total number of requests by method, status and handler."
_HIGHR = "Latency with many buckets but no API specific labels. Made for more accurate percentile calculations. "  # sic
_BY_HANDLER = (
    "Latency with only few buckets by handler. Made to be only used if aggregation by handler is important. "  # sic
)


class HttpMetrics:
    """One process's answers. ``created`` lines are left out with several API servers, as prometheus_client does."""

    def __init__(self, started_at: float, created: bool) -> None:
        self._since = _number(started_at)
        self._created = created
        self._answers: dict[tuple[str, str, int], int] = {}
        self._durations: dict[tuple[str, str], Histogram] = {}

    def count(self, handler: str, method: str, status: int, seconds: float = 0.0, times: int = 1) -> None:
        """Count one answer, or several that took as long."""
        if not times:
            return
        key = (handler, method, status // 100)
        self._answers[key] = self._answers.get(key, 0) + times
        durations = self._durations.get(key[:2])
        if durations is None:
            durations = self._durations[key[:2]] = Histogram(_FINE)
        durations.observe(seconds, times)

    def render(self) -> str:
        """Return the families, nothing before the first answer."""
        if not self._answers:
            return ""
        names = [
            f'{{handler="{handler}",method="{method}",status="{status}xx"}}'
            for handler, method, status in self._answers
        ]
        out = [_header(f"{HTTP_REQUESTS}_total", "counter", _TOTAL)]
        out += [
            f"{HTTP_REQUESTS}_total{name} {float(count)}\n"
            for name, count in zip(names, self._answers.values(), strict=True)
        ]
        if self._created:
            out.append(_header(f"{HTTP_REQUESTS}_created", "gauge", _TOTAL))
            out += [f"{HTTP_REQUESTS}_created{name} {self._since}\n" for name in names]
        out += self._histograms("http_request_duration_highr_seconds", _HIGHR, {"": _sum(self._durations.values())})
        by_handler = {
            f'handler="{handler}",method="{method}"': _coarse(found)
            for (handler, method), found in self._durations.items()
        }
        out += self._histograms("http_request_duration_seconds", _BY_HANDLER, by_handler)
        return "".join(out)

    def _histograms(self, name: str, text: str, found: dict[str, Histogram]) -> list[str]:
        out = [_header(name, "histogram", text)]
        for labels, histogram in found.items():
            below = 0
            for bound, count in zip((*histogram.bounds, float("inf")), histogram.counts, strict=True):
                below += count
                edge = f'le="{_number(bound)}"'
                # Labels stand in alphabetical order: handler, le, method.
                inside = labels.replace(",", f",{edge},") if labels else edge
                out.append(f"{name}_bucket{{{inside}}} {float(below)}\n")
            braces = f"{{{labels}}}" if labels else ""
            out.append(f"{name}_count{braces} {float(below)}\n{name}_sum{braces} {histogram.sum}\n")
        if self._created:
            out.append(_header(f"{name}_created", "gauge", text))
            out += [f"{name}_created{f'{{{labels}}}' if labels else ''} {self._since}\n" for labels in found]
        return out


def _sum(histograms: Iterable[Histogram]) -> Histogram:
    whole = Histogram(_FINE)
    for each in histograms:
        whole.counts = [total + count for total, count in zip(whole.counts, each.counts, strict=True)]
        whole.sum += each.sum
    return whole


def _coarse(fine: Histogram) -> Histogram:
    """Return the same in few buckets; their bounds are among the many."""
    whole = Histogram(_COARSE)
    for bound, count in zip((*fine.bounds, float("inf")), fine.counts, strict=True):
        whole.counts[bisect_left(_COARSE, bound)] += count
    whole.sum = fine.sum
    return whole


def _header(name: str, kind: str, text: str) -> str:
    return f"# HELP {name} {text}\n# TYPE {name} {kind}\n"
