"""Rules, routes and runbooks as texts by file name.

Input: the config (defaults, or a user's overrides). Output: files under --out. Invariant: the same config gives the
same bytes, and nothing is written that the linter finds fault with.
"""

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from urllib.parse import urlsplit

from vllm_vitals.config.alerts import Config
from vllm_vitals.config.durations import duration_text
from vllm_vitals.config.objectives import HISTOGRAM_OF
from vllm_vitals.generated import MODES
from vllm_vitals.rules import (
    baseline_rules,
    boards,
    concurrency,
    description,
    fleet,
    losses,
    meta,
    native,
    native_state,
    overload,
    page,
    presence,
    routing,
    runbook,
    scale,
    shard,
    slo,
    ticket,
)
from vllm_vitals.rules.formats import FORMATS, Documents
from vllm_vitals.rules.lint import MOST, lint
from vllm_vitals.rules.model import Alert, Group, Recording, dump
from vllm_vitals.rules.transforms import PASSES, one_name, only_native
from vllm_vitals.vllm.lookup import family

_SLOW = 60  # s: what changes seldom, or spans hours, need not be evaluated more often


def split(name: str, rules_: Sequence[Alert | Recording], interval: int) -> tuple[Group, ...]:
    """Cut rules into groups of at most `MOST`, in their order; a group reads itself and those before it.

    A ruler that runs groups beside each other sees what the one before made an evaluation late, and is right then.
    """
    parts = max(1, -(-len(rules_) // MOST))
    cuts = [len(rules_) * part // parts for part in range(parts + 1)]
    names = [name] if parts == 1 else [f"{name}_{part + 1}" for part in range(parts)]
    return tuple(
        Group(one, tuple(rules_[start:end]), interval) for one, start, end in zip(names, cuts, cuts[1:], strict=False)
    )


def rules(config: Config, modes: frozenset[str] = frozenset(MODES)) -> dict[str, tuple[Group, ...]]:
    """Return groups by file name without its ending. Without the daemon, alerts that need it are left out."""
    step = config.evaluation_seconds
    slow = max(step, _SLOW)
    files: dict[str, tuple[Group, ...]] = {
        "recording": (
            *split("vllm_vitals.before", _before(config, modes), step),
            *split("vllm_vitals.models", (*losses.rules(config), *overload.recordings(config)), step),
            *split("vllm_vitals.slo", slo.recordings(config), step),
            *split("vllm_vitals.slo_slow", slo.slow_recordings(config), slow),
            *split("vllm_vitals.scale", scale.rules(config), step),
            *split("vllm_vitals.fleet", fleet.rules(config), step),
            *split("vllm_vitals.boards.models", boards.models(config), boards.STEP),
            *split("vllm_vitals.boards.lengths", boards.histograms(config), boards.SLOW_STEP),
            *split("vllm_vitals.boards.pools", boards.pools(config), boards.STEP),
            *split("vllm_vitals.boards.daemon", boards.watching(config) if "daemon" in modes else (), boards.STEP),
            *split("vllm_vitals.description", description.recordings(config), slow),
        ),
        "alerts": (
            *split("vllm_vitals.pages", page.alerts(config), step),
            *split("vllm_vitals.tickets", ticket.alerts(config), step),
            *split("vllm_vitals.meta", meta.alerts(config), step),
        ),
        "native": (
            *split("vllm_vitals.native", (*native.rules(config), *native_state.rules(config)), step),
            *split("vllm_vitals.native_slow", (*native.slow(config), *native_state.slow(config)), slow),
        ),
    }
    if "native" not in modes:
        del files["native"]
    for one in PASSES:
        files = {name: one(config, groups) for name, groups in files.items()}
    if "daemon" not in modes:
        files = one_name(files) | {"alerts": only_native(config, files["alerts"])}
    return files


def _before(config: Config, modes: frozenset[str]) -> tuple[Recording, ...]:
    known = presence.rules(config, exporter="daemon" in modes)
    shared = (*baseline_rules.rules(config), *concurrency.rules(config), *known)
    return (*shared, *meta.recordings(config), *meta.own_recordings())


def findings(config: Config, files: Mapping[str, tuple[Group, ...]]) -> list[str]:
    """Lint all files together; return the findings."""
    every = tuple(g for groups in files.values() for g in groups)
    return [str(finding) for finding in lint(config, every, frozenset(runbook.GUIDANCE))]


def documents(config: Config, modes: frozenset[str], form: str, shards: Sequence[str] = ()) -> Documents:
    """Return rules and routes by file name; ``form`` is one of `FORMATS`. ``shards``: see `shard.asked`."""
    files = rules(config, modes)
    label, values = shard.asked(config, shards)
    if label and form == "grafana":
        raise shard.ShardError("--shard: Grafana keeps one rule of a name: leave --shard or --format grafana out")
    return FORMATS[form](shard.cut(config, files, label, values) if label else files, routing.document(config))


def outputs(
    config: Config, modes: frozenset[str] = frozenset(MODES), form: str = "prometheus", shards: Sequence[str] = ()
) -> dict[str, str]:
    """Return every file to write, by path relative to the output directory; ``form`` is one of `FORMATS`."""
    texts = {name: dump(document) for name, document in documents(config, modes, form, shards).items()}
    if form == "prometheus":
        texts["alertmanager-routes.yml"] = dump(routing.subtree(config))
    alerts = rules(config, modes)["alerts"]
    return texts | {f"runbooks/{name}": text for name, text in runbook.render(config, alerts).items()}


def note_on_links(config: Config) -> str:
    """Return one line where the runbook links of these alerts open nowhere but in a checkout; else nothing."""
    if urlsplit(config.runbook_base).scheme in ("http", "https"):
        return ""
    return (
        f"runbook_base: {config.runbook_base} is a path, which no pager can open: publish the runbooks and give "
        "their URL (docs/alerts.md, Links)"
    )


def notes_on_slos(config: Config) -> list[str]:
    """Return one line for each SLO whose time lies between vLLM's buckets: no series says how many requests met it."""
    notes = []
    for slo_ in config.slos:
        bounds = family(HISTOGRAM_OF[slo_.indicator]).bounds(max_model_len=0)
        if slo_.seconds not in bounds:
            above = bisect_left(bounds, slo_.seconds)
            near = bounds[max(0, above - 1) : above + 1]
            notes.append(
                f"alerts.slos: {slo_.name}: {duration_text(slo_.seconds)} is no bucket bound of {slo_.indicator} in "
                f"vLLM 0.32, so its alert can never fire there; take {' or '.join(map(duration_text, near))}"
            )
    return notes


def notes(config: Config, *, published: bool) -> list[str]:
    """Return notes on a build; ``published``: it is for a site, whose readers have no checkout."""
    link = note_on_links(config) if published else ""
    return [*notes_on_slos(config), *([link] if link else [])]
