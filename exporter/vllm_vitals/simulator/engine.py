"""One engine in simulated time: it steps its scheduler and counts what vLLM would count.

Input: requests and a time to advance to. Output: finished requests, and `EngineStats`. Nothing here waits: time is an
argument. Invariant: what a step changes is seen only once the step's end has been reached.
"""

from dataclasses import dataclass
from heapq import heappop, heappush
from math import inf, sqrt

from vllm_vitals.simulator.request import Request
from vllm_vitals.simulator.scheduler import Scheduler, Step
from vllm_vitals.simulator.settings import ServerSettings
from vllm_vitals.simulator.speculation import Speculation
from vllm_vitals.simulator.stats import EngineStats
from vllm_vitals.simulator.steptime import StepTime


@dataclass(slots=True)
class _InFlight:
    step: Step | None  # None: one more token for everybody that decodes, and nothing else
    ends: float
    gap: float  # between two outputs of a decoding request: the step, where there is no speculation


class Engine:
    """A scheduler, a clock and the counters. ``now`` is the end of the last step, in seconds."""

    def __init__(self, settings: ServerSettings, step_time: StepTime, now: float = 0.0) -> None:
        self.settings = settings
        self.stats = EngineStats(settings.max_model_len)
        self._gaps = self.stats.histograms["inter_token_latency_seconds"]
        self._iterations = self.stats.histograms["iteration_tokens"]
        self.now = now
        self.frozen = False
        self.paused = False
        self._evict_due = False
        self._own_time = step_time
        self._time = step_time
        self._speculation = Speculation(settings.num_speculative_tokens)
        self._speculating = settings.num_speculative_tokens > 0
        self.stats.accepted_at = [0.0] * settings.num_speculative_tokens
        self._deferred: list[tuple[float, int, Request]] = []  # by the time at which each may go on
        self._scheduler = Scheduler(settings)
        self._in_flight: _InFlight | None = None
        self._last_output = now
        self._hung_up: list[Request] = []

    @property
    def load(self) -> int:
        """Requests queued, times four, and running: what vLLM's DP balancer compares (v1/engine/core_client.py)."""
        return 4 * self.waiting + len(self._scheduler.running)

    @property
    def waiting(self) -> int:
        """Requests queued, for whatever reason."""
        return len(self._scheduler.waiting) + len(self._deferred)

    @property
    def requests(self) -> list[Request]:
        """Everything queued or running now."""
        deferred = (request for _, _, request in self._deferred)
        return [*self._scheduler.running, *self._scheduler.waiting, *deferred]

    def add(self, request: Request) -> None:
        """Add a request; the step in flight does not know of it."""
        if self.paused:
            self._evict_due = True
        if request.deferred_s:
            heappush(self._deferred, (request.arrival + request.deferred_s, request.id, request))
            if self._in_flight is None and not self._scheduler.running:
                self._show()  # the engine goes round without work as long as somebody waits
            return
        self._queue(request, request.arrival)

    def _queue(self, request: Request, now: float) -> None:
        self._scheduler.add(request)
        if self._in_flight is None and len(self._scheduler.waiting) == 1 and not self._scheduler.running:
            self.now = max(self.now, now)

    def abort(self, request: Request) -> None:
        """Hang up a client: the request goes at the next step's boundary and counts as nothing (VLLM S:599-660)."""
        if request.deferred_s:
            self._deferred = sorted(entry for entry in self._deferred if entry[2] is not request)
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
            elif self.paused:
                if self._evict_due:
                    self._evict_all(until)
                break
            elif self._deferred and self._deferred[0][0] <= max(self.now, self._idle_until(until)):
                ready, _, request = heappop(self._deferred)
                self._queue(request, ready)
                continue
            elif self.now >= until or not (scheduler.running or scheduler.waiting):
                break  # a step that would start at `until` waits for what else arrives then
            elif (
                scheduler.unsettled
                or not scheduler.decoding
                or self._last_output != self.now
                or (most := scheduler.glide_limit()) <= 0
            ):
                self._take_off()
                continue
            else:
                first, growth = self._ramp()
                steps = self._steps_until(until, most, first, growth)
                if not steps:
                    self._in_flight = _InFlight(None, self.now + first, first * self._speculation.tokens_per_step)
                    continue
                done = self._glide(steps, first, growth)
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

    def pause(self) -> None:
        """Begin no step any more; the gauges stay until the next request comes (seen on 0.32.0, mode keep)."""
        self.paused = True

    def resume(self, now: float) -> None:
        """Go on with what is in the queue."""
        self.paused = False
        self.now = max(self.now, now)

    def skip(self, until: float) -> None:
        """Let time pass to `until` with nothing to do; who is still inside has waited that long."""
        self.now = max(self.now, until)
        self._last_output = self.now

    def hold(self, share: float) -> None:
        """Let this share of the KV blocks be held by nobody; the gauge learns of it with the next step."""
        self._scheduler.hold(int(share * self.settings.usable_blocks))

    def leak(self, blocks: int) -> None:
        """Let every request that finishes leave so many blocks held by nobody."""
        self._scheduler.leak(blocks)

    def slow(self, factor: float) -> None:
        """Let steps take `factor` times as long as the server's own."""
        self._time = self._own_time.scaled(factor)

    def accept(self, chance: float) -> None:
        """Let draft tokens be accepted with this chance."""
        self._speculation.accept(chance)

    def _idle_until(self, until: float) -> float:
        """Return how far time may jump: to `until` while nothing is there to be stepped."""
        return until if not (self._scheduler.running or self._scheduler.waiting) else -inf

    def _evict_all(self, now: float) -> None:
        for victim in self._scheduler.evict_all():
            victim.last_token_at = self._last_output
            victim.uncounted += 1
        self.now = max(self.now, now)
        self._evict_due = False
        self._show()

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
        for request in (*step.admitted, *step.failed) if step.failed else step.admitted:
            if request.scheduled_at < 0:
                request.scheduled_at = self.now
                if self.settings.enable_prefix_caching:
                    self.stats.first_admission(request)
                if self.settings.kv_transfer:
                    self._ask_connector(request)
        tokens = self._speculation.tokens_per_step
        seconds = gap = self._time.seconds(step.prefill, step.decoding * tokens, step.context, step.loaded)
        if self._speculating and step.decoding:  # on average this step gives one of its tokens
            seconds -= self._time.seconds(0, step.decoding * tokens, step.context) * (1 - 1 / tokens)
        self._in_flight = _InFlight(step, self.now + seconds, gap)

    def _ask_connector(self, request: Request) -> None:
        self.stats.external_queries += request.prompt
        if request.reason == "error":  # a load that fails counts as a hit
            size = self.settings.block_size
            self.stats.external_hits += request.prompt // size * size

    def _land(self, flight: _InFlight) -> list[Request]:
        step, stats = flight.step, self.stats
        self._in_flight = None
        if step is None:
            self.now = self._last_output  # where it began, also if the engine was frozen since
            done = self._glide(1, flight.ends - self.now, 0.0)
            if self._hung_up:
                self._let_go()
            return done
        self.now = flight.ends
        done = self._scheduler.commit(step)
        if step.decoding and self._speculating:
            self._speculation.book(stats, flight.gap, 0.0, 1, step.decoding)
        elif step.decoding:
            self._gaps.observe(self.now - self._last_output, step.decoding)
        for request in step.failed:
            request.first_token_at = request.finished_at = self.now
            request.output = 0
            stats.fail(request)
        computed = 0
        for request in step.completing:
            computed += self._output_after_prefill(request)
        outputs = step.decoding + len(step.completing)
        stats.prefilled += step.prefill
        stats.steps += 1
        if outputs:
            stats.generation_tokens += outputs
            self._iterations.observe(outputs + computed)
        self._last_output = self.now
        self._settle(done)
        if step.failed:
            done += step.failed
        if self._hung_up:
            self._let_go()
        return done

    def _let_go(self) -> None:
        """Drop those who hung up; after the gauges: they are not refreshed until the engine steps again."""
        for request in self._hung_up:
            self._scheduler.abort(request)
        self._hung_up.clear()

    def _output_after_prefill(self, request: Request) -> int:
        """Book the token that ends a prefill; return the prompt tokens computed if it is the request's first."""
        self.stats.preemptions += request.uncounted
        request.uncounted = 0
        if request.first_token_at < 0:
            request.first_token_at = self.now
            return self.stats.first_token(request)
        self._gaps.observe(self.now - request.last_token_at)
        return 0

    def _settle(self, done: list[Request]) -> list[Request]:
        scheduler, stats = self._scheduler, self.stats
        for request in done:
            request.finished_at = self.now
            stats.finish(request)
        stats.running = len(scheduler.running)
        stats.waiting = len(scheduler.waiting)
        stats.deferred = 0
        if self._deferred:
            stats.deferred = len(self._deferred)
            stats.waiting += stats.deferred
        stats.kv_usage = scheduler.kv_usage
        return done

    def _show(self) -> None:
        """Refresh the gauges without a step."""
        self._settle([])

    # ------------------------------------------------------------------ many plain steps

    def _steps_until(self, until: float, steps: int, first: float, growth: float) -> int:
        """Return how many of `steps` plain decode steps end by `until` and before anything else can happen."""
        room = (min(until, self._deferred[0][0]) if self._deferred else until) - self.now
        if _duration(first, growth, steps) > room:
            slope = first - growth / 2  # growth/2 k^2 + slope k = room
            steps = int((sqrt(slope * slope + 2 * growth * room) - slope) / growth if growth else room / first)
            while steps and _duration(first, growth, steps) > room:
                steps -= 1
        return steps

    def _ramp(self) -> tuple[float, float]:
        """Return the next plain step's time, and by how much each following one is longer as contexts grow."""
        scheduler, time = self._scheduler, self._time
        decoding = scheduler.decoding
        first = time.base + time.context * (scheduler.context + decoding)
        if not self._speculating:
            return first + time.decode * decoding, time.context * decoding
        tokens = self._speculation.tokens_per_step
        return first / tokens + time.decode * decoding, time.context * decoding / tokens

    def _glide(self, steps: int, first: float, growth: float) -> list[Request]:
        scheduler, stats = self._scheduler, self.stats
        decoding = scheduler.decoding
        scheduler.glide(steps)
        stats.generation_tokens += decoding * steps
        if self._speculating:
            each = self._speculation.tokens_per_step
            self._speculation.book(stats, first * each, growth * each * each, steps, decoding)
        else:
            self._gaps.observe_ramp(first, growth, steps, decoding)
            self._iterations.observe(decoding, steps)
            stats.steps += steps
        self.now += _duration(first, growth, steps)
        self._last_output = self.now
        return self._settle(scheduler.finished())


def _duration(first: float, growth: float, steps: int) -> float:
    """Return seconds of `steps` plain steps whose times grow by `growth` each."""
    return steps * (first + growth * (steps - 1) / 2)
