"""Prometheus servers that hold real recordings, one for each way to feed the dashboards; started once a run."""

import re
from collections.abc import Iterator
from itertools import chain

import pytest

from tests.dashboards import history
from tests.dashboards.lint import BESIDE
from tests.programs import find
from vllm_vitals.catalog import BY_NAME, DETAILS, Kind
from vllm_vitals.core import render
from vllm_vitals.rules import concurrency, slo

NAMES = (
    "spiral_chunked", "overcommit_thrash", "preempting_productive", "dp2_pressure", "truncation_mix",
    "restart_under_load", "runaway_slot",
)  # fmt: skip


@pytest.fixture(scope="session")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[history.Server]:
    """Scraped the daemon alone, and has rules loaded."""
    yield from _serve(tmp_path_factory, chain(_of_daemon(), alerts()))


@pytest.fixture(scope="session")
def native(tmp_path_factory: pytest.TempPathFactory) -> Iterator[history.Server]:
    """Scraped vLLM alone; recording rules made what they can."""
    ruled = (history.of_daemon(name, native_only=True) for name in NAMES)
    samples = chain(*ruled, *(history.of_vllm(name) for name in NAMES), history.of_story(True), alerts())
    yield from _serve(tmp_path_factory, samples)


@pytest.fixture(scope="session")
def redundant(daemon: history.Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[history.Server]:
    """Scraped two daemons and vLLM itself, and recording rules ran too: every number is there three times."""
    told = (line for line in daemon.told() if "vitals:9840" in line)
    twice = (line.replace("vitals:9840", replica) for line in told for replica in ("a:9840", "b:9840"))
    # vLLM's own series as OpenTelemetry writes their bounds: 1, not 1.0.
    raw = (re.sub(r'le="(\d+)\.0"', r'le="\1"', line) for name in NAMES for line in history.of_vllm(name))
    samples = chain(twice, raw, history.of_story(True), alerts())
    yield from _serve(tmp_path_factory, samples)


def _of_daemon() -> Iterator[str]:
    never_seen = history.of_silent("silent:8000")
    told = (history.of_daemon(name) for name in NAMES)
    logged = history.of_gateway("truncation_mix")
    return chain(*told, history.of_story(), logged, never_seen, about_the_daemon(), of_details())


def _serve(factory: pytest.TempPathFactory, samples: Iterator[str]) -> Iterator[history.Server]:
    find("prometheus"), find("promtool")
    samples = chain(samples, of_rules(), of_neighbours())
    yield from history.serve(factory.mktemp("prometheus"), samples, ruled=True)


_OF_THE_WATCH = ("contradictions", "monitor_impaired", "event_loop_lag_seconds")


def of_details() -> Iterator[str]:
    """A server that uses all that vLLM has: each family by its name, labels and kind, as the daemon serves it."""
    own = {"adapter": "de", "status": "running"}
    for at in range(history.END - history.SPAN, history.END + 1, history.STEP):
        grown = at - history.END + history.SPAN + 1
        for metric in (
            *DETAILS,
            *(BY_NAME[name] for name in ("contradictions", "monitor_impaired", "event_loop_lag_seconds")),
        ):
            labels = {"target": "detailed:8000", "model_name": "detailed", "engine": "0"}
            labels = {label: labels.get(label) or own.get(label, "some") for label in metric.all_labels}
            named = ",".join(f'{label}="{value}"' for label, value in labels.items())
            value = 1 if metric.kind is Kind.GAUGE else grown
            parts = [("", "", value)]
            if metric.kind is Kind.HISTOGRAM:
                bounds = ("1.0", "10.0", "+Inf")
                parts = [("_bucket", f'le="{bound}"', grown) for bound in bounds] + [
                    ("_sum", "", grown),
                    ("_count", "", grown),
                ]
            for part, more, number in parts:
                of = ",".join(each for each in ('job="vllm-vitals",instance="vitals:9840"', named, more) if each)
                yield f"{metric.full_name}{part}{{{of}}} {number} {at}\n"


def about_the_daemon() -> Iterator[str]:
    """What the daemon says of itself."""
    info = render.join([render.render_samples([("build_info", {"version": "0.1.0", "python": "3.11"}, 1.0)])])
    process = b"process_resident_memory_bytes 9e7\nprocess_cpu_seconds_total %d\n"
    for at in range(history.END - history.SPAN, history.END + 1, history.STEP):
        yield from history.stamped(
            info + process % (at - history.END + 240), at, 'job="vllm-vitals",instance="vitals:9840"'
        )


def of_neighbours() -> Iterator[str]:
    """What DCGM's exporter and kube-state-metrics say of two servers: one by its host, one by its pod."""
    pod = 'namespace="llm",pod="truncation_mix"'
    by_pod = 'Hostname="node-7",gpu="1",exported_pod="truncation_mix"'
    gpus = ('Hostname="spiral_chunked.example.internal",gpu="0"', by_pod)
    of_gpus = sorted(name for name in BESIDE if name.startswith("DCGM_"))
    of_pods = {
        "kube_pod_info": 'pod_ip="10.0.0.9",node="node-7",host_network="false"',
        "kube_pod_status_ready": 'condition="true"',
        "kube_pod_container_status_restarts_total": 'container="vllm"',
        "kube_pod_container_status_last_terminated_reason": 'container="vllm",reason="OOMKilled"',
        "kube_pod_container_status_waiting_reason": 'container="vllm",reason="CrashLoopBackOff"',
    }  # fmt: skip
    assert {*of_gpus, *of_pods} == BESIDE
    for at in range(history.END - history.SPAN, history.END + 1, history.STEP):
        for name in of_gpus:
            yield from (f"{name}{{{gpu}}} 50 {at}\n" for gpu in gpus)
        yield from (f"{name}{{{pod},{labels}}} 1 {at}\n" for name, labels in of_pods.items())


def of_rules() -> Iterator[str]:
    """What recording rules say that read other records: a promise that is broken, and a cap."""
    model = 'model_name="spiral_chunked"'
    said = {slo.GOOD: 4.5, slo.TOTAL: 5.0} | {
        slo.burn(window): 10.0 for _, *pair, _, _ in slo.WINDOWS for window in pair
    }
    for at in range(history.END - history.SPAN, history.END + 1, history.STEP):
        for record, value in said.items():
            yield f'{record}{{{model},slo="quick"}} {value} {at}\n'
        yield f'{concurrency.CAP}{{{model},target="spiral_chunked:8000",engine="0"}} 5 {at}\n'


def alerts() -> Iterator[str]:
    """What Prometheus writes while an alert fires."""
    victim = 'model_name="spiral_chunked",target="spiral_chunked:8000",engine="0"'
    labels = f'alertname="VLLMDeathSpiral",severity="page",{victim}'
    for at in range(history.END - 60, history.END + 1, history.STEP):
        yield f'ALERTS{{{labels},alertstate="firing"}} 1 {at}\n'
        yield f"ALERTS_FOR_STATE{{{labels}}} {history.END - 60} {at}\n"
