"""What concerns one server as a whole, worked out once a scrape and handed to each of its engines.

Input: good scrapes, ends of canaries. Output: a `ServerView`. Invariant: nothing here judges an engine.
"""

from dataclasses import dataclass

from vllm_vitals.core.canary import NO_CANARY, CanaryVerdict, CanaryWatch
from vllm_vitals.core.http_answers import NO_ANSWERS, Answers, AnswersWatch
from vllm_vitals.core.identity import IdentityWatch
from vllm_vitals.core.pause import NO_PAUSE, Pause, PauseWatch
from vllm_vitals.core.sample import TargetSample
from vllm_vitals.core.snapshot import Contradiction
from vllm_vitals.core.thresholds import Thresholds

MAX_UNREAD = 8  # families named one by one


@dataclass(frozen=True, slots=True)
class ServerView:
    """``withheld``: why no verdict on any engine can be given now, "" where it can.

    ``logged_capacity``: KV cache of one engine in tokens, by the server's log or the config.
    """

    canary: CanaryVerdict = NO_CANARY
    pause: Pause = NO_PAUSE
    answers: Answers = NO_ANSWERS
    withheld: str = ""
    found: tuple[Contradiction, ...] = ()
    logged_capacity: float | None = None


NO_SERVER_VIEW = ServerView()


class ServerWatch:
    """One target's memory of what its engines share."""

    def __init__(self) -> None:
        self.canaries = CanaryWatch()
        self._identity, self._pause, self._answers = IdentityWatch(), PauseWatch(), AnswersWatch()

    def feed(self, at: float, sample: TargetSample, limits: Thresholds) -> ServerView:
        """Take in a good scrape."""
        canary, pause = self.canaries.feed(at, sample), self._pause.feed(at, sample)
        answers = self._answers.feed(at, sample, limits)
        found = [Contradiction("unread_family", text) for text in _unread(sample)] if sample.unread else []
        if sample.split_labels:
            labels = ", ".join(sample.split_labels)
            text = (
                f"series differ in labels that vLLM does not have ({labels}): they are judged as engines of their own"
            )
            found.append(Contradiction("split_labels", text))
        withheld = []
        if several := self._identity.feed(at, sample):
            withheld.append(Contradiction("several_servers", f"{several}: make each replica a target of its own"))
        if answers.uncounted is not None and pause.since is None and not _present(sample):
            text = (
                f"{answers.uncounted:.0f} inference requests were answered 2xx while the engine counted nothing and "
                "shows no request: either this page is not about the engine that answers, or that one is frozen and "
                "its clients leave; only a canary or the gateway can tell"
            )
            withheld.append(Contradiction("http_without_engine", text))
        why = withheld[0].text if withheld else ""
        return ServerView(canary, pause, answers, why, (*withheld, *found))


def _present(sample: TargetSample) -> bool:
    return any(engine.work or engine.asleep for engine in sample.engines.values())


def _unread(sample: TargetSample) -> list[str]:
    texts = [f"{family} is left out: {why}" for family, why in list(sample.unread.items())[:MAX_UNREAD]]
    more = len(sample.unread) - len(texts)
    return [*texts, f"{more} more families are left out"] if more > 0 else texts
