"""One simulated run: a server, a load and a seed, and what came of them.

Input: settings, a step time, a `Load`, seconds. Output: `Outcome`. Routing and a length predictor sit before the
engines, as a gateway would. Invariant: only what happens after the warm-up counts, and latencies are exact.
"""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from heapq import heappop, heappush
from math import ceil, exp, inf, log
from random import Random

from vllm_vitals.simulator.engine import Engine
from vllm_vitals.simulator.request import Request
from vllm_vitals.simulator.settings import ServerSettings
from vllm_vitals.simulator.steptime import StepTime
from vllm_vitals.simulator.workload import Load, Traffic

WARM_UP = 0.2  # share of the time that does not count
_STRIDE_S = 0.05


@dataclass(frozen=True, slots=True)
class Gateway:
    """What stands before the engines.

    ``split_at``: prompts from so many tokens on go to the last engine alone. ``predict``: requests are let in only
    while prompts and predicted outputs fit the cache; the prediction is the truth x ``bias`` x a log-normal error of
    ``noise``, known only up to a class where ``classes`` > 1: the next power of it. Shortest prediction first.
    ``limit``: no more requests than so many are inside an engine, the others wait their turn at the gateway.
    """

    split_at: float = inf
    predict: bool = False
    noise: float = 0.0
    bias: float = 1.0
    classes: float = 1.0
    limit: float = inf

    @property
    def holds(self) -> bool:
        """Whether requests wait here."""
        return self.predict or self.limit < inf


@dataclass(frozen=True, slots=True)
class Outcome:
    """Per second of the counted time, all engines together; latencies in seconds, None where nothing finished."""

    generated: float
    completed: float
    preemptions: float
    truncated: float | None
    recomputed: float | None
    ttft_mean: float | None
    ttft_p50: float | None
    ttft_p99: float | None
    tpot_mean: float | None
    tpot_p50: float | None
    tpot_p99: float | None
    first: tuple[float, ...] = field(default=(), repr=False)
    speed: tuple[float, ...] = field(default=(), repr=False)
    whole: tuple[float, ...] = field(default=(), repr=False)

    def within(self, indicator: str, seconds: float) -> float:
        """Return the share of requests whose ttft, tpot or e2e is at most so long; 0 where none finished."""
        values = {"ttft": self.first, "tpot": self.speed, "e2e": self.whole}[indicator]
        return bisect_right(values, seconds) / len(values) if values else 0.0

    @property
    def per_completion(self) -> float | None:
        """Preemptions a finished request."""
        return self.preemptions / self.completed if self.completed > 0 else None


@dataclass(slots=True)
class _Counts:
    generated: int = 0
    preemptions: int = 0
    prefilled: int = 0
    first_prefills: int = 0


@dataclass(slots=True)
class _Held:
    """Requests at the gateway by what they are predicted to need, and what those inside are."""

    waiting: list[tuple[float, int, Request]] = field(default_factory=list)
    needs: dict[int, float] = field(default_factory=dict)
    inside: float = 0.0


def run(
    settings: ServerSettings,
    time: StepTime,
    load: Load,
    seconds: float,
    seed: int,
    engines: int = 1,
    gateway: Gateway | None = None,
    backlog: int | None = None,
) -> Outcome:
    """Simulate ``seconds`` from an empty server; with a ``backlog``, from that many requests, and all of it counts."""
    it = _Run(settings, time, load, seed, engines, gateway or Gateway())
    return it.until(seconds, WARM_UP * seconds if backlog is None else 0.0, backlog or 0)


class _Run:
    def __init__(
        self, settings: ServerSettings, time: StepTime, load: Load, seed: int, engines: int, gateway: Gateway
    ) -> None:
        self._engines = [Engine(settings, time) for _ in range(engines)]
        self._traffic = Traffic(settings, seed)
        self._traffic.switch(load, 0.0)
        self._gateway = gateway
        self._random = Random(seed + 1)  # noqa: S311 - a simulation
        self._held = [_Held() for _ in self._engines]
        self._room = 0.95 * settings.capacity_tokens if gateway.predict else gateway.limit
        self._begun: list[Request] = []
        self._done: list[Request] = []

    def until(self, seconds: float, start: float, backlog: int) -> Outcome:
        """Run, and count what came after ``start``."""
        for _ in range(backlog):
            self._receive(replace(self._traffic.take(), arrival=0.0))
        self._advance(start)
        before = self._counts()
        self._advance(seconds)
        after = self._counts()
        return _outcome(before, after, [r for r in self._done if r.finished_at > start], self._begun, start, seconds)

    def _advance(self, until: float) -> None:
        now = max(engine.now for engine in self._engines)
        while True:
            due = min(self._traffic.next_at, until)
            target = due if len(self._engines) == 1 else min(due, now + _STRIDE_S)
            answered = self._step(target)
            now = max(now, target)
            if answered or target < due:
                continue
            if self._traffic.next_at > until:
                return
            self._receive(self._traffic.take())

    def _step(self, target: float) -> bool:
        """Step every engine to ``target``; True when something finished on the way (its client may come back)."""
        answered = False
        for index, engine in enumerate(self._engines):
            while done := engine.advance(target):
                answered = True
                for request in done:
                    self._done.append(request)
                    self._traffic.answered(request, request.finished_at)
                    self._leave(index, request)
                if len(self._engines) == 1:
                    break
        return answered

    def _receive(self, request: Request) -> None:
        self._begun.append(request)
        index = self._place(request)
        if not self._gateway.holds:
            self._engines[index].add(request)
            return
        if not self._gateway.predict:
            self._hold(index, 1.0, float(request.id), request)
            return
        error = exp(self._random.gauss(0.0, self._gateway.noise)) if self._gateway.noise else 1.0
        guess = max(1.0, request.output * self._gateway.bias * error)
        if self._gateway.classes > 1:
            guess = self._gateway.classes ** ceil(log(guess, self._gateway.classes))
        need = request.prompt + guess
        self._hold(index, need, need, request)

    def _hold(self, index: int, need: float, order: float, request: Request) -> None:
        """Let a request wait for its turn; it takes so much of the room inside."""
        held = self._held[index]
        held.needs[request.id] = need
        heappush(held.waiting, (order, request.id, request))
        self._admit(index)

    def _place(self, request: Request) -> int:
        if len(self._engines) > 1 and self._gateway.split_at < inf:
            if request.prompt >= self._gateway.split_at:
                return len(self._engines) - 1
            return min(range(len(self._engines) - 1), key=lambda i: self._engines[i].load)
        return min(range(len(self._engines)), key=lambda i: self._engines[i].load)

    def _leave(self, index: int, request: Request) -> None:
        held = self._held[index]
        held.inside -= held.needs.pop(request.id, 0.0)
        self._admit(index)

    def _admit(self, index: int) -> None:
        held = self._held[index]
        while held.waiting:
            need = held.needs[held.waiting[0][1]]
            if held.inside > 0 and held.inside + need > self._room:
                return
            _, _, request = heappop(held.waiting)
            held.inside += need
            self._engines[index].add(request)

    def _counts(self) -> _Counts:
        every = [engine.stats for engine in self._engines]
        first = sum(r.prompt - max(0, r.cached) for r in self._begun if r.first_token_at >= 0)
        return _Counts(
            sum(s.generation_tokens for s in every),
            sum(s.preemptions for s in every),
            sum(s.prefilled for s in every),
            first,
        )


def _outcome(
    before: _Counts, after: _Counts, done: Sequence[Request], begun: Sequence[Request], start: float, end: float
) -> Outcome:
    span = end - start
    generated, prefilled = after.generated - before.generated, after.prefilled - before.prefilled
    again = max(0, prefilled - (after.first_prefills - before.first_prefills))
    first = sorted(r.first_token_at - r.arrival for r in begun if r.first_token_at > start)
    speed = sorted((r.finished_at - r.first_token_at) / (r.output - 1) for r in done if r.output > 1)
    return Outcome(
        generated=generated / span,
        completed=len(done) / span,
        preemptions=(after.preemptions - before.preemptions) / span,
        truncated=sum(r.reason == "length" for r in done) / len(done) if done else None,
        recomputed=again / (generated + prefilled) if generated + prefilled else None,
        ttft_mean=_mean(first), ttft_p50=_rank(first, 0.5), ttft_p99=_rank(first, 0.99),
        tpot_mean=_mean(speed), tpot_p50=_rank(speed, 0.5), tpot_p99=_rank(speed, 0.99),
        first=tuple(first), speed=tuple(speed), whole=tuple(sorted(r.finished_at - r.arrival for r in done)),
    )  # fmt: skip


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None


def _rank(values: Sequence[float], q: float) -> float | None:
    return values[min(len(values) - 1, int(q * len(values)))] if values else None
