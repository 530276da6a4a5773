"""What the runbooks of the tickets say. See `runbook_pages` for the rules they follow."""

from vllm_vitals.rules.model import Runbook
from vllm_vitals.rules.presence import DOWN
from vllm_vitals.rules.promql import metric
from vllm_vitals.rules.runbook_pages import (
    ADVICE,
    CAP,
    ERRORS_LOGGED,
    KV_MAX,
    MODEL,
    R_NOW,
    RESTARTS,
    RUNNING,
    STATE_NOW,
    TAX,
    USEFUL,
    VICTIM,
    WAIT,
    WAITING,
    victim,
)

_PREEMPTIONS = ("Preemptions per second", victim("preemptions_per_second"))
_GAPS = ("Gaps over 1 s in answers, per second (where preemption really shows)", victim("stall_gaps_per_second"))
_OUTPUT = ("Mean output length", victim("output_tokens_mean"))
_PROMPT = ("Mean prompt length", victim("prompt_tokens_mean"))
_ERRORS = (
    "Failed scrapes by reason",
    f'sum by (reason) (max by (target, reason) (rate({metric("scrape_errors_total")}{{target="TARGET"}}[5m]))) > 0',
)

TICKETS: dict[str, Runbook] = {
    "VLLMDegraded": Runbook(
        "The engine is slower than its own usual at equal running, resident KV and prefill share, or than its peers "
        "beside it (needs the exporter); or {degraded_error_share:share} of its requests or more end in error beside "
        "good ones. Native rules know the errors alone.",
        "Its users get slower answers than others, or an error now and then.",
        (
            "Which of the two is it? The exporter's status page says.",
            "Does its GPU throttle (clocks, temperature, power), or does something else share it?",
        ),
        (USEFUL, RUNNING, STATE_NOW),
        (
            "Move part of its traffic to its peers, if they have room. It worked if their waits stay flat.",
            "Fix the GPU or the neighbour; roll back what changed last.",
        ),
        ("degraded_for",),
    ),
    "VLLMKVHeld": Runbook(
        "KV blocks stay in use with no request running or waiting for {kv_held_for:time}: leaked, pinned by a "
        "transfer, "
        "or an old gauge (vLLM refreshes it on steps alone).",
        "The cache is smaller than it should be: evictions come earlier.",
        ("Does the usage fall after one request? Then the gauge was old.",),
        (KV_MAX, RUNNING, WAITING),
        ("Send it one request.", "If the usage stays, drain and restart it in a calm hour."),
        ("kv_held_for",),
    ),
    "VLLMPaused": Runbook(
        "The server was paused by POST /pause, and no resume, token or restart came since.",
        "Its requests wait until it is resumed.",
        ("Who paused it? An update of weights that died half-way leaves it so.",),
        (RUNNING, WAITING, STATE_NOW),
        ("POST /resume. It worked if tokens move.", "Else take it out of the gateway."),
        ("paused_for",),
    ),
    "VLLMPreempting": Runbook(
        "Requests have been evicted for {preempting_for:time}, and most still finish after one eviction. Healthy "
        "servers were measured with 7 to 20 % of their requests preempted; this alone is no emergency.",
        "Single answers pause for seconds. Throughput loses a few per cent.",
        (
            "Does R rise from day to day? Then thrashing is near.",
            "Is it one engine? Then look at its share of long prompts.",
        ),
        (_PREEMPTIONS, R_NOW, TAX, _GAPS, CAP),
        (
            "Nothing tonight.",
            "In the review: lower `max_num_seqs` to the cap printed by the query, or add cache (fewer other processes "
            "on the GPU, a quantised KV cache, smaller weights, more tensor parallelism, which costs synchronisation "
            "between GPUs). It worked if R falls and finished requests/s do not.",
        ),
        ("preempting_for",),
    ),
    "VLLMKVPressure": Runbook(
        "At its highest within each minute, the KV cache has been at or above {kv_pressure_ratio:share} for "
        "{kv_pressure_for:time}. A full cache is no fault in itself, but the next long prompt will "
        "trigger a preemption.",
        "None yet.",
        ("Is demand above 1? Then the waiting requests would not fit.", "Do prompts or outputs grow?"),
        (KV_MAX, ("KV usage if every waiting request ran too", victim("kv_cache_demand_ratio")), _PROMPT, _OUTPUT),
        ("Nothing tonight.", "Put the model on the agenda of the capacity review."),
        ("kv_pressure_for",),
    ),
    "VLLMTailDivergence": Runbook(
        "The slowest one in a hundred answers comes at least {tail_ratio} times slower per token than the median. The "
        "ratio is the lower bound that the histogram's buckets allow, so it is not an artefact of interpolation. "
        "Needs the exporter.",
        "A few users see a server that others call fast.",
        (
            "Do preemptions or gaps over 1 s rise with it? Then it is preemption.",
            "Do long prompts share the batch? Then prefill slows the others.",
            "Is the mix of lengths wide? Then p99 is a different kind of request.",
        ),
        (
            ("The ratio, lower bound", victim("tpot_p99_p50_ratio", ',source="request",bound="lower"')),
            _GAPS,
            _PREEMPTIONS,
            ("Spread of output length", victim("output_tokens_cv")),
        ),
        (
            "Preemption: follow VLLMPreempting.",
            "Long prompts: route them to their own replica; then `max_num_batched_tokens` down.",
        ),
        ("tail_ratio", "tail_samples", "tail_for"),
    ),
    "VLLMResponsesTruncated": Runbook(
        "A large share of answers ended because they reached a length cap, not because the model was done. Prefill "
        "engines are left out.",
        "Users get half answers, broken JSON, or nothing at all behind a tool call.",
        (
            "Which cap: the request's max_tokens, the server's default, or the context window? Only logs can tell.",
            "Is it a benchmark or a job that always runs to the cap? Then move the limit for it.",
        ),
        (
            ("Share cut at the cap", victim("truncated_ratio")),
            _OUTPUT,
            (
                "By route and cap (needs logs)",
                "sum by (route, cap) (max by (route, source, cap) "
                f"(rate({metric('log_truncated_responses_total')}{{{MODEL}}}[30m])))",
            ),
        ),
        (
            "Raise max_tokens on the routes that are cut: 1.5 to 2 times the mean where lengths are alike (CV up to "
            "0.3), 1.5 to 2 times the p90 where they vary (CV above 1). It worked if the share falls below the limit.",
            "Longer answers hold their slots longer: watch the queue, and lower `max_num_seqs` if preemptions start.",
        ),
        ("truncated_ratio", "truncated_samples", "truncated_for"),
    ),
    "VLLMReasoningTruncated": Runbook(
        "Answers reached their cap while the model was still thinking, so they hold no answer. Known from logs alone.",
        "Its user gets nothing and pays for the tokens.",
        ("Did the route's max_tokens change?", "Did prompts change so that the model thinks longer?"),
        (
            (
                "Cut while thinking, by route",
                "sum by (route) (max by (route, source) "
                f"(rate({metric('log_reasoning_truncated_total')}{{{MODEL}}}[30m])))",
            ),
            ("Thinking, p90 by route", f"max by (route) ({metric('log_reasoning_tokens_p90')}{{{MODEL}}})"),
            ("Answer after it, p90 by route", f"max by (route) ({metric('log_answer_tokens_p90')}{{{MODEL}}})"),
        ),
        (
            "Thinking and answer share one max_tokens (the coupling tax), so give each its own room: a thinking "
            "budget of 1.5 times its p90, and max_tokens of that plus 1.5 to 2 times the answer's p90. It worked if "
            "the share falls.",
            "Where the model keeps a budget (Qwen3: `thinking_budget` in its chat template; vLLM: "
            "`thinking_token_budget` on the request), set it: cutting from outside leaves an answer that rests on "
            "half a thought.",
            "Where it keeps none (DeepSeek-R1), do not cut short: its accuracy was reported to rise by about 3.2 "
            "points with every 500 tokens of thinking, up to some 12,000, and to fall beyond. A thinking budget above "
            "that wins nothing.",
            "Easy routes: switch thinking off. Below some 2,000 tokens in all, answering at once did better.",
        ),
        ("reasoning_truncated_ratio", "reasoning_samples"),
    ),
    "VLLMLongQueue": Runbook(
        "A new request must expect to wait longer than the objective: waiting requests divided by the rate at which "
        "requests finish, over ten minutes where few do. Where none has finished in ten minutes and somebody waits "
        "throughout, the wait has no end in sight.",
        "First tokens come late. With a healthy engine nothing else is wrong.",
        (
            "Does nothing finish? Then a few very long answers hold all slots, or clients give up before they are "
            "served: see VLLMRunawayRequest.",
            "Is the KV cache below 70 %? Then `max_num_seqs` is what limits.",
            "Is the cache full? Then the engine is at its limit.",
            "Does one client send more than the slots?",
        ),
        (WAIT, WAITING, RUNNING, KV_MAX, ADVICE),
        (
            "Cap the client that sends more than the slots, at the gateway. It worked if waiting falls.",
            "Add replicas.",
            "Cache below 70 %: `max_num_seqs` up by a quarter at the next restart. It worked if TTFT falls and TPOT "
            "holds.",
        ),
        ("ttft_objective_seconds", "queue_for"),
    ),
    "VLLMStarvedDecode": Runbook(
        "Tokens come at least {starved_latency_factor} times slower than usual while prompts take "
        "{starved_prefill_factor} times more work than answers; nothing is preempted.",
        "Running requests slow down while long prompts are prefilled.",
        (
            "Which client sends the long prompts?",
            "Is the prefix cache off or cold? Then the same prompts are read again and again.",
        ),
        (USEFUL, _PROMPT, ("Share found in the prefix cache", victim("prefix_cache_hit_ratio")), RUNNING),
        (
            "Route long prompts to their own replica. It worked if the gap between tokens returns to its usual.",
            "At the next restart: `max_num_batched_tokens` down by half (first tokens of long prompts come later).",
        ),
        ("starved_for",),
    ),
    "VLLMRunawayRequest": Runbook(
        "Since the last completion more tokens were made than the requests present can explain by usual answers: one "
        "of them has produced many times the mean (the last one known: beside a runaway often nothing finishes). An "
        "estimate, which shows before the request finishes. Every completion sets it back: it sees a runaway that is "
        "alone or among long answers, and none among many short ones, which shows as a straggler once it finishes. "
        "Needs the exporter.",
        "It holds a slot and its share of the cache; on a small engine it doubles the wait of all others.",
        ("Which request is the oldest at the gateway?", "Does its route set max_tokens at all?"),
        (
            ("Tokens that some unfinished request has made", victim("inflight_output_tokens_estimate")),
            _OUTPUT,
            RUNNING,
            WAITING,
        ),
        (
            "Cancel it at the gateway. It worked if the estimate falls.",
            "Give the route a max_tokens.",
            "At the next restart: a default for every caller, `max_new_tokens` in `override_generation_config` (model "
            "cards say 32768), and the `presence_penalty` of the model card against repetition. Without a default the "
            "cap is what the prompt leaves of the context window. The start-up log must name both in `Default vLLM "
            "sampling parameters have been overridden`: 0.29 dropped presence_penalty in silence, 0.32 takes it.",
        ),
        ("runaway_factor", "runaway_tokens", "runaway_for"),
    ),
    "VLLMOutputStragglers": Runbook(
        "Output lengths are not those that the SLO (or the plan) was made for: the p99 is many times the mean, or the "
        "mean itself moved.",
        "Latency objectives are missed for reasons that no server setting mends; a cache sized for the mean runs out.",
        ("Is it one route? Then split it off.", "Did the model, the prompts or max_tokens change?"),
        (
            ("p99 output over the mean", victim("output_tokens_straggler_ratio")),
            _OUTPUT,
            ("Spread (CV)", victim("output_tokens_cv")),
        ),
        (
            "Split the long route off to its own replica.",
            "Restate the SLO for the new lengths, and size `max_num_seqs` for their p90.",
        ),
        ("straggler_ratio", "straggler_samples", "assumption_factor", "straggler_for"),
    ),
    "VLLMServerSettingDropped": Runbook(
        "The configuration sets a default, and the start-up log shows that vLLM did not take it over. Needs logs.",
        "Requests that rely on the default get another value, often a far longer max_tokens.",
        ("Is the key spelled as vLLM spells it?", "Does the model's generation_config.json set it too?"),
        (("Settings dropped", f"max by (target, name) ({metric('server_setting_overridden')}) == 0"),),
        ("Correct the key, restart one replica, and see that the series turns to 1.",),
    ),
    "VLLMDPImbalance": Runbook(
        "One data-parallel rank has at least {imbalance_factor} times the requests of the calmest rank of the same "
        "server, for {imbalance_for:time}.",
        "The busy rank queues or evicts while others idle: the fleet looks half empty and is slow.",
        (
            "Does the balancer pin sessions or prefixes to ranks?",
            "Has the server run for days? Counts of the balancer were seen to drift.",
        ),
        (
            (
                "Requests by rank",
                'max by (engine) (engine:vllm_vitals_work:requests{target="TARGET",model_name="MODEL"})',
            ),
            ("State by rank", f'max by (engine, state) ({metric("state")}{{target="TARGET",model_name="MODEL"}}) == 1'),
        ),
        (
            "Loosen the pinning at the balancer.",
            "Restart the API servers in a quiet hour. It worked if the ranks draw level.",
        ),
        ("imbalance_factor", "imbalance_requests", "imbalance_for"),
    ),
    "VLLMBlind": Runbook(
        "Something answers at the target, but not with usable metrics: an error status, a time-out under load, a "
        "broken body. The server may be serving well. Native mode cannot tell this from down.",
        "None on users by itself; you cannot see the engine.",
        (
            "Time-outs under load? /metrics is slow when the API server is busy.",
            "401 or 404? A proxy or a changed path.",
            "500? PROMETHEUS_MULTIPROC_DIR on a network volume is a known cause (vllm#49983).",
        ),
        (_ERRORS, STATE_NOW),
        (
            "Fetch /metrics by hand from the exporter's host.",
            "Raise the scrape time-out (and the interval above it) if it is slow.",
        ),
        ("blind_for",),
    ),
    "VLLMEngineDown": Runbook(
        "Nothing has answered at this target for {engine_down_for:time}: connection refused, or its name does not "
        "resolve. Or it came back {engine_restarts} times or more within the hour, the last time within 15 minutes: it "
        "crashes in a loop.",
        "Other engines of the model carry its load; if there are none, VLLMModelUnavailable pages. Each crash loses "
        "every request in flight.",
        (
            "What does its log end with?",
            "Is it still loading weights? The port opens only afterwards.",
            "Was it moved? Then fix discovery.",
        ),
        (STATE_NOW, ("How often it came back within the hour", f"max(resets({DOWN}{{{VICTIM}}}[1h]))"), RESTARTS),
        (
            "Read the exit reason, then restart it. It worked if it stays up.",
            "A loop: take it out of the gateway, then go back to the image, the flags or the model of before.",
            "Remove it from discovery if it is gone for good: the alert goes at once.",
        ),
        ("engine_down_for", "engine_restarts"),
    ),
    "VLLMAsleepWithWork": Runbook(
        "The engine was put to sleep (its weights are off the GPU) while it has requests.",
        "These requests wait until it is woken.",
        ("Who put it to sleep: an operator, a scheduler, a training loop?",),
        (WAITING, RUNNING, STATE_NOW),
        ("Wake it: POST /wake_up.", "Take sleeping engines out of the gateway's pool."),
        ("asleep_for",),
    ),
    "VLLMEngineSilent": Runbook(
        "The engine was there for {silent_seconds:time} and made no token in them, while the median of at least two "
        "peers of its model did. Its own metrics may look idle: a frozen engine behind a living API server looks so.",
        "Either its requests hang, or it is paid for and unused.",
        ("Does a request sent to it directly get an answer?", "Does the gateway think that it is healthy?"),
        (
            (
                "Tokens per second by engine",
                f"max by (target, engine) (rate({metric('generation_tokens_total')}{{{MODEL}}}[5m]))",
            ),
            RUNNING,
            WAITING,
        ),
        (
            "No answer: drain it, capture (py-spy dump, logs), restart it. It worked if tokens move.",
            "An answer: the balancer does not use it; see its health checks and weights.",
            "Switch the canary on: it finds such hangs within a minute.",
        ),
        ("silent_seconds",),
    ),
    "VLLMEngineErrors": Runbook(
        "vLLM complained in a log that the exporter reads: once about something that ends an engine (engine_dead, "
        "output_handler_failed, out_of_memory, rpc_timeout, collective_failed, uncaught_exception), or "
        "{engine_errors} times in 15 minutes about something that may be harmless alone (shm_broadcast_wait, "
        "request_failed, other). Needs logs.",
        "After a fatal error every request of the engine fails or hangs, and /metrics may keep its last values until "
        "the process ends. Repeated failures are lost responses.",
        (
            "Did the server just start, or was it being stopped? While it compiles, shm_broadcast_wait means nothing. "
            "Later it is often the only sign of a hang, and vLLM writes it at INFO.",
            "Was this log just given to the exporter? What it held before counts once, as it is first read.",
            "out_of_memory: while loading, or under load? Under load it is a spike of activations, not the KV cache, "
            "which is reserved at the start.",
            "collective_failed, rpc_timeout: do the kernel's log or the other ranks name a GPU or a link?",
            "request_failed, other: one client and one kind of request? Then it is the request.",
        ),
        (
            ("Engine errors by log and kind, in the last 15 minutes", ERRORS_LOGGED),
            ("Which targets answer", f"max by (target) ({metric('target_up')})"),
            (
                "Engines that are down or stalled",
                f'max by (target, engine) ({metric("state")}{{state=~"down|stalled"}}) == 1',
            ),
        ),
        (
            "Read the log around the first error: `vllm-vitals logs FILE` counts its kinds.",
            "A fatal one: drain the server at the gateway, keep its log, restart it. It worked if tokens move again "
            "and no new error comes.",
            "out_of_memory under load, at the next restart: `max_num_batched_tokens` down by half, which bounds the "
            "activations of a step.",
            "It comes back within the hour: go back to the version before, and report it with the log and a recording "
            "(`vllm-vitals record`).",
        ),
        ("engine_errors",),
    ),
}
