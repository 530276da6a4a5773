"""Times the review over 28 days of 50 engines against a real Prometheus, and takes its memory.

Builds the blocks by remote write (needs prometheus on PATH and numpy, which matplotlib brings). Run:
``python -m bench.review [--engines 50] [--days 28] [--scrape 300]``. The shorter the scrape interval, the longer the
building takes and the more samples Prometheus has to decode.
"""

import argparse
import json
import os
import re
import shutil
import socket
import struct
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np

from vllm_vitals.core.states import State

END = 1_790_000_000 // 86_400 * 86_400
MODELS = 5
LATENCY = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0)
TOKENS = tuple(float(d * 10**p) for p in range(5) for d in (1, 2, 5))
HISTOGRAMS = {
    "tpot_seconds": (LATENCY, 0.03), "ttft_seconds": (LATENCY, 0.4), "e2e_latency_seconds": (LATENCY, 6.0),
    "queue_time_seconds": (LATENCY, 0.1), "inter_token_latency_seconds": (LATENCY, 0.03),
    "request_prompt_tokens": (TOKENS, 900.0), "request_output_tokens": (TOKENS, 280.0),
    "request_max_tokens": (TOKENS, 1024.0), "request_preemptions": ((1.0, 2.0, 3.0, 4.0, 5.0, 10.0, 20.0), 0.5),
}  # fmt: skip


def series(engine: int, at: "np.ndarray") -> Iterator[tuple[dict[str, str], "np.ndarray"]]:
    """Every series of one engine at times ``at``: daily load, one bad half hour a week."""
    own = {"target": f"host-{engine}:8000", "model_name": f"model-{engine % MODELS}", "engine": "0"}
    day = (at % 86_400) / 86_400
    load = 0.3 + 0.7 * np.sin(np.pi * day) ** 2
    bad = (at % (7 * 86_400) < 1800) & (engine % 10 == 0)
    running = np.round(24 * load * (0.9 + 0.2 * np.sin(at * (1 + engine) / 997)))
    kv = np.clip(running / 26, 0, 1)
    state = np.where(bad, "death_spiral", "healthy")
    for name in State:
        yield own | {"__name__": "state", "state": name.value}, (state == name.value).astype(float)
    done = np.cumsum(np.round(2 * load * (at[1] - at[0])) if len(at) > 1 else np.zeros(len(at)))
    for name, values in {
        "requests_running": running, "kv_cache_usage_ratio": kv, "kv_cache_usage_max_ratio": kv,
        "kv_cache_demand_ratio": kv, "recompute_tax_ratio": 0.6 * bad, "recompute_tax_lower_ratio": 0.4 * bad,
        "recompute_tax_upper_ratio": 0.8 * bad, "abandoned_requests_per_second": 0.0 * kv,
        "kv_cache_capacity_tokens": 60_000 + 0 * kv, "kv_cache_full_windows": 1.8 + 0 * kv,
        "generation_tokens_total": 280 * done, "prompt_tokens_total": 900 * done,
        "prompt_tokens_computed_total": 800 * done, "preemptions_total": np.cumsum(50 * bad),
        "prefix_cache_queries_total": 900 * done, "prefix_cache_hits_total": 100 * done,
    }.items():  # fmt: skip
        yield own | {"__name__": name}, values
    for reason in ("capacity", "deferred"):
        yield own | {"__name__": "requests_waiting", "reason": reason}, 20.0 * bad * (reason == "capacity")
    for reason, share in (("stop", 0.9), ("length", 0.08), ("abort", 0.02), ("error", 0.0), ("repetition", 0.0)):
        yield own | {"__name__": "responses_total", "finished_reason": reason}, np.floor(share * done)
    for name, (bounds, centre) in HISTOGRAMS.items():
        for bound in (*bounds, float("inf")):
            share = 1 - np.exp(-bound / centre)
            le = "+Inf" if bound == float("inf") else repr(bound)
            yield own | {"__name__": f"{name}_bucket", "le": le}, np.floor(share * done)
        yield own | {"__name__": f"{name}_sum"}, centre * done
        yield own | {"__name__": f"{name}_count"}, done


def varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def field(number: int, content: bytes) -> bytes:
    return varint(number << 3 | 2) + varint(len(content)) + content


def label_bytes(labels: dict[str, str]) -> bytes:
    named = dict(sorted({**labels, "__name__": f"vllm_vitals_{labels['__name__']}"}.items()))
    return b"".join(field(1, field(1, k.encode()) + field(2, v.encode())) for k, v in named.items())


def samples(at: "np.ndarray", values: "np.ndarray") -> bytes:
    """Protobuf samples, all 18 bytes long: tag, length, tag, double, tag, six-byte varint of milliseconds."""
    out = np.zeros((len(at), 18), dtype=np.uint8)
    out[:, 0], out[:, 1], out[:, 2], out[:, 11] = 0x12, 16, 0x09, 0x10
    out[:, 3:11] = np.ascontiguousarray(values, dtype="<f8").view(np.uint8).reshape(-1, 8)
    stamps = (at * 1000).astype(np.int64)
    for byte in range(6):
        out[:, 12 + byte] = (stamps >> (7 * byte)) & 0x7F | (0x80 if byte < 5 else 0)
    return out.tobytes()


def snappy(content: bytes) -> bytes:
    """The snappy block format, as one literal."""
    return varint(len(content)) + bytes([63 << 2]) + struct.pack("<I", len(content) - 1) + content


def fill(url: str, engines: int, days: int, scrape: int) -> int:
    """Write everything, four hours a request; returns the number of samples."""
    at = np.arange(END - days * 86_400, END + 1, scrape, dtype=np.int64)
    kept = [(label_bytes(labels), values) for engine in range(engines) for labels, values in series(engine, at)]
    step, count = 4 * 3600 // scrape, 0
    for first in range(0, len(at), step):
        part = slice(first, first + step)
        body = b"".join(field(1, labels + samples(at[part], values[part])) for labels, values in kept)
        headers = {"Content-Encoding": "snappy", "Content-Type": "application/x-protobuf"}
        request = urllib.request.Request(f"{url}/api/v1/write", snappy(body), headers)
        with urllib.request.urlopen(request, timeout=120):
            count += len(kept) * len(at[part])
    return count


@contextmanager
def prometheus(folder: Path) -> Iterator[str]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    (folder / "prometheus.yml").write_text("global: {}\n")
    command = [
        "prometheus", f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/data",
        f"--web.listen-address=127.0.0.1:{port}", "--web.enable-remote-write-receiver",
        "--storage.tsdb.retention.time=100y", "--log.level=error",
    ]  # fmt: skip
    with (folder / "log").open("wb") as log, subprocess.Popen(command, stdout=log, stderr=log) as process:
        try:
            url = f"http://127.0.0.1:{port}"
            while True:
                try:
                    with urllib.request.urlopen(f"{url}/-/ready", timeout=2):
                        break
                except OSError:
                    if process.poll() is not None:
                        raise SystemExit((folder / "log").read_text()) from None
                    time.sleep(0.1)
            yield url
        finally:
            process.terminate()
            process.wait(60)


def review(url: str, days: int, folder: Path, *more: str) -> tuple[float, float]:
    """Wall seconds and peak megabytes of one review in a process of its own."""
    began = time.perf_counter()
    command = [
        sys.executable,
        "-m",
        "vllm_vitals",
        "review",
        "--prometheus",
        url,
        "--since",
        f"{days}d",
        "--until",
        str(END),
    ]
    process = subprocess.Popen([*command, "-o", str(folder), *more], stdout=subprocess.DEVNULL)
    peak = 0.0
    while process.poll() is None:
        peak = max(peak, high_water(process.pid))
        time.sleep(0.05)
    if process.returncode:
        raise SystemExit(f"the review failed with exit code {process.returncode}")
    return time.perf_counter() - began, peak


def high_water(pid: int) -> float:
    """Peak resident megabytes of a running process; getrusage would give it what its parent once had."""
    with suppress(OSError):
        found = re.search(r"^VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
        return int(found[1]) / 1024 if found else 0.0
    return 0.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engines", type=int, default=50)
    parser.add_argument("--days", type=int, default=28)
    parser.add_argument("--scrape", type=int, default=300)
    given = parser.parse_args()
    if shutil.which("prometheus") is None:
        raise SystemExit("needs prometheus on PATH")
    with tempfile.TemporaryDirectory() as temporary, prometheus(Path(temporary)) as url:
        folder = Path(temporary)
        began = time.perf_counter()
        count = fill(url, given.engines, given.days, given.scrape)
        print(
            f"{count / 1e6:.0f} million samples written in {time.perf_counter() - began:.0f} s ({os.cpu_count()} CPUs)"
        )
        seconds, megabytes = review(url, given.days, folder / "out")
        found = json.loads(next((folder / "out").glob("*.json")).read_text())
        assert not found["missing"], found["missing"]
        assert sum(len(model["engines"]) for model in found["models"]) == given.engines
        print(f"review of {given.engines} engines, {given.days} days: {seconds:.1f} s, {megabytes:.0f} MB at most")


if __name__ == "__main__":
    main()
