"""How far a what-if can be trusted: `python -m bench.reach [RECORDINGS [PAIR]] [--write FILE]`.

Each what-if of a recording foretells another of the same load with one setting changed; a table in Markdown says what
was predicted, what happened, and whether the bar held it. Without a folder only the recordings in tests/data are read.
``PAIR`` is the number of one pair; ``--write docs/review.md`` puts the table in place of the one between its marks.
"""

import sys
from collections.abc import Iterator, Mapping, Sequence
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
BEGIN, END = "<!-- bench.reach -->", "<!-- /bench.reach -->"
NARROW = 0.15  # a bar of tokens/s that one can act by
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


def foretold(
    folder: Path, effort: SimulationBudget | None = None, pairs: Sequence[tuple[str, str]] = PAIRS
) -> Iterator[Foretold]:
    """Yield each direction of each pair that the folder holds."""
    for one, other in pairs:
        if not (folder / one).exists() or not (folder / other).exists():
            continue
        cases = {name: case(folder, name) for name in (one, other)}
        for source, target in ((one, other), (other, one)):
            here, there = cases[source], cases[target]
            found = whatif(here, (Variant("the other's", target, there.settings, here.here.load),), effort)
            yield Foretold(source, target, found.trust, found.rows[-1].metrics, there.here.observed)


def row(each: Foretold) -> str:
    """Return a row of the table."""
    cells = []
    for name in SHOWN:
        predicted, seen, missed = each.predicted[name], each.seen[name], "" if each.held(name) else " ✗"
        cells.append(f"{predicted.value or 0:.3g} ± {predicted.error:.0%}, was {seen.value or 0:.3g}{missed}")
    return f"| {each.source} | {each.target} | " + " | ".join(cells) + f" | {each.trust.split(':')[0]} |"


def summary(found: Sequence[Foretold]) -> str:
    """Return how many bars held, and how wide they are."""
    bars = [(name, each) for each in found for name in SHOWN]
    held = sum(each.held(name) for name, each in bars)
    of = {name: f"{sum(each.held(name) for each in found)} of {len(found)}" for name in ("generated", "ttft_p99")}
    narrow = sum(each.predicted["generated"].error <= NARROW for each in found)
    return (
        f"{held} of {len(bars)} bars held, tokens/s in {of['generated']}, first-token p99 in {of['ttft_p99']}; "
        f"{narrow} of {len(found)} bars of tokens/s are at most {NARROW:.0%} wide.".replace("%", " %")
    )


def table(found: Sequence[Foretold]) -> str:
    """Return the whole table with its summary."""
    head = "| fitted to | predicted | " + " | ".join(SHOWN) + " | trust |"
    return "\n".join([head, "|---" * (3 + len(SHOWN)) + "|", *map(row, found), "", summary(found)])


def put(path: Path, text: str) -> None:
    """Write a table between its marks in a document."""
    before, _, rest = path.read_text().partition(BEGIN)
    _, mark, after = rest.partition(END)
    if not mark:
        raise SystemExit(f"{path}: no {BEGIN} ... {END}")
    path.write_text(f"{before}{BEGIN}\n{text}\n{END}{after}")


def main(folder: Path, pairs: Sequence[tuple[str, str]] = PAIRS, into: Path | None = None) -> int:
    """Print the table; 0 where four in five bars held."""
    found = []
    for each in foretold(folder, pairs=pairs):
        found.append(each)
        print(row(each), flush=True)
    print(f"\n{summary(found)}")
    if into is not None:
        put(into, table(found))
    held = [each.held(name) for each in found for name in SHOWN]
    return 0 if sum(held) >= 0.8 * len(held) else 1


if __name__ == "__main__":
    words = sys.argv[1:]
    document = Path(words.pop(words.index("--write") + 1)) if "--write" in words else None
    given = [word for word in words if word != "--write"]
    chosen = [PAIRS[int(given[1])]] if len(given) > 1 else PAIRS
    sys.exit(main(Path(given[0]) if given else OWN, chosen, document))
