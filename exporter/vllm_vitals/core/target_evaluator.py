"""One target's evaluator: scrapes in, `TargetSnapshot` out. The daemon, `check` and replay all judge through this.

A failed scrape counts by reason; three in a row are down (nothing answers) or blind (something answers, but its
metrics don't). A target that has never answered is starting while its budget lasts. Where we ourselves could not
look, nothing is said of the server: the third in a row is unknown. An engine that a good scrape no longer lists three
times in a row is forgotten.
"""

from collections.abc import Mapping
from dataclasses import replace

from vllm_vitals.core.dialect import Layout, normalise
from vllm_vitals.core.dp_imbalance import flag_imbalance
from vllm_vitals.core.engine_evaluator import EngineEvaluator
from vllm_vitals.core.exposition import ExpositionError
from vllm_vitals.core.own_requests import OwnRequests
from vllm_vitals.core.sample import TargetSample
from vllm_vitals.core.series_index import MAX_ENGINES
from vllm_vitals.core.server_view import ServerView, ServerWatch
from vllm_vitals.core.snapshot import (
    DOWN_REASONS,
    OUR_REASONS,
    SCRAPE_ERRORS,
    STARTING_REASONS,
    Canary,
    Contradiction,
    EngineKey,
    EngineSnapshot,
    Role,
    Scrape,
    TargetSnapshot,
)
from vllm_vitals.core.states import State
from vllm_vitals.core.thresholds import Thresholds
from vllm_vitals.core.vital_signs import setting

Identity = tuple[str, str]  # (model_name, engine)


class TargetEvaluator:
    """Judges one target. ``observe`` takes a scrape, ``canary`` a canary's result, ``learn`` what others say of it."""

    def __init__(
        self,
        target: str,
        limits: Thresholds | None = None,
        role: Role | None = None,
        model_name: str = "",
        *,
        may_start: bool = False,
    ) -> None:
        """Make one. ``may_start``: a target that has not answered yet may be loading; a short look calls it down."""
        self._target, self._limits, self._role = target, limits or Thresholds(), role
        self._model_name = model_name
        self._layout = Layout(served_name=model_name)
        self._judges: dict[Identity, EngineEvaluator] = {}
        self._absent: dict[Identity, int] = {}
        self._failures: list[str] = []
        self._kept_from_looking = 0
        self._slowed = ""
        self._errors = dict.fromkeys(SCRAPE_ERRORS, 0)
        self._invalid: dict[str, int] = {}
        self._by_source: dict[str, Mapping[str, str]] = {}
        self._learned: dict[str, str] = {}
        self._version = ""
        self._server, self._own = ServerWatch(), OwnRequests()
        self._answered = False
        self._starts_at: float | None = None
        self._budget = self._limits.starting_budget if may_start else 0.0
        self._last: TargetSnapshot | None = None
        self._time = _Timeline()

    def learn(self, settings: Mapping[str, str], version: str = "", source: str = "config") -> None:
        """Take in settings and version that the metrics do not hold (config, /v1/models and /version, start-up log).

        What a ``source`` says takes the place of what it said before: a server may restart without an option.
        """
        if settings != self._by_source.get(source):
            self._by_source[source] = dict(settings)
            self._learned = {name: value for said in self._by_source.values() for name, value in said.items()}
        self._version = version or self._version

    def canary(self, result: Canary) -> None:
        """Take in a canary's end; the next good scrape is judged with it."""
        self._server.canaries.tell(result)
        self._own.tell(result)

    def expect(self, *, answered: bool = False, budget_from: float | None = None) -> None:
        """Take in what is known from before: that it answered, or since when (epoch s) its model has no such engine.

        The budget for starting runs from ``budget_from`` where that is known, else from the first scrape.
        """
        self._answered = self._answered or answered
        self._starts_at = budget_from if budget_from is not None else self._starts_at

    @property
    def answered(self) -> bool:
        """Whether it has ever answered with metrics, as far as is known."""
        return self._answered

    def slow_down(self, skipped: int, why: str) -> None:
        """Count polls that were left out because reading the target costs too much; ``why`` says so while it lasts."""
        self._errors["over_budget"] += skipped
        self._slowed = why

    def observe(self, scrape: Scrape) -> TargetSnapshot:
        """Judge one attempt to read the target. Where its times step back, engines are judged as if they had not."""
        scrape = replace(scrape, at=self._time.forward(scrape.at))
        if scrape.body is None:
            snapshot = self._missed(scrape, scrape.reason, scrape.detail)
        else:
            try:
                sample = normalise(scrape.body, self._layout)
            except ExpositionError as error:
                snapshot = self._missed(scrape, error.reason, error.detail)
            else:
                snapshot = self._seen(scrape, sample)
        self._last = snapshot
        return snapshot

    def _seen(self, scrape: Scrape, sample: TargetSample) -> TargetSnapshot:
        self._failures.clear()
        self._kept_from_looking = 0
        self._answered = True
        for family, count in sample.invalid.items():
            self._invalid[family] = self._invalid.get(family, 0) + count
        settings = {**sample.settings, **self._learned}
        self._forget_absent(sample)
        server = self._server.feed(scrape.at, sample, self._limits)
        if logged := setting(self._learned, "kv_cache_size_tokens"):
            server = replace(server, logged_capacity=logged)
        counted = self._own.without(scrape.at - scrape.duration_s, sample)
        engines = []
        for identity in [*sample.engines, *(i for i in self._judges if i not in sample.engines)]:
            judge = self._judge(identity)
            engine = sample.engines.get(identity)
            engines.append(
                judge.miss(scrape.at, None)
                if engine is None
                else judge.observe(scrape.at, engine, settings, server, counted[identity])
            )
        return self._snapshot(
            scrape, flag_imbalance(engines), up=True, detail=self._slowed, sample=sample, server=server
        )

    def _missed(self, scrape: Scrape, reason: str, detail: str) -> TargetSnapshot:
        self._errors[reason] = self._errors.get(reason, 0) + 1
        failed = None
        if reason in OUR_REASONS:  # says nothing of the server; what it said last holds as long as after its own faults
            self._kept_from_looking += 1
            failed = State.UNKNOWN if self._kept_from_looking >= self._limits.failures else None
        else:
            self._kept_from_looking = 0
            self._failures = [*self._failures, reason][-self._limits.failures :]
        if failed is None and self._starting(scrape.at):
            failed = State.STARTING
        elif failed is None and len(self._failures) >= self._limits.failures:
            failed = State.DOWN if DOWN_REASONS.issuperset(self._failures) else State.BLIND
        if not self._judges:
            self._judge((self._model_name, ""))
        engines = [judge.miss(scrape.at, failed) for judge in self._judges.values()]
        return self._snapshot(scrape, engines, up=False, reason=reason, detail=detail)

    def _starting(self, at: float) -> bool:
        """Return whether it never answered and may still be loading: refused, no such name, timeout, or 503."""
        if self._starts_at is None:
            self._starts_at = at
        if self._answered or not STARTING_REASONS.issuperset(self._failures):
            return False
        return at - self._starts_at < self._budget

    def _judge(self, identity: Identity) -> EngineEvaluator:
        if identity not in self._judges:
            self._judges[identity] = EngineEvaluator(EngineKey(self._target, *identity), self._limits, self._role)
        return self._judges[identity]

    def _forget_absent(self, sample: TargetSample) -> None:
        """Count engines that this body does not list; the nameless one of a target never seen goes at once.

        A V0 server lists none before its first request: then nothing is forgotten, and the nameless one stands for it.
        """
        if not sample.engines:
            if not self._judges:
                self._judge((self._model_name, ""))
            return
        for identity in list(self._judges):
            if identity in sample.engines:
                self._absent.pop(identity, None)
                continue
            self._absent[identity] = self._absent.get(identity, 0) + 1
            crowded = len(self._judges) > MAX_ENGINES  # engines under new names at every scrape
            if self._absent[identity] >= self._limits.failures or not identity[1] or crowded:
                del self._judges[identity], self._absent[identity]

    def _snapshot(
        self,
        scrape: Scrape,
        engines: list[EngineSnapshot],
        up: bool,
        reason: str = "",
        detail: str = "",
        sample: TargetSample | None = None,
        server: ServerView | None = None,
    ) -> TargetSnapshot:
        before, canaries = self._last, self._server.canaries
        return TargetSnapshot(
            target=self._target,
            up=up,
            at=scrape.at,
            duration_s=scrape.duration_s,
            last_scrape_at=scrape.at if up else (before.last_scrape_at if before else None),
            reason=reason,
            detail=detail,
            errors=dict(self._errors),
            invalid=dict(self._invalid),
            dialect=sample.dialect if sample else (before.dialect if before else ""),
            version=self._version,
            unknown_families=sample.unknown_families
            if sample
            else (before.unknown_families if before else frozenset()),
            settings={**(sample.settings if sample else {}), **self._learned},
            engines=tuple(sorted(engines, key=lambda e: (e.state.rank, e.key.model_name, e.key.engine))),
            canary=canaries.last,
            canaries=dict(canaries.counts) if canaries.last else {},
            contradictions=() if server is None else (*server.found, *_of_engines(engines)),
            lora=sample.lora if sample else None,
        )


def _of_engines(engines: list[EngineSnapshot]) -> list[Contradiction]:
    """Return what was found of each engine; where there are several, with the engine's name before it."""
    return [
        replace(found, text=f"engine {engine.key.engine}: {found.text}") if len(engines) > 1 else found
        for engine in engines
        for found in engine.contradictions
    ]


class _Timeline:
    """Scrape times that only ever advance, whatever the clock that wrote them did."""

    def __init__(self) -> None:
        self._last: float | None = None
        self._shift = 0.0
        self._pace = 1.0

    def forward(self, at: float) -> float:
        """``at``, moved by as much as the clock has stepped back since the first scrape."""
        now = at + self._shift
        if self._last is not None:
            if now < self._last:
                self._shift += self._last + self._pace - now
                now = self._last + self._pace
            elif now > self._last:
                self._pace = now - self._last
        self._last = now
        return now
