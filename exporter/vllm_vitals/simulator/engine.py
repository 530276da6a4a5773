"""One engine in simulated time: it steps its scheduler and counts what vLLM would count.

Input: requests and a time to advance to. Output: finished requests, and `EngineStats`. Nothing here waits: time is an
argument. Invariant: what a step changes is seen only once the step's end has been reached.
"""

from dataclasses import dataclass
from math import sqrt

from vllm_vitals.simulator.request import Request
from vllm_vitals.simulator.scheduler import Scheduler, Step
from vllm_vitals.simulator.settings import ServerSettings
from vllm_vitals.simulator.stats import EngineStats
from vllm_vitals.simulator.steptime import StepTime


@dataclass(slots=True)
class _InFlight:
    step: Step
    ends: float


class Engine:
    """A scheduler, a clock and the counters. ``now`` is the end of the last step, in seconds."""

    def __init__(self, settings: ServerSettings, step_time: StepTime, now: float = 0.0) -> None:
        self.settings = settings
        self.stats = EngineStats(settings.max_model_len)
        self.now = now
        self.frozen = False
        self._time = step_time
        self._scheduler = Scheduler(settings)
        self._in_flight: _InFlight | None = None
        self._last_output = now
        self._hung_up: list[Request] = []

    @property
    def load(self) -> int:
        """Requests queued, times four, and running: what vLLM's DP balancer compares (v1/engine/core_client.py)."""
        return 4 * len(self._scheduler.waiting) + len(self._scheduler.running)

    @property
    def requests(self) -> list[Request]:
        """Everything queued or running now."""
        return [*self._scheduler.running, *self._scheduler.waiting]

    def add(self, request: Request) -> None:
        """Add a request; the step in flight does not know of it."""
        self._scheduler.add(request)
        if self._in_flight is None and len(self._scheduler.waiting) == 1 and not self._scheduler.running:
            self.now = max(self.now, request.arrival)

    def abort(self, request: Request) -> None:
        """Hang up a client: the request goes at the next step's boundary and counts as nothing (VLLM S:599-660)."""
        if self._in_flight is None:
            self._scheduler.abort(request)
        else:
            self._hung_up.append(request)

    def advance(self, until: float) -> list[Request]:
        """Step until `until`, or until requests finish: those are returned, and the caller comes back for the rest."""
        scheduler = self._scheduler
        while not self.frozen:
            flight = self._in_flight
            if flight is not None:
                if flight.ends > until:
                    break
                done = self._land(flight)
            elif self.now >= until or not (scheduler.running or scheduler.waiting):
                break  # a step that would start at `until` waits for what else arrives then
            elif scheduler.unsettled or not scheduler.decoding or not (steps := self._glide_steps(until)):
                self._take_off()
                continue
            else:
                done = self._glide(steps)
            if done:
                return done
        return []

    def freeze(self) -> None:
        """Stop the engine process: no step ends any more, its last gauges stay."""
        self.frozen = True

    def thaw(self, now: float) -> None:
        """Go on where it stopped; what was in flight ends late."""
        self.frozen = False
        if self._in_flight is not None:
            self._in_flight.ends = max(self._in_flight.ends, now)
        self.now = max(self.now, now)

    # ------------------------------------------------------------------ one step

    def _take_off(self) -> None:
        scheduler = self._scheduler
        step = scheduler.plan()
        for victim in step.victims:
            if victim.was_decoding:
                victim.last_token_at = self._last_output
            # The event rides on the victim's next output: in flight already if it was decoding under async scheduling.
            if victim.was_decoding and self.settings.async_scheduling:
                self.stats.preemptions += 1
            else:
                victim.uncounted += 1
        for request in step.admitted:
            if request.scheduled_at < 0:
                request.scheduled_at = self.now
                self.stats.first_admission(request)
        seconds = self._time.seconds(step.prefill, step.decoding, step.context, step.loaded)
        self._in_flight = _InFlight(step, self.now + seconds)

    def _land(self, flight: _InFlight) -> list[Request]:
        step, stats = flight.step, self.stats
        self._in_flight = None
        self.now = flight.ends
        done = self._scheduler.commit(step)
        if step.decoding:
            stats.histograms["inter_token_latency_seconds"].observe(self.now - self._last_output, step.decoding)
        computed = sum(self._output_after_prefill(request) for request in step.completing)
        outputs = step.decoding + len(step.completing)
        stats.prefilled += step.prefill
        stats.steps += 1
        if outputs:
            stats.generation_tokens += outputs
            stats.histograms["iteration_tokens_total"].observe(outputs + computed)
        self._last_output = self.now
        self._settle(done)
        for request in self._hung_up:  # after the gauges: they are not refreshed until the engine steps again
            self._scheduler.abort(request)
        self._hung_up.clear()
        return done

    def _output_after_prefill(self, request: Request) -> int:
        """Book the token that ends a prefill; return the prompt tokens computed if it is the request's first."""
        self.stats.preemptions += request.uncounted
        request.uncounted = 0
        if request.first_token_at < 0:
            request.first_token_at = self.now
            return self.stats.first_token(request)
        self.stats.histograms["inter_token_latency_seconds"].observe(self.now - request.last_token_at)
        return 0

    def _settle(self, done: list[Request]) -> list[Request]:
        scheduler, stats = self._scheduler, self.stats
        for request in done:
            request.finished_at = self.now
            stats.finish(request)
        stats.running = len(scheduler.running)
        stats.waiting = len(scheduler.waiting)
        stats.kv_usage = scheduler.kv_usage
        return done

    # ------------------------------------------------------------------ many plain steps

    def _glide_steps(self, until: float) -> int:
        """Return how many plain decode steps end by `until` and before anything else can happen."""
        scheduler = self._scheduler
        steps = scheduler.glide_limit()
        if steps <= 0 or self._last_output != self.now:
            return 0
        first, growth = self._ramp()
        room = until - self.now
        if _duration(first, growth, steps) > room:
            slope = first - growth / 2  # growth/2 k^2 + slope k = room
            steps = int((sqrt(slope * slope + 2 * growth * room) - slope) / growth if growth else room / first)
            while steps and _duration(first, growth, steps) > room:
                steps -= 1
        return steps

    def _ramp(self) -> tuple[float, float]:
        """Return the next plain step's time, and by how much each following one is longer as contexts grow."""
        scheduler = self._scheduler
        first = self._time.seconds(0, scheduler.decoding, scheduler.context + scheduler.decoding)
        return first, self._time.context * scheduler.decoding

    def _glide(self, steps: int) -> list[Request]:
        scheduler, stats = self._scheduler, self.stats
        first, growth = self._ramp()
        decoding = scheduler.decoding
        scheduler.glide(steps)
        stats.histograms["inter_token_latency_seconds"].observe_ramp(first, growth, steps, decoding)
        stats.histograms["iteration_tokens_total"].observe(decoding, steps)
        stats.generation_tokens += decoding * steps
        stats.steps += steps
        self.now += _duration(first, growth, steps)
        self._last_output = self.now
        return self._settle(scheduler.finished())


def _duration(first: float, growth: float, steps: int) -> float:
    """Return seconds of `steps` plain steps whose times grow by `growth` each."""
    return steps * (first + growth * (steps - 1) / 2)
