"""Speculative decoding, on average: how many tokens a step gives, and what vLLM counts of drafts.

Input: draft length, the chance that a draft token is accepted after those before it, and decode steps. Output: tokens a
step, and the counters of vllm/v1/spec_decode/metrics.py. A step emits 1 + a + ... + a^k tokens a request in the mean;
the scheduler goes on token by token, each a fraction of a step. Invariant: an inter-token gap is booked once a step
and request, as vLLM does, not once a token.
"""

from vllm_vitals.simulator.stats import EngineStats


class Speculation:
    """The drafts of one engine. ``acceptance`` is per position, 0-1; without draft tokens a step gives one token."""

    def __init__(self, draft_tokens: int, acceptance: float = 0.0) -> None:
        self._draft_tokens = draft_tokens
        self._carry = 0.0  # the share of a step that is done but not booked
        self.accept(acceptance)

    def accept(self, acceptance: float) -> None:
        """Let drafts be accepted with this chance from now on."""
        self._accepted = [acceptance**position for position in range(1, self._draft_tokens + 1)]
        self.tokens_per_step = 1 + sum(self._accepted)

    def book(self, stats: EngineStats, gap: float, growth: float, tokens: int, decoding: int) -> None:
        """Count `tokens` tokens for each of `decoding` requests; a step took `gap` s, the next ones `growth` s more."""
        self._carry += tokens / self.tokens_per_step
        steps = int(self._carry)
        if not steps:
            return
        self._carry -= steps
        drafts = steps * decoding
        stats.histograms["inter_token_latency_seconds"].observe_ramp(gap, growth, steps, decoding)
        stats.histograms["iteration_tokens"].observe(decoding * self.tokens_per_step, steps)
        stats.steps += steps
        stats.drafts += drafts
        stats.draft_tokens += drafts * self._draft_tokens
        for position, share in enumerate(self._accepted):
            stats.accepted_at[position] += drafts * share
