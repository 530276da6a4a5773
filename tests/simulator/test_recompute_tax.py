"""The recompute tax with prefix caching, against what the simulated scheduler computed again of mixed victims."""

from dataclasses import replace

import pytest

from vllm_vitals.core.snapshot import Scrape
from vllm_vitals.core.target_evaluator import TargetEvaluator
from vllm_vitals.simulator.scenario import Scenario
from vllm_vitals.simulator.settings import ServerSettings
from vllm_vitals.simulator.steptime import StepTime
from vllm_vitals.simulator.workload import Lengths, Load
from vllm_vitals.simulator.world import World

WINDOW, EVERY, LASTS = 60, 15, 240
SMALL_GPU = StepTime(base=0.010, prefill=8e-5, decode=1e-4, context=1e-7)
SERVER = ServerSettings(max_model_len=4096, scheduler_reserve_full_isl=False)


@pytest.mark.parametrize(
    ("block", "chunk", "room", "prompt", "output", "clients"),
    [
        (16, 256, 7_600, 500, 450, 16),  # half of the victims decode
        (16, 128, 11_410, 1_300, 330, 40),  # one in five
        (16, 512, 19_800, 3_000, 300, 16),  # one in ten
    ],
)
def test_the_tax_is_within_one_and_a_half_of_what_is_computed_again(
    block: int, chunk: int, room: int, prompt: int, output: int, clients: int
) -> None:
    settings = replace(
        SERVER, block_size=block, num_gpu_blocks=room // block, max_num_batched_tokens=chunk, max_num_seqs=64
    )
    load = Load(clients=clients, think_s=0.2, prompt=Lengths(prompt, 0.3), output=Lengths(output, 0.3))
    world = World(Scenario("loop", "", "", LASTS, ((0, load),), settings, SMALL_GPU))
    judge, did, told = TargetEvaluator("vllm:8000"), {0: (0.0, 0.0)}, []
    for at in range(EVERY, LASTS + 1, EVERY):
        body = world.scrape(at) or ""
        stats = world.engines[0].stats
        again = stats.prefilled - (stats.prompt_tokens - stats.cached_tokens)
        did[at] = again, stats.prefilled + stats.generation_tokens
        told.append(judge.observe(Scrape(world.epoch + at, 0.01, body.encode())).engines[0])
    truths, taxes = [], []
    for at in (LASTS - 2 * WINDOW, LASTS - WINDOW, LASTS):
        again, computed = (new - old for new, old in zip(did[at], did[at - WINDOW], strict=True))
        truths.append(again / computed)
        taxes.append(told[at // EVERY - 1].readings["recompute_tax_ratio"])
    assert all(tax.lower <= truth <= tax.upper for tax, truth in zip(taxes, truths, strict=True))  # type: ignore[operator]
    assert sum(truths) / 1.5 <= sum(tax.value or 0.0 for tax in taxes) <= 1.5 * sum(truths)
