"""What watching a fleet costs: CPU per scrape as ratios, lateness, memory per engine, /metrics, and how each grows.

All programs scrape the same pretended servers (bench/parts/servers.py) on this machine, one after the other, and their
CPU time is read from the kernel. Prometheus 3 is used where there is one (PROMETHEUS, .tools or PATH). An aim that
is missed is said, and no error: machines differ.
"""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
HERE = Path(__file__).parent
AIMS = {"prometheus": 1.0, "library": 20.0, "one_by_one": 1.3, "lateness_s": 1.0, "engine_kb": 400.0, "page_ms": 50.0}


@dataclass(frozen=True)
class Cost:
    """What one program took while it scraped: CPU seconds a scrape, resident bytes, lateness in seconds."""

    cpu: float
    rss: int
    p99_late: float
    scrapes: int


def cpu_seconds(pid: int) -> float:
    """CPU time of a process so far, all threads, in nanosecond resolution."""
    total = 0
    for task in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(OSError):
            total += int((task / "schedstat").read_text().split()[0])
    return total / 1e9


def rss(pid: int) -> int:
    """Resident bytes of a process."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def addresses(count: int, port: int) -> list[str]:
    """So many different servers, all of them this machine."""
    return [f"127.{1 + n // 65536}.{n // 256 % 256}.{n % 256}:{port}" for n in range(256, 256 + count)]


def get(url: str, **headers: str) -> bytes:
    request = urllib.request.Request(url, headers=headers)
    with urllib.request.urlopen(request, timeout=60) as answer:
        return answer.read()


@contextlib.contextmanager
def process(*command: str, **more: object) -> Iterator[subprocess.Popen[str]]:
    running = subprocess.Popen(command, text=True, **more)
    try:
        yield running
    finally:
        running.kill()
        running.wait()
        if running.stdout:
            running.stdout.close()


@contextlib.contextmanager
def servers() -> Iterator[int]:
    with process(sys.executable, str(HERE / "parts" / "servers.py"), stdout=subprocess.PIPE) as running:
        yield int(running.stdout.readline())


def measure(pid: int, port: int, count: int, interval: float, seconds: float) -> Cost:
    """Wait until every target was seen, then look at ``seconds`` of steady work."""
    stats = f"http://127.0.0.1:{port}/stats"
    deadline = time.monotonic() + 3 * interval + 60
    seen: set[int] = set()
    while not seen or max(seen) < count:
        seen.add(json.loads(get(stats))["seen"])
        if time.monotonic() > deadline:
            raise SystemExit(f"only {max(seen)} of {count} targets were scraped")
        time.sleep(0.5)
    time.sleep(1.5 * interval + 1)
    get(stats)
    before = cpu_seconds(pid)
    time.sleep(seconds)
    used, said = cpu_seconds(pid) - before, json.loads(get(stats))
    late = sorted(max(0.0, gap - interval) for gap in said["gaps"])
    return Cost(used / said["scrapes"], rss(pid), late[int(0.99 * len(late))], said["scrapes"])


@contextlib.contextmanager
def daemon(targets: list[str], interval: float) -> Iterator[tuple[int, str]]:
    with tempfile.TemporaryDirectory() as folder:
        found, config = Path(folder) / "targets.json", Path(folder) / "config.yaml"
        found.write_text(json.dumps([{"targets": targets}]))
        config.write_text(f'listen: "127.0.0.1:0"\ninterval: "{interval * 1000:.0f}ms"\n'
                          f"discovery: [{{file_sd: {{files: ['{found}']}}}}]\n")  # fmt: skip
        command = (sys.executable, "-m", "vllm_vitals", "run", "--config", str(config))
        with (Path(folder) / "log").open("w+") as said, process(*command, cwd=ROOT, stderr=said) as running:
            yield running.pid, listening(Path(folder) / "log")


def listening(log: Path) -> str:
    """The URL of a daemon's pages, once its log says it."""
    for _ in range(600):
        for line in log.read_text().splitlines():
            event = json.loads(line)
            if event["event"] == "listening":
                return event["url"]
        time.sleep(0.1)
    raise SystemExit("the daemon did not start")


def prometheus_program() -> str | None:
    """A Prometheus 3, wherever there is one."""
    places = [
        os.environ.get("PROMETHEUS", ""),
        str(ROOT / ".tools/prometheus/usr/bin/prometheus"),
        shutil.which("prometheus") or "",
    ]
    for place in places:
        if place and Path(place).exists():
            said = subprocess.run([place, "--version"], capture_output=True, text=True, check=False)
            if "version 3." in said.stdout + said.stderr:
                return place
    return None


@contextlib.contextmanager
def prometheus(program: str, targets: list[str], interval: float) -> Iterator[int]:
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder) / "prometheus.yml"
        job = {
            "job_name": "vllm",
            "scrape_interval": f"{interval * 1000:.0f}ms",
            "scrape_timeout": f"{interval * 900:.0f}ms",
            "static_configs": [{"targets": targets}],
        }
        config.write_text(json.dumps({"scrape_configs": [job]}))
        command = (program, f"--config.file={config}", f"--storage.tsdb.path={folder}/data",
                   "--web.listen-address=127.0.0.1:0", "--log.level=error")  # fmt: skip
        with process(*command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as running:
            yield running.pid


def our_cost(port: int, count: int, interval: float, seconds: float) -> tuple[Cost, dict[str, float]]:
    """The daemon's cost, and its /metrics: time to render (s) and bytes, plain and as Prometheus asks for it."""
    with daemon(addresses(count, port), interval) as (pid, url):
        cost = measure(pid, port, count, interval, seconds)
        pages = {}
        for name, headers in (("plain", {}), ("gzip", {"Accept-Encoding": "gzip"})):
            took = []
            for _ in range(3):
                begun = time.perf_counter()
                body = get(f"{url}/metrics", **headers)
                took.append(time.perf_counter() - begun)
            pages[f"{name}_s"], pages[f"{name}_bytes"] = min(took), len(body)
        return cost, pages


def memory_per_engine(count: int, scrapes: int) -> float:
    """Resident bytes that one more engine takes once its windows are full (in a process of its own)."""
    said = subprocess.run(
        [sys.executable, str(HERE / "parts" / "memory.py"), str(count), str(scrapes)],
        cwd=ROOT, check=True, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": str(ROOT / "exporter")},
    )  # fmt: skip
    return float(said.stdout)


def against_the_library(count: int, interval: float, seconds: float) -> tuple[float, float]:
    """CPU seconds a scrape, ours and the library's. Ours is measured before and after: a machine's mood changes."""

    def ours() -> float:
        with servers() as port:
            cost, _ = our_cost(port, count, interval, seconds)
        row(f"vllm-vitals, {count} targets", cost)
        return cost.cpu

    before = ours()
    with servers() as port:
        command = (sys.executable, str(HERE / "parts" / "library.py"), f"{interval:g}", *addresses(count, port))
        with process(*command) as running:
            library = measure(running.pid, port, count, interval, seconds)
    row(f"prometheus_client.parser, {count} targets", library)
    return (before + ours()) / 2, library.cpu


def row(name: str, cost: Cost, ratio: str = "") -> None:
    numbers = f"{cost.cpu * 1e3:8.2f} ms{cost.rss / 2**20:8.0f} MiB{cost.p99_late * 1e3:9.0f} ms{cost.scrapes:8}"
    print(f"{name:36}{numbers}{ratio:>12}")


def main() -> None:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # what we started must end with us
    quick = "--quick" in sys.argv
    count, interval, seconds = (100, 1.0, 8.0) if quick else (1000, 10.0, 40.0)

    def aim(name: str, value: float, limit: float, *, least: bool = False) -> None:
        ok = value >= limit if least else value <= limit
        print(f"  {'ok    ' if ok else 'MISSED'} {name}: {value:.2f} (aim {limit:g})")

    print(f"{count} targets every {interval:g} s, {os.cpu_count()} cores")
    print(f"{'':36}{'CPU/scrape':>11}{'memory':>12}{'p99 late':>12}{'scrapes':>8}{'ours is':>12}")
    with servers() as port:
        ours, pages = our_cost(port, count, interval, seconds)
        row("vllm-vitals", ours)
    with servers() as port:
        few, _ = our_cost(port, 50, 1.0, seconds / 2)
        row("vllm-vitals, 50 targets every 1 s", few, f"{few.cpu / ours.cpu:.2f}x")
    half = count // 2  # with all of them the library's parser would need more than a core
    ours_of_half, library = against_the_library(half, interval, seconds)
    gain = library / ours_of_half
    program, theirs = prometheus_program(), None
    if program is None:
        print("Prometheus 3 is not here: not compared")
    else:
        with servers() as port, prometheus(program, addresses(count, port), interval) as pid:
            theirs = measure(pid, port, count, interval, seconds)
        row("Prometheus 3", theirs, f"{ours.cpu / theirs.cpu:.2f}x")

    print(f"/metrics: {pages['plain_s'] * 1e3:.0f} ms for {pages['plain_bytes'] / 1e6:.1f} MB plain,"
          f" {pages['gzip_s'] * 1e3:.0f} ms for {pages['gzip_bytes'] / 1e6:.1f} MB gzip")  # fmt: skip
    engine = memory_per_engine(40 if quick else 150, 70)
    print(f"one more engine, windows full: {engine / 1024:.0f} KiB")

    print("growth")
    print(
        f"{'targets':>8}{'interval':>10}{'CPU/scrape':>12}{'memory':>12}{'p99 late':>12}{'/metrics':>12}{'bytes':>12}"
    )
    for n in (1, 10, 100) if quick else (1, 10, 100, 500, 1000, 2000):
        every = max(0.1, n / 100)
        with servers() as port:
            cost, page = our_cost(port, n, every, 8.0)
        memory, late, page_ms = cost.rss / 2**20, cost.p99_late * 1e3, page["plain_s"] * 1e3
        print(f"{n:>8}{every:>8.1f} s{cost.cpu * 1e3:>9.2f} ms{memory:>8.0f} MiB{late:>9.0f} ms"
              f"{page_ms:>9.0f} ms{page['plain_bytes']:>12,}")  # fmt: skip

    print("aims")
    if theirs is not None:
        aim("CPU per scrape against Prometheus", ours.cpu / theirs.cpu, AIMS["prometheus"])
    aim("CPU per scrape of the library parser against ours", gain, AIMS["library"], least=True)
    aim("CPU per scrape of 50 targets every 1 s against many", few.cpu / ours.cpu, AIMS["one_by_one"])
    aim(f"/metrics of {count} engines, ms", pages["plain_s"] * 1e3, AIMS["page_ms"])
    aim("p99 lateness, s", ours.p99_late, AIMS["lateness_s"])
    aim("KiB per engine", engine / 1024, AIMS["engine_kb"])


if __name__ == "__main__":
    main()
