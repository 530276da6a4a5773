"""What alerts about one engine tell in numbers, each with its limit, before and now; and what cannot be known.

Input: config. Output: sentences with live numbers in them (`text`).
"""

from alerts import slo
from alerts.config import Config
from alerts.promql import metric, number
from alerts.text import COUNT, PERCENT, RATIO, TIME, ask, before, each, now, percent, waiting, when
from exporter.core.advice import NOW_KNOBS
from exporter.core.snapshot import State


def evidence(config: Config) -> str:
    """R, tax, work, queue and cache, each before and now; what happened around it; what cannot be known."""
    limits = config.thresholds
    pace = f"increase({metric('preemptions_total')}{{@}}[61s])"
    finished = f"sum(max by (finished_reason) (increase({metric('responses_total')}{{@}}[61s])))"
    restarts = f"max(resets({metric('generation_tokens_total')}{{@}}[1h]))"
    return (
        f"Preemptions per finished request (R): {ask(now('preemptions_per_completion'), RATIO)} (thrashing from "
        f"{number(limits.thrash_preemptions_per_completion)}, a spiral from "
        f"{number(limits.spiral_preemptions_per_completion)}; healthy below 0.25). In the last minute: "
        f"{ask(f'max({pace})', COUNT)} preemptions, {ask(finished, COUNT)} finished.\n"
        f"Finished requests preempted twice or more: {ask(now('repeat_preemption_ratio'), PERCENT)} (limit "
        f"{percent(limits.thrash_repeat_ratio)}).\n"
        f"Work that is done again (recompute tax): {ask(now('recompute_tax_ratio'), PERCENT)}, between "
        f"{ask(now('recompute_tax_lower_ratio'), PERCENT)} and {ask(now('recompute_tax_upper_ratio'), PERCENT)} (a "
        f"spiral from {percent(limits.spiral_recompute_tax)}).\n"
        f"Useful tokens/s: {ask(before('useful_tokens_per_second'), COUNT)} before, "
        f"{ask(now('useful_tokens_per_second'), COUNT)} now (usual at this load: "
        f"{ask(now('useful_tokens_baseline_per_second'), COUNT)}).\n"
        f"{load()}\n"
        "Prompt length against before: x "
        f"{ask(now('prompt_tokens_mean') + ' / ' + before('prompt_tokens_mean'), RATIO)}; arrivals/s: "
        f"{ask(before('arrivals'), RATIO)} before, {ask('max(engine:vllm_vitals_arrivals:rate1m{@})', RATIO)} now.\n"
        f"Restarts in the last hour: {ask(restarts, COUNT)}; vLLM versions seen in it: {versions()}.\n"
        f"{unknowns()}\n"
    )


def load() -> str:
    """Queue and cache, before and now."""
    return (
        f"Running {ask(before('requests_running'), COUNT)} before, {ask(now('requests_running'), COUNT)} now; waiting "
        f"{ask(before('requests_waiting'), COUNT)} before, {ask(waiting(), COUNT)} now; KV cache at most "
        f"{ask(before('kv_cache_usage_max_ratio'), PERCENT)} before, {ask(now('kv_cache_usage_max_ratio'), PERCENT)} "
        f"now. Expected wait of a new request: {ask(now('expected_wait_seconds'), TIME, 'unknown (nothing finishes)')}."
    )


def versions() -> str:
    """The releases that this server said it runs within the last hour."""
    seen = f'count by (version) (last_over_time({metric("server_info")}{{^,version!=""}}[1h]))'
    return each(seen, "{{ .Labels.version }}", "unknown")


def unknowns() -> str:
    """What this server or this producer does not say."""
    missing = (
        ("preemptions_per_completion", "R (fewer than 20 finished in 10 minutes); "),
        ("repeat_preemption_ratio", "repeat share (needs vLLM 0.30); "),
        ("useful_tokens_baseline_per_second", "usual throughput (needs a day of the exporter); "),
        ("recompute_tax_ratio", "recompute tax; "),
    )
    text = "".join(when(f"absent({metric(name)}{{@}})", words) for name, words in missing)
    return f"Not known here: {text}client disconnects (vLLM does not count them)."


def engines(*states: State) -> str:
    """How many of the model's engines are in trouble."""
    which = "|".join(states)
    bad = f'count(max by (target, engine) ({metric("state")}{{&,state=~"{which}"}}) == 1)'
    total = f"count(count by (target, engine) ({metric('state')}{{&}}))"
    return f"Engines of this model in this state: {ask(bad, COUNT)} of {ask(total, COUNT)}."


def burn_line(config: Config) -> str:
    """How fast each SLO of the model burns."""
    if not config.slos:
        return "SLO burn: no SLO is configured."
    name = slo.burn(3600)
    rates = each(f"max by (slo) ({name}{{&}})", "{{ .Labels.slo }} {{ .Value | humanize }}", "unknown")
    return f"SLO burn over the last hour (1 is sustainable): {rates}"


def cap() -> str:
    """The cap to set at the gateway: 0.9 x what ran while the cache was full; 25 % off max_num_seqs once reached."""
    running, usage = now("requests_running"), now("kv_cache_usage_ratio")
    mean = f"avg_over_time(({running} and {usage} >= 0.9)[5m:15s])"
    slots = f'max({metric("server_setting")}{{^,name="max_num_seqs"}})'
    reached = f"floor(0.75 * {slots}) and {running} >= {slots}"
    unknown = "0.9 x the mean running while KV is full (unknown here)"
    return ask(f"({reached}) or clamp_min(floor(0.9 * {mean}), 1)", COUNT, unknown)


def knobs() -> str:
    """What the advice table says for the next restart."""
    knob = f'max by (knob, direction) ({metric("advice")}{{@,knob!~"{"|".join(NOW_KNOBS)}"}}) == 1'
    fallback = (
        "max_num_seqs down to the cap above; with long inputs rather scheduler_reserve_full_isl on (vLLM 0.19), then "
        "watermark 0.01-0.05 (0.24)"
    )
    return each(knob, "{{ .Labels.knob }} {{ .Labels.direction }}", fallback)


def first_step() -> str:
    """What to do now about evictions that feed on themselves."""
    return (
        f"DO NOW, no restart: cap concurrency for this engine at the gateway at {cap()}; shed or postpone batch work; "
        "add a replica if you have one. It works if preemptions stop and useful tokens/s rise within two minutes.\n"
    )


def next_restart() -> str:
    """The one knob for later."""
    return f"At the next restart, one knob: {knobs()}. Do not lower gpu_memory_utilization: that shrinks the cache."


def canaries() -> str:
    """What became of the last canaries to this server; none is sent unless the exporter's config says so."""
    sent = metric("canary_requests_total")
    ended = {
        outcome: ask(f'max(increase({sent}{{^,outcome="{outcome}"}}[5m]))', COUNT) for outcome in ("ok", "timeout")
    }
    told = f"Canary requests in the last 5 minutes: {ended['ok']} answered, {ended['timeout']} timed out."
    return when(f"max({sent}{{^}})", told, "No canary is sent to this server.")
