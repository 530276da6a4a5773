"""What the HTTP server of vLLM answered, held against what its engines did.

Input: good scrapes of one target. Output: the share of inference requests that fail (5xx), and whether 2xx are answered
while no engine counts anything. Sources: prometheus-fastapi-instrumentator's ``http_requests_total``; a failure inside
a stream is a 2xx. Invariant: 4xx are the client's and never count; a 503 by choice (``admission_rejections``) is taken
off; errors inside the engine and 5xx are two views of one thing and are never added.
"""

from collections import deque
from dataclasses import dataclass
from typing import NamedTuple

from vllm_vitals.core.sample import TargetSample
from vllm_vitals.core.thresholds import Thresholds
from vllm_vitals.vllm.routes import INFERENCE

UNCOUNTED_S = 60.0  # 2xx without any counter of the engine moving for so long are a contradiction
LEAST_ANSWERS = 10.0


@dataclass(frozen=True, slots=True)
class FailingAnswers:
    """Inference requests of one span: failed (5xx), all but 4xx, seconds; good finishes a second in it and before."""

    failed: float
    answers: float
    seconds: float
    good_rate: float
    good_before: float | None

    @property
    def share(self) -> float:
        """Failed of all."""
        return self.failed / self.answers

    @property
    def served_less(self) -> bool:
        """Whether good finishes fell below half of before; where before was not seen, or idle, below the failures."""
        if not self.good_before:
            return self.good_rate * self.seconds < self.failed
        return self.good_rate < self.good_before / 2


@dataclass(frozen=True, slots=True)
class Answers:
    """What is known after a scrape. ``uncounted``: 2xx answers that no engine counter explains, for `UNCOUNTED_S`."""

    failing: FailingAnswers | None = None
    uncounted: float | None = None


NO_ANSWERS = Answers()


class _Point(NamedTuple):
    at: float
    good: float  # 2xx answers
    failed: float  # 5xx, less what was rejected on purpose
    finished: float  # good finishes of every engine
    moved: float  # everything that any engine counts


class AnswersWatch:
    """One target's memory of its answers: the points of the last two slow windows."""

    def __init__(self) -> None:
        self._points: deque[_Point] = deque(maxlen=4096)
        self._still: _Point | None = None  # the first point since which no engine counter moved

    def feed(self, at: float, sample: TargetSample, limits: Thresholds) -> Answers:
        """Take in a good scrape."""
        point = _point(at, sample)
        if point is None:
            return NO_ANSWERS
        points = self._points
        if points and _fell(point, points[-1]):
            points.clear()  # a restart
            self._still = None
        if points and at <= points[-1].at:
            return NO_ANSWERS
        points.append(point)
        while points[0].at < at - 2 * limits.slow_window:
            points.popleft()
        if self._still is None or point.moved != self._still.moved:
            self._still = point
        answered = point.good - self._still.good
        uncounted = at - self._still.at >= UNCOUNTED_S and answered >= LEAST_ANSWERS
        failing = _failing(points, limits)
        return NO_ANSWERS if failing is None and not uncounted else Answers(failing, answered if uncounted else None)


def _point(at: float, sample: TargetSample) -> _Point | None:
    if sample.http is None:
        return None
    good = failed = rejected = finished = moved = 0.0
    for (handler, _, status), count in sample.http.items():
        if status == "2xx" and handler in INFERENCE:
            good += count
        elif status == "5xx" and handler in INFERENCE:
            failed += count
    for engine in sample.engines.values():
        whole = engine.completions or 0.0
        rejected = max(rejected, engine.rejections or 0.0)
        finished += whole
        moved += whole + (engine.errors or 0.0) + (engine.aborts or 0.0)
        moved += (engine.generation_tokens or 0.0) + (engine.prompt_tokens or 0.0)
    return _Point(at, good, max(0.0, failed - rejected), finished, moved)


def _fell(new: _Point, old: _Point) -> bool:
    return new.good < old.good or new.finished < old.finished or new.moved < old.moved


def _failing(points: deque[_Point], limits: Thresholds) -> FailingAnswers | None:
    """Over the shortest span from the fast to the slow window that holds enough answers; a younger server's whole."""
    last, first = points[-1], points[0]
    if last.failed <= first.failed:
        return None
    for earlier in reversed(points):
        seconds = last.at - earlier.at
        if seconds > limits.slow_window:
            break
        first = earlier
        if seconds >= limits.fast_window and _answers(earlier, last) >= LEAST_ANSWERS:
            break
    seconds, answers = last.at - first.at, _answers(first, last)
    if answers < LEAST_ANSWERS or seconds <= 0:
        return None
    earlier_s = first.at - points[0].at
    before = (first.finished - points[0].finished) / earlier_s if earlier_s >= limits.fast_window else None
    good = (last.finished - first.finished) / seconds
    return FailingAnswers(max(0.0, last.failed - first.failed), answers, seconds, good, before)


def _answers(first: _Point, last: _Point) -> float:
    return last.good + last.failed - first.good - first.failed
