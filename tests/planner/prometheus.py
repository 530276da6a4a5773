"""A real Prometheus over blocks that promtool built from OpenMetrics text, on a free port of the loopback."""

import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.programs import DEADLINE_S, PATIENCE_S


def blocks(lines: Iterable[str], into: Path, span: str = "48h") -> None:
    """Build blocks from sample lines with timestamps; no metadata is needed."""
    into.mkdir(parents=True, exist_ok=True)
    text = into / "samples.om"
    with text.open("w") as file:
        file.writelines(f"{line}\n" for line in lines)
        file.write("# EOF\n")
    command = [
        "promtool",
        "tsdb",
        "create-blocks-from",
        f"--max-block-duration={span}",
        "openmetrics",
        str(text),
        str(into),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    text.unlink()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def serving(data: Path) -> Iterator[str]:
    """Run Prometheus over ``data``; yields its URL."""
    port, config = free_port(), data / "prometheus.yml"
    config.write_text("global: {}\n")
    url = f"http://127.0.0.1:{port}"
    command = ["prometheus", f"--config.file={config}", f"--storage.tsdb.path={data}",
               f"--web.listen-address=127.0.0.1:{port}", "--storage.tsdb.retention.time=100y",
               "--log.level=error"]  # fmt: skip
    with (data / "log").open("wb") as log, subprocess.Popen(command, stdout=log, stderr=log) as process:
        try:
            _wait(url, process)
            yield url
        finally:
            process.terminate()
            process.wait(PATIENCE_S)


def _wait(url: str, process: "subprocess.Popen[bytes]") -> None:
    until = time.monotonic() + DEADLINE_S
    while time.monotonic() < until:
        assert process.poll() is None, "prometheus ended"
        try:
            with urllib.request.urlopen(f"{url}/-/ready", timeout=30):
                return
        except (urllib.error.URLError, OSError):
            time.sleep(0.05)  # a start has no other sign
    raise AssertionError("prometheus does not get ready")
