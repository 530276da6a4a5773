"""What the logs say of each route, and nothing else can: a row of the workload dashboard.

Input: the site. Output: its panels. Invariant: each says what is missing where no logs are read, or logs
that carry no token counts, times, thinking or predictions.
"""

from typing import Any

from vllm_vitals.dashboards import panels
from vllm_vitals.dashboards.panels import Column, Panel
from vllm_vitals.dashboards.promql import MOST, RATE_RANGE, gauge, highest, most, overall, rate, ratio, total, worst
from vllm_vitals.dashboards.query import Query
from vllm_vitals.dashboards.site import Site

_ROUTE = "model_name, route"


def row(site: Site) -> tuple[Panel, ...]:
    """Return the row's panels: all figures now, then each over time."""
    cut = f"sum by ({_ROUTE}) ({rate('log_truncated_responses_total')})"
    return (
        _at_a_glance(site),
        panels.timeseries(
            "Truncated share, by route",
            "From logs: truncated share by route. Compare with the share by model above; a difference is traffic that"
            " is not logged.",
            [Query(_busiest(ratio(cut, _each_second("log_responses_total"))), "{{model_name}} {{route}}")],
            "percentunit",
            "No logs are read: set logs in the config.",
            levels=site.scale.truncated,
            width=6,
        ),
        panels.timeseries(
            "Spread of output length, by route",
            "CV of each route, and of all routes mixed (no route in its name). Where every route lies well below the "
            "mix, a pool or a cap by route helps.",
            [Query(_highest("log_output_tokens_cv"), "{{model_name}} {{route}}")],
            "none",
            "No token counts are logged, or no logs are read: set logs in the config.",
            width=6,
        ),
        panels.timeseries(
            "Exact time per token p99, by route",
            "From logged responses, without buckets. The route that suffers most is the one to move or to cap first.",
            [Query(_highest("log_tpot_p99_seconds"), "{{model_name}} {{route}}")],
            "s",
            "Logs carry no timing, or none are read: set logs in the config.",
            levels=site.scale.tpot,
            width=6,
        ),
        panels.timeseries(
            "Tokens made and never returned",
            "Generated tokens per second that were removed before the client saw them (stop strings, clients' "
            "limits): wasted work.",
            [Query(_never_returned(), "{{model_name}} {{route}}")],
            "short",
            "Nothing was removed, or no logs are read: set logs in the config.",
            width=6,
        ),
        panels.timeseries(
            "Thinking and answer p90, by route",
            "Tokens of thinking, and of the answer after it, in logged responses. Both share one max_tokens: budget "
            "1.5 x the first, plus 1.5 to 2 x the second.",
            [
                Query(_highest("log_reasoning_tokens_p90", MOST // 2), "thinking · {{model_name}} {{route}}"),
                Query(_highest("log_answer_tokens_p90", MOST // 2), "answer · {{model_name}} {{route}}"),
            ],
            "short",
            "No thinking is logged, or no logs are read: set logs in the config.",
            width=12,
        ),
        panels.timeseries(
            "Predicted too short, by route",
            "Share of logged responses that came out longer than a router predicted. Too short costs more than too "
            "long: it brings evictions back. Keep a bias upwards.",
            [Query(_highest("log_underpredicted_ratio"), "{{model_name}} {{route}}")],
            "percentunit",
            "No predictions are logged, or no logs are read: set logs in the config.",
            high=1,
            width=12,
        ),
    )


def _at_a_glance(site: Site) -> Panel:
    # Of a signed error the worst is the lowest; a source still counts once, whichever daemon serves it.
    off = f"min by ({_ROUTE}) ({gauge('log_predicted_length_error_ratio')})"
    mixed = f"max by (model_name) ({gauge('log_route_split_helps')})"
    share, tokens = {"unit": "percentunit", "decimals": 0}, {"unit": "short", "decimals": 0}
    answered, lost = _each_second("log_responses_total", "5m"), _each_second("log_unreturned_tokens_total", "5m")
    denied = _each_second("log_finish_reason_disagreements_total", "5m")
    shown: tuple[tuple[str, str, dict[str, Any]], ...] = (
        ("Answers/s", answered, {"decimals": 2, "width": 80}),
        ("Cut", _worst_route("log_truncated_ratio"), share | {"levels": site.scale.truncated, "width": 60}),
        ("Mean out", _worst_route("log_output_tokens_mean"), tokens | {"width": 80}),
        ("CV", _worst_route("log_output_tokens_cv"), {"decimals": 2, "width": 60}),
        ("Per token p50", _worst_route("log_tpot_p50_seconds"), {"unit": "s", "width": 103}),
        ("p99", _worst_route("log_tpot_p99_seconds"), {"unit": "s", "levels": site.scale.tpot, "width": 72}),
        ("p99 / p50", _worst_route("log_tpot_p99_p50_ratio"),
         {"decimals": 1, "levels": site.scale.tail_ratio, "width": 78}),
        ("Thinking p90", _worst_route("log_reasoning_tokens_p90"), tokens | {"width": 97}),
        ("Answer p90", _worst_route("log_answer_tokens_p90"), tokens | {"width": 90}),
        ("Predicted off", off, share | {"width": 100}),
        ("Not returned", ratio(lost, _each_second("log_generated_tokens_total", "5m")), share | {"width": 95}),
        ("Wrong reason", ratio(denied, answered), share | {"width": 100}),
        ("Split helps", f"({answered}) * 0 + on (model_name) group_left () ({mixed})",
         {"mappings": [panels.YES_IS_NEWS], "width": 85}),
    )  # fmt: skip
    return panels.table(
        "Routes at a glance",
        "Exact figures of the responses logged in the last minutes, a row a route, and a row for all of the model "
        "mixed. Below 0 in Predicted off is too short. Wrong reason: as long as allowed, with another finish "
        "reason. Split helps: the model's routes apart would be more even.",
        [expr for _, expr, _ in shown],
        [
            Column("route", "Route", width=125, empty="all mixed"),
            Column("model_name", "Model"),
            *(Column(f"Value #{chr(ord('A') + i)}", name, **look) for i, (name, _, look) in enumerate(shown)),
        ],
        "No logs are read, so routes are not known: set logs in the config.",
        sort="Route",
    )


def _worst_route(name: str) -> str:
    """Return a gauge from logs by model and route, whichever source says most."""
    return worst(gauge(name), _ROUTE)


def _highest(name: str, count: int = MOST) -> str:
    """Return the same over time, of the routes where it was highest in the range."""
    return most(_worst_route(name), _ROUTE, highest(name, _ROUTE), count)


def _busiest(expr: str) -> str:
    """Return the lines of the routes that answered most in the range."""
    return most(expr, _ROUTE, overall("log_responses_total", _ROUTE))


def _never_returned() -> str:
    name = "log_unreturned_tokens_total"
    return most(_each_second(name), _ROUTE, overall(name, _ROUTE))


def _each_second(name: str, over: str = RATE_RANGE) -> str:
    """Return a counter from logs by model and route, all sources together."""
    return total(rate(name, over=over), _ROUTE)
