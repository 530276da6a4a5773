"""How far a what-if can be trusted: `python -m bench.reach [RECORDINGS]`.

Each what-if of a recording foretells another of the same load with one setting changed; a table in Markdown says what
was predicted, what happened, and whether the bar held it. Without a folder only the recordings in tests/data are read.
"""

import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import orjson

from vllm_vitals.core.snapshot import Reading
from vllm_vitals.planner.telemetry import recorded
from vllm_vitals.planner.whatif import fitting
from vllm_vitals.planner.whatif.calibrate import Case, SimulationBudget
from vllm_vitals.planner.whatif.variants import Variant
from vllm_vitals.planner.whatif.whatif import Prediction, whatif

OWN = Path(__file__).parents[1] / "tests" / "data" / "recordings"
_TINY = {"max_model_len": "2048"}
_CHUNKED = {**_TINY, "max_num_seqs": "48", "max_num_batched_tokens": "128", "enable_prefix_caching": "false"}
_OPEN = {**_TINY, "max_num_batched_tokens": "2048", "enable_prefix_caching": "false"}
_FREE = {"scheduler_reserve_full_isl": "false"}
_TUNE = {**_TINY, "max_num_seqs": "48", "max_num_batched_tokens": "128", **_FREE}
_TUNE2 = {**_TINY, "max_num_seqs": "32", "max_num_batched_tokens": "256", **_FREE}
# What the servers were started with, and the phase in which the load was the same.
SERVERS: Mapping[str, tuple[dict[str, str], str]] = {
    "spiral_chunked": ({**_CHUNKED, **_FREE}, "long prompts"),
    "same_load_reserved": (_CHUNKED, "long prompts"),
    "overcommit_thrash": ({**_OPEN, "max_num_seqs": "64"}, "heavy"),
    "saturated_no_preemption": ({**_OPEN, "max_num_seqs": "4"}, "heavy"),
    "tune_baseline": (_TUNE, "loop"),
    "tune_baseline_again": (_TUNE, "loop"),
    "tune_batch512": ({**_TUNE, "max_num_batched_tokens": "512"}, "loop"),
    "tune_seqs5": ({**_TUNE, "max_num_seqs": "5"}, "loop"),
    "tune2_baseline": (_TUNE2, "loop"),
    "tune2_baseline_again": (_TUNE2, "loop"),
    "tune2_kv_plus50": (_TUNE2, "loop"),
}
PAIRS = (
    ("spiral_chunked", "same_load_reserved"), ("overcommit_thrash", "saturated_no_preemption"),
    ("tune_baseline", "tune_batch512"), ("tune_baseline", "tune_seqs5"),
    ("tune_baseline_again", "tune_batch512"), ("tune_baseline_again", "tune_seqs5"),
    ("tune2_baseline", "tune2_kv_plus50"), ("tune2_baseline_again", "tune2_kv_plus50"),
)  # fmt: skip
SHOWN = ("generated", "ttft_p50", "ttft_p99", "tpot_p50", "tpot_p99", "per_completion")


@dataclass(frozen=True)
class Foretold:
    """What one recording's what-if says of another, and what happened there."""

    source: str
    target: str
    trust: str
    predicted: Mapping[str, Prediction]
    seen: Mapping[str, Reading]

    def held(self, name: str) -> bool:
        """Return whether the bar holds what was seen, or reaches its bounds."""
        predicted, seen = self.predicted[name], self.seen[name]
        if predicted.value is None or seen.value is None:
            return False
        low, high = predicted.value * (1 - predicted.error), predicted.value * (1 + predicted.error)
        return low <= seen.value <= high


def case(folder: Path, name: str) -> Case:
    """Return what is simulated of a recording: its phase under load."""
    told, label = SERVERS[name]
    path = folder / name / "metrics.jsonl.gz"
    phases = orjson.loads((folder / name / "truth.json").read_bytes())["phases"]
    span = next(one for one in phases if one["label"] == label)
    telemetry = recorded.telemetry(path, told)
    start = telemetry.grid.start
    between = (start + span["from"], start + span["to"])
    return fitting.case(telemetry, telemetry.engines, told, "worst", between, path)


def foretold(folder: Path, effort: SimulationBudget | None = None) -> Iterator[Foretold]:
    """Yield each direction of each pair that the folder holds."""
    for one, other in PAIRS:
        if not (folder / one).exists() or not (folder / other).exists():
            continue
        cases = {name: case(folder, name) for name in (one, other)}
        for source, target in ((one, other), (other, one)):
            here, there = cases[source], cases[target]
            found = whatif(here, (Variant("the other's", target, there.settings, here.here.load),), effort)
            yield Foretold(source, target, found.trust, found.rows[-1].metrics, there.here.observed)


def main(folder: Path) -> int:
    """Print the table; 0 where four in five bars held."""
    print("| fitted to | predicted | " + " | ".join(SHOWN) + " | trust |")
    print("|---" * (3 + len(SHOWN)) + "|")
    held = list[bool]()
    for each in foretold(folder):
        cells = []
        for name in SHOWN:
            predicted, seen = each.predicted[name], each.seen[name]
            held.append(each.held(name))
            missed = "" if held[-1] else " ✗"
            cells.append(f"{predicted.value or 0:.3g} ± {predicted.error:.0%}, was {seen.value or 0:.3g}{missed}")
        print(
            f"| {each.source} | {each.target} | " + " | ".join(cells) + f" | {each.trust.split(':')[0]} |", flush=True
        )
    print(f"\n{sum(held)} of {len(held)} bars held")
    return 0 if sum(held) >= 0.8 * len(held) else 1


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]) if len(sys.argv) > 1 else OWN))
