"""A plausible engine, minute by minute: how long its steps take under traffic that comes and goes, as windows show it.

A step costs a constant, a part for each running request, for each resident KV token (attention reads them) and for each
prompt token computed in it; the whole is scaled by what a LoRA mix or a throttled GPU adds. Traffic follows the day and
the week; prompt length, output length, prefix hits and the share of LoRA requests drift as slow random walks. In an
open loop requests arrive whatever the engine does (more run when it is slow), in a closed one a number of clients
waits. Invariant: nothing here reads a clock; the seed decides everything.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from math import exp, log, pi, sin
from random import Random

MINUTE, DAY = 60.0, 86_400.0
MAX_NUM_SEQS = 128.0

# running, resident tokens, prompt tokens computed per generated one, seconds a token, acceptance (-1: no drafts)
Row = tuple[float, float, float, float, float]


@dataclass
class _Walk:
    """A factor that drifts around 1: log-normal with ``spread``, forgetting itself over ``hours``."""

    random: Random
    spread: float
    hours: float
    at: float = field(init=False)

    def __post_init__(self) -> None:
        self.at = self.random.gauss(0, self.spread)

    def step(self) -> float:
        keep = exp(-1 / (60 * self.hours))
        self.at = keep * self.at + (1 - keep * keep) ** 0.5 * self.random.gauss(0, self.spread)
        return exp(self.at)


@dataclass
class Load:
    """One engine and its traffic. ``slow`` is how many times longer each step takes from ``slow_from`` (s) on."""

    seed: int
    closed: bool = False
    slow: float = 1.0
    slow_from: float = float("inf")

    def rows(self, days: float, every: float = MINUTE) -> Iterator[tuple[float, Row | None]]:
        """Yield each window's time (s) and its row; None where too little was generated."""
        random = Random(self.seed)
        constant = exp(random.uniform(log(0.006), log(0.03)))
        each = constant * random.uniform(0.002, 0.02)
        token = constant / exp(random.uniform(log(2e5), log(2e6)))
        prefill = constant / exp(random.uniform(log(300), log(1500)))
        prompt, output = exp(random.uniform(log(300), log(4000))), exp(random.uniform(log(60), log(600)))
        peak = exp(random.uniform(log(3), log(60)))  # requests that run at the busiest hour
        usual = self._gap(peak, prompt, output, constant, each, token, prefill)
        arrivals = peak / (output * usual)
        hits, mix = _Walk(random, 0.4, 8), _Walk(random, 0.35, 6)
        longer, lora = _Walk(random, 0.25, 6), _Walk(random, 0.05, 3)
        burst = _Walk(random, 0.2, 0.1)
        gap = usual
        for index in range(int(days * DAY / every)):
            at = index * every
            wave = 0.55 + 0.45 * sin(2 * pi * (at / DAY - 0.3)) if int(at / DAY) % 7 < 5 else 0.25
            now_prompt, now_output = prompt * mix.step(), output * longer.step()
            computed = now_prompt * (1 - min(0.95, 0.5 * hits.step()))
            extra = lora.step() * (self.slow if at >= self.slow_from else 1.0)
            demand = max(0.01, wave * burst.step())
            if self.closed:
                running = max(1.0, round(peak * demand))
                rate = running / (now_output * gap)
            else:
                rate = arrivals * demand
                running = gap * now_output * rate
            for _ in range(4):
                if not self.closed:
                    running = min(MAX_NUM_SEQS, 0.5 * running + 0.5 * rate * now_output * gap)
                gap = extra * self._gap(running, now_prompt, now_output, constant, each, token, prefill, computed)
                if self.closed or running >= MAX_NUM_SEQS:
                    rate = running / (now_output * gap)
            count = rate * every * random.gauss(1, 0.05) + random.gauss(0, (rate * every) ** 0.5)
            seen = running * random.gauss(1, 0.06) + random.gauss(0, (running / 12) ** 0.5)
            tokens = running * (now_prompt + now_output / 2) * random.gauss(1, 0.06)
            if count < 1 or seen < 0.1 or running * every / gap < 50:
                yield at, None
                continue
            shown = gap * exp(random.gauss(0, 0.02 + 0.06 / count**0.5))
            yield at, (seen, max(1.0, tokens), count * computed * gap / (running * every), shown, -1.0)

    @staticmethod
    def _gap(
        running: float, prompt: float, output: float, constant: float, each: float, token: float, prefill: float,
        computed: float | None = None,
    ) -> float:  # fmt: skip
        """Seconds a step: a request brings its computed prompt once in ``output`` of its steps."""
        computed = prompt if computed is None else computed
        base = constant + each * running + token * running * (prompt + output / 2)
        return base + prefill * running * computed / max(1.0, output)
