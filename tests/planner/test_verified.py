"""What is advised is tried at that very value, and what would be rolled back never stands first."""

from dataclasses import replace

import pytest

from tests.planner.conftest import Week
from tests.planner.test_whatif import QUICK, case, tried
from vllm_vitals.planner.review import render_text
from vllm_vitals.planner.review.findings import findings
from vllm_vitals.planner.review.max_num_seqs import SlotsAdvice
from vllm_vitals.planner.whatif import verified
from vllm_vitals.planner.whatif.verified import Verdict
from vllm_vitals.planner.whatif.whatif import Prediction, Row, advised, whatif


def metrics(tokens: float, first: float, each: float) -> dict[str, Prediction]:
    values = {"generated": tokens, "ttft_mean": first, "tpot_mean": each}
    return {name: Prediction(value, 0.2, value) for name, value in values.items()}


@pytest.mark.parametrize(
    ("tokens", "first", "each", "word"),
    [
        (100.0, 1.0, 0.1, "little changes"),
        (104.0, 1.05, 0.099, "little changes"),
        (114.0, 1.0, 0.1, "better"),
        (100.0, 1.0, 0.08, "better"),
        (90.0, 1.54, 0.1, "worse"),
        (100.0, 1.2, 0.1, "worse"),  # a later first token, and the whole request no earlier
        (100.0, 1.2, 0.08, "better"),  # later, but the whole request is done earlier by more
        (80.0, 1.0, 0.05, "mixed"),
    ],
)
def test_a_change_is_judged_by_what_users_get(tokens: float, first: float, each: float, word: str) -> None:
    assert verified.verdict(metrics(100.0, 1.0, 0.1), metrics(tokens, first, each), 100.0).word == word


def row(knob: str, word: str, tokens: float, ours: bool = False) -> Row:
    return Row(knob, "a → b", {}, ours=ours, verdict=Verdict(word, tokens, None, None))


def test_what_would_be_rolled_back_never_stands_first_whoever_advised_it() -> None:
    """As on tune2_baseline: max_num_seqs 7 cost 10 % of the tokens, watermark 0.05 gave 14 % more."""
    ours, best = row("max_num_seqs", "worse", -0.10, ours=True), row("watermark", "better", 0.14)
    rows = [Row("", "as it is", {}), ours, row("scheduler_reserve_full_isl", "better", 0.07), best,
            row("KV capacity", "better", 0.5), row("max_tokens", "better", 0.9)]  # fmt: skip
    assert verified.first(rows) is best
    assert verified.refused(rows) == [ours]
    assert verified.first([ours]) is None


def test_the_advice_of_a_loop_is_tried_and_stands_first() -> None:
    found = tried("spiral_chunked")
    assert found.first.startswith(("scheduler_reserve_full_isl off → on", "gateway_concurrency", "max_num_seqs"))
    judged = {each.knob: each.verdict for each in found.rows if each.ours}
    assert set(judged) == {"max_num_seqs", "gateway_concurrency"}
    assert all(each is not None for each in judged.values())
    assert f"Try first: {found.first}." in render_text.experiment(found)


def test_slots_that_running_reaches_are_tried_a_quarter_lower_as_check_says_it() -> None:
    here = case("saturated_no_preemption")
    found = whatif(replace(here, fits=4.0), None, replace(QUICK, seeds=1, seconds=60.0))
    assert [each.setting for each in found.rows if each.ours] == [
        "4 → 3 (our advice)",
        "3 inside an engine (our advice)",
    ]
    assert all(each.verdict is not None and each.verdict.word == "worse" for each in found.rows if each.ours)
    assert len(found.rolled_back) == 2
    assert "max_num_seqs" not in found.first or "→ 3" not in found.first


def test_more_slots_are_tried_by_max_num_seqs_alone() -> None:
    from tests.planner.test_whatif_asked import BASE

    assert [each.knob for each in advised(BASE, 40)] == ["max_num_seqs"]
    assert [each.knob for each in advised(BASE, 8)] == ["max_num_seqs", "gateway_concurrency"]
    assert list(advised(BASE, BASE.settings.max_num_seqs)) == []


def test_the_review_does_not_advise_what_its_own_simulation_would_roll_back(the_week: Week) -> None:
    model = next(each for each in the_week.review.models if each.model_name == "code")
    model = replace(model, slots=SlotsAdvice("down", 6, "0.75 x 8"), knee=replace(model.knee, bands=[]))
    found = tried("spiral_chunked")

    def said(word: str) -> str:
        ours = Row("max_num_seqs", "8 → 6 (our advice)", {}, ours=True, verdict=Verdict(word, -0.1, 0.2, 0.54))
        judged = replace(model, whatif=replace(found, rows=(ours,), first="watermark 0 → 0.05 (tokens/s +14 %)"))
        [text] = [f"{each.level}: {each.text}" for each in findings(judged) if each.topic == "settings"]
        return text

    assert said("worse").startswith("watch: max_num_seqs 6 would follow from the rule (0.75 x 8), but")
    assert "leave it. Try watermark 0 → 0.05 (tokens/s +14 %) first." in said("worse")
    assert said("better").startswith("act: Set max_num_seqs to 6: 0.75 x 8; the simulated server: better")
