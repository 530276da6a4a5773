"""What cannot be known from a server's metrics now, and why: what should not be concluded from a verdict."""

from collections.abc import Iterator, Mapping

from vllm_vitals.core.sample import EngineSample
from vllm_vitals.core.snapshot import Reading
from vllm_vitals.core.state_machine import Facts
from vllm_vitals.core.states import State
from vllm_vitals.core.thresholds import Thresholds

_ABOUT_PREEMPTION = ("preemptions_per_completion", "repeat_preemption_ratio", "recompute_tax_ratio")
_NAMES = {
    "preemptions_per_completion": "preemptions per finished request",
    "repeat_preemption_ratio": "share preempted twice or more",
    "recompute_tax_ratio": "work that is recomputed",
    "kv_cache_usage_max_ratio": "KV usage",
    "tpot_p99_p50_ratio": "TPOT p99 / p50",
    "truncated_ratio": "truncated at cap",
}


def unknowns(
    state: State,
    facts: Facts,
    readings: Mapping[str, Reading],
    sample: EngineSample,
    limits: Thresholds,
    answers: bool = False,
) -> tuple[str, ...]:
    """Name each, with its reason. ``answers``: the server's last canary was answered."""
    return tuple(_unknowns(state, facts, readings, sample, limits, answers))


def _unknowns(
    state: State,
    facts: Facts,
    readings: Mapping[str, Reading],
    sample: EngineSample,
    limits: Thresholds,
    answers: bool,
) -> Iterator[str]:
    if state is State.UNKNOWN:
        for family, value in _needed(sample).items():
            if value is None:
                how = "not a possible number" if family in sample.unusable else "missing"
                yield f"the state: the server's {family} is {how}"
    if state in (State.IDLE, State.HEALTHY) and not (sample.running or sample.waiting or answers):
        yield (
            "whether it is frozen: an engine that froze while its gauges read 0 looks idle; only a canary or the "
            "gateway can tell"
        )
    if state is State.STALLED:
        yield "whether the gauges are fresh: they change only when the engine steps. If the gateway has no request in "\
              "flight, they are stale"  # fmt: skip
    factor = facts.prefill_factor if facts.decodes and facts.latency_factor is None else None
    if factor is not None and factor >= limits.starved_prefill_factor:
        yield (
            f"whether prefill starves decode: {factor:.0f} prompt tokens are computed per generated one, "
            "but there is no baseline of inter-token latency yet"
        )
    if sample.recompute_counted and facts.preemptions:
        yield "useful tokens without recomputation: a V0 engine counts both together"
    if sample.caches_prefixes is None and facts.preemptions:
        yield (
            "whether prefix caching is on (no label and no lookup says so): the bounds of the "
            "recomputed share are wide, and nothing pages by it"
        )
    if state in (State.STALLED, State.ASLEEP, State.PAUSED):
        return  # what it would be like if it worked does not matter now
    for name, words in _NAMES.items():
        asked = facts.preemptions != 0 or name not in _ABOUT_PREEMPTION
        if name == "truncated_ratio" and not facts.decodes:
            continue  # it has none
        if asked and name in readings and readings[name].value is None:
            yield f"{words}: {readings[name].why}"
    if sample.responses is not None and not sample.aborts:
        yield "client disconnects: vLLM's Python frontend counts them nowhere"


def _needed(sample: EngineSample) -> Mapping[str, float | None]:
    """Without these no state can be told, by our names."""
    return {
        "requests_running": sample.running,
        "requests_waiting": sample.waiting,
        "generation_tokens_total": sample.generation_tokens,
    }
