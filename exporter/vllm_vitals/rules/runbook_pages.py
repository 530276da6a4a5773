"""What the runbooks of the pages say: Meaning, Impact, Diagnosis, Mitigation, for a reader who has never seen it.

Mitigation starts with what is safe and needs no restart, and turns one knob at a time; each step says how you know
that it worked. Never advise lowering gpu_memory_utilization against preemption: that shrinks the KV cache.
"""

from vllm_vitals.rules import concurrency, losses, presence
from vllm_vitals.rules.model import Runbook
from vllm_vitals.rules.promql import metric

# ``{name}`` in a text is that limit or threshold of the config (see `runbook`). In every query TARGET, MODEL and ENGINE
# stand for the labels of the alert.
VICTIM = 'target="TARGET",model_name="MODEL",engine="ENGINE"'
MODEL = 'model_name="MODEL"'


def victim(name: str, more: str = "") -> str:
    """Return the victim's own series, folded over producers."""
    return f"max({metric(name)}{{{VICTIM}{more}}})"


STATE_NOW = (
    "The state of every engine of the model",
    f"max by (target, engine, state) ({metric('state')}{{{MODEL}}}) == 1",
)
R_NOW = ("R, preemptions per finished request (healthy: below 0.25)", victim("preemptions_per_completion"))
TAX = ("The share of the work that is done again", victim("recompute_tax_ratio"))
USEFUL = ("Useful tokens per second", victim("useful_tokens_per_second"))
KV_MAX = (
    "KV cache, highest over the window (the instant value dips while victims free blocks)",
    victim("kv_cache_usage_max_ratio"),
)
WAITING = ("Who waits, and for what", f"max by (reason) ({metric('requests_waiting')}{{{VICTIM}}})")
RUNNING = ("Requests running", victim("requests_running"))
WAIT = ("How long a new request must expect to wait", victim("expected_wait_seconds"))
RESTARTS = ("Restarts in the last hour", f"max(resets({metric('generation_tokens_total')}{{{VICTIM}}}[1h]))")
ADVICE = ("Advice in force (needs the exporter)", f"max by (knob, direction) ({metric('advice')}{{{VICTIM}}}) == 1")
CAP = (
    "The cap to set at the gateway: a quarter below max_num_seqs where running reaches it; else 0.9 times what ran "
    "while the cache was full, or, while nothing is generated, what was there before the first preemption",
    f"max({concurrency.CAP}{{{VICTIM}}})",
)
ERRORS_LOGGED = (
    f"sum by (source, kind) (max by (source, kind) (increase({metric('log_engine_errors_total')}[15m]))) > 0"
)
CANARY = (
    "What became of the canaries in the last 5 minutes (needs the exporter, and canary in its config)",
    f'max by (outcome) (increase({metric("canary_requests_total")}{{target="TARGET"}}[5m]))',
)

_EVICTING_STEPS = (
    "Cap concurrency for this engine at the gateway (the page prints the number; a query above computes it). No "
    "restart is needed. It worked if preemptions stop and useful tokens/s rise within two minutes.",
    "Shed or postpone batch work that shares the engine. It worked if waiting falls.",
    "Add a replica, if you have one. It worked if the expected wait falls.",
    "At the next restart turn one knob. Prompts much longer than outputs: `scheduler_reserve_full_isl` on (vLLM 0.19 "
    "and later; it is the default), then `watermark` 0.01-0.05 (0.24 and later). Otherwise: `max_num_seqs` down to "
    "the cap. Compare a day before with a day after.",
    "Do not lower `gpu_memory_utilization`: that makes the cache smaller and the evictions worse. Do not change "
    "`max_num_seqs` and `max_num_batched_tokens` at once: you will not know which one helped.",
)

PAGES: dict[str, Runbook] = {
    "VLLMDeathSpiral": Runbook(
        meaning="The KV cache cannot hold what the scheduler admitted. It evicts a running request, puts it back in "
        "the queue, computes its tokens again, and evicts it again. R (preemptions per finished request) is at least "
        "{spiral_preemptions_per_completion} and at least {spiral_recompute_tax:share} of the work is repetition; or "
        "{min_preemptions} or more preemptions within {fast_window:time} come with no token at all for "
        "{spiral_silence:time}; or with at most {spiral_generation_share:share} of the tokens made before. The page "
        "says which of the three it is. vLLM logs nothing about it, and its own counters leave the repeated work out.",
        impact="The server answers health checks and looks busy. Users see first tokens late, answers that stop for "
        "seconds in the middle, and time-outs. Their retries add load, so it seldom ends by itself.",
        diagnosis=(
            "Is it one engine or all of the model? One: look at its load balance. All: the load or the prompts "
            "changed.",
            "Did prompts get longer, or arrivals rise, just before? The page gives both as before and now.",
            "Was there a restart or a new vLLM version within the hour? Compare its settings with those of a healthy "
            "engine.",
        ),
        queries=(R_NOW, TAX, USEFUL, KV_MAX, CAP, STATE_NOW, ADVICE),
        mitigation=_EVICTING_STEPS,
    ),
    "VLLMThrashing": Runbook(
        meaning="Evictions feed on themselves: R is at least {thrash_preemptions_per_completion}, or "
        "{thrash_repeat_ratio:share} of the finished requests were preempted twice or more, and the queue does not "
        "drain. Thrashing alone is not proof of harm (a thrashing server was measured to do more work than an idle "
        "cautious one), so it is a ticket; it pages once an SLO burns, or once the expected wait has been above the "
        "objective for {thrash_rise_seconds:time} and rises: its mean over the second half of them is 1.2 times that "
        "over the first while the queue grew as much, or twice that. Less is the noise of the completion rate.",
        impact="Answers pause in the middle, and the queue grows. It can tip into a death spiral when prompts get "
        "longer.",
        diagnosis=(
            "Is the wait rising or flat? Flat means overload that holds; rising means it will not end by itself.",
            "Which requests are new? A new client, a batch job, or longer outputs than usual?",
        ),
        queries=(R_NOW, WAIT, WAITING, USEFUL, KV_MAX, CAP, ADVICE),
        mitigation=_EVICTING_STEPS,
        limits=("ttft_objective_seconds", "thrash_rise_seconds", "thrash_for"),
    ),
    "VLLMStalled": Runbook(
        meaning="There is work, and for {stall_after:time} nothing moved: no generated token, no prompt token, no "
        "engine step, no new maximum of the KV cache (a long prefill moves only that). The limit is "
        "{stall_after_start:time} before the first completion after a start, since compilation takes time, and while "
        "steps are all that moves, as in a data-parallel engine that keeps pace with empty batches. With the canary "
        "switched on, an unanswered canary request says the same.",
        impact="Every request on this engine hangs. /health and /metrics usually still answer 200, so nothing else "
        "will notice.",
        diagnosis=(
            "Does all of it wait `deferred` with nothing running? Then remote KV transfer, LoRA loading or grammar "
            "compilation hangs.",
            "Does the log hold `EngineCore encountered a fatal error`, `output_handler failed`, or an NCCL time-out?",
            "Are the gauges frozen after a mass disconnect? vLLM refreshes them only on a step; compare with the "
            "gateway's requests in flight. If the gateway has none, no request is waiting.",
        ),
        queries=(
            RUNNING,
            WAITING,
            USEFUL,
            KV_MAX,
            CANARY,
            ("What the logs complain of (needs logs)", ERRORS_LOGGED),
            RESTARTS,
            STATE_NOW,
        ),
        mitigation=(
            "Drain the engine at the gateway, so that no new request joins. It worked if its arrivals stop.",
            "Capture before you restart: `py-spy dump --pid <EngineCore>`, the last lines of the log, a recording of "
            "/metrics.",
            "Restart the server. It worked if generation tokens move again and a request sent by hand answers.",
            "If it stalls again within the hour, go back to the version before. No knob helps against a hang.",
        ),
    ),
    "VLLMFailing": Runbook(
        meaning="The engine processes requests and most of them fail: at least {failing_share:share} of those that "
        "ended did so in error, and at least {failing_errors} did; or the server answers as many with 5xx while it "
        "finishes "
        "half of what it did before. 4xx and a 503 by choice do not count.",
        impact="Clients get errors, or streams that break after a 200. Their retries add load.",
        diagnosis=(
            "What do the last error lines of its log say? A failed kernel, a tokenizer, a grammar, a LoRA that is not "
            "there?",
            "Did it begin with a deploy, a new adapter, or one client's requests?",
        ),
        queries=(
            STATE_NOW,
            (
                "How requests ended in the last 10 minutes",
                "sum by (finished_reason) (max by (target, engine, finished_reason) "
                f"(increase({metric('responses_total')}{{{MODEL}}}[10m])))",
            ),
            ("What the logs complain of (needs logs)", ERRORS_LOGGED),
        ),
        mitigation=(
            "Drain the engine at the gateway, so that retries reach engines that work. It worked if the share of "
            "errors at the gateway falls.",
            "Roll back what changed last: image, weights, flags, adapters.",
            "Restart one engine and send it a request by hand; then the others.",
            "Escalate to the owner of the model where every engine fails on the same requests.",
        ),
    ),
    "VLLMCapacityLost": Runbook(
        meaning="Engines of the model are down, stalled, failing or in a death spiral: together at least "
        "{model_share:share} of them (two or more, or half) for {engine_down_for:time}; or any of them for "
        "{unavailable_for:time} while the expected wait on the others is above {ttft_objective_seconds:time}.",
        impact="The others carry the load. Waits grow, and engines that evict under it may follow.",
        diagnosis=(
            "Did they go at once? Then a node, a zone, the network or a rollout; one after the other: the load.",
            "How long do new requests wait on those that are left?",
        ),
        queries=(
            STATE_NOW,
            ("Engines lost, of how many", f"max({losses.LOST}{{{MODEL}}}) / max({losses.ENGINES}{{{MODEL}}})"),
            ("Expected wait on the others", f"max({losses.SURVIVORS_WAIT}{{{MODEL}}})"),
        ),
        mitigation=(
            "Cap or shed load at the gateway to what is left. It worked if the wait on the others falls.",
            "Send traffic to another region or model, if there is one.",
            "Bring engines back, those that are down first: exit reason, node, weights volume, rollout.",
            "Escalate to the platform's on-call where a node or a zone is gone.",
        ),
        limits=("model_share", "engine_down_for", "ttft_objective_seconds"),
    ),
    "VLLMOverload": Runbook(
        meaning="New requests have waited longer than {overload_wait_seconds:time} for {overload_for:time}: the queue "
        "over the rate at which requests finish, or the median time to first token. A queue that fell by a tenth "
        "meanwhile does not count: that is a benchmark that drains. Batch services never page.",
        impact="Users wait, give up, and send again.",
        diagnosis=(
            "Is it more load, longer prompts or outputs, or fewer engines than an hour ago?",
            "Are engines evicting? Then cap them first: the work that is repeated is what makes the queue.",
        ),
        queries=(
            ("Expected wait by model", f"max({losses.WAIT}{{{MODEL}}})"),
            ("Requests waiting by engine", f"max by (target, engine) (engine:vllm_vitals_waiting:requests{{{MODEL}}})"),
            STATE_NOW,
        ),
        mitigation=(
            "Shed or postpone batch work, and cap the client that sends most, at the gateway. It worked if the queue "
            "falls by a tenth within ten minutes.",
            "Add replicas.",
            "Answer with an honest 429 beyond the wait that users accept.",
        ),
        limits=("overload_wait_seconds", "overload_for"),
    ),
    "VLLMModelUnavailable": Runbook(
        meaning="At least one engine of the model is down, and no other one can serve: all are down, stalled, "
        "failing or "
        "asleep, or paused for {paused_for:time}; for {unavailable_for:time} continuously, or for half of five times "
        "that (crash loop), "
        "which serves a little now and then. A target that discovery removed does not count, so a model scaled to zero "
        "on purpose does not page. An exporter that restarts meanwhile does not know the model of a server that is "
        "down; what Prometheus saw there last is taken for it, for a day.",
        impact="Every request for this model fails.",
        diagnosis=(
            "Did all of them stop at once? A shared cause: node, network, weights volume, a bad rollout.",
            "What does the log end with? Out of memory, a CUDA error, a failed weight load. Exit code 0 proves "
            "nothing.",
            "Is it still loading? The port opens only when the engine is ready, which takes minutes for large models.",
        ),
        queries=(
            STATE_NOW,
            (
                "How often each engine came back within the hour (many times: a loop of crashes)",
                f"max by (target, engine) (resets({presence.DOWN}{{{MODEL}}}[1h]))",
            ),
            ("Which targets answer", f"max by (target) ({metric('target_up')})"),
            (
                "When each was last read (needs the exporter)",
                f"time() - max by (target) ({metric('last_scrape_timestamp_seconds')})",
            ),
        ),
        mitigation=(
            "Send its traffic to another model or region, or answer with an honest error, so that clients stop "
            "retrying.",
            "Restart one server and watch it load; when it serves, restart the others. It worked if its state is idle "
            "or healthy.",
            "If the rollout changed the image or the flags, roll it back.",
            "If it comes back and dies again, keep it out of the gateway until it has stayed up for some minutes: what "
            "kills it may be the load, or one request that clients send again.",
        ),
        limits=("unavailable_for",),
    ),
    "VLLMSLOBurn": Runbook(
        meaning="Requests miss the objective so often that the month's error budget would be spent far too early. A "
        "page needs a long and a short window to agree (14.4 times the sustainable rate over 1 h and 5 min, or 6 "
        "times over 6 h and 30 min); a ticket 3 times over a day and 2 h, or once over three days and 6 h. Too few "
        "requests are not judged. A request that never got its first token is in no histogram: VLLMStalled finds "
        "those.",
        impact="Users wait longer than they were promised, in numbers that matter.",
        diagnosis=(
            "What state are the model's engines in? The worst one names the cause; its own alert carries the steps.",
            "If all are healthy or saturated, the load outgrew the fleet.",
            "Has the output length left the one that the SLO assumes? Then the promise, not the server, is wrong.",
        ),
        queries=(
            STATE_NOW,
            (
                "How fast each SLO burns over the last hour",
                f"max by (slo) (model:vllm_vitals_slo_burn:ratio1h{{{MODEL}}})",
            ),
            ("The longest expected wait of any engine", f"max({metric('expected_wait_seconds')}{{{MODEL}}})"),
            ("Mean output length now", f"max({metric('output_tokens_mean')}{{{MODEL}}})"),
        ),
        mitigation=(
            "Follow the runbook of the worst engine's state, if one is in trouble.",
            "Else cap the heaviest client at the gateway, or add replicas. It worked if the 5-minute burn falls below "
            "1.",
            "Review the objective against the lengths it was made for.",
        ),
        limits=("slo_samples",),
    ),
}
