"""What a person asks a what-if to try: any value of a knob, other engines, other traffic; and our own advice."""

import re
from dataclasses import replace
from io import StringIO

import pytest
from rich.console import Console

from tests.planner.conftest import RECORDINGS
from tests.planner.test_command import ran
from tests.planner.test_whatif import QUICK, case
from vllm_vitals.core.snapshot import Reading
from vllm_vitals.planner.tables import _MEASURES, experiment
from vllm_vitals.planner.whatif.calibrate import Case, SimulationBudget
from vllm_vitals.planner.whatif.error_floor import WHATIF_ERROR_FLOOR
from vllm_vitals.planner.whatif.simulate_run import Gateway, run
from vllm_vitals.planner.whatif.variants import Variant, asked, fleet
from vllm_vitals.planner.whatif.verified import Verdict
from vllm_vitals.planner.whatif.whatif import Prediction, Row, WhatIf, whatif
from vllm_vitals.planner.whatif.workload_slice import METRICS, Situation
from vllm_vitals.simulator import fit
from vllm_vitals.simulator.settings import ServerSettings, SettingsError
from vllm_vitals.simulator.steptime import StepTime
from vllm_vitals.simulator.workload import Lengths, Load

SERVER = ServerSettings(num_gpu_blocks=600, max_num_seqs=32, max_model_len=4096, enable_prefix_caching=False)
LOAD = Load(clients=24, think_s=0.05, prompt=Lengths(400, 0.3), output=Lengths(300, 0.3), max_tokens=None)
BASE = Variant("", "as it is", SERVER, LOAD)


def batched(each: Variant) -> bool:
    return each.settings.max_num_batched_tokens == 99


@pytest.mark.parametrize(
    ("name", "value", "setting", "got"),
    [
        ("max_num_seqs", "5", "32 → 5", lambda v: v.settings.max_num_seqs == 5),
        ("max_num_scheduled_tokens", "99", "2048 → 99, cache unchanged", batched),
        ("kv_cache_capacity_tokens", "19200", "9,600 → 19,200 tokens", lambda v: v.settings.num_gpu_blocks == 1200),
        ("watermark", "0.05", "0 → 0.05", lambda v: v.settings.watermark == 0.05),
        ("scheduler_reserve_full_isl", "false", "on → off", lambda v: not v.settings.scheduler_reserve_full_isl),
        ("max_tokens", "128", "128", lambda v: v.load.max_tokens == 128),
        ("gateway_concurrency", "6", "6 inside an engine", lambda v: v.gateway.limit == 6),
    ],
)  # fmt: skip
def test_any_value_of_a_knob_can_be_asked_for(name: str, value: str, setting: str, got) -> None:
    made = asked(BASE, name, value)
    assert made.setting == setting
    assert got(made)


def test_what_vllm_would_refuse_is_refused() -> None:
    with pytest.raises(SettingsError, match="max_num_batched_tokens must not be below"):
        asked(BASE, "max_num_batched_tokens", "16")


def test_more_engines_share_the_load_and_more_traffic_grows_it() -> None:
    found = list(fleet(replace(BASE, load=Load(rate=6.0)), 2, 3, 1.3))
    assert [(v.knob, v.setting) for v in found] == [
        ("engines", "2 → 3"), ("traffic", "+30 %"), ("engines", "2 → 3, traffic +30 %"),
    ]  # fmt: skip
    assert [v.load.rate for v in found] == pytest.approx([4.0, 7.8, 5.2])
    assert [v.servers for v in found] == pytest.approx([1.5, 1.0, 1.5])
    assert list(fleet(BASE, 2, 2, 1.0)) == []
    assert next(fleet(BASE, 1, 3, 1.0)).load.clients == 8


def test_no_more_than_the_gateway_lets_in_run_at_once() -> None:
    """Four at a time through a gateway are four slots: the same tokens, the same waiting, no evictions."""
    gate = run(SERVER, StepTime(), LOAD, 200.0, 1, gateway=Gateway(limit=4))
    slots = run(replace(SERVER, max_num_seqs=4), StepTime(), LOAD, 200.0, 1)
    assert gate.preemptions == slots.preemptions == 0
    assert gate.generated == pytest.approx(slots.generated, rel=0.02)
    assert gate.ttft_p50 == pytest.approx(slots.ttft_p50, rel=0.05)


def test_our_own_advice_is_always_among_the_rows() -> None:
    found = whatif(case("spiral_chunked"), effort=SimulationBudget(seeds=1, seconds=60.0))
    mine = [(row.knob, row.setting) for row in found.rows if "our advice" in row.setting]
    assert [knob for knob, _ in mine] == ["max_num_seqs", "gateway_concurrency"]
    assert re.fullmatch(r"48 → \d+ \(our advice\)", mine[0][1])


def test_a_load_that_is_answered_as_it_comes_has_a_narrow_bar() -> None:
    """Where nothing queues before or after, the load sets the throughput, and it is known."""
    light = Load(rate=1.0, prompt=Lengths(400, 0.3), output=Lengths(100, 0.3), max_tokens=None)
    outcome = run(SERVER, StepTime(), light, 300.0, 1)
    seen = {name: Reading(getattr(outcome, name)) for name in METRICS}
    here = Situation(range(30), 0.0, 300.0, False, None, light, seen)
    more = Variant("max_num_seqs", "x", replace(SERVER, max_num_seqs=64), light)
    row = whatif(Case("e", here, StepTime(), SERVER), (more,), QUICK).rows[-1]
    assert row.metrics["completed"].error < WHATIF_ERROR_FLOOR["completed"] <= row.metrics["ttft_p50"].error


def test_steps_under_load_are_learnt_beside_the_light_ones() -> None:
    """Without them a server that evicts from the start could not be fitted at all."""
    seen = list(fit.observations(RECORDINGS / "spiral_chunked/metrics.jsonl.gz"))
    calm, loaded = fit.intervals(seen), fit.loaded(seen, 0.45)
    assert len(loaded) >= 10
    both = fit.fit([*calm, *loaded])
    assert both.base > 0
    typical = sorted(loaded, key=lambda each: each.seconds)[len(loaded) // 2]
    predicted = both.seconds(typical.prefill, typical.decoding, typical.context)
    assert predicted == pytest.approx(typical.seconds, rel=0.25)
    assert fit.loaded(seen[:3], 0.45) == []


def test_what_is_asked_comes_first(capsys: pytest.CaptureFixture[str]) -> None:
    recording = RECORDINGS / "saturated_no_preemption/metrics.jsonl.gz"
    code, out, err = ran(
        capsys, "whatif", "--recording", recording, "--set", "max_num_seqs=4", "--set", "max_num_batched_tokens=2048",
        "--set-to", "max_num_seqs=6", "--set-to", "max_num_seqs=9", "--engines", "2", "--traffic", "-20%",
        "--format", "md",
    )  # fmt: skip
    assert (code, err) == (0, "")
    rows = [line.split(" | ")[:2] for line in out.splitlines() if line.startswith("| ")][2:7]
    assert rows == [
        ["| max_num_seqs", "4 → 6"], ["| max_num_seqs", "4 → 9"], ["| engines", "1 → 2"], ["| traffic", "-20 %"],
        ["| engines", "1 → 2, traffic -20 %"],
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--set-to", "max_num_seqs"], "--set-to: expected NAME=VALUE"),
        (["--set-to", "max_num_seqs=0"], "--set-to max_num_seqs: expected a whole number above 0"),
        (["--set-to", "max_num_sequences=5"], "did you mean max_num_seqs?"),
        (["--set-to", "tokenizer=x"], "not simulated; known are"),
        (["--set-to", "max_num_batched_tokens=2"], "max_num_batched_tokens must not be below max_num_seqs"),
        (["--traffic", "much"], "--traffic: expected a change such as +30%"),
        (["--traffic", "-100%"], "--traffic: expected a change such as +30%"),
        (["--engines", "0"], "--engines"),
    ],
)
def test_what_cannot_be_tried_is_refused_in_one_line(
    capsys: pytest.CaptureFixture[str], options: list[str], said: str
) -> None:
    recording = RECORDINGS / "saturated_no_preemption/metrics.jsonl.gz"
    code, _, err = ran(capsys, "whatif", "--recording", recording, "--set", "max_num_seqs=4", *options)
    assert code == 2
    assert said in err


def test_on_a_terminal_what_to_try_first_comes_first_and_no_line_is_too_wide() -> None:
    def row(knob: str, generated: float, note: str = "") -> Row:
        metrics = {name: Prediction(generated, 0.1, None) for name in _MEASURES}
        return Row(knob, "new", metrics, note, verdict=Verdict("better", 0.3, None, None) if knob else None)

    rows = (row("", 100.0), row("a", 130.0, "ends the loop of preemptions"))
    found = WhatIf(
        "e", "open", 0.0, 60.0, StepTime(), ServerSettings(), (), {}, "good", rows, first="a new (more of it)",
        rolled_back=("b old (less of it)",),
    )  # fmt: skip
    for width in (60, 80, 200):
        page = Console(width=width, file=StringIO())
        experiment(page, found)
        lines = page.file.getvalue().splitlines()  # type: ignore[attr-defined]
        assert lines[0].startswith("Try this first: a new (more of it)")
        assert lines[1].startswith("Not advised, for it would be rolled back: b old")
        assert max(map(len, lines)) <= width
        assert ("truncated" in "".join(lines)) is (width == 200)
    assert "better; ends loop" in "".join(lines)
    page = Console(width=80, file=StringIO())
    experiment(page, replace(found, first=""))
    assert page.file.getvalue().startswith("Try this first: nothing")  # type: ignore[attr-defined]
