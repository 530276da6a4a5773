"""How often growth is found, and found where there is none: `python -m bench.forecast [RUNS]`.

Four weeks of daily demand, weekends at 60 %, noise of 5 % a day, independent or with neighbours that hang together
(AR(1)).
"""

import sys
from collections.abc import Iterator
from math import sqrt
from random import Random

from vllm_vitals.planner.review.trend import trend

DAY, DAYS = 86_400.0, 28
CASES = (
    ("independent", 0.03, 0.0), ("independent", 0.0, 0.0), ("AR(1) 0.3", 0.0, 0.3), ("AR(1) 0.6", 0.03, 0.6),
    ("AR(1) 0.6", 0.0, 0.6), ("AR(1) 0.9", 0.0, 0.9),
)  # fmt: skip


def days(random: Random, rate: float, noise: float = 0.05, together: float = 0.0, count: int = DAYS) -> Iterator[float]:
    """Yield daily values that grow by ``rate`` a week."""
    off = random.gauss(0, 1)
    for day in range(count):
        level = (0.6 if day % 7 >= 5 else 1.0) * (1 + rate) ** (day / 7)
        yield level * max(0.1, 1 + noise * off)
        off = together * off + sqrt(1 - together**2) * random.gauss(0, 1)


def main(runs: int = 2000) -> None:
    """Print one row a case."""
    print("| noise | growth a week | grows | falls | level | no verdict | interval holds it | half its width |")
    print("|---|---|---|---|---|---|---|---|")
    for name, rate, together in CASES:
        random, said, held, wide = Random(1), dict.fromkeys(("grows", "falls", "level", "no verdict"), 0), 0, 0.0
        for _ in range(runs):
            values = days(random, rate, together=together)
            found = trend("demand", "requests/s", [(DAY * n, value) for n, value in enumerate(values)], None)
            said[found.verdict] += 1
            low, high = found.weekly_low or 0.0, found.weekly_high or 0.0
            held, wide = held + (low <= rate <= high), wide + (high - low) / 2
        shares = " | ".join(f"{count / runs:.1%}" for count in said.values())
        print(f"| {name} | {rate:.0%} | {shares} | {held / runs:.1%} | {wide / runs:.1%} |", flush=True)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
