"""Every knob that a what-if turns, one at a time, as data.

Input: the server and the load as they are. Output: `Variant`s. Invariant: each differs from what is in one thing, and
what vLLM would refuse to start with is left out.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from math import floor, sqrt

from vllm_vitals.planner.whatif.simulate_run import Gateway
from vllm_vitals.simulator.settings import ServerSettings, SettingsError
from vllm_vitals.simulator.workload import Load


@dataclass(frozen=True, slots=True)
class Variant:
    """One thing changed."""

    knob: str
    setting: str
    settings: ServerSettings
    load: Load
    engines: int = 1
    gateway: Gateway = field(default_factory=Gateway)


def variants(base: Variant) -> Iterator[Variant]:
    """Yield every knob, one at a time; what vLLM would refuse to start with is left out."""
    for knob, setting, make in _server_knobs(base.settings):
        try:
            yield replace(base, knob=knob, setting=setting, settings=make())
        except SettingsError:
            continue
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
