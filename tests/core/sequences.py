"""Small hand-made engines: counters that rise as a test says, one sample at a time, judged as a daemon would."""

from array import array
from dataclasses import replace

from vllm_vitals.core.engine_evaluator import EngineEvaluator
from vllm_vitals.core.sample import EngineSample, Histogram
from vllm_vitals.core.snapshot import EngineKey, EngineSnapshot, Role
from vllm_vitals.core.states import State
from vllm_vitals.core.thresholds import Thresholds

EDGES = {
    "tpot_seconds": (
        0.01,
        0.025,
        0.05,
        0.075,
        0.1,
        0.15,
        0.2,
        0.3,
        0.4,
        0.5,
        0.75,
        1.0,
        2.5,
        5.0,
        7.5,
        10.0,
        20.0,
        80.0,
    ),
    "inter_token_latency_seconds": (
        0.01,
        0.025,
        0.05,
        0.075,
        0.1,
        0.15,
        0.2,
        0.3,
        0.5,
        0.75,
        1.0,
        2.5,
        5.0,
        10.0,
        80.0,
    ),
    "ttft_seconds": (0.001, 0.01, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 80.0, 640.0),
    "request_prompt_tokens": (1.0, 10.0, 100.0, 1000.0, 10_000.0, 100_000.0),
    "request_output_tokens": (1.0, 10.0, 100.0, 1000.0, 10_000.0, 100_000.0),
    "request_preemptions": (1.0, 2.0, 5.0, 10.0, 20.0),
}


def observe(old: Histogram, value: float, times: float = 1.0) -> Histogram:
    """The histogram after ``times`` more observations of ``value``."""
    counts = array("d", old.counts)
    for index in range(len(counts)):
        if index == len(old.bounds) or value <= old.bounds[index]:
            counts[index] += times
    return Histogram(old.bounds, counts, old.sum + value * times)


def empty(name: str) -> Histogram:
    """No observation yet, with vLLM's kind of buckets."""
    return Histogram(EDGES[name], array("d", [0.0] * (len(EDGES[name]) + 1)), 0.0)


class Engine:
    """One engine under test. ``step`` advances time and counters and answers the judge's snapshot."""

    def __init__(self, limits: Thresholds | None = None, role: Role | None = None, **first: object) -> None:
        self.judge = EngineEvaluator(EngineKey("vllm:8000", "m", "0"), limits or Thresholds(), role)
        self.at = 1_000_000.0
        defaults = EngineSample(
            running=0.0,
            waiting=0.0,
            waiting_by_reason={"capacity": 0.0, "deferred": 0.0},
            kv_usage=0.0,
            kv_capacity_tokens=100_000.0,
            asleep=False,
            preemptions=0.0,
            prompt_tokens=0.0,
            generation_tokens=0.0,
            prompt_tokens_computed=0.0,
            steps=0.0,
            responses={"stop": 0.0, "length": 0.0},
            histograms={name: empty(name) for name in EDGES},
            prefix_caching=False,
        )
        self.sample = replace(defaults, **first)  # type: ignore[arg-type]
        self.snapshot = self.judge.observe(self.at, self.sample, {})

    def step(
        self,
        seconds: float = 5.0,
        *,
        generated: float = 0.0,
        prompts: float = 0.0,
        started: float = 0.0,
        preempted: float = 0.0,
        finished: float = 0.0,
        failed: float = 0.0,
        twice: float = 0.0,
        cut: float = 0.0,
        steps: float = 0.0,
        gap: float | None = None,
        tpot: float = 0.03,
        ttft: float = 0.2,
        lengths: tuple[float, float] = (500.0, 200.0),
        **gauges: object,
    ) -> EngineSnapshot:
        """One sample later: ``finished`` requests of ``lengths`` (prompt, output), ``cut`` by length; ``failed``."""
        s, h = self.sample, dict(self.sample.histograms)
        self.at += seconds
        plus = (
            ("generation_tokens", generated),
            ("prompt_tokens", prompts),
            ("preemptions", preempted),
            ("steps", steps),
        )
        changes: dict[str, object] = {name: getattr(s, name) + n for name, n in plus if getattr(s, name) is not None}
        if s.prompt_tokens_computed is not None:
            changes["prompt_tokens_computed"] = s.prompt_tokens_computed + prompts
        if s.responses is not None:
            ends = {"stop": finished - cut, "length": cut, "error": failed}
            changes["responses"] = {reason: s.responses.get(reason, 0.0) + n for reason, n in ends.items()}
        seen = (
            ("request_prompt_tokens", lengths[0], finished),
            ("request_output_tokens", lengths[1], finished),
            ("tpot_seconds", tpot, finished),
            ("ttft_seconds", ttft, started),
            ("request_preemptions", 2.0, twice),
            ("request_preemptions", 0.0, finished - twice),
            ("inter_token_latency_seconds", gap or tpot, generated),
        )
        for name, value, times in seen:
            if name in h and times:
                h[name] = observe(h[name], value, times)
        self.sample = replace(s, histograms=h, **{**changes, **gauges})  # type: ignore[arg-type]
        self.snapshot = self.judge.observe(self.at, self.sample, {})
        return self.snapshot

    def run(self, seconds: float, every: float = 5.0, **each: object) -> list[State]:
        """Repeat one kind of step; the states seen."""
        return [self.step(every, **each).state for _ in range(int(seconds / every))]  # type: ignore[arg-type]

    def healthy(self, seconds: float = 120.0) -> list[State]:
        """A calm spell: 8 running, 240 tokens/s, one finish a second."""
        return self.run(
            seconds,
            generated=1200.0,
            prompts=2500.0,
            started=5.0,
            finished=5.0,
            steps=150.0,
            running=8.0,
            waiting=0.0,
            kv_usage=0.4,
        )
