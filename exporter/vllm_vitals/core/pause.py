"""Whether an operator has paused the engine: ``POST /pause`` and ``/resume``, as the page's HTTP counters show them.

Input: good scrapes of one target. Output: since when it is paused, and how many evictions that explains. A pause
freezes the scheduler, so that nothing moves while requests are present; with ``mode=keep`` vLLM preempts what runs and
resumes it later (vllm/entrypoints/serve/dev/rlhf). Invariant: an order that was not observed is unknown: where both
routes were called between two scrapes, only progress tells. A resume, any later token, or a restart ends a pause.
"""

from dataclasses import dataclass

from vllm_vitals.core.sample import TargetSample
from vllm_vitals.vllm.routes import PAUSE, RESUME, HttpKey

IN_FLIGHT = 8.0  # tokens of a request that a step under way may still give after the pause was answered
OWN_EVICTIONS_S = 60.0  # after a pause: a victim's preemption is counted with its next token


@dataclass(frozen=True, slots=True)
class Pause:
    """``since`` (epoch s) while paused. ``evicting``: preemptions counted now are those of a pause.

    ``order_unknown``: pause and resume were both called between two scrapes.
    """

    since: float | None = None
    evicting: bool = False
    order_unknown: bool = False


NO_PAUSE = Pause()
_PAUSED, _RESUMED = (HttpKey(route, "POST", "2xx") for route in (PAUSE, RESUME))


class PauseWatch:
    """One target's memory of its pauses."""

    def __init__(self) -> None:
        self._before: TargetSample | None = None  # the last page that counts calls
        self._last: TargetSample | None = None
        self._since: float | None = None
        self._ended_at: float | None = None
        self._order_unknown = False
        self._paused_at_last = False  # the newest scrape was the first to show the pause

    def feed(self, at: float, sample: TargetSample) -> Pause:
        """Take in a good scrape: whether it is paused now."""
        calls = _calls(sample)
        last, self._last = self._last, sample
        if calls is None:
            # not counted, dropped from this page, or a new server that has answered nothing yet, which is not paused
            if last is not None and self._since is not None and (_anew(last, sample) or _progressed(last, sample)):
                self._since, self._ended_at, self._order_unknown = None, at, False
            return Pause(self._since, self._since is not None, self._order_unknown)
        before, self._before = self._before, sample
        if calls == (0.0, 0.0) and self._since is None and self._ended_at is None and not self._order_unknown:
            return NO_PAUSE  # nobody ever has
        earlier = None if before is None else _calls(before)
        if before is None or earlier is None or calls[0] < earlier[0] or calls[1] < earlier[1] or _anew(before, sample):
            # a new life: where nobody has resumed yet, the last word was pause
            self._since, self._order_unknown = None, False
            return self._decide(at, paused=calls[0] > 0, resumed=calls[1] > 0)
        paused, resumed = calls[0] > earlier[0], calls[1] > earlier[1]
        first_after = self._since is not None and self._paused_at_last
        self._paused_at_last = paused and not resumed
        if first_after and not paused and not resumed and _in_flight(before, sample):
            return self._decide(at, paused=False, resumed=False)
        if _progressed(before, sample):
            self._order_unknown = False
            # tokens of the interval in which the pause came were made before it, or it has been resumed since
            return self._decide(at, paused=paused and not resumed, resumed=resumed or not paused)
        return self._decide(at, paused=paused, resumed=resumed)

    def _decide(self, at: float, *, paused: bool, resumed: bool) -> Pause:
        if paused and resumed:
            self._order_unknown = True
        if paused and not resumed:
            self._since, self._order_unknown = self._since if self._since is not None else at, False
        elif resumed:
            self._since, self._ended_at = None, at if self._since is not None or paused else self._ended_at
            self._order_unknown = paused
        if self._since is not None:
            return Pause(self._since, evicting=True)
        lately = self._ended_at is not None and at - self._ended_at <= OWN_EVICTIONS_S
        return Pause(None, lately, self._order_unknown)


def _calls(sample: TargetSample) -> tuple[float, float] | None:
    """Successful calls of pause and resume since the server started; None where the page does not count requests."""
    if sample.http is None:
        return None
    return sample.http.get(_PAUSED, 0.0), sample.http.get(_RESUMED, 0.0)


def _anew(before: TargetSample, now: TargetSample) -> bool:
    """Return whether any engine's counters began again."""
    return any(
        (new.generation_tokens or 0.0) < (old.generation_tokens or 0.0)
        for identity, new in now.engines.items()
        if (old := before.engines.get(identity)) is not None
    )


def _in_flight(before: TargetSample, now: TargetSample) -> bool:
    """Return whether the tokens made between two scrapes are no more than the step under way had."""
    return all(
        (new.generation_tokens or 0.0) - (old.generation_tokens or 0.0) <= IN_FLIGHT * (old.running or 0.0)
        and new.completions == old.completions
        for identity, new in now.engines.items()
        if (old := before.engines.get(identity)) is not None
    )


def _progressed(before: TargetSample, now: TargetSample) -> bool:
    """Return whether any engine made tokens between two scrapes."""
    return any(
        (new.generation_tokens or 0.0) > (old.generation_tokens or 0.0)
        or (new.prompt_tokens or 0.0) > (old.prompt_tokens or 0.0)
        for identity, new in now.engines.items()
        if (old := before.engines.get(identity)) is not None
    )
