"""What the rules cost: CPU seconds of one evaluation and series added, natively: `python -m bench.rules [ENGINES]`.

promtool evaluates the committed rules over engines that work, and over none; the difference, divided by evaluations, is
what they cost. That is no Prometheus: compare two trees by it, on the same machine. Output: one line a file.
"""

import re
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

import yaml

from tests.programs import find
from tests.rules.test_native import ENGINE, rows, server, up
from tests.rules.tools import RULES

STEP, EVALUATIONS = 15, 40
# promtool holds 10,000 samples a query, and an engine has a series a state
MOST = 500


def engines(count: int) -> list[dict[str, str]]:
    """Raw series of so many servers that work."""
    found: list[dict[str, str]] = []
    for number in range(count):
        own = {"instance": f"gpu{number}:8000", "model_name": f"m{number // 100}"}
        for one in rows({**server(), **up()}, STEP * EVALUATIONS):
            series = one["series"]
            for name, value in own.items():
                series = series.replace(f'{name}="{ENGINE[name]}"', f'{name}="{value}"')
            found.append({**one, "series": series})
    return found


def cpu(count: int, files: list[str], folder: Path) -> tuple[float, str]:
    """CPU seconds of promtool, and what it says: how many series are ours at the end."""
    ours = '{__name__=~"vllm_vitals_.+|engine:.+|target:.+"}'
    check = {"expr": f"count({ours})", "eval_time": f"{STEP * EVALUATIONS}s", "exp_samples": []}
    document = {
        "rule_files": files,
        "evaluation_interval": f"{STEP}s",
        "tests": [{"interval": f"{STEP}s", "input_series": engines(count), "promql_expr_test": [check]}],
    }
    path = folder / "bench.yml"
    path.write_text(yaml.dump(document, Dumper=getattr(yaml, "CSafeDumper", yaml.SafeDumper), width=10**9))
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run([find("promtool"), "test", "rules", str(path)], capture_output=True, text=True, check=False)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, done.stdout + done.stderr


def main() -> int:
    """Measure native and recording rules, and print them."""
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 100
    if not 0 < count <= MOST:
        print(f"rules: give 1 to {MOST} engines, got {count}", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        spent, _ = cpu(count, [], folder)
        files: list[str] = []
        for file in ("native", "recording", "alerts"):
            files.append(str(RULES / f"{file}.yml"))
            now, said = cpu(count, files, folder)
            cost = 1000 * (now - spent) / EVALUATIONS
            print(f"{file}.yml: {cost:.0f} ms of CPU an evaluation of {count} engines, {cost / count:.2f} each")
            spent = now
        series = re.search(r"got: \{\} (\S+)", said)
        print(f"series added: {float(series[1]) / count:.0f} an engine" if series else f"no count: {said[:200]}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
