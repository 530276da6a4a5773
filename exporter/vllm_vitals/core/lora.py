"""Which LoRA adapters run and which wait, from a gauge that holds their names in its labels.

In: the block of ``lora_requests_info`` as it stands in the body. Out: `Lora`. vLLM (v1/metrics/loggers.py) makes a
series of every combination of adapters, sets it to the time of the update and never removes one, so the greatest value
is the newest; where several API servers share their metrics the times are added up, and nothing can be told. The block
is read by itself because it grows without end. Invariant: no more than `MAX_ADAPTERS` names of each kind are kept.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from vllm_vitals.core.sample_line import SAMPLE, read

MAX_ADAPTERS = 32
_LATEST = 3e9  # epoch seconds that no clock shows: a sum of several


@dataclass(frozen=True, slots=True)
class Lora:
    """The adapters of a server's running and waiting requests: how many, and the names of the first of them.

    ``slots`` is how many may be in one batch, None where the server does not say.
    """

    running: int
    waiting: int
    running_names: tuple[str, ...] = ()
    waiting_names: tuple[str, ...] = ()
    slots: float | None = None


def newest(block: bytes) -> Lora | None:
    """Read the newest series of the block, None where none can be told to be."""
    best, chosen = 0.0, b""
    for line in block.split(b"\n"):
        try:
            at = float(line.rpartition(b" ")[2]) if b"{" in line else 0.0
        except ValueError:
            continue
        if at > best:
            best, chosen = at, line
    sample = SAMPLE.match(text := chosen.decode(errors="replace"))
    if sample is None or best >= _LATEST:
        return None
    try:
        return _lora(read(text, sample)[0])
    except ValueError:
        return None


def _lora(labels: Mapping[str, str]) -> Lora:
    running, waiting = _names(labels, "running_lora_adapters"), _names(labels, "waiting_lora_adapters")
    slots = labels.get("max_lora", "")
    return Lora(
        len(running),
        len(waiting),
        running[:MAX_ADAPTERS],
        waiting[:MAX_ADAPTERS],
        float(slots) if slots.isascii() and slots.isdigit() and len(slots) < 9 else None,
    )


def _names(labels: Mapping[str, str], label: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name[:64] for name in labels.get(label, "").split(",") if name))
