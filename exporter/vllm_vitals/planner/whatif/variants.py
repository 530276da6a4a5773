"""Every knob that a what-if turns, one at a time, as data.

Input: the server and the load as they are. Output: `Variant`s. Invariant: each differs from what is in one thing, and
what vLLM would refuse to start with is left out.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from math import floor, sqrt
from typing import Any

from vllm_vitals.planner.whatif.simulate_run import Gateway
from vllm_vitals.simulator.settings import ServerSettings, SettingsError
from vllm_vitals.simulator.workload import Load


@dataclass(frozen=True, slots=True)
class Variant:
    """One thing changed. ``servers``: how many like the simulated one there are then, for each that there is.

    ``value`` is what a person would set the knob to; empty where it is no setting.
    """

    knob: str
    setting: str
    settings: ServerSettings
    load: Load
    engines: int = 1
    gateway: Gateway = field(default_factory=Gateway)
    servers: float = 1.0
    ours: bool = False  # what check or the review advises
    value: str = ""


def variants(base: Variant) -> Iterator[Variant]:
    """Yield every knob, one at a time; what vLLM would refuse to start with is left out."""
    for knob, setting, make in _server_knobs(base.settings):
        try:
            settings = make()
        except SettingsError:
            continue
        new = getattr(settings, knob, None)
        value = "" if new is None else f"{new:g}" if isinstance(new, float) else str(new).lower()
        yield replace(base, knob=knob, setting=setting, settings=settings, value=value)
    yield from _caps(base)
    yield from _gateways(base)


def _server_knobs(now: ServerSettings) -> Iterator[tuple[str, str, Callable[[], ServerSettings]]]:
    for share in (0.5, 0.75, 1.25, 2.0):
        seqs = max(1, floor(now.max_num_seqs * share))
        if seqs != now.max_num_seqs:
            yield "max_num_seqs", f"{now.max_num_seqs} → {seqs}", lambda seqs=seqs: replace(now, max_num_seqs=seqs)  # type: ignore[misc]
    for share in (0.5, 2.0, 4.0):
        budget = int(now.max_num_batched_tokens * share)
        price = ", cache unchanged" if share > 1 else ""  # larger steps take memory from it; how much is not modelled
        yield (
            "max_num_batched_tokens", f"{now.max_num_batched_tokens} → {budget}{price}",
            lambda budget=budget: replace(now, max_num_batched_tokens=budget),  # type: ignore[misc]
        )  # fmt: skip
    for share in (0.75, 1.25, 2.0):
        blocks = int(now.num_gpu_blocks * share)
        yield (
            "KV capacity", f"{now.capacity_tokens:,} → {blocks * now.block_size:,} tokens",
            lambda blocks=blocks: replace(now, num_gpu_blocks=blocks),  # type: ignore[misc]
        )  # fmt: skip
    reserve = not now.scheduler_reserve_full_isl
    words = "off → on" if reserve else "on → off"
    yield "scheduler_reserve_full_isl", words, lambda: replace(now, scheduler_reserve_full_isl=reserve)
    if not now.kv_offload:
        yield "KV offload to host memory", "off → on", lambda: replace(now, kv_offload=True)
    for watermark in (0.01, 0.05):
        if watermark != now.watermark:
            yield "watermark", f"{now.watermark:g} → {watermark:g}", lambda w=watermark: replace(now, watermark=w)  # type: ignore[misc]


def _caps(base: Variant) -> Iterator[Variant]:
    """max_tokens by the rules; outputs are known only as they were cut, so a higher cap than now cannot be tried."""
    mean = base.load.output.mean
    for times in (1.5, 2.0):
        cap = max(1, round(times * mean))
        yield replace(
            base, knob="max_tokens", setting=f"{cap} ({times:g} x the mean)", load=replace(base.load, max_tokens=cap)
        )


def _gateways(base: Variant) -> Iterator[Variant]:
    load = base.load
    double = replace(load, rate=2 * load.rate, clients=2 * load.clients)
    # Of a log-normal, half of all tokens come from prompts above mean x sqrt(1 + CV^2): each side gets half the work.
    split = load.prompt.mean * sqrt(1 + load.prompt.cv**2) if load.prompt.cv >= 0.3 else None
    if split is not None:
        yield Variant("two engines", "mixed", base.settings, double, 2)
        yield Variant(
            "routing by length",
            f"prompts from {split:.0f} tokens apart",
            base.settings,
            double,
            2,
            Gateway(split_at=split + load.system_tokens),
        )
    for setting, gateway in (
        ("oracle", Gateway(predict=True)),
        ("off by 30 %", Gateway(predict=True, noise=0.3)),
        ("30 % too short", Gateway(predict=True, noise=0.3, bias=0.7)),
        ("short, medium or long", Gateway(predict=True, noise=0.3, classes=4.0)),
        ("20 % too long", Gateway(predict=True, noise=0.3, bias=1.2)),
    ):
        yield replace(base, knob="length predictor at the gateway", setting=setting, gateway=gateway)


def asked(base: Variant, name: str, text: str) -> Variant:
    """Return one setting at a value that a person chose. Raises `SettingsError` where vLLM would not start so."""
    return replace(_asked(base, name, text), value=text)


def _asked(base: Variant, name: str, text: str) -> Variant:
    now = base.settings
    if name == "gateway_concurrency":
        return replace(base, knob=name, setting=f"{text} inside an engine", gateway=Gateway(limit=float(text)))
    if name == "max_tokens":
        return replace(base, knob=name, setting=text, load=replace(base.load, max_tokens=int(text)))
    if name == "kv_cache_capacity_tokens":
        blocks = max(2, round(float(text) / now.block_size))
        changed = replace(now, num_gpu_blocks=blocks)
        return replace(
            base, knob="KV capacity", setting=f"{now.capacity_tokens:,} → {int(text):,} tokens", settings=changed
        )
    if name in ("max_num_batched_tokens", "max_num_scheduled_tokens"):  # the scheduler's budget is the smaller one
        setting = f"{now.max_num_batched_tokens} → {text}, cache unchanged"
        return replace(base, knob=name, setting=setting, settings=replace(now, max_num_batched_tokens=int(text)))
    old = getattr(now, name)
    value = text.lower() in ("true", "1", "yes", "on") if isinstance(old, bool) else type(old)(float(text))
    changes: dict[str, Any] = {name: value}
    return replace(base, knob=name, setting=f"{_plain(old)} → {_plain(value)}", settings=replace(now, **changes))


def _plain(value: object) -> str:
    return (
        ("on" if value else "off")
        if isinstance(value, bool)
        else f"{value:g}"
        if isinstance(value, float)
        else str(value)
    )


def fleet(base: Variant, present: int, engines: int | None, more: float) -> Iterator[Variant]:
    """Yield other numbers of engines, other traffic (a factor), and both; ``present`` is how many there are."""
    both = [(engines, 1.0), (present, more), (engines, more)] if engines else [(present, more)]
    for count, traffic in dict.fromkeys(both):
        if not count or (count, traffic) == (present, 1.0):
            continue
        share = traffic * present / count
        clients = max(1, round(base.load.clients * share)) if base.load.clients else 0
        words = f"{present} → {count}" if count != present else ""
        if traffic != 1:
            words = f"{words}{', traffic ' if words else ''}{traffic - 1:+.0%}".replace("%", " %")
        yield replace(
            base, knob="engines" if count != present else "traffic", setting=words, servers=count / present,
            load=replace(base.load, rate=base.load.rate * share, clients=clients),
        )  # fmt: skip
