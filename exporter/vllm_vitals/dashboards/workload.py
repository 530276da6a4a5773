"""Workload: what the users send and get, and which cap or length makes the trouble."""

from typing import Any

from vllm_vitals.dashboards import field_config, links, panels, recorded, routes, theme
from vllm_vitals.dashboards.annotations import models_in_trouble
from vllm_vitals.dashboards.panels import Panel
from vllm_vitals.dashboards.promql import MOST, most, overall, rate, ratio
from vllm_vitals.dashboards.query import Query
from vllm_vitals.dashboards.site import Site
from vllm_vitals.dashboards.theme import Row


def build(site: Site) -> dict[str, Any]:
    """Return the dashboard's JSON."""
    rows = (
        Row("Are responses truncated?", _truncation(site)),
        Row("How long are prompts and outputs?", _lengths(site)),
        Row("Why it is uneven", _shape(site)),
        Row("From the logs: by route", routes.row(site)),
    )
    return theme.dashboard(
        links.WORKLOAD,
        "What users send and get: lengths, spread, cuts and cache hits. Most preemption starts here, not in the "
        "engine.",
        rows,
        variables=("model_name",),
        annotations=(models_in_trouble(),),
        since="now-1h",
    )


def _truncation(site: Site) -> tuple[Panel, ...]:
    cut = rate("log_truncated_responses_total")
    return (
        panels.timeseries(
            "Truncated at a cap, by model",
            "Share of responses that end by length, worst engine of each model. Half an answer is a failed request "
            "to a user. The line is the alert's level.",
            [Query(recorded.worst("truncated_ratio"), "{{model_name}}")],
            "percentunit",
            "No response has finished in this range.",
            levels=site.scale.truncated,
        ),
        panels.timeseries(
            "Which cap cut them",
            "Truncated responses per second by cap, from logs: the request's own max_tokens (fix the client), the "
            "server's default (raise it), or the context window (shorten the prompt).",
            [Query(f"sum by (cap) ({cut})", "{{cap}}")],
            "reqps",
            "No response was truncated, or no logs are read: set logs in the config.",
            stack=True,
        ),
        panels.timeseries(
            "Cut while still thinking",
            "Responses per second that ended inside their reasoning, with no answer at all. Raise max_tokens for "
            "this route, or bound the reasoning.",
            [
                Query(
                    most(
                        f"sum by (model_name, route) ({rate('log_reasoning_truncated_total')})",
                        "model_name, route",
                        overall("log_reasoning_truncated_total", "model_name, route"),
                    ),
                    "{{model_name}} {{route}}",
                )
            ],
            "reqps",
            "No reasoning was truncated, or no logs are read: set logs in the config.",
        ),
    )


def _lengths(site: Site) -> tuple[Panel, ...]:
    return (
        panels.timeseries(
            "Prompt length",
            "Median and p99 of finished requests, of the models that answer most. A step up fills the KV cache with "
            "the same number of requests: compare with KV usage at that time.",
            [
                Query(
                    recorded.busiest(recorded.quantile(q, "request_prompt_tokens"), MOST // 2),
                    f"p{q * 100:g} {{{{model_name}}}}",
                )
                for q in (0.5, 0.99)
            ],
            "short",
            "No request has finished in this range.",
            width=6,
        ),
        panels.heatmap(
            "Prompt lengths, every bucket",
            "Finished requests per second by prompt length. Two bands are two kinds of users: a pool for each is the "
            "cure for starved decode.",
            Query(recorded.buckets("request_prompt_tokens", "le")),
            "short",
            "No request has finished in this range.",
            width=6,
        ),
        panels.timeseries(
            "Output length",
            "p50, p90 and p99 of finished requests, of the models that answer most. Set max_tokens from p90, not from "
            "the largest that ever was.",
            [
                Query(
                    recorded.busiest(recorded.quantile(q, "request_output_tokens"), MOST // 3),
                    f"p{q * 100:g} {{{{model_name}}}}",
                )
                for q in (0.5, 0.9, 0.99)
            ],
            "short",
            "No request has finished in this range.",
            width=6,
        ),
        panels.heatmap(
            "Output lengths, every bucket",
            "Finished requests per second by output length. A hard top edge is a cap at work.",
            Query(recorded.buckets("request_output_tokens", "le")),
            "short",
            "No request has finished in this range.",
            width=6,
        ),
    )


def _shape(site: Site) -> tuple[Panel, ...]:
    finished = recorded.total("responses_total", "rate5m", "model_name, finished_reason")
    hits = ratio(*(recorded.total(f"prefix_cache_{what}_total", "rate5m") for what in ("hits", "queries")))
    return (
        panels.timeseries(
            "Spread of output length (CV)",
            "Standard deviation over mean. Below 0.3: set max_tokens to 1.5 to 2 x the mean. Above 1: outputs cannot "
            "be foreseen, plan with p90 and fewer sequences.",
            [Query(recorded.worst("output_tokens_cv"), "{{model_name}}")],
            "none",
            "Too few responses in the slow window.",
        ),
        panels.timeseries(
            "Stragglers: p99 output over the mean",
            "How much longer the longest outputs are. A straggler holds its slot and its KV while a batch of short "
            "ones passes.",
            [Query(recorded.worst("output_tokens_straggler_ratio"), "{{model_name}}")],
            "none",
            "Too few responses in the slow window.",
            levels=site.scale.straggler,
        ),
        panels.timeseries(
            "Output length asked and made",
            "Mean max_tokens of requests, and the mean they made. A wide gap is harmless to vLLM (nothing is "
            "reserved) but a runaway may use all of it.",
            [
                Query(recorded.busiest(recorded.mean("request_max_tokens"), MOST // 2), "asked {{model_name}}"),
                Query(recorded.busiest(recorded.mean("request_output_tokens"), MOST // 2), "made {{model_name}}"),
            ],
            "short",
            "No request has finished in this range.",
        ),
        panels.timeseries(
            "Prefix cache hits",
            "Share of looked-up prompt tokens found in the cache. A fall after a deploy is often a changed system "
            "prompt, or a router that no longer keeps a user on one server.",
            [Query(recorded.busiest(hits), "{{model_name}}")],
            "percentunit",
            "Prefix caching is off, or no prompt was looked up.",
            high=1,
        ),
        panels.timeseries(
            "Finished per second, by reason",
            "stop is a complete response, length a truncated one; abort and error are lost work. refused never began: "
            "the queue was full (vLLM 0.32 on), so add replicas or cap the client.",
            [
                Query(f"sum by (finished_reason) ({finished})", "{{finished_reason}}"),
                Query(f"sum({recorded.total('rejected_requests_total', 'rate5m')})", "refused"),
            ],
            "reqps",
            "No response has finished in this range.",
            stack=True,
            overrides=field_config.finish_colours(),
        ),
        panels.timeseries(
            "Abandoned requests",
            "An estimate of clients that gave up per second. They cost as much as finished ones and count nowhere in "
            "vLLM's own metrics.",
            [Query(recorded.largest("abandoned_requests_per_second"), "{{model_name}}")],
            "reqps",
            "No request has started in this range.",
        ),
    )
