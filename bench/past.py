"""How long `incident --since` takes over a fleet, in how much memory, and whether it lists just what was planted.

    python -m bench.past [--engines 50] [--days 30] [--buckets]

A real Prometheus over blocks of a calm fleet with a spiral, a hang and an outage planted in it: tests/planner/month.py.
Where it takes long to build, give fewer days: what is asked of Prometheus grows with them.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.planner import month, prometheus

END = 1_790_000_000.0
# the command, and afterwards how much memory it took at most
RUN = """import atexit, resource, sys
from vllm_vitals.cli.main import main
atexit.register(lambda: print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, file=sys.stderr))
main(sys.argv[1:])
"""


def main() -> None:
    """Build, ask, print."""
    asked = argparse.ArgumentParser()
    asked.add_argument("--engines", type=int, default=50)
    asked.add_argument("--days", type=float, default=30.0)
    asked.add_argument("--buckets", action="store_true")
    given = asked.parse_args()
    start = END - given.days * 86400
    planted = month.planted(given.engines, start, given.days)
    with tempfile.TemporaryDirectory() as folder:
        begun = time.monotonic()
        lines = month.lines(given.engines, start, given.days, planted, given.buckets)
        prometheus.blocks(lines, Path(folder), span="2400h")
        print(f"built {given.engines} engines x {given.days:g} days in {time.monotonic() - begun:.0f} s", flush=True)
        with prometheus.serving(Path(folder)) as url:
            begun = time.monotonic()
            period = ("--since", f"{given.days * 24:.0f}h", "--until", str(END))
            command = ["incident", "--prometheus", url, *period, "--format", "json"]
            done = subprocess.run([sys.executable, "-c", RUN, *command], capture_output=True, text=True, check=True)
            took = time.monotonic() - begun
    found = sorted((each["target"], each["state"]) for each in json.loads(done.stdout)["incidents"])
    wanted = sorted((month.name(each.engine), each.state) for each in planted)
    print(f"{took:.0f} s; at most {int(done.stderr.split()[-1]) / 1024:.0f} MB")
    print("exactly what was planted" if found == wanted else f"found {found}, planted {wanted}")
    sys.exit(found != wanted)


if __name__ == "__main__":
    main()
