"""What to turn, as a table: symptom -> now, without a restart -> one knob at the next restart -> watch -> cost.

Sizes carry the numbers they were computed from. One knob at a time: max_num_seqs and max_num_batched_tokens are never
changed together, and gpu_memory_utilization is never lowered against preemption (that shrinks the cache).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import floor

from exporter.core.sample import EngineSample
from exporter.core.signals import setting
from exporter.core.snapshot import Advice, Reading, Role, State
from exporter.core.state import Facts

TRUNCATED = 0.05  # share of responses cut at a cap that is worth a word
STEADY_CV, WIDE_CV = (
    0.3,
    1.0,
)  # of output lengths: up to the first a mean says enough, above the second no static cap fits
LATE_FIRST_TOKEN_S = 5.0  # p99 that a person waits for in vain; move to your own objective
ROOM = 0.7  # KV usage below which more sequences would fit
MANY_LONG_PROMPTS = 2.0  # prompt tokens per output token from which input, not output, fills the cache
# Prompt tokens computed per generated one from which prefill fills the GPU: a quarter more slots then gain less than a
# tenth in throughput (tests/test_ideas.py), and every first token comes later.
PREFILL_BOUND = 50.0
RUNAWAY_FACTOR, RUNAWAY_TOKENS = 8.0, 4096.0  # an open request beyond both is worth a look (as the alert has it)

# What needs no restart; all other knobs are for the next one.
NOW_KNOBS = ("gateway_concurrency", "replicas", "drain", "restart", "route_long_prompts", "cancel_oldest_request")


@dataclass(frozen=True, slots=True)
class Case:
    """What the table is looked up with; every number may be unknown."""

    state: State
    facts: Facts | None
    readings: Mapping[str, Reading]
    sample: EngineSample | None
    settings: Mapping[str, str]
    role: Role

    def number(self, name: str) -> float | None:
        """A reading's value."""
        reading = self.readings.get(name)
        return None if reading is None else reading.value

    def setting(self, name: str) -> float | None:
        """A numeric server setting, where known."""
        return setting(self.settings, name)

    @property
    def fitting(self) -> float | None:
        """Mean running while the cache was full: about what fits."""
        return None if self.facts is None else self.facts.running_full

    @property
    def long_input(self) -> bool:
        """Whether prompts dwarf outputs."""
        prompt, output = self.number("prompt_tokens_mean"), self.number("output_tokens_mean")
        return prompt is not None and output is not None and prompt >= MANY_LONG_PROMPTS * output


def advise(
    state: State,
    facts: Facts | None,
    readings: Mapping[str, Reading],
    sample: EngineSample | None,
    settings: Mapping[str, str],
    role: Role,
) -> tuple[Advice, ...]:
    """What to do now, then at most one knob. Where the state asks for nothing, what the workload asks for."""
    case = Case(state, facts, readings, sample, settings, role)
    trouble = _BY_STATE.get(state, _nothing)(case)
    return trouble or _runaway(case) or (*_late_first_token(case), *_cut_answers(case))


def _nothing(_: Case) -> tuple[Advice, ...]:
    return ()


def cap(case: Case) -> str:
    """The concurrency that fits: 0.9 x mean running while the cache is full, or 25 % off a cap that is reached.

    Taking 25 % off a max_num_seqs that running never reached would change nothing.
    """
    fits, seqs = case.fitting, case.setting("max_num_seqs")
    if seqs is not None and fits is not None and fits >= 0.95 * seqs:
        return f"to {max(1, floor(seqs * 0.75))} (25 % below max_num_seqs {seqs:.0f}, which running reaches)"
    before = None if case.facts is None else case.facts.work_before
    if before and (not fits or fits < 1 or (case.facts is not None and not case.facts.generated)):
        return f"to {max(1, floor(0.9 * before))} (0.9 x {before:.1f} requests present before the first preemption)"
    if not fits:
        return "by a quarter, then again until preemptions end (how many fit was not seen in this window)"
    return f"to {max(1, floor(0.9 * fits))} (0.9 x {fits:.1f} running on average while the KV cache is full)"


def _evicting(case: Case) -> tuple[Advice, ...]:
    symptom = (
        "preempt, requeue, preempt again" if case.state is State.DEATH_SPIRAL else "KV cache short under many requests"
    )
    now = Advice(
        symptom,
        "now",
        "gateway_concurrency",
        "down",
        cap(case),
        "preemptions per second falls to 0, useful tokens/s rises",
        "requests wait at the gateway instead",
    )
    if case.state is State.DEATH_SPIRAL and case.long_input:
        prompt = case.number("prompt_tokens_mean") or 0.0
        knob = Advice(
            f"the loop is fed by long inputs ({prompt:.0f} tokens on average)",
            "restart",
            "scheduler_reserve_full_isl",
            "set",
            "true (vLLM 0.19 on; then watermark 0.01-0.05, vLLM 0.24 on)",
            "preemptions per finished request below 0.3",
            "long prompts wait until all of their input fits",
        )
    else:
        knob = Advice(
            symptom,
            "restart",
            "max_num_seqs",
            "down",
            cap(case),
            "preemptions, completed requests/s, p95 latency",
            "a longer queue; too low leaves the GPU idle",
        )
    return now, knob


def _stalled(case: Case) -> tuple[Advice, ...]:
    return (
        Advice(
            "work is present and nothing progresses",
            "now",
            "drain",
            "do",
            "capture first (py-spy dump, logs, a recording), then drain and restart the server",
            "generation tokens move again",
            "requests in flight are lost; no knob helps a hang",
        ),
    )


def _down(case: Case) -> tuple[Advice, ...]:
    return (
        Advice(
            "nothing answers",
            "now",
            "restart",
            "do",
            "check the address; where it is right, look at the exit reason in the log before starting it again: "
            "exit code 0 does not mean a clean end (vllm#48966)",
            "target_up",
            "model load takes minutes",
        ),
    )


def _starved(case: Case) -> tuple[Advice, ...]:
    budget = case.setting("max_num_batched_tokens")
    size = "by half" if budget is None else f"from {budget:.0f} to {budget / 2:.0f}"
    return (
        Advice(
            "prefill crowds out decode",
            "now",
            "route_long_prompts",
            "do",
            "send long prompts to another replica",
            "inter-token latency returns to its usual",
            "the other replica serves them later",
        ),
        Advice(
            "prefill crowds out decode",
            "restart",
            "max_num_batched_tokens",
            "down",
            size,
            "inter-token latency, then time to first token",
            "first tokens of long prompts come later",
        ),
    )


def _saturated(case: Case) -> tuple[Advice, ...]:
    if held := _runaway(case):
        return held
    kv, reason = case.number("kv_cache_usage_max_ratio"), _slots_do_not_help(case)
    now = Advice(
        "more requests than slots",
        "now",
        "replicas",
        "up",
        "add replicas, or cap the client that sends more than the slots" + (reason and f"; {reason}"),
        "waiting falls below 1",
        "GPUs",
    )
    if kv is not None and kv < ROOM and not reason:
        seqs = case.setting("max_num_seqs")
        by = "by 25 %" if seqs is None else f"from {seqs:.0f} to {floor(seqs * 1.25)}"
        knob = Advice(
            f"a queue while the KV cache is at most {kv:.0%} full",
            "restart",
            "max_num_seqs",
            "up",
            by,
            "time to first token falls, TPOT stays within its objective, no preemptions",
            "every request decodes slower",
        )
        return now, knob
    return (now,)


def _slots_do_not_help(case: Case) -> str:
    """Why a larger max_num_seqs would win nothing, or an empty text."""
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


def _runaway(case: Case) -> tuple[Advice, ...]:
    """An answer that does not end holds a slot and its KV blocks until a cap or the context window stops it."""
    made, usual = case.number("inflight_output_tokens_estimate"), case.number("output_tokens_mean")
    if made is None or not usual or made < max(RUNAWAY_TOKENS, RUNAWAY_FACTOR * usual):
        return ()
    symptom = f"an open request has made about {made:.0f} tokens; the usual answer has {usual:.0f}"
    return (
        Advice(
            symptom,
            "now",
            "cancel_oldest_request",
            "do",
            "cancel the oldest open request at the gateway",
            "requests complete again",
            "its client gets no answer",
        ),
        Advice(
            symptom,
            "restart",
            "default_max_tokens",
            "set",
            "max_new_tokens in override_generation_config: the longest answer you accept (model cards say 32768); a "
            "presence_penalty beside it breaks repetition. The start-up log must name both: some releases drop what "
            "they do not know",
            "share of responses that end by length",
            "legitimate answers beyond the cap are cut",
        ),
    )


def _late_first_token(case: Case) -> tuple[Advice, ...]:
    """Long inputs whose first token is late although nobody queues: the token budget cuts them into many steps."""
    ttft = case.readings.get("ttft_p99_seconds")
    waiting = None if case.facts is None else case.facts.mean_waiting
    late = ttft is not None and ttft.lower is not None and ttft.lower >= LATE_FIRST_TOKEN_S
    if ttft is None or not late or not case.long_input or waiting is None or waiting >= 1:
        return ()
    budget = case.setting("max_num_batched_tokens")
    size = "by half" if budget is None else f"from {budget:.0f} to {budget * 1.5:.0f}"
    return (
        Advice(
            f"the first token of long inputs is late (p99 at least {ttft.lower:g} s) though nobody queues",
            "restart",
            "max_num_batched_tokens",
            "up",
            size,
            "time to first token, then TPOT and the KV capacity, which pays for larger steps",
            "answers being written wait longer for each prefill step; where prefill already fills the GPU nothing is "
            "won (8192 to 32768 was measured at 2 % more throughput for 17 % less KV cache)",
        ),
    )


def _cut_answers(case: Case) -> tuple[Advice, ...]:
    """max_tokens by the spread of output lengths, where responses are cut at a cap."""
    lengths = case.readings.get("output_tokens_cv")
    spread = None if lengths is None else lengths.lower if lengths.value is None else lengths.value
    mean, p90, share = (case.number(n) for n in ("output_tokens_mean", "output_tokens_p90", "truncated_ratio"))
    if spread is None or not mean or share is None or share < TRUNCATED:
        return ()
    if spread <= STEADY_CV:
        size = f"{1.5 * mean:.0f}-{2 * mean:.0f} (1.5-2 x the mean {mean:.0f}, CV {spread:.2f})"
    else:
        tokens = "" if p90 is None else f"{1.5 * p90:.0f}-{2 * p90:.0f}: "
        beside = "with fewer max_num_seqs" if spread > WIDE_CV else "or a cap for each kind of request"
        size = f"{tokens}1.5-2 x the p90 output length, {beside} (CV {spread:.2f})"
    return (
        Advice(
            f"{share:.0%} of responses are cut at a cap",
            "restart",
            "max_tokens",
            "set",
            size,
            "share of responses that end by length",
            "longer answers hold their slots longer",
        ),
    )


_BY_STATE: Mapping[State, Callable[[Case], tuple[Advice, ...]]] = {
    State.DOWN: _down,
    State.STALLED: _stalled,
    State.DEATH_SPIRAL: _evicting,
    State.THRASHING: _evicting,
    State.STARVED: _starved,
    State.SATURATED: _saturated,
}
