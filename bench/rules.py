"""What the rules cost: CPU seconds of one evaluation and series added: `python -m bench.rules [ENGINES [FOLDER]]`.

promtool evaluates the rules of a native build (or those in FOLDER) over engines that work, over the same of which three
in ten spiral, and over none; the difference, divided by evaluations, is what they cost. Each engine has every family of
vLLM 0.31 that a rule reads. promtool is no Prometheus, and holds so few samples that 500 engines are the most: compare
two trees by it, on the same machine, and take a thousand engines for twice 500. Output: one line a file.
"""

import re
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

import yaml

from tests.programs import find
from tests.rules.test_native import ENGINE, Moment, after, constant, rows, series, server, up
from vllm_vitals.config.alerts import Config
from vllm_vitals.rules.build import outputs

STEP, EVALUATIONS, SPIRAL_FROM_S = 15, 40, 240
# promtool holds 10,000 samples a query, and an engine has a series a state
MOST = 500
FILES = ("native", "recording", "alerts")
BUCKETS = ("1.0", "2.0", "5.0", "10.0", "30.0", "100.0", "300.0", "1000.0", "3000.0", "10000.0", "+Inf")


def more(finished: Moment) -> dict[str, tuple[Moment, bool]]:
    """What a working engine shows beside `server`'s families: reasons, sources, lengths."""
    shown: dict[str, tuple[Moment, bool]] = {}

    def add(name: str, level: float | Moment, *, counter: bool = True, **labels: str) -> None:
        shown.update({row: (constant(level), counter) for row in series(f"vllm:{name}", 0, **labels)})

    for reason in ("abort", "error", "repetition"):
        add("request_success_total", 0, finished_reason=reason)
    for reason in ("capacity", "deferred"):
        add("num_requests_waiting_by_reason", 0, counter=False, reason=reason)
    for source in ("local_compute", "local_cache_hit", "external_kv_transfer"):
        add("prompt_tokens_by_source_total", 200 * (source == "local_compute"), source=source)
    add("prefix_cache_hits_total", 10)
    add("engine_sleep_state", 1, counter=False, sleep_state="awake")
    add("cache_config_info", 1, counter=False, enable_prefix_caching="True", block_size="16")
    add("request_preemptions_count", finished)
    for name in ("request_preemptions", "time_to_first_token_seconds", "request_prompt_tokens",
                 "request_generation_tokens", "request_params_max_tokens"):  # fmt: skip
        for bound in BUCKETS:
            add(f"{name}_bucket", finished, le=bound)
    for part in ("sum", "count"):
        add(f"request_params_max_tokens_{part}", finished)
    return shown


def engines(count: int, spiralling: int) -> list[dict[str, str]]:
    """Raw series of so many servers, of which some spiral."""

    def then(bad: float, calm: float) -> Moment:
        return after(SPIRAL_FROM_S, bad, calm)

    ended = then(0.02, 1)
    calm = {**server(), **more(constant(1)), **up()}
    bad = {
        **server(waiting=then(10, 0), usage=then(1, 0.5), generated=then(20, 100), finished=ended,
                 preempted=then(0.5, 0)),
        **more(ended), **up(),
    }  # fmt: skip
    shapes = [rows(shape, STEP * EVALUATIONS) for shape in (calm, bad)]
    found: list[dict[str, str]] = []
    for number in range(count):
        own = {"instance": f"gpu{number}:8000", "model_name": f"m{number // 100}"}
        for one in shapes[number < spiralling]:
            name = one["series"]
            for label, value in own.items():
                name = name.replace(f'{label}="{ENGINE[label]}"', f'{label}="{value}"')
            found.append({**one, "series": name})
    return found


def cpu(inputs: list[dict[str, str]], files: list[str], folder: Path) -> tuple[float, str]:
    """CPU seconds of promtool, and what it says: how many series are ours at the end."""
    ours = '{__name__=~"vllm_vitals_.+|engine:.+|target:.+"}'
    check = {"expr": f"count({ours})", "eval_time": f"{STEP * EVALUATIONS}s", "exp_samples": []}
    document = {
        "rule_files": files,
        "evaluation_interval": f"{STEP}s",
        "tests": [{"interval": f"{STEP}s", "input_series": inputs, "promql_expr_test": [check]}],
    }
    path = folder / "bench.yml"
    path.write_text(yaml.dump(document, Dumper=getattr(yaml, "CSafeDumper", yaml.SafeDumper), width=10**9))
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run([find("promtool"), "test", "rules", str(path)], capture_output=True, text=True, check=False)
    after_ = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after_.ru_utime + after_.ru_stime - before.ru_utime - before.ru_stime, done.stdout + done.stderr


def built(folder: Path) -> Path:
    """Write the rules of a native build."""
    for name, text in outputs(Config(), frozenset({"native"})).items():
        if name.removesuffix(".yml") in FILES:
            (folder / name).write_text(text)
    return folder


def main() -> int:
    """Measure native and recording rules, and print them."""
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 100
    if not 0 < count <= MOST:
        print(f"rules: give 1 to {MOST} engines, got {count}", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        rules = Path(sys.argv[2]) if len(sys.argv) > 2 else built(folder)
        calm = engines(count, 0)
        spent, _ = cpu(calm, [], folder)
        none, files = spent, list[str]()
        for file in FILES:
            files.append(str(rules / f"{file}.yml"))
            now, said = cpu(calm, files, folder)
            cost = 1000 * (now - spent) / EVALUATIONS
            print(f"{file}.yml: {cost:.0f} ms of CPU an evaluation of {count} engines, {cost / count:.2f} each")
            spent = now
        series = re.search(r"got: \{\} (\S+)", said)
        print(f"series added: {float(series[1]) / count:.0f} an engine" if series else f"no count: {said[:200]}")
        bad = engines(count, 3 * count // 10)
        trouble = (cpu(bad, files, folder)[0] - cpu(bad, [], folder)[0]) / (spent - none)
        print(f"three engines in ten spiral: {100 * (trouble - 1):+.0f} % on all of them")
    return 0


if __name__ == "__main__":
    sys.exit(main())
