"""Each what-if's error bar holds what happened in another recording: the floor of the bars is measured here again."""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from math import ceil, inf

import orjson
import pytest

from tests.planner.conftest import RECORDINGS
from tests.planner.test_whatif import GIB, public, told
from tests.planner.test_whatif import case as chosen_case
from vllm_vitals.core.snapshot import Reading
from vllm_vitals.planner.review import render_text
from vllm_vitals.planner.telemetry import recorded
from vllm_vitals.planner.telemetry.telemetry import EngineId, Telemetry
from vllm_vitals.planner.whatif import fitting
from vllm_vitals.planner.whatif.calibrate import Case, SimulationBudget
from vllm_vitals.planner.whatif.error_floor import WHATIF_ERROR_FLOOR, floor
from vllm_vitals.planner.whatif.variants import Variant
from vllm_vitals.planner.whatif.whatif import Prediction, whatif

# Two recordings of one load, and the phase in which it was the same; each foretells the other.
SAME_LOAD = (
    ("spiral_chunked", "same_load_reserved", "long prompts"),
    ("overcommit_thrash", "saturated_no_preemption", "heavy"),
)
ARRIVALS = (0.0, 200.0)  # of the public runs: one request a second
HELD = 0.8
# A quantile is known to its bucket alone, so one miss stands for the three measures of a latency.
FAMILIES = {f"{name}_{form}": name for name in ("ttft", "tpot") for form in ("mean", "p50", "p99")}


@dataclass(frozen=True)
class Foretold:
    """What one recording says of another, and what happened there; ``before`` is what was there."""

    source: str
    target: str
    predicted: Mapping[str, Prediction]
    seen: Mapping[str, Reading]
    before: Mapping[str, Reading]

    def least(self, name: str) -> float:
        """The floor of the bar."""
        value, was = self.predicted[name].value, self.before[name].value
        return floor(name, value / was if value and was else 1.0)


@cache
def recorded_case(name: str, phase: str) -> Case:
    path = RECORDINGS / name / "metrics.jsonl.gz"
    phases = orjson.loads((RECORDINGS / name / "truth.json").read_bytes())["phases"]
    span = next(one for one in phases if one["label"] == phase)
    telemetry = recorded.telemetry(path, told(name))
    start = telemetry.grid.start
    between = (start + span["from"], start + span["to"])
    return fitting.case(telemetry, telemetry.engines, told(name), "worst", between, path)


@cache
def public_case(gib: int) -> Case:
    """Its responses are not counted but computed from its tokens, so of these runs the tokens alone are judged."""
    series, grid = public(gib)
    telemetry = Telemetry(grid, grid, grid, {EngineId("m", "t", "0"): series})
    known = {"max_num_seqs": "256", "max_num_batched_tokens": "8192", "block_size": "128", "max_model_len": "4096"}
    return fitting.case(telemetry, telemetry.engines, {**known, "enable_prefix_caching": "false"}, "worst", ARRIVALS)


def foretell(source: str, here: Case, target: str, there: Case, metrics: tuple[str, ...]) -> Foretold:
    changed = Variant("the other's", target, there.settings, here.here.load)
    predicted = whatif(here, (changed,)).rows[-1].metrics
    seen = there.here.observed
    return Foretold(source, target, {name: predicted[name] for name in metrics}, seen, here.here.observed)


@cache
def foretold() -> tuple[Foretold, ...]:
    """Every prediction that can be held against another recording."""
    found = []
    for one, other, phase in SAME_LOAD:
        cases = {name: recorded_case(name, phase) for name in (one, other)}
        found += [
            foretell(a, cases[a], b, cases[b], tuple(WHATIF_ERROR_FLOOR)) for a, b in ((one, other), (other, one))
        ]
    for a in GIB:
        near = [b for b in GIB if b != a and max(a, b) <= 2 * min(a, b)]
        found += [foretell(f"{a} GiB", public_case(a), f"{b} GiB", public_case(b), ("generated",)) for b in near]
    return tuple(found)


def away(predicted: Prediction, seen: Reading) -> float:
    """How far the truth, or the nearest edge of its bucket, lies from what was predicted, as a share of that."""
    value = predicted.value or 0.0
    truth = seen.value
    if seen.lower is not None and seen.upper is not None:
        truth = min(max(value, seen.lower), seen.upper)
    assert truth is not None
    return abs(truth / value - 1) if value else 0.0 if truth == 0 else inf


def misses() -> dict[str, list[float]]:
    """By measure, or kind of latency, how far each prediction was off, in floors."""
    found: dict[str, list[float]] = defaultdict(list)
    for each in foretold():
        worst: dict[str, float] = {}
        for name, predicted in each.predicted.items():
            kind = FAMILIES.get(name, name)
            worst[kind] = max(worst.get(kind, 0.0), away(predicted, each.seen[name]) / each.least(name))
        for kind, miss in worst.items():
            found[kind].append(miss)
    return found


@pytest.mark.parametrize("name", WHATIF_ERROR_FLOOR)
def test_the_floor_holds_four_in_five_predictions(name: str) -> None:
    """Those that can be made from these recordings; with the others of bench.reach it is their 80 % rounded up."""
    missed = sorted(misses()[FAMILIES.get(name, name)])
    held = missed[ceil((len(missed) + 1) * HELD) - 1]
    assert 0.5 <= held <= 1.06


def test_there_are_as_many_predictions_as_the_floor_is_said_to_come_from() -> None:
    assert {kind: len(found) for kind, found in misses().items()} == {
        "generated": 12, "completed": 4, "per_completion": 4, "ttft": 4, "tpot": 4,
    }  # fmt: skip


def test_four_in_five_truths_lie_within_their_bars() -> None:
    within = [
        away(predicted, each.seen[name]) <= predicted.error
        for each in foretold()
        for name, predicted in each.predicted.items()
    ]
    assert sum(within) >= HELD * len(within)


def test_what_a_loop_recomputes_is_not_charged_to_decoding() -> None:
    """All steps made faster to meet the loop: 466 tokens/s foretold without it; prefill made cheaper: 365; 384 came."""
    reserved = next(each for each in foretold() if each.source == "spiral_chunked")
    assert away(reserved.predicted["generated"], reserved.seen["generated"]) < 0.1


def test_four_slots_do_less_than_foretold_and_the_bar_holds_it() -> None:
    """511 tokens/s foretold from the servers with 64 slots, 451 seen with 4: the fit's own miss of 3 % hid that."""
    here, there = (chosen_case(name) for name in ("overcommit_thrash", "saturated_no_preemption"))
    now, four = whatif(here, (Variant("max_num_seqs", "64 → 4", there.settings, here.here.load),)).rows
    foretold, seen = four.metrics["generated"], there.here.observed["generated"].value
    assert now.metrics["generated"].error < abs(seen / foretold.value - 1) < foretold.error


def test_what_was_observed_is_not_blurred_and_what_was_changed_is() -> None:
    found = whatif(chosen_case("overcommit_thrash"), effort=SimulationBudget(seeds=2, seconds=120.0))
    assert found.rows[0].metrics["generated"].error < WHATIF_ERROR_FLOOR["generated"]
    for row in found.rows[1:]:
        assert all(row.metrics[name].error >= least for name, least in WHATIF_ERROR_FLOOR.items())


def test_a_larger_change_of_throughput_has_a_wider_bar() -> None:
    assert floor("generated", 1.05) == floor("generated", 1 / 1.05) == 0.15
    assert floor("generated", 1.4) == pytest.approx(0.437, abs=0.001)
    assert floor("generated", 0.0) == 0.15
    assert floor("ttft_p99", 3.0) == WHATIF_ERROR_FLOOR["ttft_p99"]


def test_the_table_says_where_its_bars_come_from() -> None:
    found = whatif(chosen_case("overcommit_thrash"), (), SimulationBudget(seeds=1, seconds=120.0))
    text = render_text.experiment(found)
    assert "held four in five such predictions" in text
    assert (
        "15 % of generated tokens/s (1.3 times the change, where that is more), 25 % of TTFT, 20 % of TPOT"
        in text.replace("\xa0", " ")
    )
