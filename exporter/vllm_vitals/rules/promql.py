"""PromQL as text: folding to a victim, ranges that Prometheus 2 and 3 read alike, and matchers.

Every consumer of a series goes through `Fold`, so that two daemons, two Prometheis or both producers change nothing:
a gauge, or the rate of a counter, is folded by ``max`` over the identity, never summed.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from vllm_vitals.catalog import BY_NAME
from vllm_vitals.config.durations import duration_text


def metric(name: str) -> str:
    """Return the full name of a catalogue entry; a histogram's ``_bucket``, ``_count`` and ``_sum`` belong to it.

    Raises KeyError, so that a name that nobody serves stops the build.
    """
    base = name
    for suffix in ("_bucket", "_count", "_sum"):
        if name not in BY_NAME:
            base = name.removesuffix(suffix)
        if base in BY_NAME:
            break
    return BY_NAME[base].full_name + name.removeprefix(base)


def number(value: float) -> str:
    """Return a number without float noise."""
    return f"{value:.12g}"


def by(labels: Sequence[str]) -> str:
    """``by (a, b)``."""
    return f"by ({', '.join(labels)})"


def on(labels: Sequence[str]) -> str:
    """``on (a, b)``."""
    return f"on ({', '.join(labels)})"


def selector(name: str, *matchers: str) -> str:
    """``name{a="b"}``, skipping empty matchers."""
    kept = ",".join(m for m in matchers if m)
    return f"{name}{{{kept}}}" if kept else name


@dataclass(frozen=True, slots=True)
class Fold:
    """Reads one series per victim. ``step`` is the evaluation interval in seconds."""

    labels: tuple[str, ...]
    step: int

    def range(self, seconds: float) -> str:
        """Return a range of at least ``seconds``: a multiple of the interval plus one second.

        A range that ends on the grid holds one sample more in Prometheus 2 than in 3 (left-open).
        """
        return f"[{self.span(seconds)}s]"

    def span(self, seconds: float) -> int:
        """Return the length of that range (s)."""
        return -(-int(seconds) // self.step) * self.step + 1

    def gauge(
        self, name: str, *matchers: str, over: str = "", seconds: float = 0, offset: float = 0, keep: Sequence[str] = ()
    ) -> str:
        """Return one value per victim of a gauge, or of ``over`` (``max_over_time``, ...) of it."""
        shift = f" offset {duration_text(offset)}" if offset else ""
        series = selector(metric(name), *matchers)
        inner = f"{over}({series}{self.range(seconds)}{shift})" if over else series + shift
        return f"max {by((*self.labels, *keep))} ({inner})"

    def rate(self, name: str, *matchers: str, seconds: float, function: str = "rate", keep: Sequence[str] = ()) -> str:
        """Return one rate (or ``increase``) per victim of a counter, or of a histogram's count.

        The increase is the rate times the range, as Prometheus has it: VictoriaMetrics' own increase() is larger by
        what happened since the sample before the range, and takes a counter's first value for an increase.
        """
        series = selector(metric(name), *matchers)
        times = f" * {self.span(seconds)}" if function == "increase" else ""
        return f"max {by((*self.labels, *keep))} (rate({series}{self.range(seconds)}){times})"
