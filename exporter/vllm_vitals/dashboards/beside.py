"""What others know of an engine's GPUs and pod: DCGM's exporter and kube-state-metrics, in closed rows.

Input: hidden variables, which find the engine's host and pod. Output: closed rows and those variables. Invariant: a row
says in its title how many there are, so that nobody opens one for nothing: Grafana's classic dashboards cannot leave
out a row (a row that repeats over a variable without values is drawn once all the same).
"""

from vllm_vitals.catalog import BY_NAME
from vllm_vitals.dashboards import panels
from vllm_vitals.dashboards.panels import Column, Panel
from vllm_vitals.dashboards.promql import MOST, RATE_RANGE
from vllm_vitals.dashboards.query import Query
from vllm_vitals.dashboards.theme import Hidden, Row

GPU = "Hostname, gpu"
POD = "namespace, pod"
_SERVER = f'max by (target) ({BY_NAME["target_up"].full_name}{{target=~"$target"}})'
# An address whole; of a name its first part, since DCGM says either that or all of it; of namespace/pod:port the pod.
_PARTS = ("([^:]+).*", "([A-Za-z][^.:/]*)([.:].*)?", ".+/([^:/]+)(:.*)?")
# A pod by its address, which only those have that do not share their node's, or by its name.
_PODS = (
    'kube_pod_info{host_network!="true", pod_ip=~"$host", pod_ip!=""} or kube_pod_info{pod=~"$host", pod!=""}'
)  # fmt: skip
_NO_GPU = "No GPU of this server's host or pod is known: DCGM's exporter is not scraped here, or names another host."
_NO_POD = "No pod of this server is known: kube-state-metrics is not scraped here, or the server runs outside."


def hidden() -> tuple[Hidden, ...]:
    """Return the variables, each after those that it reads."""
    host = _SERVER
    for part in _PARTS:
        host = f'label_replace({host}, "host", "$1", "target", "{part}")'
    return (
        Hidden("host", host, '/host="([^"]+)"/', several=True),
        Hidden("pod", f"max by (pod) ({_PODS})", '/pod="([^"]+)"/', several=True),
        Hidden("gpus", f"count({_each('DCGM_FI_DEV_FB_USED')}) or vector(0)", "/ ([0-9]+) /"),
        Hidden("pods", f"count(max by ({POD}) ({_PODS})) or vector(0)", "/ ([0-9]+) /"),
    )


def rows() -> tuple[Row, ...]:
    """Return both."""
    return (
        Row("Details · GPUs of this server: $gpus (DCGM)", _gpus(), closed=True),
        Row("Details · Pods of this server: $pods (kube-state-metrics)", _pod(), closed=True),
    )


def _selected(name: str, window: str = "") -> str:
    """Return a series of DCGM's, of the host or of the pod; Prometheus may have renamed the exporter's own label."""
    chosen = (
        'Hostname=~"($host)([.].*)?", Hostname!=""',
        'pod=~"$pod", pod!=""',
        'exported_pod=~"$pod", exported_pod!=""',
    )
    each = (f"{name}{{{matchers}}}{window}" for matchers in chosen)
    if window:
        return " or ".join(f"max_over_time({one})" for one in each)
    return " or ".join(each)


def _each(name: str) -> str:
    return f"max by ({GPU}) ({_selected(name)})"


def _gpu(title: str, why: str, name: str, unit: str, factor: str = "", high: float | None = None) -> Panel:
    rank = f"max by ({GPU}) ({_selected(name, '[$__range] @ end()')})"
    expr = f"{_each(name)}{factor} and on ({GPU}) topk({MOST}, {rank})"
    return panels.timeseries(
        title, why, [Query(expr, "{{Hostname}} GPU {{gpu}}")], unit, _NO_GPU, width=6, high=high
    )  # fmt: skip


def _gpus() -> tuple[Panel, ...]:
    used, free = _each("DCGM_FI_DEV_FB_USED"), _each("DCGM_FI_DEV_FB_FREE")
    return (
        _gpu(
            "GPU busy",
            "Share of time in which some kernel ran. Near 100 % says nothing of how well: an engine in a death spiral "
            "is as busy as a healthy one. Near 0 with requests inside is a hang.",
            "DCGM_FI_DEV_GPU_UTIL", "percentunit", " / 100", 1,
        ),
        _gpu(
            "Tensor cores at work",
            "Share of cycles in which the tensor cores did something. High in prefill, low in decode; low in both is "
            "a batch that is too small, or a GPU that waits for its neighbours.",
            "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE", "percentunit", "", 1,
        ),
        _gpu(
            "Memory interface at work",
            "Share of cycles in which GPU memory was read or written. Near its ceiling, decode cannot be faster at "
            "this batch.",
            "DCGM_FI_PROF_DRAM_ACTIVE", "percentunit", "", 1,
        ),
        panels.timeseries(
            "GPU memory used",
            "vLLM takes gpu_memory_utilization of it at its start and keeps that, so this line is flat: how full the "
            "KV cache is stands above. A step is another process on the GPU.",
            [Query(f"{used} / ({used} + {free})", "{{Hostname}} GPU {{gpu}}")],
            "percentunit", _NO_GPU, width=6, high=1,
        ),
        _gpu(
            "GPU power",
            "Draw of each GPU. At its limit the clock falls. One GPU well below the others of its server is idle or "
            "waits for them.",
            "DCGM_FI_DEV_POWER_USAGE", "watt",
        ),
        _gpu(
            "GPU temperature",
            "Of each GPU. Where it stays near the limit of the model, the clock falls and every step takes longer.",
            "DCGM_FI_DEV_GPU_TEMP", "celsius",
        ),
        _gpu(
            "Clock of the multiprocessors",
            "A fall under load is throttling, by power or heat: every request of this engine slows down, and no knob "
            "of vLLM helps.",
            "DCGM_FI_DEV_SM_CLOCK", "hertz", " * 1e6",
        ),
        _gpu(
            "Last XID error",
            "The number of the driver's last error, 0 for none. 79: the GPU fell off the bus; 48, 94, 95: memory; 31, "
            "43: usually the program. Drain the node for the first two.",
            "DCGM_FI_DEV_XID_ERRORS", "none",
        ),
    )  # fmt: skip


def _of_pod(name: str, *matchers: str, keep: str = "") -> str:
    of = ", ".join(('pod=~"$pod"', 'pod!=""', *matchers))
    return f"max by ({POD}{keep and f', {keep}'}) ({name}{{{of}}})"


def _pod() -> tuple[Panel, ...]:
    restarts = f'kube_pod_container_status_restarts_total{{pod=~"$pod", pod!=""}}[{RATE_RANGE}]'
    ended = f"{_of_pod('kube_pod_container_status_last_terminated_reason', keep='container, reason')} == 1"
    waits = f"{_of_pod('kube_pod_container_status_waiting_reason', keep='container, reason')} == 1"
    return (
        panels.timeseries(
            "Pod ready",
            "1 where the pod gets traffic. vLLM's own probe answers while an engine is stalled, so 1 says little; 0 "
            "explains an engine without requests.",
            [Query(_of_pod("kube_pod_status_ready", 'condition="true"'), "{{pod}}")],
            "none", _NO_POD, high=1,
        ),
        panels.timeseries(
            "Containers restarted",
            "How many in each step. A restart loses every request inside, and a model takes minutes to load: see why "
            "the last one ended, beside.",
            [Query(f"sum by ({POD}) (max by ({POD}, container) (increase({restarts})))", "{{pod}}")],
            "short", _NO_POD,
        ),
        panels.table(
            "Why containers ended or wait",
            "OOMKilled: the host's memory, not the GPU's. Error: see the log before the restart. CrashLoopBackOff and "
            "ImagePullBackOff wait for a person.",
            [f"{ended} or {waits}"],
            [Column("pod", "Pod"), Column("container", "Container"), Column("reason", "Reason", width=150)],
            "No container has ended or waits, or kube-state-metrics is not scraped here.",
            width=8, sort="Pod",
        ),
    )  # fmt: skip
