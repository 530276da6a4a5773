"""From telemetry to a what-if: which engine, which settings, which step time.

Input: `Telemetry`, or a recording. Output: what `whatif.whatif` needs. Invariant: a setting that nobody told is named
as assumed, with the value taken.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from exporter.review.load import in_flight
from exporter.review.situation import Focus, SituationError, intervals, situation
from exporter.review.telemetry import EngineId, EngineSeries, Telemetry, known
from exporter.review.whatif import Case
from exporter.simulator import fit
from exporter.simulator.settings import ServerSettings, SettingsError

_DEFAULT_BATCH = 2048  # vLLM's own default depends on the model and the device
_ON = frozenset({"true", "1", "yes", "on"})


@dataclass(frozen=True, slots=True)
class Server:
    """Settings to simulate with, and which of them were assumed."""

    settings: ServerSettings
    assumed: tuple[str, ...]


def busiest(engines: Mapping[EngineId, EngineSeries]) -> tuple[EngineId, EngineSeries]:
    """The engine with most in flight: what helps it helps the others."""
    found = max(engines.items(), key=lambda item: sum(known(in_flight(item[1]) or ())), default=None)
    if found is None:
        raise SituationError("there is no engine")
    return found


def settings_of(telemetry: Telemetry, engine: EngineId, told: Mapping[str, str]) -> dict[str, str]:
    """What the metrics say, with what a person told on top."""
    found = {s.name: s.value for s in sorted(telemetry.settings, key=lambda s: s.at) if s.target == engine.target}
    return {**found, **told}


def server(series: EngineSeries, told: Mapping[str, str]) -> Server:
    """`ServerSettings` from texts. Raises `SituationError` where the cache's size is not known."""
    assumed: list[str] = []
    capacity = next(iter(known(reversed(series.slow.get("kv_cache_capacity_tokens") or ()))), None)
    capacity = _number(told, "kv_cache_capacity_tokens") or capacity
    block = int(_number(told, "block_size") or 16)
    if capacity is None:
        raise SituationError("the KV capacity is not known: give it with --set kv_cache_capacity_tokens=N")
    seqs = _number(told, "max_num_seqs")
    if seqs is None:
        seqs = max(known(series.gauge("requests_running_max") or ()), default=1.0)
        assumed.append(f"max_num_seqs={seqs:.0f} (the most that ever ran)")
    batch = _number(told, "max_num_batched_tokens")
    if batch is None:
        batch = max(_DEFAULT_BATCH, seqs)
        assumed.append(f"max_num_batched_tokens={batch:.0f}")
    blocks = max(2, round(capacity / block))
    usable = (blocks - 1) * block
    length = int(min(_number(told, "max_model_len") or usable, usable))
    try:
        return Server(
            ServerSettings(
                block_size=block,
                num_gpu_blocks=blocks,
                max_num_seqs=int(seqs),
                max_num_batched_tokens=int(batch),
                max_model_len=length,
                enable_prefix_caching=_flag(told, "enable_prefix_caching", _looked_up(series)),
                scheduler_reserve_full_isl=_flag(told, "scheduler_reserve_full_isl", True),
                watermark=_number(told, "watermark") or 0.0,
            ),
            tuple(assumed),
        )
    except SettingsError as error:
        raise SituationError(str(error)) from None


def _looked_up(series: EngineSeries) -> bool:
    return any(value > 0 for value in known(series.counter("prefix_cache_queries_total") or ()))


def _number(told: Mapping[str, str], name: str) -> float | None:
    try:
        return float(told[name])
    except (KeyError, ValueError):
        return None


def _flag(told: Mapping[str, str], name: str, otherwise: bool) -> bool:
    return told[name].strip().lower() in _ON if name in told else otherwise


def case(
    telemetry: Telemetry,
    engines: Mapping[EngineId, EngineSeries],
    told: Mapping[str, str],
    focus: Focus,
    between: tuple[float, float] | None = None,
    recording: Path | None = None,
) -> Case:
    """The busiest of ``engines``, ready to be simulated. A ``recording`` is fitted scrape by scrape, up to its first
    preemption; else the windows without preemption are. Raises `SituationError`.
    """
    engine, series = busiest(engines)
    known_server = server(series, settings_of(telemetry, engine, told))
    here = situation(series, telemetry.grid, focus, between)
    if recording is not None:
        observed = fit.intervals(fit.observations(recording, engine.engine))
    else:
        observed = intervals(series, telemetry.grid, known_server.settings.capacity_tokens)
    try:
        time = fit.fit(observed)
    except fit.FitError as error:
        raise SituationError(str(error)) from None
    return Case(str(engine), here, time, known_server.settings, known_server.assumed)
