"""A Prometheus that holds what it would hold had it scraped vLLM and the daemon through real recordings.

The recordings are judged by the daemon's own judge and rendered by its own renderer, then written as blocks with their
times: a minute of recording costs no minute of test. All end at the same moment, each as a server and model of its own.
"""

import gzip
import json
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import requests
import yaml

from tests.programs import DEADLINE_S, PATIENCE_S, ROOT
from vllm_vitals.catalog import METRICS
from vllm_vitals.core import render
from vllm_vitals.core.snapshot import Canary, Scrape
from vllm_vitals.core.target_evaluator import TargetEvaluator
from vllm_vitals.logs.aggregate import LogAggregator, SourceInfo
from vllm_vitals.logs.decode import LineDecoder
from vllm_vitals.logs.metrics import log_families
from vllm_vitals.logs.schema import shipped
from vllm_vitals.recordings import recording
from vllm_vitals.rules.boards import POOL
from vllm_vitals.rules.fleet import RANK
from vllm_vitals.simulator.logs import STATS_INTERVAL_S, LogWriter
from vllm_vitals.simulator.scenarios import scenario
from vllm_vitals.simulator.world import Happening, World

RECORDINGS = Path(__file__).parents[1] / "data" / "recordings"
# They all end here (epoch s), so that "now" shows every server at its worst.
END = 1_800_000_000
STEP = 5
SPAN = 600
CANARY_EVERY = 60
# What an operator states in the config, because these servers' metrics do not.
SETTINGS = {"max_num_seqs": "64", "max_model_len": "2048"}
_SESSION = requests.Session()
# Series that only the daemon can make.
DAEMON_ONLY = frozenset(metric.name for metric in METRICS if not metric.native)


@dataclass(frozen=True, slots=True)
class Server:
    """A running Prometheus and the span of its data (epoch s)."""

    url: str
    start: float
    end: float
    samples: Path

    def told(self) -> Iterator[str]:
        """The samples that it holds, as they were written."""
        with self.samples.open(encoding="utf-8") as file:
            yield from file

    def ask(self, path: str, **parameters: object) -> list[dict[str, object]]:
        """The result of an API call. Raises AssertionError with Prometheus' own words."""
        answer = _SESSION.post(f"{self.url}/api/v1/{path}", data=parameters, timeout=PATIENCE_S).json()
        assert answer["status"] == "success", f"{answer.get('error')}: {parameters.get('query', path)}"
        data = answer["data"]
        return list(data["result"] if isinstance(data, dict) else data)


def scrapes(name: str) -> list[Scrape]:
    """A recording with its last scrape at END, and its own name in place of the model's."""
    read = list(recording.read(RECORDINGS / name / "metrics.jsonl.gz"))
    shift = END - read[-1].at
    return [
        Scrape(
            scrape.at + shift,
            scrape.duration_s,
            scrape.body and scrape.body.replace(b'model_name="tiny"', f'model_name="{name}"'.encode()),
            scrape.reason,
            scrape.detail,
        )
        for scrape in read
    ]


def of_daemon(name: str, native_only: bool = False) -> Iterator[str]:
    """What the daemon serves through a recording, as samples with times; or what recording rules could say of it."""
    target, renderer = f"{name}:8000", render.TargetRenderer()
    judge, due, ask = TargetEvaluator(target), 0.0, 0.0
    judge.learn(SETTINGS)
    for scrape in scrapes(name):
        if scrape.body and scrape.at >= ask:
            ask = scrape.at + CANARY_EVERY
            judge.canary(Canary(scrape.at - 0.5, 0.5, "ok"))
        families = renderer.render(judge.observe(scrape))
        if scrape.at >= due:
            due = scrape.at + STEP
            kept = {key: text for key, text in families.items() if not (native_only and key in DAEMON_ONLY)}
            yield from stamped(render.join([kept]), scrape.at, 'job="vllm-vitals",instance="vitals:9840"')


def of_silent(target: str) -> Iterator[str]:
    """What the daemon serves of a server that has not answered since the daemon started."""
    judge, renderer = TargetEvaluator(target), render.TargetRenderer()
    for at in range(END - 60, END + 1, STEP):
        families = renderer.render(judge.observe(Scrape(at, 0.002, None, "refused", "connection refused")))
        yield from stamped(render.join([families]), at, 'job="vllm-vitals",instance="vitals:9840"')


def of_story(native_only: bool = False) -> Iterator[str]:
    """The simulated server's ten minutes: its log read beside its metrics, or what recording rules say of it."""
    target, at, log = "simulator", END - scenario("story").duration_s, list[bytes]()
    writer = LogWriter(log.append, at, f"http://{target}:8000", requests=True)

    def listen(happening: Happening) -> None:
        if happening.what != "started":
            writer.happened(happening)
        elif world is not None:
            writer.started(world, happening.at)

    world: World | None = None
    world = World(scenario("story"), epoch=at, listen=listen)
    writer.started(world, 0.0)
    reader, lines = LogAggregator({"vllm": SourceInfo(target)}), LineDecoder(shipped())
    judge, renderer = TargetEvaluator(target), render.TargetRenderer()
    for second in range(STEP, int(world.scenario.duration_s) + 1, STEP):
        body, now = world.scrape(second), at + second
        if second % STATS_INTERVAL_S == 0 and body:
            writer.stats(world, second)
        for line in log:
            reader.observe("vllm", lines.decode(line.rstrip(), now), now)
        log.clear()
        seen = reader.snapshot(now)
        judge.learn({name: str(value) for name, value in seen.servers[target].settings.items()})
        refused = Scrape(now, 0.004, None, "refused", "connection refused")
        families = renderer.render(judge.observe(Scrape(now, 0.004, body.encode()) if body else refused))
        if native_only:
            kept = {key: text for key, text in families.items() if key not in DAEMON_ONLY}
            yield from stamped(render.join([kept]), now, 'job="vllm-vitals",instance="rules"')
            yield from stamped((body or "").encode(), now, f'job="vllm",instance="{target}"')
        else:
            logged = render.render_samples(one for one in log_families(seen) if one[0] != "server_setting")
            yield from stamped(render.join([families, logged]), now, 'job="vllm-vitals",instance="vitals:9840"')


def of_gateway(name: str) -> Iterator[str]:
    """What the daemon says of a gateway's log: the answers that the recording's client got, a line each.

    The client's phases stand for routes, and half of each answer for thinking: the recorded model does not think. The
    router predicts the mean so far, and the engine behind it complains once.
    """
    with gzip.open(RECORDINGS / name / "requests.jsonl.gz", "rb") as file:
        answers = sorted((json.loads(line) for line in file), key=lambda one: float(one["start"] + one["e2e"]))
    shift = END - answers[-1]["start"] - answers[-1]["e2e"]
    reader, lines, made = LogAggregator({"gateway": SourceInfo(f"{name}:8000")}), LineDecoder(shipped()), 1
    for at in range(END - SPAN, END + 1, STEP):
        while answers and shift + answers[0]["start"] + answers[0]["e2e"] <= at:
            one = answers.pop(0)
            length = one["usage"]["completion_tokens"]
            thought = {"completion_tokens_details": {"reasoning_tokens": length // 2}}
            line = {
                **one, "id": "x", "model": name, "route": one["label"], "usage": one["usage"] | thought,
                "choices": [{"finish_reason": one["finish"]}], "predicted_tokens": made, "returned_tokens": length - 1,
            }  # fmt: skip
            made = (9 * made + length) // 10
            reader.observe("gateway", lines.decode(json.dumps(line).encode(), at), at)
        if at == END - STEP:
            line = {"levelname": "ERROR", "message": "EngineCore encountered a fatal error.", "name": "vllm.v1.engine"}
            reader.observe("gateway", lines.decode(json.dumps(line).encode(), at), at)
        text = render.render_samples(log_families(reader.snapshot(at)))
        yield from stamped(render.join([text]), at, 'job="vllm-vitals",instance="vitals:9840"')


def of_vllm(name: str) -> Iterator[str]:
    """What vLLM itself serves through a recording, as Prometheus labels it."""
    due = 0.0
    for scrape in scrapes(name):
        if scrape.body and scrape.at >= due:
            due = scrape.at + STEP
            lines = b"\n".join(line for line in scrape.body.splitlines() if line.startswith(b"vllm:"))
            yield from stamped(lines, scrape.at, f'job="vllm",instance="{name}:8000"')


def stamped(exposition: bytes, at: float, labels: str) -> Iterator[str]:
    """Samples with Prometheus' own labels and a time."""
    for line in exposition.decode().splitlines():
        if line and not line.startswith("#"):
            series, value = line.rsplit(" ", 1)
            name, brace, rest = series.partition("{")
            yield f"{name}{{{labels}{',' if brace else ''}{rest or '}'} {value} {at:.3f}\n"


def serve(folder: Path, samples: Iterator[str], *, ruled: bool = False) -> Iterator[Server]:
    """Write blocks and run a Prometheus over them until the caller is done; ``ruled``: with the fleet's records too."""
    text = folder / "samples.txt"
    with text.open("w", encoding="utf-8") as file:
        file.writelines(samples)
        file.write("# EOF\n")
    _promtool("create-blocks-from", "openmetrics", str(text), str(folder / "data"))
    (folder / "prometheus.yml").write_text("global: {}\n", encoding="utf-8")
    for later in (False, True) if ruled else ():
        with running(folder) as url:
            _record(folder, url, later)
    with running(folder) as url:
        yield Server(url, END - SPAN, END, text)


def _record(folder: Path, url: str, later: bool) -> None:
    """Evaluate what dashboards read over what is there: first the rules that read no other record, ``later`` the rest.

    Each must find what it reads in a block, and Prometheus looks for new ones when it starts.
    """
    groups = yaml.safe_load((ROOT / "alerts" / "recording.yml").read_text(encoding="utf-8"))["groups"]
    mine = [group for group in groups if group["name"].startswith(("vllm_vitals.fleet", "vllm_vitals.boards"))]
    for group in mine:
        group["rules"] = [
            rule for rule in group["rules"] if any(first in rule["expr"] for first in (RANK, POOL)) == later
        ]
        for rule in group["rules"]:
            # A rule that runs marks what it no longer says as gone; blocks that are made afterwards hold no such marks.
            rule["expr"] = rule["expr"].replace(POOL, f"({POOL} and timestamp({POOL}) == time())")
    file = folder / "fleet.yml"
    file.write_text(yaml.safe_dump({"groups": [group for group in mine if group["rules"]]}), encoding="utf-8")
    span = [f"--start={END - SPAN}", f"--end={END}", "--eval-interval=15s"]
    _promtool("create-blocks-from", "rules", *span, f"--url={url}", f"--output-dir={folder / 'data'}", str(file))


def _promtool(*arguments: str) -> None:
    made = subprocess.run(["promtool", "tsdb", *arguments], capture_output=True, text=True, check=False)
    assert made.returncode == 0, made.stderr


@contextmanager
def running(folder: Path) -> Iterator[str]:
    port = free_port()
    process = subprocess.Popen(
        [
            "prometheus", f"--config.file={folder / 'prometheus.yml'}", f"--storage.tsdb.path={folder / 'data'}",
            "--storage.tsdb.retention.time=100y", f"--web.listen-address=127.0.0.1:{port}", "--log.level=error",
        ],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        url = f"http://127.0.0.1:{port}"
        wait_until_ready(f"{url}/-/ready")
        yield url
    finally:
        process.terminate()
        process.wait(PATIENCE_S)


def wait_until_ready(url: str, within: float = DEADLINE_S) -> None:
    deadline = time.monotonic() + within
    while True:
        try:
            if requests.get(url, timeout=30).ok:
                return
        except (requests.ConnectionError, requests.Timeout):
            pass
        assert time.monotonic() < deadline, f"{url} did not answer within {within} s"
        time.sleep(0.05)


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])
