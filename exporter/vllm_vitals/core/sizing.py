"""How far to turn a knob: the arithmetic behind the advice table, in words that carry their numbers.

Input: a `Case`. Output: texts, empty or None where a number that they need is unknown.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import floor

from vllm_vitals.core.quantile import mean
from vllm_vitals.core.sample import EngineSample
from vllm_vitals.core.snapshot import Reading
from vllm_vitals.core.state_machine import Facts
from vllm_vitals.core.states import State
from vllm_vitals.core.vital_signs import setting

# CV of output lengths: up to the first a mean says enough, above the second no static cap fits.
STEADY_CV, WIDE_CV = 0.3, 1.0
CUT_P90 = 0.1  # share truncated from which the 90th percentile is a truncated answer
ROOM = 0.7  # KV usage below which more sequences would fit; share of max_num_seqs below which that is not the limit
MANY_LONG_PROMPTS = 2.0  # prompt tokens per output token from which input, not output, fills the cache
# Prompt tokens computed per generated one from which prefill fills the GPU: a quarter more slots then gain less than a
# tenth in throughput (tests/test_ideas.py), and every first token comes later.
PREFILL_BOUND = 50.0


@dataclass(frozen=True, slots=True)
class Case:
    """What the advice table is looked up with; every number may be unknown."""

    state: State
    facts: Facts | None
    readings: Mapping[str, Reading]
    sample: EngineSample | None
    settings: Mapping[str, str]

    def number(self, name: str) -> float | None:
        """Return a reading's value."""
        reading = self.readings.get(name)
        return None if reading is None else reading.value

    def setting(self, name: str) -> float | None:
        """Return a numeric server setting, where known."""
        return setting(self.settings, name)

    def is_on(self, name: str) -> bool:
        """Return whether a switch of the server is known to be on."""
        return self.settings.get(name, "").lower() in ("true", "1")

    @property
    def usual_output(self) -> float | None:
        """Mean output of what finished lately; where nothing did, of all that has finished since the server started."""
        lately = self.number("output_tokens_mean")
        ever = None if self.sample is None else self.sample.histograms.get("request_output_tokens")
        return mean(ever).value if lately is None else lately

    @property
    def long_input(self) -> bool:
        """Whether prompts dwarf outputs."""
        prompt, output = self.number("prompt_tokens_mean"), self.number("output_tokens_mean")
        return prompt is not None and output is not None and prompt >= MANY_LONG_PROMPTS * output


def concurrency_that_fits(case: Case) -> str:
    """0.9 x mean running while the cache is full, or 25 % off a cap that is reached.

    Taking 25 % off a max_num_seqs that running never reached would change nothing.
    """
    facts, seqs = case.facts, case.setting("max_num_seqs")
    fits = None if facts is None else facts.running_full
    if seqs is not None and fits is not None and fits >= 0.95 * seqs:
        return f"to {max(1, floor(seqs * 0.75))} (25 % below max_num_seqs {seqs:.0f}, which running reaches)"
    before = None if facts is None else facts.work_before
    if before and (not fits or fits < 1 or (facts is not None and not facts.generated)):
        return f"to {max(1, floor(0.9 * before))} (0.9 x {before:.1f} requests present before the first preemption)"
    if not fits:
        return "by a quarter, then again until preemptions end (how many fit was not seen in this window)"
    return f"to {max(1, floor(0.9 * fits))} (0.9 x {fits:.1f} running on average while the KV cache is full)"


def once_through(case: Case) -> str:
    """Return what a cap does not touch: the requests that wait inside vLLM, and how long they take at this rate."""
    waiting = None if case.sample is None else case.sample.waiting
    if not waiting:
        return ""
    wait = case.number("expected_wait_seconds")
    how_long = "nothing finishes, so abort them" if wait is None else f"about {wait:.0f} s at this rate, or abort them"
    return f" once the {waiting:.0f} that wait inside vLLM are through ({how_long}: a cap does not touch them)"


def more_slots(case: Case) -> str:
    """Return a quarter more of max_num_seqs."""
    seqs = case.setting("max_num_seqs")
    return "by 25 %" if seqs is None else f"from {seqs:.0f} to {floor(seqs * 1.25)}"


def slots_are_full(case: Case) -> bool:
    """Return whether as many requests run as max_num_seqs allows."""
    seqs, running = case.setting("max_num_seqs"), None if case.sample is None else case.sample.running
    return seqs is not None and running is not None and running >= 0.95 * seqs


def why_slots_do_not_help(case: Case) -> str:
    """Return why a larger max_num_seqs would win nothing, or an empty text."""
    seqs, running = case.setting("max_num_seqs"), None if case.sample is None else case.sample.running
    if seqs is not None and running is not None and running < ROOM * seqs:
        return f"max_num_seqs {seqs:.0f} is not the limit: {running:.0f} run"
    factor = None if case.facts is None else case.facts.prefill_factor
    if factor is not None and factor >= PREFILL_BOUND:
        return (
            f"{factor:.0f} prompt tokens are computed per generated one, so more max_num_seqs would hardly raise "
            "throughput, only delay first tokens"
        )
    return ""


def token_budget(case: Case, factor: float) -> str:
    """max_num_batched_tokens by half of it, up or down, as ``factor`` says."""
    budget = case.setting("max_num_batched_tokens")
    return "by half" if budget is None else f"from {budget:.0f} to {budget * factor:.0f}"


def output_cap(case: Case) -> str | None:
    """max_tokens by the spread of output lengths; None where spread or mean are unknown, or the cap is as high already.

    Where more than a tenth are cut, the p90 answer is itself cut: nothing is sized by it.
    """
    lengths = case.readings.get("output_tokens_cv")
    spread = None if lengths is None else lengths.lower if lengths.value is None else lengths.value
    mean, p90 = case.number("output_tokens_mean"), case.number("output_tokens_p90")
    if lengths is None or spread is None or not mean:
        return None
    now = (None if case.facts is None else case.facts.asked_cap) or case.setting("default_max_tokens")
    if (case.number("truncated_ratio") or 0.0) > CUT_P90:
        cap = "twice the cap" if now is None else f"from {now:.0f} to {2 * now:.0f}"
        return f"{cap}, then look again: the p90 answer is itself cut, so how long answers would be is not known"
    base = mean if spread <= STEADY_CV and not lengths.why else p90
    if base is not None and now is not None and 2 * base <= now:
        return None
    tokens = "" if base is None else f"{max(1.5 * base, now or 0.0):.0f}-{2 * base:.0f}"
    if lengths.why:
        return f"{tokens and tokens + ': '}1.5-2 x the p90 output length (their spread is not known well)"
    if spread <= STEADY_CV:
        return f"{tokens} (1.5-2 x the mean {mean:.0f}, CV {spread:.2f})"
    beside = "with fewer max_num_seqs" if spread > WIDE_CV else "or a cap for each kind of request"
    return f"{tokens and tokens + ': '}1.5-2 x the p90 output length, {beside} (CV {spread:.2f})"
