"""The front page of a fleet: a row a model, and what was promised to its users.

Input: the site. Output: panels of the overview. Invariant: reads recorded series, so that its cost
grows with models and not with engines.
"""

from typing import Any

from vllm_vitals.config.objectives import Slo
from vllm_vitals.dashboards import panels, recorded, states
from vllm_vitals.dashboards.panels import Column, Panel
from vllm_vitals.dashboards.promql import MOST, gauge, most
from vllm_vitals.dashboards.query import Query
from vllm_vitals.dashboards.site import Levels, Site
from vllm_vitals.rules import concurrency, slo
from vllm_vitals.rules.promql import number

_NONE = "No objective is recorded: set alerts.slos and build the rules, or nothing has finished yet."
_WINDOWS = sorted({window for _, long, short, _, _ in slo.WINDOWS for window in (long, short)})
# What advice's directions are called; to set one is its own word.
_VERBS = {"up": "raise", "down": "lower", "do": ""}
# Promises whose burn is drawn, each over every window.
_SHOWN = 2
BURN = "Budget burn, by window"


def models(site: Site) -> Panel:
    """Return the table of models."""
    share: dict[str, Any] = {"unit": "percentunit", "decimals": 2, "width": 85}
    advice = gauge("advice", keep=("knob", "direction"))
    first = f"topk by (model_name) (1, max by (model_name, knob, direction) ({advice} == 1))"
    for direction, verb in _VERBS.items():
        first = f'label_replace({first}, "direction", "{verb}", "direction", "{direction}")'
    knob = f'label_join({first}, "turn", " ", "direction", "knob")'
    cap = f"min by (model_name) ({recorded.of_engine(concurrency.CAP)})"
    shown: list[tuple[str, Column]] = [
        (recorded.model_rank(), Column("", "State", mappings=states.mappings(), width=105)),
        (recorded.serving(), Column("", "Serving", decimals=0, width=70)),
        (recorded.engines(), Column("", "of", decimals=0, width=45)),
        (recorded.worst_engine(), Column("", "Worst engine", mappings=states.mappings(), width=120)),
        (cap, Column("", "Cap to", decimals=0, width=65)),
        (knob, Column("", "", width=1)),
        (recorded.model_age(), Column("", "Age", "s", levels=site.scale.sample_age, decimals=0, width=60)),
        (f"min by (model_name) ({_attained()})", Column("", "Attained", **share)),
    ]
    if site.config.slos:
        left = f"min by (model_name) ({_left(site.config.slos)})"
        shown.append((left, Column("", "Budget left", levels=Levels(0.25, 0, low_is_bad=True), **share)))
    by_header = {
        column.header: Column(
            f"Value #{chr(ord('A') + at)}", column.header, column.unit, column.width, column.levels, column.mappings,
            column.decimals,
        )
        for at, (_, column) in enumerate(shown)
        if column.header
    }  # fmt: skip
    named = {
        "Model": Column("model_name", "Model"), "Server": Column("target", "Server"),
        "Knob": Column("turn", "First knob", width=195),
        "Trend": Column(panels.TREND, "First token, p99", "s", width=140, spark=True),
    }  # fmt: skip
    order = ("State", "Model", "Trend", "Serving", "of", "Attained", "Budget left", "Worst engine", "Server", "Knob",
             "Cap to", "Age")  # fmt: skip
    every = by_header | named
    return panels.table(
        "Models, worst first",
        "One row a model. Its state is the worst that a third of its engines are in, so that one dead engine of 200 "
        "does not paint it red; the worst engine stands beside it. First token: the p99 over this range, and now. Cap "
        "to: requests an evicting engine can carry, to set at the gateway. Attained: of the requests in this range, "
        "the share that met the objective. Age: of the newest sample, which a table shows for two minutes.",
        [expr for expr, _ in shown],
        [every[header] for header in order if header in every],
        f"Nothing to show: {recorded.NOT_LOADED}.",
        sort="State",
        then="Worst engine",
        width=24,
        height=7,
        trend=recorded.late_first_token(),
    )


def promises(site: Site) -> tuple[Panel, ...]:
    """Return attainment, budget and burn."""
    burns = [
        Query(_fastest(slo.burn(window)), f"{_words(window)} {{{{slo}}}} {{{{model_name}}}}")
        for window in _WINDOWS
        if window <= 86400
    ]
    left = _left(site.config.slos) if site.config.slos else ""
    made = [
        panels.timeseries(
            "Objective attained",
            "Of the requests of each step, the share that met the objective, by promise and model. Below the promised "
            "share, the budget is being spent.",
            [
                Query(
                    most(f"max by (model_name, slo) ({_share('')})", "model_name, slo", _burnt(slo.burn(3600))),
                    "{{slo}} {{model_name}}",
                )
            ],
            "percentunit",
            _NONE,
            high=1,
            low_is_bad=True,
        ),
        panels.timeseries(
            BURN,
            "How fast the error budget is spent: at 1 it lasts just as long as promised, at 14 a month's is gone in "
            f"two days. A page fires when a long and a short window both burn. The {_SHOWN} that burn fastest.",
            burns,
            "none",
            _NONE,
        ),
    ]
    if left:
        made.append(
            panels.bars(
                "Error budget left, of this range",
                "What is left of the bad requests that the promise allows, over this range. Choose 30 days to see the "
                "month's. Below 0, the promise is broken.",
                [Query(f"sort(bottomk({MOST}, {left}))", "{{slo}} {{model_name}}", instant=True)],
                "percentunit",
                _NONE,
                high=1,
                levels=Levels(0.25, 0, low_is_bad=True),
            )
        )
    return tuple(made)


def _fastest(record: str) -> str:
    """Return a window's burn, of the promises that burn fastest in the range."""
    each = f"max by (model_name, slo) ({recorded.of_model(record)})"
    return most(each, "model_name, slo", _burnt(record), _SHOWN)


def _burnt(record: str) -> str:
    return recorded.peak(record, "model_name, slo")


def _words(window: int) -> str:
    return f"{window // 3600} h" if window >= 3600 else f"{window // 60} min"


def _share(over: str, *matchers: str) -> str:
    good, total = (recorded.of_model(name, *matchers) for name in (slo.GOOD, slo.TOTAL))
    if over:
        return f"sum_over_time({good}[{over}]) / (sum_over_time({total}[{over}]) > 0)"
    return f"{good} / ({total} > 0)"


def _attained() -> str:
    return _share("$__range")


def _left(slos: tuple[Slo, ...]) -> str:
    """Return 1 - bad / allowed of each promise over the range."""
    allowed = {f'slo="{one.name}"': number(round(1 - one.share, 9)) for one in slos}
    return " or ".join(f"(1 - (1 - {_share('$__range', mine)}) / {budget})" for mine, budget in allowed.items())
