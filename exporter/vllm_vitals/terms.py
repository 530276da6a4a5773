"""The words that a reader of a page or of the demo may not know, each in one plain line.

docs/glossary.md has the same and more; `tests/edges/test_terms.py` holds every name here against it. Invariant: no
sentence needs another term to be understood, but those of this table.
"""

from collections.abc import Iterable, Iterator, Mapping

TERMS: Mapping[str, str] = {
    "KV cache": "GPU memory that holds all tokens in flight; when it is full, requests wait or are evicted",
    "preemption": "a running request is evicted because the KV cache is full, and computed again later",
    "R": "preemptions per finished request: above 0.5 evictions feed on themselves",
    "recompute tax": "the share of the work that only computes again what preemptions threw away",
    "TTFT": "time to first token: from a request's arrival to its first output token, queueing included",
    "TPOT": "time per output token: how fast an answer is written once it has begun",
    "truncated at cap": "a response that ended because it reached a token limit, not because it was complete",
    "useful tokens": "tokens computed once: generated ones and prompts, without what is computed again",
    "thrashing": "requests are preempted about as fast as they finish, and the queue does not drain",
    "death spiral": "requests are preempted and computed again so often that little else gets done",
}

# What the page and the terminal call a value, and the term behind it.
_OF_VALUES: Mapping[str, str] = {
    "KV cache, max": "KV cache", "preemptions": "preemption", "preemptions per finish": "R",
    "recomputed work": "recompute tax", "TPOT p50": "TPOT", "TPOT p99": "TPOT", "first token p99": "TTFT",
    "truncated at cap": "truncated at cap", "useful tokens": "useful tokens",
}  # fmt: skip


def term_of(value: str) -> str:
    """Return the term behind a value's name; empty where it needs none."""
    return _OF_VALUES.get(value, "")


def anchor(term: str) -> str:
    """Return what a term's place is called in an address."""
    return term.lower().replace(" ", "-")


class Explained:
    """Explains each term once: where it first appears."""

    def __init__(self) -> None:
        self._left = dict(TERMS)

    def new_in(self, texts: Iterable[str]) -> Iterator[tuple[str, str]]:
        """Yield the terms that these texts are the first to hold, with their lines."""
        whole = " ".join(texts)
        named = {term for value, term in _OF_VALUES.items() if value in whole}
        for term in [term for term in self._left if term in named or (len(term) > 1 and term in whole)]:
            yield term, self._left.pop(term)
