"""How far the answers from histograms are from the truth: `python -m bench.distributions [RECORDINGS ...]`.

Each phase of the recordings (those in tests/data, and in any folder given) and synthetic shapes: CV within 20 %, p50,
p90 and p99 within 15 % of the values that the histogram was made of. *sure* is the share of answers by which a rule may
be chosen, *bounds* the share whose bounds hold the truth. Prints a table in Markdown, and a distribution's CPU time.
"""

import sys
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from time import process_time

from tests.core.phases import RECORDINGS, Case, answers, recorded, synthetic
from vllm_vitals.core.distribution import fit, is_sure
from vllm_vitals.core.snapshot import Reading

WITHIN = {"p50": 0.15, "p90": 0.15, "p99": 0.15, "CV": 0.20}
REQUIRED = 0.80

Judged = dict[str, tuple[bool, bool, bool]]  # question: (near the truth, sure, bounds hold)


def asked(case: Case) -> dict[str, Reading]:
    """What we answer."""
    found = fit(case.histogram, cut=case.cut)
    return {**{f"p{q}": found.quantile(q / 100) for q in (50, 90, 99)}, "CV": found.cv()}


def judge(case: Case) -> Judged:
    """Each answer against the truth."""
    truth, judged = answers(case.values), {}
    for question, reading in asked(case).items():
        true, value = truth[question], reading.value
        near = value is not None and abs(value - true) <= WITHIN[question] * true
        # a client's clock is not the server's: at an edge both may be right
        held = (reading.lower or 0) * 0.98 - 1e-6 <= true <= (reading.upper or 0) * 1.02 + 1e-6
        judged[question] = near, is_sure(reading), held
    return judged


def table(title: str, cases: Iterable[Case]) -> bool:
    """Print one row a family and question; whether all together are near the truth often enough."""
    rows: dict[str, list[Judged]] = defaultdict(list)
    for case in cases:
        judged = judge(case)
        rows[case.family].append(judged)
        rows["**all**"].append(judged)
    print(f"\n| {title} | cases | " + " | ".join(f"{q} near, sure, bounds" for q in WITHIN) + " |")
    print("|---" * (2 + len(WITHIN)) + "|")
    for family, found in rows.items():
        cells = (" / ".join(f"{_share(f[q][i] for f in found):.0%}" for i in range(3)) for q in WITHIN)
        print(f"| {family} | {len(found)} | " + " | ".join(cells) + " |")
    return all(_share(f[q][0] for f in rows["**all**"]) >= REQUIRED for q in WITHIN)


def _share(flags: Iterable[bool]) -> float:
    known = list(flags)
    return sum(known) / len(known) if known else 0.0


def main(folders: list[Path]) -> int:
    """0 where at least 80 % are near on both."""
    found = {f.name: f for folder in folders for f in sorted(folder.iterdir()) if (f / "truth.json").exists()}
    real = [case for folder in found.values() for case in recorded(folder)]
    made = list(synthetic())
    good = [table("recordings", real), table("shapes", made)]
    start = process_time()
    for case in real:
        asked(case)
    print(f"\n{1e6 * (process_time() - start) / len(real):.0f} us CPU for one distribution and four answers")
    return 0 if all(good) else 1


if __name__ == "__main__":
    sys.exit(main([RECORDINGS, *map(Path, sys.argv[1:])]))
