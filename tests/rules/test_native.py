"""Native mode: recording rules over raw vLLM series of every era say what the exporter says.

Synthetic servers are tables of functions of time; real ones are the recordings of other releases.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.rules import rulesets
from tests.rules.recordings import raw
from tests.rules.scenario import STEP, document
from tests.rules.tools import ROOT, RULES, promtool_test
from vllm_vitals.core.render import TargetRenderer, join
from vllm_vitals.core.snapshot import Scrape
from vllm_vitals.core.states import State
from vllm_vitals.core.target_evaluator import TargetEvaluator
from vllm_vitals.recordings.recording import read
from vllm_vitals.rules.native_state import UNSAID

VERSIONS = sorted(path.name for path in (ROOT / "tests" / "data" / "versions").iterdir())
SCRAPED = {"instance": "gpu1:8000", "job": "vllm", "model_name": "llama"}
ENGINE = {**SCRAPED, "engine": "0"}
NORMALISED = (
    "requests_running", "requests_waiting", "kv_cache_usage_ratio", "preemptions_total", "prompt_tokens_total",
    "generation_tokens_total", "prompt_tokens_computed_total", "responses_total",
)  # fmt: skip

Moment = Callable[[int], float | None]
Level = float | Moment  # a constant, or a function of the second


def constant(value: Level | None) -> Moment:
    return value if callable(value) else lambda _: value


def server(
    running: Level = 4,
    waiting: Level = 0,
    usage: Level = 0.5,
    generated: Level = 100,
    finished: Level = 1,
    preempted: Level = 0,
    steps: Level = 20,
    prompts: Level = 200,
    labels: Mapping[str, str] = ENGINE,
    prefix: str = "vllm:",
    usage_name: str = "kv_cache_usage_perc",
) -> dict[str, tuple[Moment, bool]]:
    """One engine: its gauges, and its counters by their slope per second (True). Prompts of 200, outputs of 100."""
    ended, tokens = constant(finished), constant(generated)

    def scaled(moment: Moment, factor: float) -> Moment:
        def at(second: int) -> float | None:
            level = moment(second)
            return None if level is None else level * factor

        return at

    def name(base: str, **more: str) -> str:
        inside = ",".join(f'{k}="{v}"' for k, v in sorted({**labels, **more}.items()))
        return f"{prefix}{base}{{{inside}}}"

    return {
        name("num_requests_running"): (constant(running), False),
        name("num_requests_waiting"): (constant(waiting), False),
        name(usage_name): (constant(usage), False),
        name("generation_tokens_total"): (tokens, True),
        name("prompt_tokens_total"): (constant(prompts), True),
        name("num_preemptions_total"): (constant(preempted), True),
        name("prefix_cache_queries_total"): (lambda _: 0.0, False),
        name("request_success_total", finished_reason="stop"): (ended, True),
        name("request_success_total", finished_reason="length"): (scaled(ended, 0), True),
        name("iteration_tokens_total_count"): (constant(steps), True),
        name("request_prompt_tokens_sum"): (scaled(ended, 200), True),
        name("request_generation_tokens_sum"): (scaled(ended, 100), True),
        name("request_generation_tokens_count"): (ended, True),
        name("time_to_first_token_seconds_count"): (ended, True),
        name("inter_token_latency_seconds_sum"): (scaled(tokens, 0.02), True),
        name("inter_token_latency_seconds_count"): (tokens, True),
        name("inter_token_latency_seconds_bucket", le="1.0"): (tokens, True),
    }


def up(alive: Level = 1) -> dict[str, tuple[Moment, bool]]:
    return {'up{instance="gpu1:8000",job="vllm"}': (constant(alive), False)}


def series(name: str, level: Level, **more: str) -> dict[str, tuple[Moment, bool]]:
    """One more gauge of the same engine."""
    inside = ",".join(f'{k}="{v}"' for k, v in sorted({**ENGINE, **more}.items()))
    return {f"{name}{{{inside}}}": (constant(level), False)}


def rows(series: Mapping[str, tuple[Moment, bool]], seconds: int, reset: int = -1) -> list[dict[str, str]]:
    """promtool's inputs: a series that ends goes stale, as after a failed scrape; ``reset`` restarts all counters."""
    inputs = []
    for name, (moment, counter) in series.items():
        total, cells, there = 50.0 if counter else 0.0, [], False
        for at in range(0, seconds + STEP, STEP):
            level = moment(at)
            total = 0.0 if at == reset else total
            if level is None:
                cells.append("stale" if there else "_")
            else:
                total += level * STEP
                cells.append(f"{total if counter else level:.10g}")
            there = level is not None
        inputs.append({"series": name, "values": " ".join(cells)})
    return inputs


def state_at(
    at: int, state: State | None, labels: str = 'engine="0", model_name="llama", target="gpu1:8000"'
) -> dict[str, Any]:
    """Exactly this state at ``at``; None: no state at all, the engine is not known."""
    samples = [] if state is None else [{"labels": f'vllm_vitals_state{{{labels}, state="{state}"}}', "value": 1}]
    return {"expr": "vllm_vitals_state == 1", "eval_time": f"{at}s", "exp_samples": samples}


def value_at(at: int, expr: str, value: float | None) -> dict[str, Any]:
    samples = [] if value is None else [{"labels": "{}", "value": value}]
    return {"expr": f"max({expr})", "eval_time": f"{at}s", "exp_samples": samples}


def judge(tmp_path: Path, inputs: Sequence[Mapping[str, str]], *checks: Mapping[str, Any]) -> None:
    one = {"interval": f"{STEP}s", "input_series": list(inputs), "promql_expr_test": list(checks)}
    said = promtool_test(document([one], rulesets.NATIVE), tmp_path, "native")
    assert not said, said[:3000]


def after(start: int, then: float | None, before: float | None) -> Moment:
    """``before`` until ``start``, then ``then``."""
    return lambda at: then if at >= start else before


@pytest.mark.parametrize("version", VERSIONS)
def test_every_release_is_normalised_as_the_exporter_does_it(version: str, tmp_path: Path) -> None:
    path = ROOT / "tests" / "data" / "versions" / version / "metrics.jsonl.gz"
    timeline = raw(path, STEP)
    judge_, renderer, text = TargetEvaluator(f"{version}:8000"), TargetRenderer(), ""
    by_step = {row.at: row for row in read(path)}
    start = min(by_step)
    last = max((at for at in by_step if at <= start + timeline.seconds + 0.5), default=start)
    body = by_step[last].body
    assert body is not None
    text = join([renderer.render(judge_.observe(Scrape(last, 0.1, body)))]).decode()
    expected: dict[str, float] = {}
    for line in text.splitlines():
        name, _, rest = line.partition("{")
        if name.removeprefix("vllm_vitals_") in NORMALISED:
            labels, _, value = rest.partition("} ")
            ordered = ", ".join(sorted(labels.replace('model_name="tiny"', f'model_name="{version}"').split(",")))
            expected[f"{name}{{{ordered}}}"] = float(value)
    assert len(expected) >= len(NORMALISED) - 1
    checks = []
    for name in NORMALISED:
        samples = [{"labels": s, "value": v} for s, v in expected.items() if s.startswith(f"vllm_vitals_{name}{{")]
        checks.append({"expr": f"vllm_vitals_{name}", "eval_time": f"{timeline.seconds}s", "exp_samples": samples})
    judge(tmp_path, timeline.inputs(), *checks)


@pytest.mark.parametrize("prefix", ["vllm:", "vllm_", "ray_vllm_"])
def test_every_spelling_is_read(prefix: str, tmp_path: Path) -> None:
    inputs = rows({**server(prefix=prefix), **up()}, 300)
    judge(tmp_path, inputs, state_at(300, State.HEALTHY), value_at(300, "vllm_vitals_useful_tokens_per_second", 300))


def test_an_upgrade_across_renames_in_mid_window_keeps_one_identity(tmp_path: Path) -> None:
    """0.8.2 has no engine label and the old KV name; its successor has both new. One scrape fails in between."""

    def old(level: float) -> Moment:
        return lambda at: level if at < 300 else None

    def new(level: float) -> Moment:
        return lambda at: level if at >= 315 else None

    before = server(
        old(4),
        old(0),
        old(0.5),
        old(100),
        old(1),
        old(0),
        old(20),
        old(200),
        SCRAPED,
        usage_name="gpu_cache_usage_perc",
    )
    then = server(new(4), new(0), new(0.5), new(100), new(1), new(0), new(20), new(200), ENGINE)
    inputs = rows({**before, **then, **up(lambda at: float(at != 300))}, 600)
    one = "count(count by (target, model_name, engine) (vllm_vitals_requests_running))"
    judge(
        tmp_path, inputs,
        *(state_at(at, State.HEALTHY) for at in range(60, 600, STEP)),
        *(value_at(at, one, 1) for at in range(60, 600, STEP)),
        value_at(600, "vllm_vitals_kv_cache_usage_ratio", 0.5),
        value_at(600, "vllm_vitals_useful_tokens_per_second", 300),
    )  # fmt: skip


def test_two_jobs_on_the_same_server_change_nothing(tmp_path: Path) -> None:
    twin = server(labels={**ENGINE, "job": "vllm-again", "pod": "x"})
    inputs = rows({**server(), **twin, **up(), 'up{instance="gpu1:8000",job="vllm-again"}': (constant(1), False)}, 300)
    judge(
        tmp_path, inputs, state_at(300, State.HEALTHY), value_at(300, "vllm_vitals_useful_tokens_per_second", 300),
        value_at(300, "count(vllm_vitals_requests_running)", 1),
    )  # fmt: skip


@pytest.mark.parametrize(("shown", "kept"), [(-0.3875, None), (1.4, None), (1.005, 1.0), (0.4, 0.4)])
def test_a_kv_usage_that_cannot_be_is_dropped(shown: float, kept: float | None, tmp_path: Path) -> None:
    inputs = rows({**server(usage=constant(shown)), **up()}, 120)
    judge(
        tmp_path,
        inputs,
        value_at(120, "vllm_vitals_kv_cache_usage_ratio", kept),
        state_at(120, State.KV_PRESSURE if kept == 1 else State.HEALTHY),
    )


def test_waiting_is_unsplit_before_0_20_and_by_reason_after(tmp_path: Path) -> None:
    split = series("vllm:num_requests_waiting_by_reason", 3, reason="deferred")
    judge(
        tmp_path, rows({**server(waiting=3), **split, **up()}, 60),
        value_at(60, 'vllm_vitals_requests_waiting{reason="deferred"}', 3),
        value_at(60, "sum(vllm_vitals_requests_waiting)", 3),
    )  # fmt: skip
    judge(
        tmp_path,
        rows({**server(waiting=3), **up()}, 60),
        value_at(60, 'vllm_vitals_requests_waiting{reason="unsplit"}', 3),
    )


def test_an_idle_server_is_idle_and_its_ratios_are_absent(tmp_path: Path) -> None:
    nothing = 0
    inputs = rows({**server(nothing, nothing, nothing, nothing, nothing, nothing, nothing, nothing), **up()}, 900)
    absent = ("preemptions_per_completion", "truncated_ratio", "output_tokens_mean", "prefix_cache_hit_ratio")
    judge(tmp_path, inputs, state_at(900, State.IDLE), *(value_at(900, f"vllm_vitals_{name}", None) for name in absent))


def test_where_little_finishes_the_wait_is_told_from_all_the_time_that_there_was_work(tmp_path: Path) -> None:
    """Four slots of an engine that was idle: four requests finish every 240 s, 50 wait."""
    slow = server(
        running=after(300, 4, 0), waiting=after(300, 50, 0), generated=after(300, 80, 0),
        finished=lambda at: 4 / STEP if at > 300 and at % 240 == 0 else 0,
    )  # fmt: skip
    wait = "abs(vllm_vitals_expected_wait_seconds / 3000 - 1) < bool 0.5"
    judge(
        tmp_path, rows({**slow, **up()}, 2400),
        value_at(300, "vllm_vitals_expected_wait_seconds", None),
        *(value_at(at, wait, 1) for at in range(840, 2400, 45)),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("families", "lost"),
    [
        ((), 0.4),
        (("nixl_num_failed_transfers_total", "num_requests_kv_fetch_by_stage"), 0.4),
        (("num_requests_kv_fetch_by_stage",), 0),
        (("nixl_num_failed_transfers_total", "kv_offload_load_bytes_total"), 0),
    ],
)
def test_what_a_victim_loses_depends_on_who_keeps_its_blocks(
    families: Sequence[str], lost: float, tmp_path: Path
) -> None:
    shown = {name: row for family in families for name, row in series(f"vllm:{family}", 0).items()}
    inputs = rows({**server(preempted=1), **shown, **up()}, 900)
    judge(
        tmp_path, inputs, value_at(900, "engine:vllm_lost_share:estimate", lost),
        # a preemption a second of 250 tokens against 300 useful tokens a second
        value_at(900, "round(vllm_vitals_recompute_tax_upper_ratio, 0.01)", 0.45 if lost else 0),
        value_at(900, "round(vllm_vitals_recompute_tax_ratio, 0.01)", 0.25 if lost else 0),
    )  # fmt: skip


def frozen(at: int, **more: Any) -> dict[str, tuple[Moment, bool]]:
    """All counters stop at ``at`` while work stays."""
    return server(
        generated=after(at, 0, 100), prompts=after(at, 0, 200), finished=after(at, 0, 1), steps=after(at, 0, 20), **more
    )


def test_a_freeze_under_work_is_stalled_within_a_minute_and_ends_with_the_first_token(tmp_path: Path) -> None:
    back = {
        **server(
            generated=lambda at: 0 if 300 <= at < 450 else 100,
            prompts=after(300, 0, 200),
            finished=after(300, 0, 1),
            steps=after(300, 0, 20),
        ),
        **up(),
    }
    judge(
        tmp_path, rows(back, 600),
        state_at(315, State.HEALTHY), state_at(345, State.STALLED),
        state_at(435, State.STALLED), state_at(450, State.HEALTHY),
    )  # fmt: skip


def test_a_freeze_without_work_is_idle(tmp_path: Path) -> None:
    inputs = rows({**frozen(300, running=after(300, 0, 4), usage=after(300, 0, 0.5)), **up()}, 600)
    judge(tmp_path, inputs, state_at(600, State.IDLE))


def test_before_the_first_completion_a_stall_needs_three_minutes(tmp_path: Path) -> None:
    nothing = 0
    compiling = server(generated=nothing, prompts=nothing, finished=nothing, steps=nothing)
    fresh = {name: series for name, series in compiling.items() if "request_success" not in name}
    (success,) = series("vllm:request_success_total", 0, finished_reason="stop")
    inputs = [*rows({**fresh, **up()}, 400), {"series": success, "values": "0x30"}]
    judge(tmp_path, inputs, state_at(120, State.HEALTHY), state_at(165, State.HEALTHY), state_at(210, State.STALLED))


def test_a_long_prefill_that_moves_only_the_kv_cache_is_no_stall(tmp_path: Path) -> None:
    growing = frozen(300, usage=lambda at: min(0.89, 0.1 + at / 2000))
    judge(tmp_path, rows({**growing, **up()}, 600), *(state_at(at, State.HEALTHY) for at in range(345, 600, STEP)))


def test_a_slow_decode_is_no_stall(tmp_path: Path) -> None:
    slow = server(
        generated=after(300, 0.2, 100), prompts=after(300, 0, 200), finished=after(300, 0, 1), steps=after(300, 0.2, 20)
    )
    judge(tmp_path, rows({**slow, **up()}, 600), *(state_at(at, State.HEALTHY) for at in range(345, 600, STEP)))


@pytest.mark.parametrize(
    "quiet",
    [
        'vllm:rl_weight_update_operations_in_flight{instance="gpu1:8000",job="vllm",model_name="llama"}',
        'vllm:sleep_mode_operations_in_flight{instance="gpu1:8000",job="vllm"}',
    ],
)
def test_no_stall_while_weights_are_updated(quiet: str, tmp_path: Path) -> None:
    inputs = rows({**frozen(300), **up(), quiet: (after(300, 1, 0), False)}, 600)
    judge(tmp_path, inputs, state_at(600, State.HEALTHY))


def test_asleep_is_asleep_and_no_stall(tmp_path: Path) -> None:
    awake = series("vllm:engine_sleep_state", after(300, 0, 1), sleep_state="awake")
    inputs = rows({**frozen(300), **up(), **awake}, 600)
    judge(tmp_path, inputs, state_at(285, State.HEALTHY), state_at(600, State.ASLEEP))


def test_preemption_after_preemption_without_a_token_is_a_death_spiral(tmp_path: Path) -> None:
    """The zero-progress cascade of vllm#49674: nothing finishes, so R never answers."""
    cascade = frozen(300, waiting=after(300, 30, 0), usage=after(300, 1.0, 0.5), preempted=after(300, 2, 0))
    judge(
        tmp_path, rows({**cascade, **up()}, 900),
        state_at(300, State.PREEMPTING), state_at(330, State.DEATH_SPIRAL), state_at(900, State.DEATH_SPIRAL),
    )  # fmt: skip


def collapsing() -> dict[str, tuple[Moment, bool]]:
    """From 900 s on few victims again and again, and a fifth of the tokens."""
    return server(
        waiting=after(900, 10, 0), usage=after(900, 1.0, 0.5), generated=after(900, 20, 100),
        finished=after(900, 0.02, 1), preempted=after(900, 0.5, 0),
    )  # fmt: skip


def test_generation_that_collapses_under_preemptions_is_a_death_spiral(tmp_path: Path) -> None:
    """vllm#25538: few victims again and again, generation falls to a fraction, and next to nothing finishes."""
    judge(
        tmp_path,
        rows({**collapsing(), **up()}, 1500),
        state_at(915, State.PREEMPTING),
        state_at(1050, State.DEATH_SPIRAL),
    )


def test_productive_preemption_never_thrashes(tmp_path: Path) -> None:
    """17 preemptions a minute at R 0.15 with a full cache and a queue were benign."""
    full = server(waiting=50, usage=1.0, preempted=0.28, finished=1.9)
    judge(tmp_path, rows({**full, **up()}, 1800), *(state_at(at, State.PREEMPTING) for at in range(120, 1800, 60)))


def test_thrashing_is_entered_after_its_hold_and_left_after_its_release(tmp_path: Path) -> None:
    mutual = server(waiting=20, usage=1.0, preempted=lambda at: 0.9 if 300 <= at < 900 else 0)
    judge(
        tmp_path, rows({**mutual, **up()}, 1500),
        state_at(285, State.SATURATED), state_at(330, State.PREEMPTING), state_at(420, State.THRASHING),
        state_at(900, State.THRASHING), state_at(945, State.THRASHING), state_at(1100, State.SATURATED),
    )  # fmt: skip


def test_a_state_once_left_is_entered_again_only_at_its_entry_level(tmp_path: Path) -> None:
    """R 0.9, then nothing, then R 0.35: enough to stay in thrashing, and too little to enter it."""
    mutual = server(waiting=20, usage=1.0, preempted=lambda at: 0.9 if 300 <= at < 900 else 0.35 if at >= 1200 else 0)
    judge(
        tmp_path, rows({**mutual, **up()}, 1800),
        state_at(885, State.THRASHING), state_at(1185, State.SATURATED),
        *(state_at(at, State.PREEMPTING) for at in range(1215, 1800, 60)),
    )  # fmt: skip


def test_half_the_entry_level_keeps_a_state_for_hours(tmp_path: Path) -> None:
    mutual = server(waiting=20, usage=1.0, preempted=lambda at: 0.9 if 300 <= at < 900 else 0.35)
    judge(tmp_path, rows({**mutual, **up()}, 9000), state_at(285, State.PREEMPTING), state_at(9000, State.THRASHING))


def test_an_outage_forgets_what_was_held(tmp_path: Path) -> None:
    """What the engine did before it went down proves nothing, even where it is back before its windows have ended."""
    gone = range(900, 945, STEP)
    mutual = server(waiting=20, usage=1.0, preempted=lambda at: 0.9 if at < 600 else 0.35)
    holed = {
        name: ((lambda at, m=moment: None if at in gone else m(at)), counter)
        for name, (moment, counter) in mutual.items()
    }
    inputs = rows({**holed, **up(lambda at: float(at not in gone))}, 1500)
    judge(
        tmp_path, inputs,
        state_at(915, State.THRASHING), state_at(930, State.DOWN),
        *(state_at(at, State.PREEMPTING) for at in range(990, 1500, 60)),
    )  # fmt: skip


def test_a_collapse_is_measured_by_the_calm_before_it_however_long_it_lasts(tmp_path: Path) -> None:
    judge(
        tmp_path,
        rows({**collapsing(), **up()}, 9000),
        state_at(1050, State.DEATH_SPIRAL),
        state_at(9000, State.DEATH_SPIRAL),
    )


def test_since_says_when_the_state_began(tmp_path: Path) -> None:
    queue = server(waiting=lambda at: 5 if 600 <= at < 1200 else 0, preempted=lambda at: 0.1 if at == 1800 else 0)
    inputs = rows({**queue, **up()}, 2400)

    def since(at: int, state: State, began: int) -> list[dict[str, Any]]:
        age = "time() - vllm_vitals_state_since_timestamp_seconds"
        return [state_at(at, state), value_at(at, age, at - began)]

    judge(
        tmp_path, inputs,
        *since(30, State.HEALTHY, 15), *since(630, State.HEALTHY, 15), *since(660, State.SATURATED, 645),
        *since(900, State.SATURATED, 645), *since(1500, State.HEALTHY, 1215),
        *since(1800, State.PREEMPTING, 1800), *since(1815, State.PREEMPTING, 1800),
    )  # fmt: skip


def trouble(then: float, calm: float) -> Moment:
    return lambda at: then if 1200 <= at < 3000 else calm


@pytest.mark.parametrize(
    ("engine", "state"),
    [
        (server(waiting=trouble(20, 0), usage=trouble(1.0, 0.5), preempted=trouble(0.9, 0)), State.THRASHING),
        (
            server(waiting=trouble(10, 0), usage=trouble(1.0, 0.5), generated=trouble(20, 100),
                   finished=trouble(0.02, 1), preempted=trouble(0.5, 0)),
            State.DEATH_SPIRAL,
        ),
        (
            server(generated=trouble(0, 100), prompts=trouble(0, 200), finished=trouble(0, 1), steps=trouble(0, 20)),
            State.STALLED,
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)  # fmt: skip
def test_a_ruler_that_sees_its_own_output_late_says_the_same_later(
    engine: dict[str, tuple[Moment, bool]], state: State, tmp_path: Path
) -> None:
    """Rules in the opposite order read what the others wrote an evaluation ago, as they do in a live vmalert."""
    rules = yaml.safe_load((RULES / "native.yml").read_text())
    rules["groups"] = [{**group, "rules": group["rules"][::-1]} for group in rules["groups"]]
    (late := tmp_path / "native.yml").write_text(yaml.safe_dump(rules))
    began = "max(vllm_vitals_state_since_timestamp_seconds) - 1200 < bool 240"
    checks = [
        state_at(1185, State.HEALTHY), *(state_at(at, state) for at in range(1500, 3000, 60)),
        value_at(2985, began, 1), state_at(4200, State.HEALTHY),
    ]  # fmt: skip
    one = {"interval": f"{STEP}s", "input_series": rows({**engine, **up()}, 4200), "promql_expr_test": checks}
    files = [str(late), str(RULES / "recording.yml")]
    assert not promtool_test(document([one], files, late=True), tmp_path, "late")


def test_prefill_that_starves_decode(tmp_path: Path) -> None:
    slow = server(generated=after(1200, 20, 100), prompts=after(1200, 5000, 200))
    sums = 'vllm:inter_token_latency_seconds_sum{engine="0",instance="gpu1:8000",job="vllm",model_name="llama"}'
    slow[sums] = (after(1200, 20 * 0.2, 100 * 0.02), True)
    judge(tmp_path, rows({**slow, **up()}, 1800), state_at(1185, State.HEALTHY), state_at(1380, State.STARVED))


def test_down_after_three_failed_scrapes_and_remembered_for_an_hour(tmp_path: Path) -> None:
    gone = {
        name: ((lambda at, m=moment: m(at) if at < 300 else None), counter)
        for name, (moment, counter) in server().items()
    }
    inputs = rows({**gone, **up(after(300, 0, 1))}, 4500)
    judge(
        tmp_path, inputs,
        state_at(315, State.HEALTHY), state_at(330, State.DOWN), state_at(3600, State.DOWN),
        value_at(330, "vllm_vitals_target_up", 0),
    )  # fmt: skip


def test_one_missed_scrape_changes_no_state(tmp_path: Path) -> None:
    def holed(moment: Moment) -> Moment:
        return lambda at: None if at == 600 else moment(at)

    mutual = server(waiting=20, usage=1.0, preempted=after(300, 0.9, 0))
    holes = {name: (holed(moment), counter) for name, (moment, counter) in mutual.items()}
    inputs = rows({**holes, **up(lambda at: float(at != 600))}, 900)
    judge(tmp_path, inputs, *(state_at(at, State.THRASHING) for at in range(450, 900, STEP)))


def test_a_restart_is_no_thrashing_and_no_stall(tmp_path: Path) -> None:
    inputs = rows({**server(), **up()}, 900, reset=450)
    judge(tmp_path, inputs, *(state_at(at, State.HEALTHY) for at in range(60, 900, STEP)))


def test_a_target_that_discovery_drops_vanishes_and_is_never_down(tmp_path: Path) -> None:
    everything = {**server(), **up()}
    gone = {
        name: ((lambda at, m=moment: m(at) if at < 300 else None), counter)
        for name, (moment, counter) in everything.items()
    }
    forgotten = {"expr": "vllm_vitals_state", "exp_samples": []}
    down = {"expr": 'vllm_vitals_state{state="down"} == 1', "exp_samples": []}
    # It was the only one: that nothing is seen any more pages, unless the config names how many are desired.
    page = {"expr": 'ALERTS{severity="page",alertname!="VLLMSightLost"}', "exp_samples": []}
    judge(
        tmp_path, rows(gone, 1200),
        *({**check, "eval_time": f"{at}s"} for at in range(300, 1200, STEP) for check in (down, page)),
        *({**forgotten, "eval_time": f"{at}s"} for at in range(360, 1200, STEP)),
    )  # fmt: skip


def test_a_spiralling_target_that_discovery_drops_pages_nobody_anew(tmp_path: Path) -> None:
    """Its counters stand still only because nobody reads them."""
    everything = {**server(waiting=20, usage=1.0, preempted=0.3), **up()}
    gone = {
        name: ((lambda at, m=moment: m(at) if at < 600 else None), counter)
        for name, (moment, counter) in everything.items()
    }
    page = {"expr": 'ALERTS{severity="page",alertstate="firing",alertname!="VLLMSightLost"}', "exp_samples": []}
    judge(tmp_path, rows(gone, 1200), *({**page, "eval_time": f"{at}s"} for at in range(0, 1200, STEP)))


def test_exactly_one_state_holds_at_every_moment(tmp_path: Path) -> None:
    lively = server(
        waiting=lambda at: 20 if at % 700 > 350 else 0, usage=lambda at: 0.95 if at % 500 > 250 else 0.4,
        preempted=lambda at: 0.9 if 600 <= at < 900 else 0, generated=lambda at: 0 if 1200 <= at < 1400 else 100,
    )  # fmt: skip
    inputs = rows({**lively, **up()}, 1800)
    checks = [value_at(at, "sum(vllm_vitals_state)", 1) for at in range(0, 1800, STEP)]
    judge(
        tmp_path,
        inputs,
        *checks,
        *(value_at(at, "count(vllm_vitals_state)", len(State) - len(UNSAID)) for at in range(0, 1800, 300)),
    )
