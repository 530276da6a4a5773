"""The text that the simulated ``GET /metrics`` answers.

Input: the engines' statistics. Output: Prometheus text as prometheus_client writes it for vLLM. Lines' heads are made
once, so that a scrape only formats numbers. Invariant: with several API servers (multiprocess mode) there is no
``_created`` and no process metric; in 0.11 the gauges then carry ``pid``, and only one process's are current.
"""

from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate

from prometheus_client import utils

from vllm_vitals.simulator.exposed_families import Dialect, Row, families
from vllm_vitals.simulator.settings import ServerSettings
from vllm_vitals.simulator.stats import EngineStats
from vllm_vitals.vllm import cache_config
from vllm_vitals.vllm.cache_config import CACHE_CONFIG
from vllm_vitals.vllm.families import PROCESS_START
from vllm_vitals.vllm.lookup import PREFIX

_Numbers = Callable[[EngineStats], Iterable[float]]

_number: Callable[[float], str] = utils.floatToGoString

_PROCESS = (
    ("process_virtual_memory_bytes", "gauge", "Virtual memory size in bytes.", 2.1e9),
    ("process_resident_memory_bytes", "gauge", "Resident memory size in bytes.", 7.1e8),
    ("process_open_fds", "gauge", "Number of open file descriptors.", 76.0),
    ("process_max_fds", "gauge", "Maximum number of open file descriptors.", 65536.0),
)


class Exposition:
    """Writes one server's metrics; ``started_at`` is epoch seconds, what ``_created`` and the process start say."""

    def __init__(
        self, settings: ServerSettings, engines: int, dialect: Dialect, started_at: float, api_servers: int = 1
    ) -> None:
        self._settings = settings
        self._dialect = dialect
        self._engines = engines
        self._multiprocess = api_servers > 1
        self._pids = tuple(range(101, 101 + api_servers)) if self._multiprocess and dialect is Dialect.V0_11 else ()
        self._started_at = started_at
        self._created = dialect is not Dialect.V0 and not self._multiprocess
        self._parts = [
            (
                _header(family.name, family.kind, family.help),
                self._series(family),
                self._created_text(family),
                self._multiprocess and family.set_by_steps,
            )
            for family in families(dialect, settings.num_speculative_tokens)
        ]
        self._tail = self._cache_config_info()
        self._process = "" if self._multiprocess else self._process_text()

    def render(self, stats: Sequence[EngineStats], cpu_seconds: float = 0.0, http: str = "") -> str:
        """Return the whole body for the engines' `stats`, in rank order; ``http`` is the API server's own part."""
        out: list[str] = []
        if self._process:
            out += (self._process, f"process_cpu_seconds_total {_number(cpu_seconds)}\n")
        for header, series, created, set_by_steps in self._parts:
            out.append(header)
            for engine, (heads, numbers) in enumerate(series):
                if set_by_steps and not stats[engine].steps:
                    continue  # a multiprocess gauge does not exist before it is first set
                values = numbers(stats[engine])
                out += [f"{head}{_number(value)}\n" for head, value in zip(heads, values, strict=True)]
            out.append(created)
        out.append(self._tail)
        out.append(http)
        return "".join(out)

    # ------------------------------------------------------------------ made once

    def _series(self, family: Row) -> list[tuple[list[str], _Numbers]]:
        if family.kind == "histogram":
            return [self._histogram_series(family, rank) for rank in range(self._engines)]
        ranks = range(self._engines if family.per_engine else 1)
        return [self._plain_series(family, rank) for rank in ranks]

    def _plain_series(self, family: Row, rank: int) -> tuple[list[str], _Numbers]:
        common = self._common(rank, family.per_engine)
        if family.kind == "gauge" and self._pids:
            idle = (0.0,) * len(family.labels) * (len(self._pids) - 1)
            heads = [
                f"{family.name}{_braces({**common, **own, 'pid': str(pid)})} "
                for pid in self._pids
                for own in family.labels
            ]
            return heads, lambda stats: (*family.values(stats), *idle)
        return [f"{family.name}{_braces(common | dict(own))} " for own in family.labels], family.values

    def _histogram_series(self, family: Row, rank: int) -> tuple[list[str], _Numbers]:
        common = self._common(rank)
        bounds = EngineStats(self._settings.max_model_len).histograms[family.field].bounds
        edges = [_number(bound) for bound in (*bounds, float("inf"))]
        heads = [f"{family.name}_bucket{_braces({**common, 'le': edge})} " for edge in edges]
        heads += [f"{family.name}_count{_braces(common)} ", f"{family.name}_sum{_braces(common)} "]

        def numbers(stats: EngineStats) -> Iterable[float]:
            histogram = stats.histograms[family.field]
            cumulative = list(accumulate(histogram.counts))
            return (*cumulative, cumulative[-1], histogram.sum)

        return heads, numbers

    def _created_text(self, family: Row) -> str:
        if not self._created or family.kind == "gauge":
            return ""
        base = family.name.removesuffix("_total") if family.kind == "counter" else family.name
        stamp = _number(self._started_at)
        ranks = range(self._engines if family.per_engine else 1)
        lines = [
            f"{base}_created{_braces(self._common(rank, family.per_engine) | dict(own))} {stamp}\n"
            for rank in ranks
            for own in family.labels
        ]
        return _header(f"{base}_created", "gauge", family.help) + "".join(lines)

    def _common(self, rank: int, per_engine: bool = True) -> dict[str, str]:
        labels = {"model_name": self._settings.model_name}
        return {"engine": str(rank), **labels} if per_engine and self._dialect is not Dialect.V0 else labels

    def _cache_config_info(self) -> str:
        header = _header(PREFIX + CACHE_CONFIG, "gauge", "Information of the LLMEngine CacheConfig")
        ranks = (None,) if self._dialect is Dialect.V0 else range(self._engines)
        lines = [f"{PREFIX}{CACHE_CONFIG}{_braces(self._cache_labels(rank))} 1.0\n" for rank in ranks]
        return header + "".join(lines)

    def _cache_labels(self, rank: int | None) -> dict[str, str]:
        settings = self._settings
        labels = {
            cache_config.BLOCK_SIZE: str(settings.block_size),
            "cache_dtype": "auto",
            cache_config.PREFIX_CACHING: str(settings.enable_prefix_caching),
            "gpu_memory_utilization": "0.9",
            "num_cpu_blocks": "None",
            # One API server that manages several engines sums their blocks (vllm/v1/engine/core_client.py).
            cache_config.NUM_GPU_BLOCKS: str(settings.num_gpu_blocks * self._engines),
            "num_gpu_blocks_override": "None",
            "sliding_window": "None",
        }
        if rank is not None:
            labels["engine"] = str(rank)
        if self._dialect is Dialect.V0_32:
            windows = settings.capacity_tokens / settings.max_model_len
            labels |= {
                "_block_size_resolved": "True", "cache_hit_alignment_tokens": "None",
                "effective_attention_block_size": str(settings.block_size), "hash_block_size": "None",
                "enable_mamba_shared_prefix_checkpoint": "False", "is_attention_free": "False",
                "kv_cache_dtype_skip_layers": "[]", "kv_cache_layout": "None",
                cache_config.CAPACITY_WINDOWS: str(windows), "kv_cache_memory_bytes": "None",
                cache_config.CAPACITY_TOKENS: str(settings.capacity_tokens), "kv_offloading_backend": "native",
                cache_config.OFFLOADING_SIZE: "8.0" if settings.kv_offload else "None",
                "kv_sharing_fast_prefill": "False", "mamba_block_size": "None",
                "mamba_cache_dtype": "auto", "mamba_cache_mode": "none", "mamba_page_size_padded": "None",
                "mamba_ssm_cache_dtype": "float32", "prefix_cache_retention_interval": "0",
                "prefix_caching_hash_algo": "sha256", "prefix_match_unit": "None", "replayssm_buffer_len": "16",
                "skip_page_size_padded": "None", "swa_bounded_replay": "True", "use_kda_recoverssm": "False",
                "use_replayssm": "False", "user_specified_block_size": "False",
            }  # fmt: skip
        return labels

    def _process_text(self) -> str:
        lines = [_header(name, kind, text) + f"{name} {_number(value)}\n" for name, kind, text, value in _PROCESS]
        start = _number(self._started_at)
        lines.append(
            _header(PROCESS_START.names[0].text, "gauge", "Start time of the process since unix epoch in seconds.")
            + f"{PROCESS_START.names[0].text} {start}\n"
            + _header("process_cpu_seconds_total", "counter", "Total user and system CPU time spent in seconds.")
        )
        return "".join(lines)


def _header(name: str, kind: str, text: str) -> str:
    return f"# HELP {name} {text}\n# TYPE {name} {kind}\n"


def _braces(labels: dict[str, str]) -> str:
    escaped = {name: value.replace("\\", "\\\\").replace('"', '\\"') for name, value in labels.items()}
    return "{" + ",".join(f'{name}="{escaped[name]}"' for name in sorted(escaped)) + "}"
