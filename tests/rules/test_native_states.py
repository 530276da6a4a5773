"""Native mode: engines that fail, are paused, or hold KV blocks for nobody; and prefix caching that is not known."""

from pathlib import Path

import pytest

from tests.rules.scenario import STEP
from tests.rules.test_native import Moment, after, constant, judge, rows, series, server, state_at, up, value_at
from vllm_vitals.core.states import State


def ended(reason: str, level: float | Moment) -> dict[str, tuple[Moment, bool]]:
    ((name, _),) = series("vllm:request_success_total", 0, finished_reason=reason).items()
    return {name: (constant(level), True)}


def calls(route: str, first: int) -> dict[str, tuple[Moment, bool]]:
    """One call of this route, by which its series is born."""
    labels = f'handler="{route}",instance="gpu1:8000",job="vllm",method="POST",status="2xx"'
    return {f"http_requests_total{{{labels}}}": (after(first, 1, None), False)}


def test_most_requests_that_end_in_error_are_failing_and_few_are_degraded(tmp_path: Path) -> None:
    errors = ended("error", lambda at: 2 if 300 <= at < 900 else 0.2 if at >= 1800 else 0)
    judge(
        tmp_path, rows({**server(), **errors, **up()}, 3000),
        state_at(285, State.HEALTHY), state_at(390, State.FAILING), state_at(885, State.FAILING),
        state_at(1700, State.HEALTHY), state_at(2900, State.DEGRADED),
    )  # fmt: skip


def test_errors_and_aborts_are_no_completions(tmp_path: Path) -> None:
    given_up = {**ended("error", 0.1), **ended("abort", 1)}
    judge(
        tmp_path, rows({**server(), **given_up, **up()}, 600),
        value_at(600, "round(rate(engine:vllm_completions:total[61s]) * 61)", 61),
    )  # fmt: skip


def test_aborts_of_a_frontend_that_counts_them_are_no_failures(tmp_path: Path) -> None:
    judge(tmp_path, rows({**server(), **ended("abort", 3), **up()}, 600), state_at(600, State.HEALTHY))


def stopped(at: int, until: int, waiting: float = 5) -> dict[str, tuple[Moment, bool]]:
    def level(calm: float) -> Moment:
        return lambda second: 0 if at <= second < until else calm

    return server(
        waiting=lambda second: waiting if at <= second < until else 0, generated=level(100), prompts=level(200),
        finished=level(1), steps=level(20),
    )  # fmt: skip


def test_a_pause_is_paused_until_it_is_resumed_and_never_stalled(tmp_path: Path) -> None:
    frozen = {**stopped(315, 1500), **up(), **calls("/pause", 315), **calls("/resume", 1500)}
    judge(
        tmp_path, rows(frozen, 1800),
        *(state_at(at, State.PAUSED) for at in range(330, 1500, STEP)), state_at(1560, State.HEALTHY),
    )  # fmt: skip


def test_tokens_after_a_pause_end_it(tmp_path: Path) -> None:
    judge(
        tmp_path, rows({**stopped(315, 600), **up(), **calls("/v1/pause", 315)}, 900),
        state_at(585, State.PAUSED), state_at(660, State.HEALTHY),
    )  # fmt: skip


def test_a_server_that_was_paused_before_it_was_watched_and_then_works_is_not_paused(tmp_path: Path) -> None:
    judge(tmp_path, rows({**server(), **up(), **calls("/pause", 0)}, 600), state_at(600, State.HEALTHY))


@pytest.mark.parametrize(("usage", "state"), [(0.3, State.KV_HELD), (0.04, State.IDLE)])
def test_kv_blocks_in_use_without_a_request_are_held(usage: float, state: State, tmp_path: Path) -> None:
    quiet = server(
        running=after(300, 0, 4), usage=after(300, usage, 0.5), generated=after(300, 0, 100),
        prompts=after(300, 0, 200), finished=after(300, 0, 1), steps=after(300, 0, 20),
    )  # fmt: skip
    judge(tmp_path, rows({**quiet, **up()}, 900), state_at(285, State.HEALTHY), state_at(600, state))


def unknown_caching(rate: float) -> dict[str, tuple[Moment, bool]]:
    """R and, without prefix caching, the tax of a death spiral; nothing says whether caching is on."""
    shown = server(waiting=20, usage=1.0, preempted=rate, generated=20, finished=1, prompts=20)
    return {name: row for name, row in shown.items() if "prefix_cache" not in name}


def test_unknown_prefix_caching_is_never_read_as_off(tmp_path: Path) -> None:
    engine = unknown_caching(4)
    share = "round(engine:vllm_lost_share:estimate, 0.01)"
    (info,) = series("vllm:cache_config_info", 1, enable_prefix_caching="False")
    labelled = {**engine, info: (constant(1), False)}
    judge(
        tmp_path, rows({**engine, **up()}, 900), value_at(900, share, 0.2),
        value_at(900, "round(vllm_vitals_recompute_tax_lower_ratio, 0.01)", 0.56),
        state_at(900, State.THRASHING),
    )  # fmt: skip
    judge(tmp_path, rows({**labelled, **up()}, 900), value_at(900, share, 0.4), state_at(900, State.DEATH_SPIRAL))


def test_evictions_beside_a_cache_that_was_never_full_are_no_thrashing(tmp_path: Path) -> None:
    reset = server(waiting=20, usage=0.4, preempted=2)
    judge(tmp_path, rows({**reset, **up()}, 900), *(state_at(at, State.PREEMPTING) for at in range(120, 900, 60)))
