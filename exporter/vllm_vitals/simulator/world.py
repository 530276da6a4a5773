"""Plays a scenario: a server with its engines, its clients, and what the script does to them.

Input: a `Scenario`, a seed and times, which only go forward. Output: the exposition at a time, or that nothing answers.
Invariant: with one seed and the same external requests the world is the same, however it is polled; a scenario that its
dialect cannot tell is refused, never told wrongly.
"""

from collections.abc import Callable
from dataclasses import dataclass
from heapq import heappop, heappush
from math import inf
from random import Random

from vllm_vitals.simulator.engine import Engine
from vllm_vitals.simulator.engine_actions import act_on
from vllm_vitals.simulator.exposed_families import Dialect
from vllm_vitals.simulator.exposition import Exposition
from vllm_vitals.simulator.fast_forward import CalmStretches, Coast
from vllm_vitals.simulator.http_metrics import HttpMetrics
from vllm_vitals.simulator.request import FinishReason, Request
from vllm_vitals.simulator.scenario import Action, HangUp, Pause, Restart, Resume, Scenario
from vllm_vitals.simulator.settings import ServerSettings
from vllm_vitals.simulator.workload import Arrivals, Load, Traffic

# The longest stretch in which several engines run without looking at each other, in seconds.
_STRIDE_S = 0.05
# How long the server is away between two plays of a scenario, in seconds.
_LAP_BREAK_S = 2.0
# How long those inside may take before a server coasts, in seconds.
_DRAIN_S = 3600.0
# A client whose connection is refused tries again after this, in seconds.
_RETRY_S = 1.0


@dataclass(frozen=True, slots=True)
class Happening:
    """What a log writer needs to know: the server started or stopped, or a request came, ended or was dropped."""

    at: float
    what: str
    request: Request | None = None


class ScenarioError(ValueError):
    """The dialect has no words for the scenario."""


class World:
    """The running scenario. ``epoch`` is the Unix time of simulated second 0; ``traffic`` stands for its clients.

    Raises `ScenarioError` for several engines in the V0 dialect: V0 had no data parallelism inside one server, and its
    series carry no ``engine`` label (V1's do from 0.8.3 on), so two ranks would be one series said twice.
    """

    def __init__(
        self,
        scenario: Scenario,
        seed: int = 0,
        epoch: float = 1.8e9,
        dialect: Dialect = Dialect.V0_32,
        listen: Callable[[Happening], None] | None = None,
        repeat: bool = False,
        traffic: Arrivals | None = None,
    ) -> None:
        if scenario.engines > 1 and dialect is Dialect.V0:
            raise ScenarioError(
                f"{scenario.name} has {scenario.engines} data-parallel engines, and a V0 server has one: choose "
                f"--dialect {Dialect.V0_11} or {Dialect.V0_32}"
            )
        self.scenario = scenario
        self.settings = scenario.settings
        self.epoch = epoch
        self.now = 0.0
        self.answers = 0  # the status that something before the server gives while it is down
        self.engines: list[Engine] = []
        self._dialect = dialect
        self._listen = listen or (lambda _: None)
        self._script = list(scenario.script)
        self._repeat = repeat
        self._lap_began = 0.0
        self._traffic: Arrivals = traffic or Traffic(scenario.settings, seed)
        self._routing = Random(seed + 1)  # noqa: S311 - a simulation
        self._seed = seed
        self._coasts: list[Coast] = []
        self._patience: list[tuple[float, int, Request]] = []
        self._outside = 0
        self._up_at = inf
        self._start(0.0, scenario.settings)

    @property
    def up(self) -> bool:
        """Whether the server's port is open."""
        return bool(self.engines)

    @property
    def arrived(self) -> bool:
        """Whether no request is to come."""
        return self._traffic.next_at == inf

    @property
    def over(self) -> bool:
        """Whether nothing will happen any more: every request came and was answered, and the script has ended."""
        busy = any(engine.requests for engine in self.engines)
        return self.arrived and self._up_at == inf and not self._script and not busy

    def advance(self, until: float) -> None:
        """Let everything up to `until` (simulated seconds) happen."""
        while True:
            due = min(
                self._traffic.next_at,
                self._script[0][0] if self._script else inf,
                self._patience[0][0] if self._patience else inf,
                self._up_at,
            )
            if not self._run(min(due, until)):
                continue  # someone was answered and may come back before that
            if due > until:
                return
            self._happen(due)

    def coast(self, until: float, known: CalmStretches, rate: float) -> None:
        """Let time pass to `until` as a calm server's does at `rate` requests/s, shared by its engines.

        Who is inside gets an answer first, within `_DRAIN_S`; the scenario's own clients and script stand still. Raises
        `NotCalmError`, and ValueError where there is no whole number of stretches to `until`.
        """
        stretches = round((until - self.now) / known.stretch_s)
        if stretches < 0 or abs(self.now + stretches * known.stretch_s - until) > 1e-6:
            raise ValueError(f"{until - self.now:g} s are no whole number of intervals of {known.stretch_s:g} s")
        while len(self._coasts) < len(self.engines):
            self._coasts.append(Coast(known, self._seed + len(self._coasts)))
        for engine in self.engines:
            while engine.requests and engine.advance(self.now + _DRAIN_S):
                pass
            engine.skip(until)
        for _ in range(stretches):
            for engine, coast in zip(self.engines, self._coasts, strict=False):
                answers = coast.grow(engine.stats, rate / len(self.engines))
                self.http.count("/v1/chat/completions", "POST", 200, 1.0, answers)
        self.now = until

    def act(self, action: Action) -> None:
        """Do now what a script would."""
        self._act(action)

    def submit(self, prompt: int, output: int, max_tokens: int, handler: str = "/v1/completions") -> Request | None:
        """Send a request from outside, now; None when nothing listens.

        Its ``finished_at`` is set when it is done, its ``refused`` where it is refused at once.
        """
        if not self.up:
            return None
        self._outside += 1
        reason: FinishReason = "length" if output >= max_tokens else "stop"
        request = Request(-self._outside, self.now, prompt, output, max_tokens, reason, handler=handler)
        self._receive(request)
        return request

    def pause(self) -> None:
        """Do what ``POST /pause?mode=keep`` does."""
        self.http.count("/pause", "POST", 200)
        for engine in self.engines:
            engine.pause()

    def resume(self) -> None:
        """Do what ``POST /resume`` does."""
        self.http.count("/resume", "POST", 200)
        for engine in self.engines:
            engine.resume(self.now)

    def drop(self, request: Request) -> None:
        """Hang up the client of ``request``, or end the process under it."""
        for engine in self.engines:
            engine.abort(request)
        self._answered(request, self.now, 200)  # its answer had begun, or would have
        self._listen(Happening(self.now, "dropped", request))

    def scrape(self, until: float) -> str | None:
        """Advance to `until` and return the exposition, None when the connection would be refused."""
        self.advance(until)
        if not self.up:
            return None
        http = "" if self._dialect is Dialect.V0 else self.http.render()
        stats = [engine.stats for engine in self.engines]
        return self._exposition.render(stats, self.now - self._since, http)

    # ------------------------------------------------------------------ time

    def _run(self, until: float) -> bool:
        """Step the engines towards `until`; False when something was answered on the way, or `until` is not reached."""
        target = until if len(self.engines) <= 1 else min(until, self.now + _STRIDE_S)
        answered = False
        for engine in self.engines:
            while done := engine.advance(target):
                answered = True
                for request in done:
                    failed = request.reason == "error" and not request.stream  # a stream that fails began as a 2xx
                    self._answered(request, request.finished_at, 500 if failed else 200)
                    self._listen(Happening(request.finished_at, "finished", request))
                if len(self.engines) == 1:
                    return False
        self.now = max(self.now, target)
        return not answered and target >= until

    def _happen(self, at: float) -> None:
        """Exactly one thing that is due at `at`: the script speaks before the clients."""
        self.now = max(self.now, at)
        if self._script and self._script[0][0] <= at:
            self._act(self._script.pop(0)[1])
            if not self._script and self._repeat:
                self._write_next_lap()
        elif self._up_at <= at:
            self._start(at, self.settings)
        elif self._patience and self._patience[0][0] <= at:
            request = heappop(self._patience)[2]
            if request.finished_at < 0:
                self.drop(request)
        else:
            request = self._traffic.take()
            if self.up:
                self._receive(request)
            else:
                self._traffic.answered(request, at + _RETRY_S)

    # ------------------------------------------------------------------ requests

    def _receive(self, request: Request) -> None:
        load = self._traffic.load
        engines = self.engines
        if load.hot_share and self._routing.random() < load.hot_share:
            engine = engines[0]
        else:
            engine = engines[0] if len(engines) == 1 else min(engines, key=lambda each: each.load)
        self._listen(Happening(self.now, "received", request))
        settings = self.settings
        if request.prompt >= settings.max_model_len or settings.max_num_queued_reqs is not None:
            self._refuse(request, engine)
        if request.refused:
            failed_stream = request.refused >= 500 and request.refused != 503 and request.stream
            self._answered(request, self.now, 200 if failed_stream else request.refused)
            return
        engine.add(request)
        if request.patience is not None:
            heappush(self._patience, (request.arrival + request.patience, request.id, request))

    def _refuse(self, request: Request, engine: Engine) -> None:
        """Send back what vLLM's API server does: too long a prompt, or one more than may queue."""
        limit = self.settings.max_num_queued_reqs
        if request.prompt >= self.settings.max_model_len:
            request.refused = 400
        elif limit is not None and engine.waiting >= limit:
            request.refused = 503
            self.engines[0].stats.queue_rejections += 1  # the family has no engine

    def _answered(self, request: Request, at: float, status: int) -> None:
        self.http.count(request.handler, "POST", status, at - request.arrival)
        self._traffic.answered(request, at)

    # ------------------------------------------------------------------ what the script does

    def _act(self, action: Action) -> None:
        match action:
            case Load():
                self._traffic.switch(action, self.now)
            case Restart():
                self._stop(action)
            case Pause():
                self.pause()
            case Resume():
                self.resume()
            case HangUp():
                self._traffic.switch(Load(), self.now)
                for request in [request for engine in self.engines for request in engine.requests]:
                    self.drop(request)
            case _:
                for rank, engine in enumerate(self.engines):
                    act_on(engine, rank, action)

    def _write_next_lap(self) -> None:
        """Play the script once more, from a fresh process."""
        self._lap_began += self.scenario.duration_s
        fresh = Restart(_LAP_BREAK_S, self.scenario.settings)
        self._script = [(self._lap_began, fresh)]
        self._script += [(self._lap_began + _LAP_BREAK_S + at, action) for at, action in self.scenario.script]

    def _stop(self, restart: Restart) -> None:
        for request in [request for engine in self.engines for request in engine.requests]:
            self.drop(request)
        self.engines = []
        self._patience.clear()
        self._up_at = self.now + restart.down_s
        self.answers = restart.answers
        self.settings = restart.settings or self.settings
        self._listen(Happening(self.now, "stopped"))

    def _start(self, at: float, settings: ServerSettings) -> None:
        scenario = self.scenario
        self._up_at = inf
        self._since = at
        self.answers = 0
        self.http = HttpMetrics(self.epoch + at, scenario.api_servers == 1)
        self._traffic.settings = settings
        self.engines = [Engine(settings, scenario.step_time, at) for _ in range(scenario.engines)]
        self._exposition = Exposition(settings, scenario.engines, self._dialect, self.epoch + at, scenario.api_servers)
        self._listen(Happening(at, "started"))
