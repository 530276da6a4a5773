"""A real VictoriaMetrics, filled with a promtool test's series, and vmalert replaying rules over it.

Replay evaluates one rule over the whole time before the next: so the rules go in layers, each of which reads only what
earlier ones wrote. A record that reads itself has no layer.
"""

import json
import re
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from time import monotonic, sleep
from typing import Any
from urllib.error import URLError
from urllib.parse import urlencode
from urllib.request import urlopen

import yaml

from tests.programs import DEADLINE_S, PATIENCE_S
from tests.rules.playback import free_port
from vllm_vitals.rules.lint import metrics_of

START = 1_735_689_600  # 2025-01-01: any past moment on the grid of every interval
_LABEL = re.compile(r'(\w+)="([^"]*)"')

Labels = Mapping[str, str]


class Victoria:
    """One server. ``seconds`` everywhere count from `START`."""

    def __init__(self, url: str) -> None:
        self._url = url

    def _ask(self, path: str, data: bytes | None = None, **query: str) -> bytes:
        with urlopen(f"{self._url}{path}?{urlencode(query)}", data, timeout=PATIENCE_S) as response:
            body: bytes = response.read()
            return body

    def load(self, inputs: Sequence[Mapping[str, str]], step: int) -> None:
        """promtool's ``input_series``. Releases before 1.80 or so take no stale marker this way: there it is a gap."""
        lines = [
            f"{row['series']} {'NaN' if cell == 'stale' else cell} {(START + at * step) * 1000}"
            for row in inputs
            for at, cell in enumerate(_cells(row["values"]))
            if cell != "_"
        ]
        self._ask("/api/v1/import/prometheus", "\n".join(lines).encode())
        self.flush()

    def flush(self) -> None:
        """Make what was written visible to queries."""
        self._ask("/internal/force_flush")

    def query(self, expr: str, seconds: int) -> list[tuple[Labels, float]]:
        """What the expression is at one moment."""
        body = self._ask("/api/v1/query", urlencode({"query": expr}).encode(), time=str(START + seconds), step="15s")
        return [(one["metric"], float(one["value"][1])) for one in json.loads(body)["data"]["result"]]

    def holds(self, check: Mapping[str, Any], seconds: int) -> bool:
        """Whether promtool's ``check`` is right at this moment, but for rounding and the group's name on alerts."""
        told = {
            _text({key: value for key, value in labels.items() if key != "alertgroup"}): round(value, 6)
            for labels, value in self.query(check["expr"], seconds)
        }
        return told == {_text(_parsed(one["labels"])): round(one["value"], 6) for one in check["exp_samples"]}

    def over_time(self, expr: str, seconds: int, step: int) -> list[tuple[Labels, dict[int, float]]]:
        """What the expression is at every step up to ``seconds``."""
        form = {"query": expr, "start": str(START), "end": str(START + seconds), "step": f"{step}s"}
        body = self._ask("/api/v1/query_range", urlencode(form).encode())
        return [
            (one["metric"], {int(at) - START: float(value) for at, value in one["values"]})
            for one in json.loads(body)["data"]["result"]
        ]

    def replay(self, vmalert: str, files: Sequence[str], seconds: int, folder: Path) -> str:
        """Run the rules of ``files`` over the whole time; what vmalert complained of, "" if nothing."""
        complaints = ""
        for number, group in enumerate(layers(files)):
            path = folder / f"layer-{number}.yml"
            path.write_text(yaml.safe_dump({"groups": [group]}, width=10**9))
            done = subprocess.run(
                [
                    vmalert, f"-rule={path}", f"-datasource.url={self._url}", f"-remoteWrite.url={self._url}",
                    f"-replay.timeFrom={_moment(0)}", f"-replay.timeTo={_moment(seconds)}", "-replay.rulesDelay=0",
                    "-replay.disableProgressBar", "-remoteWrite.flushInterval=100ms", "-loggerLevel=WARN",
                    "-httpListenAddr=127.0.0.1:0", f"-datasource.queryStep={group['interval']}",
                ],
                capture_output=True, text=True, check=False, timeout=PATIENCE_S,
            )  # fmt: skip
            complaints += done.stderr if done.returncode or "\terror\t" in done.stderr else ""
            self.flush()
        return complaints


def _parsed(series: str) -> Labels:
    name, _, rest = series.partition("{")
    return {**({"__name__": name} if name else {}), **dict(_LABEL.findall(rest))}


def _text(labels: Labels) -> str:
    return json.dumps(labels, sort_keys=True)


def _cells(values: str) -> Iterator[str]:
    """One cell for each step; promtool's ``0x3`` is a 0 and three more."""
    for cell in values.split():
        value, _, more = cell.partition("x")
        yield from [value] * (int(more or 0) + 1)


def _moment(seconds: int) -> str:
    return datetime.fromtimestamp(START + seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def layers(files: Sequence[str]) -> Iterator[dict[str, Any]]:
    """The rules of ``files`` as groups, each of which reads only records of earlier ones. Alerts come last."""
    groups = [group for path in files for group in yaml.safe_load(Path(path).read_text())["groups"]]
    # A replay has no use for what vmalert before 1.92 refuses: keep_firing_for, and queries in texts.
    unused = {"keep_firing_for", "annotations"}
    rules = [{k: v for k, v in rule.items() if k not in unused} for group in groups for rule in group["rules"]]
    interval = groups[0]["interval"]  # the fastest: a replay may evaluate slow groups too often
    left = [(rule, metrics_of(rule["expr"])) for rule in rules]
    while left:
        unmade = {rule.get("record", "") for rule, _ in left} - {""}
        ready = [rule for rule, reads in left if not reads & unmade]
        if not ready:
            raise ValueError(f"these records read each other: {', '.join(sorted(unmade))}")
        yield {"name": f"layer{len(left)}", "interval": interval, "rules": ready}
        left = [(rule, reads) for rule, reads in left if reads & unmade]


@contextmanager
def victoria(program: str, folder: Path) -> Iterator[Victoria]:
    """A server of its own on a free port, with an empty store; it ends with the block."""
    url = f"http://127.0.0.1:{(port := free_port())}"
    with (folder / "victoria.log").open("wb") as log:
        process = subprocess.Popen(
            [
                program, f"-storageDataPath={folder / 'store'}", f"-httpListenAddr=127.0.0.1:{port}",
                "-retentionPeriod=100y", "-search.disableCache", "-memory.allowedBytes=256MB",
            ],
            stdout=log, stderr=log,
        )  # fmt: skip
        try:
            server = Victoria(url)
            _await(server)
            yield server
        finally:
            process.terminate()
            process.wait(timeout=PATIENCE_S)


def _await(server: Victoria) -> None:
    deadline = monotonic() + DEADLINE_S
    while True:
        try:
            server.flush()
        except URLError:
            if monotonic() > deadline:
                raise
            sleep(0.1)
        else:
            return
