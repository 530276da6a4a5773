"""From telemetry to a what-if: which engine, which settings, which step time.

Input: `Telemetry`, or a recording. Output: what `whatif.whatif` needs. Invariant: a setting that is not known is named
as assumed, with the value taken; what the observations may decide is left open, and the what-if tries other values.
"""

import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from vllm_vitals.planner.review.load import in_flight
from vllm_vitals.planner.telemetry.telemetry import EngineId, EngineSeries, Telemetry, known, mean
from vllm_vitals.planner.whatif.calibrate import Case
from vllm_vitals.planner.whatif.workload_slice import Focus, SituationError, intervals, situation
from vllm_vitals.recordings.recording import RecordingError
from vllm_vitals.simulator import fit
from vllm_vitals.simulator.settings import ServerSettings, SettingsError

_BATCHES = (2048, 512, 8192)  # vLLM's own default depends on the model and the device
_DEFAULT_BLOCK = 16
_FULL = 0.95  # mean KV usage of a window from which the cache was full in it
_LOST, _LOST_CACHED = 0.45, 0.3  # share of its context that a victim computes again, as measured in loops
_RESERVES_SINCE = (0, 19)  # scheduler_reserve_full_isl, on by default; before it only the first chunk had to fit
_ON = frozenset({"true", "1", "yes", "on"})


@dataclass(frozen=True, slots=True)
class Server:
    """Settings to simulate with, and which of them were assumed. ``open``: values to try of those not known."""

    settings: ServerSettings
    assumed: tuple[str, ...]
    open: Mapping[str, tuple[object, ...]]


def busiest(engines: Mapping[EngineId, EngineSeries]) -> tuple[EngineId, EngineSeries]:
    """Return the engine with most in flight: what helps it helps the others."""
    found = max(engines.items(), key=lambda item: sum(known(in_flight(item[1]) or ())), default=None)
    if found is None:
        raise SituationError("there is no engine")
    return found


def settings_of(telemetry: Telemetry, engine: EngineId, told: Mapping[str, str]) -> dict[str, str]:
    """Return what the metrics say, overridden by what a person set."""
    found = {s.name: s.value for s in sorted(telemetry.settings, key=lambda s: s.at) if s.target == engine.target}
    return {**found, **told}


def server(series: EngineSeries, told: Mapping[str, str]) -> Server:
    """`ServerSettings` from texts. Raises `SituationError` where the cache's size is not known."""
    assumed: list[str] = []
    capacity = next(iter(known(reversed(series.slow.get("kv_cache_capacity_tokens") or ()))), None)
    capacity = _number(told, "kv_cache_capacity_tokens") or capacity
    if capacity is None:
        raise SituationError("the KV capacity is not known: give it with --set kv_cache_capacity_tokens=N")

    def number(name: str, otherwise: float, why: str = "") -> float:
        value = _number(told, name)
        if value is None:
            assumed.append(f"{name}={otherwise:.15g}{why and f' ({why})'}")
        return otherwise if value is None else value

    most = max(known(series.gauge("requests_running_max") or ()), default=1.0)
    seqs = number("max_num_seqs", most, "the most that ever ran")
    batch = _number(told, "max_num_batched_tokens")
    block = int(number("block_size", _DEFAULT_BLOCK))
    blocks = max(2, round(capacity / block))
    usable = (blocks - 1) * block
    length = int(min(number("max_model_len", usable, "as much as the cache holds"), usable))
    caching = _flag(told, "enable_prefix_caching")
    if caching is None:
        caching = _looked_up(series)
        assumed.append(f"enable_prefix_caching={str(caching).lower()} ({'' if caching else 'no '}look-ups are counted)")
    watermark = number("watermark", 0.0)
    reserve = _flag(told, "scheduler_reserve_full_isl")
    unheard_of = reserve is None and _before(told.get("version", ""), _RESERVES_SINCE)
    if unheard_of:
        assumed.append(f"scheduler_reserve_full_isl=false (vLLM {told['version']} does not have it)")
    tried = {
        "scheduler_reserve_full_isl": (True, False) if reserve is None and not unheard_of else (),
        "max_num_batched_tokens": _BATCHES if batch is None else (),
    }
    try:
        return Server(
            ServerSettings(
                block_size=block,
                num_gpu_blocks=blocks,
                max_num_seqs=int(seqs),
                max_num_batched_tokens=int(batch or max(_BATCHES[0], seqs)),
                max_model_len=length,
                enable_prefix_caching=caching,
                scheduler_reserve_full_isl=not unheard_of if reserve is None else reserve,
                watermark=watermark,
            ),
            tuple(assumed),
            {name: values for name, values in tried.items() if values},
        )
    except SettingsError as error:
        raise SituationError(str(error)) from None


def _before(version: str, release: tuple[int, int]) -> bool:
    """Return whether a version is known and older than a release."""
    match = re.match(r"v?(\d+)\.(\d+)", version)
    return match is not None and (int(match[1]), int(match[2])) < release


def _looked_up(series: EngineSeries) -> bool:
    return any(value > 0 for value in known(series.counter("prefix_cache_queries_total") or ()))


def _number(told: Mapping[str, str], name: str) -> float | None:
    try:
        return float(told[name])
    except (KeyError, ValueError):
        return None


def _flag(told: Mapping[str, str], name: str) -> bool | None:
    return told[name].strip().lower() in _ON if name in told else None


def _to_the_break(seen: Iterator[fit.Observation]) -> Iterator[fit.Observation]:
    """Yield what can be read of a recording; that it breaks off was reported when its telemetry was read."""
    with suppress(RecordingError):
        yield from seen


def case(
    telemetry: Telemetry,
    engines: Mapping[EngineId, EngineSeries],
    told: Mapping[str, str],
    focus: Focus,
    between: tuple[float, float] | None = None,
    recording: Path | None = None,
) -> Case:
    """Return the busiest engine, ready to be simulated. A ``recording`` is fitted scrape by scrape, up to its first
    preemption; else the windows without preemption are. Raises `SituationError`.
    """
    engine, series = busiest(engines)
    known_server = server(series, settings_of(telemetry, engine, told))
    here = situation(series, telemetry.grid, focus, between)
    if recording is not None:
        seen = list(_to_the_break(fit.observations(recording, engine.engine)))
        lost = _LOST_CACHED if known_server.settings.enable_prefix_caching else _LOST
        observed = [*fit.intervals(seen), *fit.loaded(seen, lost)]
    else:
        observed = intervals(series, telemetry.grid, known_server.settings.capacity_tokens)
    try:
        time = fit.fit(observed)
    except fit.FitError as error:
        raise SituationError(str(error)) from None
    return Case(
        str(engine), here, time, known_server.settings, known_server.assumed, known_server.open, len(engines),
        _fits(series, here.windows),
    )  # fmt: skip


def _fits(series: EngineSeries, windows: range) -> float | None:
    """Return how many ran on average while the cache was full: what our advice of fewer requests starts from."""
    running, usage = series.gauge("requests_running"), series.gauge("kv_cache_usage_max_ratio")
    usage = usage if usage is not None else series.gauge("kv_cache_usage_ratio")
    if running is None or usage is None:
        return None
    return mean(running[w] for w in windows if usage[w] >= _FULL)
