"""One body of /metrics to one `TargetSample`, whatever release of vLLM wrote it.

In: bytes, and the `Layout` that the caller keeps between scrapes of one target. Out: a `TargetSample`, or
`ExpositionError`. The table itself is in `spellings`, how series add up in `fold_series`, who owns them in `layout`.
Invariant: the result does not depend on the layout, which only saves work; what no line changed is the same object as
in the last sample.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace

from vllm_vitals.core.exposition import Exposition, ExpositionError, learn, split
from vllm_vitals.core.fold_series import HISTOGRAM
from vllm_vitals.core.incremental import Blocks, apply_delta
from vllm_vitals.core.lora import Lora, newest
from vllm_vitals.core.sample import EngineSample, Identity, TargetSample
from vllm_vitals.core.series_index import Engine, FamilySlot, Layout, index_series
from vllm_vitals.vllm.families import FAMILIES
from vllm_vitals.vllm.lookup import ENGINE_STEMS, PREFIXES, WANTED, wire
from vllm_vitals.vllm.routes import HttpKey

__all__ = ["ExpositionError", "Layout", "normalise"]

MAX_STARTS = 16  # start times kept of one page
HTTP_FAMILIES = "http_"  # of the HTTP server before the engines
_PRESENCE = frozenset({"running", "waiting"})
_PROGRESS = frozenset({"generation_tokens", "prompt_tokens", "iteration_tokens"})
_LORA = tuple(f"{prefix}{name} ".encode() for prefix in PREFIXES for name in wire("lora"))
_NO_ENGINES = "no vLLM engine metrics: the server runs with --disable-log-stats, or this is not a vLLM server"


def normalise(body: bytes, layout: Layout | None = None) -> TargetSample:
    """Read one body. Raises `ExpositionError`; the layout is then forgotten and learnt again from the next body."""
    layout = Layout() if layout is None else layout
    skeleton, last = layout.skeleton, layout.sample
    layout.skeleton = layout.sample = None
    blocks = split(body, layout.max_series)
    if skeleton and last and (changed := apply_delta(skeleton, blocks)) is not None:
        layout.sample = _update(layout, blocks, skeleton.values, last, changed)
        layout.skeleton = skeleton
    else:
        layout.sample = _learn(layout, blocks)
    return layout.sample


def _learn(layout: Layout, blocks: Blocks) -> TargetSample:
    exposition = learn(blocks, WANTED)
    facts = index_series(layout, exposition)
    if not facts.stems & ENGINE_STEMS and not _may_be_idle(exposition):
        layout.skeleton = None
        raise ExpositionError("no_vllm_metrics", _NO_ENGINES)
    if layout.unread.first and not _enough_is_left(layout):
        layout.skeleton = None
        raise ExpositionError(*layout.unread.first)
    for cell in layout.cells:
        _fold(cell, exposition.values)
    for engine in layout.engines:
        engine.details = _details(engine)
    layout.lora = next(((i, b"") for i, text in enumerate(blocks.texts) if text.startswith(_LORA)), None)
    engines = {engine.key: _sample(engine, layout) for engine in layout.engines}
    return TargetSample(
        engines,
        facts.dialect,
        _invalid(layout),
        facts.unknown,
        facts.settings,
        http=_answers(layout),
        identity=_identity(layout),
        unread=layout.unread.why,
        split_labels=layout.split_labels,
        lora=_lora(layout, blocks, None),
    )


def _may_be_idle(exposition: Exposition) -> bool:
    """Tell whether this is a Rust frontend before its first request: OpenMetrics, and no family but the HTTP server's.

    It makes a series at its first event, and leaves out families without series.
    """
    return exposition.ended and all(name.startswith(HTTP_FAMILIES) for name in exposition.families)


def _enough_is_left(layout: Layout) -> bool:
    """Tell whether, without the families that cannot be read, presence and progress of requests can still be seen."""
    left = {cell.family.field for cell in layout.cells}
    lost = {family.field for family in FAMILIES if family.name in layout.unread.why}
    return all(left & group or not lost & group for group in (_PRESENCE, _PROGRESS))


def _update(
    layout: Layout, blocks: Blocks, values: list[float], last: TargetSample, changed: Iterable[int]
) -> TargetSample:
    """Fold only what changed; an engine of which nothing did keeps its sample."""
    stale: set[FamilySlot | None] = set(map(layout.owners.__getitem__, changed))
    lora = _lora(layout, blocks, last.lora)
    if not stale - {None} and lora is last.lora:
        return last
    for cell in filter(None, stale):
        _fold(cell, values)
    engines = {}
    for engine in layout.engines:
        shown = not stale.isdisjoint(engine.shown)
        if shown:
            engine.details = _details(engine)
        same = not shown and stale.isdisjoint(engine.cells)
        engines[engine.key] = last.engines[engine.key] if same else _sample(engine, layout)
    return replace(
        last,
        engines=engines,
        invalid=_invalid(layout),
        http=last.http if stale.isdisjoint(layout.page["http"]) else _answers(layout),
        identity=last.identity if stale.isdisjoint(layout.starts) else _identity(layout),
        lora=lora,
    )


def _lora(layout: Layout, blocks: Blocks, last: Lora | None) -> Lora | None:
    """Read the block of LoRA adapters, where there is one and it is new."""
    if layout.lora is None:
        return None
    number, before = layout.lora
    if (text := blocks.texts[number]) == before:
        return last
    layout.lora = number, text
    return newest(text)


def _details(engine: Engine) -> dict[str, dict[tuple[str, ...], float]]:
    """Gather what is shown and not judged; rows of one name and the same labels are parts of one number."""
    details: dict[str, dict[tuple[str, ...], float]] = {}
    for cell in engine.shown:
        if cell.value:
            parts = details.setdefault(cell.family.name, {})
            for key, value in cell.value.items():
                whole = (*(cell.family.says or ()), *key)
                parts[whole] = parts.get(whole, 0.0) + value
    return details


def _answers(layout: Layout) -> Mapping[HttpKey, float] | None:
    return next((cell.value for cell in layout.page["http"]), None)


def _identity(layout: Layout) -> Identity:
    """Gather the start times on the page, whichever engine says them."""
    starts = {start for cell in layout.page["process_start"] for start in cell.value or ()}
    created = {cell.value for cell in layout.page["started_at"] if cell.value is not None}
    return Identity(tuple(sorted(starts))[:MAX_STARTS], tuple(sorted(created))[:MAX_STARTS])


def _fold(cell: FamilySlot, values: list[float]) -> None:
    value, cell.dropped = cell.family.fold.apply(values, cell.arranged)
    cell.value = value * cell.scale if value is not None and cell.scale != 1.0 else value


def _invalid(layout: Layout) -> Mapping[str, int]:
    counts = layout.unread.counts.copy()
    for cell in layout.cells:
        if cell.dropped:
            counts[cell.family.name] += cell.dropped
    return counts


def _sample(engine: Engine, layout: Layout) -> EngineSample:
    said = {cell.family.field: cell.value for cell in engine.cells if cell.value is not None}
    histograms = {cell.family.name: said.pop(cell.family.field) for cell in engine.cells
                  if cell.family.fold is HISTOGRAM and cell.value is not None}  # fmt: skip
    cached, process_start = said.pop("prompt_tokens_cached", None), said.pop("process_start", None)
    if cached is not None and "prompt_tokens" in said:
        said.setdefault("prompt_tokens_computed", max(0.0, said["prompt_tokens"] - cached))
    if process_start is not None:
        said.setdefault("started_at", process_start[0])
    moving = said.pop("updating", 0.0) + said.pop("moving", 0.0)
    # V0 counts victims that it swapped out neither as running nor as waiting; V1's waiting includes every victim
    if (swapped := said.pop("swapped", None)) and "waiting" in said:
        said["waiting"] += swapped
    if steps := histograms.get("iteration_tokens"):
        said["steps"] = steps.count
    asked = sum(engine.details.get("external_prefix_cache_queries_total", {}).values()) > 0
    restored = engine.fixed["kv_restored"] if engine.fixed["kv_restored"] is not None else asked
    unusable = layout.unread.why.keys() | {cell.family.name for cell in engine.cells if cell.dropped}
    if "iteration_tokens" in unusable:
        unusable |= {"steps_total"}
    fixed = engine.fixed | {
        "kv_restored": restored,
        "updating_weights": moving > 0,
        "unusable": frozenset(unusable),
        "details": engine.details,
    }
    return EngineSample(histograms=histograms, **fixed, **said)
