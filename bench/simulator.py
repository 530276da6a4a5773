"""Compares the simulated scheduler with recordings of a real vLLM, and times a simulated day.

Step times are fitted on the other recordings of the same model, never on the one that is compared; only the
two-engine recording, whose engines shared a machine, takes one factor from its own first phase, never compared.
"""

import json
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tests.simulator.recorded_requests import Counts, replay, requests_of
from vllm_vitals.simulator.engine import Engine
from vllm_vitals.simulator.fit import Interval, fit, intervals, observations, slowness
from vllm_vitals.simulator.scenarios import scenario
from vllm_vitals.simulator.settings import ServerSettings
from vllm_vitals.simulator.steptime import StepTime
from vllm_vitals.simulator.world import World

RECORDINGS = Path(__file__).parent.parent / "tests/data/recordings"
_TINY = ServerSettings(
    model_name="tiny", block_size=128, num_gpu_blocks=64, max_num_seqs=16, max_num_batched_tokens=2048,
    max_model_len=2048, enable_prefix_caching=True,
)  # fmt: skip
# What the servers' start lines say (vllm.log.gz), and the label of the first phase that is compared.
SERVERS: dict[str, tuple[ServerSettings, int]] = {
    "spiral_chunked": (replace(_TINY, max_num_seqs=48, max_num_batched_tokens=128, enable_prefix_caching=False,
                               scheduler_reserve_full_isl=False), 1),
    "same_load_reserved": (replace(_TINY, max_num_seqs=48, max_num_batched_tokens=128, enable_prefix_caching=False), 1),
    "overcommit_thrash": (replace(_TINY, max_num_seqs=64, enable_prefix_caching=False), 1),
    "saturated_no_preemption": (replace(_TINY, max_num_seqs=4, enable_prefix_caching=False), 1),
    "preempting_productive": (replace(_TINY, max_num_seqs=24), 1),
    "runaway_slot": (replace(_TINY, max_num_seqs=4, enable_prefix_caching=False), 1),
    "truncation_mix": (replace(_TINY, num_gpu_blocks=128), 1),
    "dp2_pressure": (replace(_TINY, num_gpu_blocks=32), 2),
}  # fmt: skip


_SHARED_MACHINE = ("dp2_pressure",)


@dataclass(frozen=True)
class Row:
    """One phase of one recording: what really happened, and what the simulation says."""

    recording: str
    phase: str
    real: Counts
    simulated: Counts

    @property
    def close(self) -> bool:
        """All three numbers within 25 % of the real ones."""
        pairs = zip(self.real.values(), self.simulated.values(), strict=True)
        return all(abs(there - here) <= 0.25 * here for here, there in pairs)


def observed() -> dict[str, list[Interval]]:
    """What every recording says about step times, by name; times are seconds from its first scrape."""
    found = {}
    for folder in sorted(RECORDINGS.iterdir()):
        start = _truth(folder.name)["first_scrape"]
        seen = intervals(observations(folder / "metrics.jsonl.gz"))
        found[folder.name] = [replace(item, at=item.at - start) for item in seen]
    return found


def step_time(name: str, seen: dict[str, list[Interval]]) -> StepTime:
    """The step time for one recording, from the others (see the module's docstring)."""
    others = [item for other, items in seen.items() if other != name and other not in _SHARED_MACHINE for item in items]
    model = fit(others)
    if name not in _SHARED_MACHINE:
        return model
    first = _truth(name)["phases"][0]["to"]
    return model.scaled(slowness(model, [item for item in seen[name] if item.at <= first]))


def compare(name: str, model: StepTime) -> list[Row]:
    """Replay one recording and compare each phase after the first."""
    settings, ranks = SERVERS[name]
    phases = _truth(name)["phases"]
    times = [time for phase in phases for time in (phase["counters_from"], phase["counters_to"])]
    engines = [Engine(settings, model) for _ in range(ranks)]
    counts = replay(engines, requests_of(RECORDINGS / name / "requests.jsonl.gz"), times)
    return [
        Row(name, phase["label"], _real(phase), counts[2 * number + 1].since(counts[2 * number]))
        for number, phase in enumerate(phases)
        if number
    ]


def day() -> tuple[float, int]:
    """CPU seconds for 24 h of one engine at 5 requests/s, scraped every 15 s, and the responses it gave."""
    began = time.process_time()
    world = World(scenario("day"), seed=1)
    for number in range(24 * 240):
        world.scrape((number + 1) * 15.0)
    return time.process_time() - began, sum(world.engines[0].stats.responses.values())


def _truth(name: str) -> dict[str, Any]:
    truth: dict[str, Any] = json.loads((RECORDINGS / name / "truth.json").read_text())
    return truth


def _real(phase: dict[str, Any]) -> Counts:
    finished = int(sum(phase["finished"].values()))
    return Counts(int(phase["num_preemptions_total"]), finished, int(phase["generation_tokens_total"]))


def main() -> None:
    seen = observed()
    print(f"{'recording':24}{'phase':14}{'preemptions':>20}{'responses':>20}{'output tokens':>22}")
    for name in SERVERS:
        for row in compare(name, step_time(name, seen)):
            cells = []
            for real, simulated in zip(row.real.values(), row.simulated.values(), strict=True):
                ratio = f"{simulated / real:.2f}" if real else "-"
                cells.append(f"{real:>7}{simulated:>7}{ratio:>6}")
            print(f"{name:24}{row.phase:14}{'  '.join(cells)}  {'within 25 %' if row.close else ''}")
    print("(each: real, simulated, ratio)")
    seconds, responses = day()
    print(f"a day of one engine at 5 requests/s: {responses} responses simulated in {seconds:.1f} s of one core")


if __name__ == "__main__":
    main()
