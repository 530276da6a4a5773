"""The share of requests that end in an error burns a budget of its own, also where requests are rare."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from tests.rules import rulesets
from tests.rules.cases import V
from tests.rules.courses import Row, row
from tests.rules.scenario import STEP, document
from tests.rules.tools import promtool_test
from vllm_vitals.config.alerts import Config
from vllm_vitals.config.objectives import Availability

# Once a minute is often enough for windows of an hour.
CONFIG = replace(Config(), availability=(Availability("answered", 0.99),), evaluation_seconds=60)
SECONDS = 8100
EVERY = 300  # s between the requests of a service that is seldom asked


def ended(model: str, spans: Sequence[tuple[int, float, float]], every: int = STEP) -> list[Row]:
    """Requests that end well and in error: their rates (1/s) from each moment on, counted every so many seconds."""
    victim = {**V, "model_name": model, "target": f"{model}:8000"}

    def count(which: int) -> dict[int, float]:
        total, counted = 0.0, dict[int, float]()
        for at in range(0, SECONDS + STEP, STEP):
            rate = next((span[which] for span in reversed(spans) if at > span[0]), 0.0)
            total += every * rate if at % every == 0 else 0.0
            counted[at] = total
        return counted

    found = {"stop": count(1), "error": count(2)}
    return [row("responses_total", lambda at, c=c: c[at], SECONDS, victim, finished_reason=r) for r, c in found.items()]


def test_a_service_whose_every_request_fails_pages_and_seven_bad_ones_of_a_young_model_do_not(tmp_path: Path) -> None:
    rows = [
        # 12 an hour, and all of them fail from the first hour on
        *ended("dead", [(0, 1 / EVERY, 0.0), (3600, 0.0, 1 / EVERY)], EVERY),
        *ended("rare", [(0, 1 / EVERY, 0.0)], EVERY),
        *ended("busy", [(0, 5.0, 0.0), (3600, 4.0, 1.0)]),
        # seven of a hundred fail within six minutes, and then nobody asks
        *ended("young", [(0, 0.26, 0.0194), (360, 0.0, 0.0)]),
    ]

    def burning(at: int, *found: str) -> dict[str, object]:
        expr = 'count by (model_name, severity) (ALERTS{alertname="VLLMSLOBurn",slo="answered",alertstate="firing"})'
        pairs = (one.split() for one in found)
        samples = [{"labels": f'{{model_name="{model}",severity="{s}"}}', "value": 1} for model, s in pairs]
        return {"expr": expr, "eval_time": f"{at}s", "exp_samples": samples}

    checks = [burning(360), burning(3600), burning(7800, "busy page", "busy ticket", "dead page", "dead ticket")]
    test = {"interval": f"{STEP}s", "input_series": rows, "promql_expr_test": checks}
    assert not promtool_test(document([test], rulesets.build(CONFIG, tmp_path), 60), tmp_path, "availability")
