"""What alerts about one engine tell in numbers, each with its limit, before and now; and what cannot be known.

Input: config. Output: sentences with live numbers in them (`text`).
"""

from vllm_vitals.config.alerts import Config
from vllm_vitals.core.advice import NOW_KNOBS
from vllm_vitals.core.states import State
from vllm_vitals.rules import slo
from vllm_vitals.rules.concurrency import CAP, RATE, RATE_BEFORE
from vllm_vitals.rules.promql import metric, number
from vllm_vitals.rules.text import (
    COUNT,
    PERCENT,
    RATIO,
    TIME,
    ask,
    before,
    duration_words,
    each,
    now,
    percent,
    waiting,
    when,
)


def evidence(config: Config) -> str:
    """R, tax, work, queue and cache, each before and now; what happened around it; what cannot be known."""
    limits = config.thresholds
    pace = f"increase({metric('preemptions_total')}{{@}}[61s])"
    finished = f"sum(max by (finished_reason) (increase({metric('responses_total')}{{@}}[61s])))"
    restarts = f"max(resets({metric('generation_tokens_total')}{{@}}[1h]))"
    r, repeats, tax = (
        now(name) for name in ("preemptions_per_completion", "repeat_preemption_ratio", "recompute_tax_ratio")
    )
    longer = now("prompt_tokens_mean") + " / " + before("prompt_tokens_mean")
    ratio = (
        f"Preemptions per finished request (R): {ask(r, RATIO)} (thrashing from "
        f"{number(limits.thrash_preemptions_per_completion)}, a spiral from "
        f"{number(limits.spiral_preemptions_per_completion)}; healthy below 0.25).\n"
    )
    repeated = (
        f"Finished requests preempted twice or more: {ask(repeats, PERCENT)} (limit "
        f"{percent(limits.thrash_repeat_ratio)}).\n"
    )
    redone = (
        f"Work that is done again (recompute tax): {ask(tax, PERCENT)}, between "
        f"{ask(now('recompute_tax_lower_ratio'), PERCENT)} and {ask(now('recompute_tax_upper_ratio'), PERCENT)} (a "
        f"spiral from {percent(limits.spiral_recompute_tax)}).\n"
    )
    return (
        f"{when(r, ratio)}In the last minute: {ask(f'max({pace})', COUNT)} preemptions, {ask(finished, COUNT)} "
        f"finished.\n{when(repeats, repeated)}{when(tax, redone)}"
        f"Useful tokens/s: {_moved('useful_tokens_per_second', COUNT)} (usual at this load: "
        f"{ask(now('useful_tokens_baseline_per_second'), COUNT)}).\n"
        f"{load()}\n"
        f"Arrivals/s: {_moved('arrivals', RATIO, 'max(engine:vllm_vitals_arrivals:rate1m{@})')}"
        f"{when(longer, f'; prompts {ask(longer, RATIO)} times as long as before')}.\n"
        f"Restarts in the last hour: {ask(restarts, COUNT)}; vLLM versions seen in it: {versions()}.\n"
        f"{unknowns()}\n"
    )


def spiral_proofs(config: Config) -> str:
    """Return which proof of a death spiral holds now (`core.state_machine`), each number with its threshold."""
    limits, step = config.thresholds, config.evaluation_seconds
    tokens = f"{metric('generation_tokens_total')}{{@}}"
    grew = f"max(max_over_time(timestamp({tokens} > {tokens} offset {step}s)[1h:{step}s]))"
    # A growth is seen up to a step late, and then again as far from the next look.
    silent = f"time() - ({grew} or max({tokens} * 0 + time() - 3600)) + {step}"
    rate, calm = f"max({RATE}{{@}})", f"max(last_over_time({RATE_BEFORE}{{@}}[1d]))"
    r, tax = now("preemptions_per_completion"), now("recompute_tax_ratio")
    proofs = {
        f"({silent}) >= {number(limits.spiral_silence)}": f"It has generated no token for about {ask(silent, TIME)} "
        f"(limit {duration_words(limits.spiral_silence)}): nobody gets an answer.\n",
        f"{rate} / {calm} <= {number(limits.spiral_generation_share)}": f"It generates {ask(rate, COUNT)} tokens/s, "
        f"{ask(f'{rate} / {calm}', PERCENT)} of the {ask(calm, COUNT)} before its first preemption (limit "
        f"{percent(limits.spiral_generation_share)}).\n",
        f"{r} >= {number(limits.spiral_preemptions_per_completion)} and {tax} >= "
        f"{number(limits.spiral_recompute_tax)}": "It redoes about as much work as it does: R "
        f"{ask(r, RATIO)} (limit {number(limits.spiral_preemptions_per_completion)}), and {ask(tax, PERCENT)} of its "
        f"work is done again (limit {percent(limits.spiral_recompute_tax)}).\n",
    }
    unproven = (
        "At this moment no number here is at the level that proves it: they lag, or it eases (it is taken back after "
        f"{duration_words(limits.release)} below half of that).\n"
    )
    none = f"absent({' or '.join(f'({proof})' for proof in proofs)})"
    return "".join(when(proof, text) for proof, text in proofs.items()) + when(none, unproven)


def _moved(name: str, unit: str, to: str = "") -> str:
    """Return a number before and now; only now where it was not watched before."""
    return f"{when(before(name), f'{ask(before(name), unit)} before, ')}{ask(to or now(name), unit)} now"


def load() -> str:
    """Queue and cache, before and now."""
    wait = ask(now("expected_wait_seconds"), TIME, "unknown (nothing finishes)")
    return (
        f"Running {_moved('requests_running', COUNT)}; waiting {_moved('requests_waiting', COUNT, waiting())}; "
        f"KV cache at most {_moved('kv_cache_usage_max_ratio', PERCENT)}. Expected wait of a new request: {wait}."
    )


def versions() -> str:
    """Return the releases that this server reported within the last hour."""
    seen = f'count by (version) (last_over_time({metric("server_info")}{{^,version!=""}}[1h]))'
    return each(seen, "{{ .Labels.version }}", "unknown")


def unknowns() -> str:
    """Return what this server or producer does not expose."""
    missing = (
        ("preemptions_per_completion", "R (fewer than 20 finished in 10 minutes); "),
        ("repeat_preemption_ratio", "repeat share (needs vLLM 0.30); "),
        ("useful_tokens_baseline_per_second", "usual throughput (needs a day of the exporter); "),
        ("recompute_tax_ratio", "recompute tax; "),
    )
    text = "".join(when(f"absent({metric(name)}{{@}})", words) for name, words in missing)
    text += when(f"absent({before('requests_running')})", "how it was before this began; ")
    return f"Not known here: {text}client disconnects (vLLM does not count them)."


def engines(*states: State) -> str:
    """Return how many of the model's engines are in trouble."""
    which = "|".join(states)
    bad = f'count(max by (target, engine) ({metric("state")}{{&,state=~"{which}"}}) == 1)'
    total = f"count(count by (target, engine) ({metric('state')}{{&}}))"
    return f"Engines of this model in this state: {ask(bad, COUNT)} of {ask(total, COUNT)}."


def burn_line(config: Config) -> str:
    """Return how fast each SLO of the model burns."""
    if not config.slos:
        return "SLO burn: no SLO is configured."
    name = slo.burn(3600)
    rates = each(f"max by (slo) ({name}{{&}})", "{{ .Labels.slo }} {{ .Value | humanize }}", "unknown")
    return f"SLO burn over the last hour (1 is sustainable): {rates}"


def cap() -> str:
    """Return the cap to set at the gateway, as it was known last; the page outlasts the evictions."""
    known = f"max(last_over_time({CAP}{{@}}[10m]))"
    return when(
        known, f"to {ask(known, COUNT)}", "by a quarter, then again until preemptions end (how many fit is unknown)"
    )


def knobs() -> str:
    """Return the advice for the next restart."""
    knob = f'max by (knob, direction) ({metric("advice")}{{@,knob!~"{"|".join(NOW_KNOBS)}"}}) == 1'
    fallback = (
        "max_num_seqs down to the cap above; with long inputs rather scheduler_reserve_full_isl on (vLLM 0.19), then "
        "watermark 0.01-0.05 (0.24)"
    )
    return each(knob, "{{ .Labels.knob }} {{ .Labels.direction }}", fallback)


def first_step() -> str:
    """Return what to do now about a preemption loop."""
    return (
        f"DO NOW, no restart: cap concurrency for this engine at the gateway {cap()}; shed or postpone batch work; "
        "add a replica if you have one. It works if preemptions stop and useful tokens/s rise within two minutes.\n"
    )


def next_restart() -> str:
    """Return the one knob for later."""
    return f"At the next restart, one knob: {knobs()}. Do not lower gpu_memory_utilization: that shrinks the cache."


def canaries() -> str:
    """Return what became of the last canaries to this server; none is sent unless the exporter's config says so."""
    sent = metric("canary_requests_total")
    ended = {
        outcome: ask(f'max(increase({sent}{{^,outcome="{outcome}"}}[5m]))', COUNT) for outcome in ("ok", "timeout")
    }
    told = f"Canary requests in the last 5 minutes: {ended['ok']} answered, {ended['timeout']} timed out."
    return when(f"max({sent}{{^}})", told, "No canary is sent to this server.")
