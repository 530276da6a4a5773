"""What one scrape of one engine says, in names that no vLLM release changes.

`dialect.normalise` builds these from a body; everything after it sees only these. ``None`` means the server did not
say: absent is never 0.
"""

from array import array
from collections.abc import Mapping
from dataclasses import dataclass, field

from vllm_vitals.core.lora import Lora
from vllm_vitals.vllm.routes import HttpKey


@dataclass(frozen=True, slots=True)
class Histogram:
    """A cumulative histogram as vLLM exposes it.

    ``bounds`` are the finite upper bounds, ascending, in the family's unit; ``counts`` has one more entry, the +Inf
    bucket, and is cumulative. ``sum`` is in the family's unit.
    """

    bounds: tuple[float, ...]
    counts: "array[float]"
    sum: float

    @property
    def count(self) -> float:
        """Observations in all."""
        return self.counts[-1]


@dataclass(frozen=True, slots=True)
class EngineSample:
    """One engine (data-parallel rank) at one scrape. Counters are cumulative as vLLM reports them.

    ``histograms`` is keyed by our catalogue's name (``tpot_seconds``, ``ttft_seconds``, ...). ``kv_usage`` is 0-1.
    ``kv_capacity_tokens`` is this engine's own share, also where vLLM sums ``num_gpu_blocks`` over ranks.
    ``started_at`` is when the counters began (epoch s: ``_created`` or ``process_start_time_seconds``) where known.
    ``rejections`` and ``updating_weights`` are the server's: every engine of it says the same. ``kv_restored``: a
    preempted request finds its blocks again in a store outside the GPU. ``recompute_counted``: V0 adds the tokens that
    a preempted request computes again to ``prompt_tokens``; V1 counts them nowhere. ``unusable`` names the families
    whose samples were dropped in this scrape as impossible. ``completions`` are the responses that a client got whole
    (every reason but error and abort), ``errors`` those that failed in the engine, ``aborts`` those that were given up;
    None where the server has not said. ``details`` is what is shown and not judged (`vllm_vitals.vllm.details`): by the
    catalogue's name, then the values of its own labels.
    """

    running: float | None = None
    waiting: float | None = None
    waiting_by_reason: Mapping[str, float] = field(default_factory=dict)
    kv_usage: float | None = None
    kv_capacity_tokens: float | None = None
    asleep: bool | None = None
    updating_weights: bool = False
    preemptions: float | None = None
    prompt_tokens: float | None = None
    generation_tokens: float | None = None
    prompt_tokens_computed: float | None = None
    steps: float | None = None
    responses: Mapping[str, float] | None = None
    prefix_cache_queries: float | None = None
    prefix_cache_hits: float | None = None
    rejections: float | None = None
    histograms: Mapping[str, Histogram] = field(default_factory=dict)
    started_at: float | None = None
    prefix_caching: bool | None = None
    kv_restored: bool = False
    recompute_counted: bool = False
    unusable: frozenset[str] = frozenset()
    details: Mapping[str, Mapping[tuple[str, ...], float]] = field(default_factory=dict)
    completions: float | None = field(init=False)
    errors: float | None = field(init=False)
    aborts: float | None = field(init=False)

    @property
    def caches_prefixes(self) -> bool | None:
        """Whether prefix caching is on: proven by lookups (V1 counts none where it is off), else as the label says.

        None where neither is known: the label is dropped by relabelling, absent in the Rust frontend, "None" in V0.
        Source: vllm/v1/core/kv_cache_manager.py get_computed_blocks.
        """
        if self.prefix_cache_hits:
            return True
        if self.prefix_cache_queries:  # a label against it leaves both open until something is found
            return None if self.prefix_caching is False else True
        if self.prefix_caching is None and self.prefix_cache_queries == 0 and self.prompt_tokens:
            return False
        return self.prefix_caching

    @property
    def work(self) -> float:
        """Requests present; an unknown gauge counts as none."""
        return (self.running or 0.0) + (self.waiting or 0.0)

    def detail(self, name: str) -> float | None:
        """Add up a detail over its labels, None where the server has not said."""
        parts = self.details.get(name)
        return None if parts is None else sum(parts.values())

    def __post_init__(self) -> None:
        finished, said = self.responses, self.responses is not None
        errors, aborts = (finished.get(reason, 0.0) if finished else 0.0 for reason in ("error", "abort"))
        whole = sum(finished.values()) - errors - aborts if finished else 0.0
        object.__setattr__(self, "completions", whole if said else None)
        object.__setattr__(self, "errors", errors if said else None)
        object.__setattr__(self, "aborts", aborts if said else None)


@dataclass(frozen=True, slots=True)
class Identity:
    """Who answered: start times (epoch s, ascending, at most 16) by which two servers at one address are told apart.

    ``process_starts`` is every ``process_start_time_seconds`` on the page, ``created`` when each engine's counters
    began (``_created``). Both are empty where several API server processes share their metrics, and in the Rust
    frontend.
    """

    process_starts: tuple[float, ...] = ()
    created: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class TargetSample:
    """One scrape of one server: its engines by (model_name, engine), and what was odd about the body.

    ``invalid`` counts samples dropped as impossible, by our family name. ``unknown_families`` are vLLM families that
    the dialect table does not list: counted, never fatal. ``dialect`` names the era whose spellings were seen.
    ``http`` counts the answers of the HTTP server to POSTs of the routes in `vllm.routes`, by route and status class;
    it is the server's, not an engine's, and None where the page has none. ``unread`` says of each family with a line
    that could not be read why, in one line ("line 557: ..."): all of it was dropped. ``split_labels`` are labels that
    vLLM does not have, by whose values series were split into engines.
    """

    engines: Mapping[tuple[str, str], EngineSample]
    dialect: str
    invalid: Mapping[str, int] = field(default_factory=dict)
    unknown_families: frozenset[str] = frozenset()
    settings: Mapping[str, str] = field(default_factory=dict)
    http: Mapping[HttpKey, float] | None = None
    identity: Identity = Identity()
    unread: Mapping[str, str] = field(default_factory=dict)
    split_labels: tuple[str, ...] = ()
    lora: Lora | None = None


def restarted(old: EngineSample, new: EngineSample) -> bool:
    """Return whether counters began anew between two samples: by their start time, else by one that fell."""
    if old.started_at is not None and new.started_at is not None:
        return new.started_at > old.started_at + 1
    pairs = ((old.generation_tokens, new.generation_tokens), (old.completions, new.completions))
    return any(before is not None and after is not None and after < before for before, after in pairs)
