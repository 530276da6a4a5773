"""vLLM's V1 scheduler, one iteration at a time (vllm/v1/core/sched/scheduler.py, 0.32).

Input: requests. Output: what each step computes. Running requests go first, one token each or a chunk of a prompt;
blocks are taken as sequences grow and nothing is reserved for max_tokens; when none is free the last running request
loses its KV and goes to the front of the queue; nothing is admitted in a step that preempted. Invariant: decoding
requests all advance together, so they share one step counter and cost nothing while nothing happens.
"""

from collections import deque
from dataclasses import dataclass, field
from heapq import heappop, heappush

from vllm_vitals.simulator.blocks import BlockPool
from vllm_vitals.simulator.prefixes import Prefixes
from vllm_vitals.simulator.request import Request
from vllm_vitals.simulator.settings import ServerSettings


@dataclass(slots=True)
class Step:
    """One iteration as planned: what it computes and for whom.

    ``decoding`` requests get one token each, ``completing`` ones end their prefill and get one too, ``failed`` ones
    end in `error`. ``victims`` lost their KV while it was planned. ``context`` KV tokens are read, ``loaded`` ones come
    back from host memory.
    """

    decoding: int = 0
    prefill: int = 0
    context: int = 0
    loaded: int = 0
    completing: list[Request] = field(default_factory=list)
    admitted: list[Request] = field(default_factory=list)
    failed: list[Request] = field(default_factory=list)
    victims: list[Request] = field(default_factory=list)


class Scheduler:
    """The queue, the batch and the blocks. `plan` and `commit` alternate; `glide` does many plain steps at once."""

    def __init__(self, settings: ServerSettings) -> None:
        self.settings = settings
        self.pool = BlockPool(settings.usable_blocks, settings.enable_prefix_caching)
        self.waiting: deque[Request] = deque()
        self.running: list[Request] = []
        self.decoding = 0
        # True while the next step may differ from "one more token for every decoding request".
        self.unsettled = False
        self._clock = 0  # decode steps done so far; a decoding request's computed tokens are clock - base
        self._bases = 0  # sum of the decoding requests' bases
        self._crossing = [0] * settings.block_size  # decoding requests by the clock residue at which they need a block
        self._ends: list[tuple[int, int, Request]] = []  # by the clock at which the request is finished
        self._partial: Request | None = None  # the running request in mid-prefill; always the last one
        self._prefixes = Prefixes(self.pool, settings.block_size, settings.enable_prefix_caching)
        self._fenced: list[Request] = []
        self._watermark = int(settings.watermark * settings.num_gpu_blocks)
        self._held = 0  # blocks that no request holds
        self._leak = 0

    @property
    def context(self) -> int:
        """KV tokens of the decoding requests."""
        return self._clock * self.decoding - self._bases

    @property
    def kv_usage(self) -> float:
        """Share of the usable blocks that running requests hold, 0-1."""
        return 1 - self.pool.free / self.pool.usable

    def add(self, request: Request) -> None:
        """Queue a new request at the back."""
        if not self.waiting:
            self.unsettled = True
        self.waiting.append(request)

    def abort(self, request: Request) -> None:
        """Drop a request wherever it is, between two steps."""
        if request in self.waiting:
            self.waiting.remove(request)
        elif request in self.running:
            self.running.remove(request)
            self._release(request)
            self._prune()
        self.unsettled = True

    def hold(self, blocks: int) -> None:
        """Let so many blocks be held by nobody, as far as there are free ones."""
        if blocks > self._held:
            more = min(blocks - self._held, self.pool.free)
            self.pool.take(more)
            self._held += more
        else:
            self.pool.give("held", 0, self._held - blocks)
            self._held = blocks
        self.unsettled = True

    def leak(self, blocks: int) -> None:
        """Let every request that finishes from now on leave so many blocks held."""
        self._leak = blocks

    def evict_all(self) -> list[Request]:
        """Take the KV of all that runs; it waits at the front of the queue. Between two steps."""
        step = Step()
        while self.running:
            self._preempt(self.running.pop(), step)
        for victim in self._fenced:
            self._prefixes.release(victim)
        self._fenced.clear()
        self.unsettled = True
        return step.victims

    # ------------------------------------------------------------------ plain steps, many at once

    def glide_limit(self) -> int:
        """Return how many plain decode steps certainly fit before a request ends or a block might be missing."""
        steps = self._ends[0][0] - self._clock
        free, size = self.pool.free, self.settings.block_size
        if self.decoding * (steps // size + 1) > free:
            whole = max(0, free // self.decoding - 1)
            steps = min(steps, whole * size)
        return steps

    def glide(self, steps: int) -> None:
        """Advance every decoding request by `steps` tokens; `glide_limit` has said that it is safe."""
        size = self.settings.block_size
        start = self._clock % size
        rounds, rest = divmod(steps, size)
        blocks = rounds * self.decoding
        if rest:
            end = start + rest
            blocks += sum(self._crossing[start:end])
            if end > size:
                blocks += sum(self._crossing[: end - size])
        if blocks:
            self.pool.take(blocks)
        self._clock += steps

    # ------------------------------------------------------------------ one step

    def plan(self) -> Step:
        """Decide the next step and take its blocks."""
        step = Step()
        need = self._crossing[self._clock % self.settings.block_size]
        if need > self.pool.free:
            self._grow_one_by_one(step)
        elif need:
            self.pool.take(need)
        step.decoding = self.decoding
        step.context = self.context + self.decoding
        budget = self.settings.max_num_batched_tokens - self.decoding
        if self._partial is not None:
            budget -= self._continue_prefill(self._partial, budget, step)
        exhausted = not step.victims and self.waiting and self._admit(step, budget)
        self.unsettled = bool(step.victims or exhausted or self._partial is not None)
        return step

    def commit(self, step: Step) -> list[Request]:
        """Finish a step: move the clock, turn completed prefills into decoding requests, return who finished."""
        self._clock += 1
        for victim in self._fenced:
            self._prefixes.release(victim)
        self._fenced.clear()
        for request in step.completing:
            self._start_decoding(request)
        return self.finished()

    def finished(self) -> list[Request]:
        """Remove and return the requests whose last token came with the step just done."""
        done = []
        while self._ends and self._ends[0][0] <= self._clock:
            request = heappop(self._ends)[2]
            self.running.remove(request)
            self._release(request)
            self._prune()
            if self._leak:
                self.hold(self._held + self._leak)
            done.append(request)
        if done:
            self.unsettled = True
        return done

    def _prune(self) -> None:
        """Keep the earliest end true: entries of requests that were preempted or dropped go."""
        ends = self._ends
        while ends and not (ends[0][2].decoding and ends[0][2].ends_at == ends[0][0]):
            heappop(ends)

    def _grow_one_by_one(self, step: Step) -> None:
        size = self.settings.block_size
        residue = self._clock % size
        index = 0
        while index < len(self.running):
            request = self.running[index]
            index += 1
            if not request.decoding or request.base % size != residue:
                continue
            while self.pool.free < 1:
                victim = self.running.pop()
                self._preempt(victim, step)
                if victim is request:
                    return
            self.pool.take(1)

    def _continue_prefill(self, request: Request, budget: int, step: Step) -> int:
        chunk = min(request.tokens - request.computed, budget)
        need = self._blocks(request.computed + chunk) - request.blocks
        if need > self.pool.free:
            self._preempt(self.running.pop(), step)
            return 0
        self.pool.take(need)
        self._compute(request, chunk, need, step)
        return chunk

    def _compute(self, request: Request, chunk: int, blocks: int, step: Step) -> None:
        request.blocks += blocks
        request.computed += chunk
        step.prefill += chunk
        step.context += request.computed
        if request.prefix:
            self._prefixes.share(request)
        if request.computed == request.tokens:
            step.completing.append(request)
            self._partial = None
        else:
            self._partial = request

    def _admit(self, step: Step, budget: int) -> bool:
        """Admit from the front of the queue; True when only the token budget stopped it."""
        while self.waiting:
            if len(self.running) >= self.settings.max_num_seqs:
                return False
            if budget <= 0:
                return True
            request = self.waiting[0]
            if request.reason == "error":  # what it needs does not come: it ends with this step, and holds nothing
                request.cached = 0
                step.failed.append(self.waiting.popleft())
                continue
            chunk = self._try_admission(request, budget, step)
            if not chunk:
                return False
            budget -= chunk
            self.waiting.popleft()
            self.running.append(request)
            step.admitted.append(request)
        return False

    def _try_admission(self, request: Request, budget: int, step: Step) -> int:
        shared, own, revived = self._prefixes.look_up(request)
        hits = shared + own
        found = hits * self.settings.block_size
        computed = max(found, request.saved)
        chunk = min(request.tokens - computed, budget)
        reach = request.tokens if self.settings.scheduler_reserve_full_isl else computed + chunk
        watermark = self._watermark if self.running else 0
        if self._blocks(reach) - hits + revived + watermark > self.pool.free:
            return 0
        self._prefixes.hold(request, shared, own)
        request.computed = computed
        request.cached = computed if request.cached < 0 else request.cached
        request.saved = 0
        step.loaded += computed - found
        need = self._blocks(computed + chunk) - hits
        self.pool.take(need)
        self._compute(request, chunk, need, step)
        return chunk

    def _blocks(self, tokens: int) -> int:
        return -(-tokens // self.settings.block_size)

    # ------------------------------------------------------------------ a request's way through the batch

    def _start_decoding(self, request: Request) -> None:
        request.generated += 1
        request.decoding = True
        request.base = self._clock - request.computed
        request.ends_at = self._clock + request.output - request.generated
        self.decoding += 1
        self._bases += request.base
        self._crossing[request.base % self.settings.block_size] += 1
        heappush(self._ends, (request.ends_at, request.id, request))

    def _leave_decoding(self, request: Request) -> None:
        request.decoding = False
        request.computed = self._clock - request.base
        request.blocks = self._blocks(request.computed)
        request.generated = request.output - (request.ends_at - self._clock)
        self.decoding -= 1
        self._bases -= request.base
        self._crossing[request.base % self.settings.block_size] -= 1

    def _release(self, request: Request) -> None:
        if request.decoding:
            self._leave_decoding(request)
        elif request is self._partial:
            self._partial = None
        self._prefixes.release(request)

    def _preempt(self, victim: Request, step: Step) -> None:
        victim.was_decoding = victim.decoding
        if victim.decoding:
            self._leave_decoding(victim)
        else:
            self._partial = None
        if self.settings.kv_offload:
            victim.saved = victim.computed // self.settings.block_size * self.settings.block_size
        if self.settings.fenced_release:
            self._fenced.append(victim)
        else:
            self._prefixes.release(victim)
        victim.preemptions += 1
        step.victims.append(victim)
        self.waiting.appendleft(victim)
        self._prune()
