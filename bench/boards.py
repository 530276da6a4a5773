"""What the dashboards cost a Prometheus that has watched 200 engines for a week: `python -m bench.boards`.

Every panel that is open is asked as Grafana asks it on a screen of 1,920 pixels, over seven days, with all of the
fleet chosen that a variable offers at first. A line a dashboard: CPU seconds of Prometheus for all panels together, and
the dearest panel. Exit 1 where a dashboard is above its limit of 2 CPU seconds.
"""

import sys
import tempfile
from pathlib import Path

from tests.dashboards import cost, fleet

ENGINES, DAYS = 200, 7
LIMIT_S = 2.0


def main() -> int:
    """Print the table. Return 1 where a dashboard is too dear."""
    dear = False
    print(f"{ENGINES} engines, {DAYS} days; CPU s of Prometheus, samples in memory at once (millions)")
    with tempfile.TemporaryDirectory() as folder, fleet.running(Path(folder), fleet.Shape(ENGINES, DAYS)) as server:
        for uid, panels in cost.of_every(server, DAYS * 86400):
            spent = sum(one.cpu_s for one in panels)
            dear = dear or spent > LIMIT_S
            print(f"{uid:22} {spent:6.2f} s of {LIMIT_S:g}{'   TOO DEAR' if spent > LIMIT_S else ''}")
            for one in sorted(panels, key=lambda panel: -panel.cpu_s)[: int(sys.argv[1]) if sys.argv[1:] else 3]:
                print(f"    {one.cpu_s:6.2f} s {one.peak / 1e6:6.2f}  {one.title}  {one.error}")
    return int(dear)


if __name__ == "__main__":
    raise SystemExit(main())
