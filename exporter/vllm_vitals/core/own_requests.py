"""The monitor's own requests taken off what the engine counts, so that it does not measure itself.

Input: answered canaries, and the samples of one target. Output: samples as they would be without the canaries. A
canary is taken off at the first scrape that began after its answer and shows one more finished request; its
observations leave each histogram from the highest bucket, up to what is known of it, that grew. Invariant: no counter
falls, and what vLLM itself says (the published sample) stays as it is.
"""

from array import array
from bisect import bisect_left
from collections import Counter, defaultdict, deque
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from operator import sub

from vllm_vitals.core.sample import EngineSample, Histogram, TargetSample
from vllm_vitals.core.snapshot import Canary

Identity = tuple[str, str]  # (model_name, engine)
PENDING = 16  # canaries that no scrape has shown yet
PROMPT_TOKENS = 16.0  # of the canary's prompt, where the answer did not say
_REASONS = ("length", "stop")  # how a request for one token ends
_TOKENS = ("prompt_tokens", "prompt_tokens_computed", "generation_tokens")


@dataclass(slots=True)
class _Taken:
    """What is taken off one engine since its counters began."""

    responses: dict[str, float] = field(default_factory=dict)
    tokens: dict[str, float] = field(default_factory=lambda: dict.fromkeys(_TOKENS, 0.0))
    histograms: dict[str, Histogram] = field(default_factory=dict)


class OwnRequests:
    """One target's canaries, and what they added to each of its engines."""

    def __init__(self) -> None:
        self._pending: deque[Canary] = deque(maxlen=PENDING)
        self._taken: dict[Identity, _Taken] = {}
        self._before: Mapping[Identity, EngineSample] = {}

    def tell(self, canary: Canary) -> None:
        """Take in a canary's end; only an answered one has left anything in the counters."""
        if canary.outcome == "ok":
            self._pending.append(canary)

    def without(self, began: float, sample: TargetSample) -> Mapping[Identity, EngineSample]:
        """Return the engines without canaries; ``began`` is when the scrape was sent."""
        before, self._before = self._before, sample.engines
        if not self._pending and not self._taken:
            return sample.engines
        for identity in [i for i, old in before.items() if _anew(old, sample.engines.get(i))]:
            self._taken.pop(identity, None)
        self._attribute(began, before, sample.engines)
        return {
            i: _less(engine, self._taken[i]) if i in self._taken else engine for i, engine in sample.engines.items()
        }

    def _attribute(
        self, began: float, before: Mapping[Identity, EngineSample], now: Mapping[Identity, EngineSample]
    ) -> None:
        """Take each canary that ended before the scrape off the engine that finished the most since the last one."""
        room = {
            identity: max(0.0, (new.completions or 0.0) - (before[identity].completions or 0.0))
            for identity, new in now.items()
            if identity in before
        }
        limits = {
            (identity, name): self._tokens(identity, name) + max(0.0, _count(now[identity], name) - _count(old, name))
            for identity, old in before.items()
            if identity in room
            for name in _TOKENS
        }
        ended: defaultdict[Identity, Counter[str]] = defaultdict(Counter)  # canaries of this scrape, by reason
        while self._pending and room and self._pending[0].sent_at + self._pending[0].took_s <= began:
            identity = max(room, key=lambda i: room[i])
            if room[identity] < 1:
                break
            room[identity] -= 1
            taken = self._taken.setdefault(identity, _Taken())
            _take(taken, self._pending.popleft(), before[identity], now[identity], ended[identity])
            for name in _TOKENS:  # never more than was counted since the last scrape: no counter may fall
                taken.tokens[name] = min(taken.tokens[name], limits[identity, name])

    def _tokens(self, identity: Identity, name: str) -> float:
        taken = self._taken.get(identity)
        return 0.0 if taken is None else taken.tokens[name]


def _count(engine: EngineSample, name: str) -> float:
    number: float | None = getattr(engine, name)
    return number or 0.0


def _anew(old: EngineSample, new: EngineSample | None) -> bool:
    return new is None or (new.generation_tokens or 0.0) < (old.generation_tokens or 0.0)


def _take(taken: _Taken, canary: Canary, old: EngineSample, new: EngineSample, ended: Counter[str]) -> None:
    said, earlier = new.responses or {}, old.responses or {}
    reason = next((r for r in _REASONS if said.get(r, 0.0) - earlier.get(r, 0.0) > ended[r]), _REASONS[0])
    ended[reason] += 1
    prompt = PROMPT_TOKENS if canary.prompt_tokens is None else canary.prompt_tokens
    output = 1.0 if canary.output_tokens is None else canary.output_tokens
    taken.responses[reason] = _responses(taken, reason) + 1
    for name, tokens in zip(_TOKENS, (prompt, prompt, output), strict=True):
        taken.tokens[name] += tokens
    known = {"request_prompt_tokens": prompt, "request_output_tokens": output, "request_max_tokens": 1.0}
    for name, shown in new.histograms.items():
        if name == "inter_token_latency_seconds":
            continue  # one token has no gap
        value = known.get(name, 0.0 if name in ("tpot_seconds", "request_preemptions") else canary.took_s)
        before = old.histograms.get(name)
        grown = _bucket(shown, before, bisect_left(shown.bounds, value))
        if grown is not None:
            taken.histograms[name] = _with(taken.histograms.get(name), shown, grown, value)


def _responses(taken: _Taken, reason: str) -> float:
    """Responses of a reason that were taken off already."""
    return taken.responses.get(reason, 0.0)


def _bucket(new: Histogram, old: Histogram | None, highest: int) -> int | None:
    """Return the highest bucket up to ``highest`` that grew between two scrapes; None where none did."""
    if old is None or old.bounds != new.bounds:
        return None
    for index in range(highest, -1, -1):
        below = new.counts[index - 1] - old.counts[index - 1] if index else 0.0
        if new.counts[index] - old.counts[index] - below >= 1:
            return index
    return None


def _with(taken: Histogram | None, shown: Histogram, bucket: int, value: float) -> Histogram:
    """Note one more observation to take off."""
    if taken is None or taken.bounds != shown.bounds:
        taken = Histogram(shown.bounds, array("d", bytes(8 * len(shown.counts))), 0.0)
    counts = array("d", taken.counts)
    for index in range(bucket, len(counts)):
        counts[index] += 1
    upper = shown.bounds[bucket] if bucket < len(shown.bounds) else value
    return Histogram(shown.bounds, counts, taken.sum + min(value, upper))


def _less(engine: EngineSample, taken: _Taken) -> EngineSample:
    responses = None
    if engine.responses is not None:
        responses = {reason: max(0.0, n - _responses(taken, reason)) for reason, n in engine.responses.items()}

    def less(name: str) -> float | None:
        number: float | None = getattr(engine, name)
        return None if number is None else max(0.0, number - taken.tokens[name])

    histograms = dict(engine.histograms)
    for name, off in taken.histograms.items():
        shown = histograms.get(name)
        if shown is not None and shown.bounds == off.bounds:
            counts = array("d", map(sub, shown.counts, off.counts))
            if min(counts) >= 0:
                histograms[name] = Histogram(shown.bounds, counts, max(0.0, shown.sum - off.sum))
    return replace(
        engine,
        responses=responses,
        histograms=histograms,
        prompt_tokens=less("prompt_tokens"),
        prompt_tokens_computed=less("prompt_tokens_computed"),
        generation_tokens=less("generation_tokens"),
    )
