"""Everything at once, for minutes: hostile targets, a crowd at the door, targets that come and go; good ones beside.

Input: ``--minutes``, ``--targets``. Output: a table, a line a minute. Exit code 1 where memory, files or threads grow,
a good target is late or gets a verdict, `/-/healthy` is slow, or an acknowledged log line is not counted.
"""

import argparse
import base64
import contextlib
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import bcrypt

from bench.soak.servers import HOSTILE

ROOT = Path(__file__).parents[2]
INTERVAL_S = 5.0
CHURN_S = 10.0  # a new list of targets so often
WARM_S = 45.0  # before anything is counted: windows fill, states are entered
BAD_STATES = frozenset({"down", "blind", "stalled", "failing", "death_spiral", "thrashing", "starting", "unknown"})
MOST = {"rss_mb": 300.0, "healthy_s": 1.0, "late": 2.0, "growth": 1.10}
LINE = b'{"model":"m","usage":{"prompt_tokens":1,"completion_tokens":2},"choices":[{"finish_reason":"stop"}]}\n'


@dataclass
class Minute:
    """What was seen in one minute."""

    rss: list[float] = field(default_factory=list)
    files: list[int] = field(default_factory=list)
    threads: list[int] = field(default_factory=list)
    healthy: list[float] = field(default_factory=list)
    gaps: list[float] = field(default_factory=list)
    looks: int = 0
    verdicts: set[str] = field(default_factory=set)
    pushed: int = 0
    cpu: float = 0.0
    waited: float = 0.0  # for a CPU, while it had work (s)
    lag: float = 0.0  # how much later than asked for this machine woke us up (s)


class Soak:
    """One daemon under attack, and what is seen of it."""

    def __init__(self, folder: Path, port: int, targets: int) -> None:
        self._folder, self._servers, self._targets = folder, port, targets
        self._password = "right"
        self.login = "Basic " + base64.b64encode(f"prometheus:{self._password}".encode()).decode()
        self.minutes: dict[int, Minute] = defaultdict(Minute)
        self._last: dict[str, float] = {}
        self.acknowledged = 0
        self.lines, self._cpu, self._waited = 0.0, 0.0, 0.0
        self.url, self.pid = "", 0

    def write_config(self) -> Path:
        """Write the files that the daemon reads; return the config's path."""
        hashed = bcrypt.hashpw(self._password.encode(), bcrypt.gensalt(4)).decode()
        (self._folder / "web.yml").write_text(f"basic_auth_users: {{prometheus: '{hashed}'}}\n")
        base = f"http://127.0.0.1:{self._servers}"
        listed = [{"url": f"{base}/good{n}", "name": f"good{n}"} for n in range(self._targets)]
        listed += [{"url": f"{base}/{mode}", "name": f"bad-{mode}"} for mode in HOSTILE]
        document = {
            "listen": "127.0.0.1:0", "interval": f"{INTERVAL_S:g}s", "targets": listed,
            "discovery": [{"file_sd": {"files": [str(self._folder / "churn.yml")], "refresh_interval": "1s"}}],
            "thresholds": {"fast_window": "30s", "slow_window": "1m"},  # so that windows are full within minutes
            "logs": {"sources": [{"name": "shipper", "push": True}, {"name": "nonsense", "push": True}]},
            "flight_recorder": {"directory": str(self._folder / "flight")},
        }  # fmt: skip
        self.churn(0)
        config = self._folder / "config.yaml"
        config.write_text(json.dumps(document))
        return config

    def churn(self, turn: int) -> None:
        """Let twenty targets come and twenty go; now and then the list is broken."""
        names = [f"127.0.0.1:{self._servers}/come{turn}-{n}" for n in range(20)]
        text = "- {} # broken\n" * 2_000 if turn % 5 == 4 else json.dumps([{"targets": names}])
        fresh = self._folder / "churn.new"
        fresh.write_text(text)
        fresh.rename(self._folder / "churn.yml")

    def ask(self, path: str, body: bytes | None = None) -> bytes:
        """Ask the daemon, as Prometheus would."""
        headers = {"Authorization": self.login, "Content-Type": "application/x-ndjson"}
        with urllib.request.urlopen(urllib.request.Request(self.url + path, body, headers), timeout=30) as answer:
            return answer.read()

    def look(self, minute: Minute, *, counts: bool) -> None:
        """Look once at everything."""
        begun = time.monotonic()
        with contextlib.suppress(urllib.error.URLError, ConnectionError, TimeoutError):  # the time that passed tells it
            self.ask("/-/healthy")
        minute.healthy.append(time.monotonic() - begun)
        # a crowd may be before us: Prometheus would come again
        with contextlib.suppress(urllib.error.URLError, ConnectionError, TimeoutError):
            told = json.loads(self.ask("/api/v1/engines"))
            minute.looks += 1
            for target in told["targets"]:
                if target["target"].startswith("good"):
                    self._judge(target, minute, counts=counts)
        with contextlib.suppress(urllib.error.URLError, ConnectionError, TimeoutError):  # not acknowledged
            self.ask("/api/v1/logs?source=shipper", LINE * 10)
            self.acknowledged += 10
            minute.pushed += 10
        spent = cpu_seconds(self.pid)
        minute.cpu, self._cpu = minute.cpu + spent - self._cpu, spent
        waited = int(Path(f"/proc/{self.pid}/schedstat").read_text().split()[1]) / 1e9
        minute.waited, self._waited = minute.waited + waited - self._waited, waited
        status = (Path("/proc") / str(self.pid) / "status").read_text()
        minute.rss.append(int(re.search(r"VmRSS:\s+(\d+)", status)[1]) / 1024)
        minute.threads.append(int(re.search(r"Threads:\s+(\d+)", status)[1]))
        minute.files.append(len(os.listdir(f"/proc/{self.pid}/fd")))

    def _judge(self, target: dict, minute: Minute, *, counts: bool) -> None:
        name, at = target["target"], target["last_scrape"]
        if counts and name in self._last and at is not None and at != self._last[name]:
            minute.gaps.append(at - self._last[name])
        if at is not None:
            self._last[name] = at
        wrong = {engine["state"] for engine in target["engines"]} & BAD_STATES
        if counts and wrong:
            minute.verdicts.add(f"{name}: {', '.join(sorted(wrong))} ({target['reason']} {target['detail']})")

    def lines_counted(self) -> float:
        """How many pushed lines the daemon's metrics tell of."""
        rows = re.findall(r'log_records_total\{source="shipper",result="\w+"\} (\S+)', self.ask("/metrics").decode())
        return sum(map(float, rows))


def cpu_seconds(pid: int) -> float:
    """Return what a process has used so far."""
    fields = (Path("/proc") / str(pid) / "stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@contextlib.contextmanager
def process(*command: str, **more: object) -> Iterator[subprocess.Popen[str]]:
    running = subprocess.Popen(command, text=True, cwd=ROOT, **more)
    try:
        yield running
    finally:
        running.terminate()
        try:
            running.wait(15)
        except subprocess.TimeoutExpired:
            running.kill()
            running.wait()


def listening(log: Path) -> str:
    """Return the URL of a daemon's pages, once its log says it."""
    for _ in range(600):
        for line in log.read_text().splitlines():
            if '"listening"' in line:
                return json.loads(line)["url"]
        time.sleep(0.1)
    raise SystemExit(f"the daemon did not start: {log.read_text()[-500:]}")


def run(soak: Soak, folder: Path, minutes: float) -> None:
    """Start the daemon and the crowd, and look at them for so long."""
    log = folder / "log"
    command = (sys.executable, "-m", "vllm_vitals", "run", "--config", str(soak.write_config()))
    with log.open("w") as said, process(*command, "--web.config.file", str(folder / "web.yml"), stderr=said) as daemon:
        soak.url, soak.pid = listening(log), daemon.pid
        port = soak.url.rpartition(":")[2]
        with process(sys.executable, "-m", "bench.soak.crowd", port, soak.login):
            begun, churned = time.monotonic(), 0
            while (passed := time.monotonic() - begun) < minutes * 60:
                soak.look(soak.minutes[int(passed // 60)], counts=passed > WARM_S)
                if passed // CHURN_S > churned:
                    churned = int(passed // CHURN_S)
                    soak.churn(churned)
                asked = time.monotonic() + 1.0
                time.sleep(1.0)
                minute = soak.minutes[int((asked - begun) // 60)]
                minute.lag = max(minute.lag, time.monotonic() - asked)
        deadline = time.monotonic() + 60
        while (lines := soak.lines_counted()) < soak.acknowledged and time.monotonic() < deadline:
            time.sleep(1.0)
        soak.lines = lines


def report(soak: Soak) -> list[str]:
    """Print the table; return what was not kept."""
    columns: dict[str, Callable[[Minute], str]] = {
        "RSS, MB": lambda seen: f"{statistics.median(seen.rss):.0f} to {max(seen.rss):.0f}",
        "files": lambda seen: f"{max(seen.files)}",
        "threads": lambda seen: f"{max(seen.threads)}",
        "CPU, s": lambda seen: f"{seen.cpu:.0f}",
        "waited for a CPU, s": lambda seen: f"{seen.waited:.0f}",
        "/-/healthy, s": lambda seen: f"{max(seen.healthy):.2f}",
        "looks": lambda seen: f"{seen.looks}",
        "longest gap, s": lambda seen: f"{max(seen.gaps, default=0):.1f}",
        "verdicts": lambda seen: f"{len(seen.verdicts)}",
        "machine's lag, s": lambda seen: f"{seen.lag:.2f}",
    }
    print(f"| minute | {' | '.join(columns)} |\n|---{'|---' * len(columns)}|")
    for number, seen in sorted(soak.minutes.items()):
        if seen.rss:
            print(f"| {number + 1} | {' | '.join(cell(seen) for cell in columns.values())} |")
    kept = [seen for _, seen in sorted(soak.minutes.items()) if seen.rss]
    missed = [why for seen in kept for why in sorted(seen.verdicts)][:10]
    latest = max((gap for seen in kept for gap in seen.gaps), default=0.0)
    lag = max(seen.lag for seen in kept)
    if latest > MOST["late"] * INTERVAL_S + lag:
        missed.append(f"a good target was not scraped for {latest:.1f} s")
    if (slow := max(max(seen.healthy) for seen in kept)) > MOST["healthy_s"] + lag:
        missed.append(f"/-/healthy took {slow:.2f} s")
    if (most := max(max(seen.rss) for seen in kept)) > MOST["rss_mb"]:
        missed.append(f"{most:.0f} MB were resident")
    if len(kept) >= 4:
        first, last = kept[1], kept[-1] if len(kept[-1].rss) > 10 else kept[-2]
        for what in ("rss", "files", "threads"):
            was, now = statistics.median(getattr(first, what)), statistics.median(getattr(last, what))
            if now > was * MOST["growth"] + 5:
                missed.append(f"{what} grew from {was:.0f} in the second minute to {now:.0f} in the last")
    if soak.lines < soak.acknowledged:
        missed.append(f"{soak.acknowledged} log lines were acknowledged, {soak.lines:.0f} counted")
    return missed


def main() -> None:
    """Run and report."""
    parser = argparse.ArgumentParser(description="Everything that is hostile, at once.")
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--targets", type=int, default=100)
    given = parser.parse_args()
    with (
        tempfile.TemporaryDirectory() as folder,
        process(sys.executable, "-m", "bench.soak.servers", stdout=subprocess.PIPE) as servers,
    ):
        assert servers.stdout is not None
        soak = Soak(Path(folder), int(servers.stdout.readline()), given.targets)
        run(soak, Path(folder), given.minutes)
        missed = report(soak)
    for why in missed:
        print(f"MISSED: {why}")
    raise SystemExit(bool(missed))


if __name__ == "__main__":
    main()
