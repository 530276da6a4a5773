"""Which changes the simulated server would keep, as `compare` decides of real runs: by what users get.

Input: rows of a what-if, the first as it is. Output: a `Verdict` a row, and what to try first. Runs of one seed have
the same requests, so small differences count; the bars are of how far the simulated server is from the real one.
Invariant: a change that would be rolled back is never named first, whoever advised it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import log
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vllm_vitals.planner.whatif.whatif import Prediction, Row

LITTLE, LITTLE_LATER = 0.05, 0.10  # of tokens/s and the whole request; of the first token
# What a person can turn; the other rows are hardware, or cut answers.
TURNED = (
    "max_num_seqs", "gateway_concurrency", "max_num_batched_tokens", "max_num_scheduled_tokens",
    "scheduler_reserve_full_isl", "watermark",
)  # fmt: skip
BETTER, WORSE, MIXED, LITTLE_CHANGES = "better", "worse", "mixed", "little changes"


@dataclass(frozen=True, slots=True)
class Verdict:
    """``word``: better, worse, mixed, little changes. Relative changes; None where it is not known."""

    word: str
    tokens: float | None
    whole: float | None
    first_token: float | None

    @property
    def gain(self) -> float:
        """How much better, to rank by."""
        return log(1 + (self.tokens or 0.0)) - log(1 + (self.whole or 0.0))

    def __str__(self) -> str:
        parts = (("tokens/s", self.tokens), ("whole request", self.whole), ("first token", self.first_token))
        return ", ".join(f"{name} {value:+.0%}".replace("%", "\N{NO-BREAK SPACE}%") for name, value in parts if value)


def verdict(before: "Mapping[str, Prediction]", after: "Mapping[str, Prediction]", output: float) -> Verdict:
    """Compare a change with what is; ``output`` is the mean length of an answer (tokens)."""

    def relative(old: float | None, new: float | None) -> float | None:
        return new / old - 1 if old and new and old > 0 and new > 0 else None

    tokens = relative(before["generated"].value, after["generated"].value)
    whole = relative(_whole(before, output), _whole(after, output))
    first = relative(before["ttft_mean"].value, after["ttft_mean"].value)
    better = (tokens or 0.0) > LITTLE or (whole or 0.0) < -LITTLE
    worse = (tokens or 0.0) < -LITTLE or (whole or 0.0) > LITTLE
    worse = worse or ((first or 0.0) > LITTLE_LATER and (whole or 0.0) >= -LITTLE)
    word = MIXED if better and worse else BETTER if better else WORSE if worse else LITTLE_CHANGES
    return Verdict(word, tokens, whole, first)


def _whole(metrics: "Mapping[str, Prediction]", output: float) -> float | None:
    """Return the mean time of a whole request: its first token, then all others."""
    first, each = metrics["ttft_mean"].value, metrics["tpot_mean"].value
    return None if first is None or each is None else first + each * max(0.0, output - 1)


def first(rows: "Sequence[Row]") -> "Row | None":
    """Return the change to try first; None where none is better."""
    found = [row for row in rows if row.verdict is not None and row.verdict.word == BETTER and row.knob in TURNED]
    return max(found, key=lambda row: row.verdict.gain if row.verdict else 0.0, default=None)


def refused(rows: "Sequence[Row]") -> "list[Row]":
    """Return our own advice that would be rolled back."""
    return [row for row in rows if row.ours and row.verdict is not None and row.verdict.word in (WORSE, MIXED)]
