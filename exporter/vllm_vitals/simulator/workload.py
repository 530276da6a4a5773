"""Who sends what, and when: arrival processes and length distributions, as data.

Input: a `Load` and a seed. Output: requests in order of arrival. An open load comes at a rate whatever the server does;
a closed one is a number of clients that each wait for an answer. Invariant: the same seed gives the same requests as
long as the server answers in the same order.
"""

from dataclasses import dataclass
from heapq import heappop, heappush
from math import exp, inf, log, sqrt
from random import Random
from typing import Protocol

from vllm_vitals.simulator.request import FinishReason, Request
from vllm_vitals.simulator.request_outcomes import SERVED, Fate
from vllm_vitals.simulator.settings import ServerSettings


@dataclass(frozen=True, slots=True)
class Lengths:
    """Tokens per request: log-normal with this mean and coefficient of variation, kept in [low, high]."""

    mean: float
    cv: float = 0.0
    low: int = 1
    high: int = 1_000_000

    def draw(self, random: Random) -> int:
        """Return one length."""
        if not self.cv:
            return max(self.low, min(self.high, round(self.mean)))
        sigma = sqrt(log(1 + self.cv**2))
        value = self.mean * exp(random.gauss(0.0, sigma) - sigma * sigma / 2)
        return max(self.low, min(self.high, round(value)))


@dataclass(frozen=True, slots=True)
class Load:
    """What clients do from now on.

    ``rate`` is open-loop requests/s (Poisson); ``clients`` each keep one request in flight and think for ``think_s``.
    ``max_tokens`` is the clients' own cap, None to leave it to the server. ``system_prompts`` prompt heads of
    ``system_tokens`` are shared. ``patience_s`` is how long a client waits before it hangs up. ``hot_rank`` is the rank
    that gets this share of all requests (1.0: all), as sticky routing does. ``fate`` is what becomes of requests
    besides being served.
    """

    rate: float = 0.0
    clients: int = 0
    think_s: float = 0.5
    prompt: Lengths = Lengths(300, 0.5)
    output: Lengths = Lengths(200, 0.5)
    max_tokens: int | None = 1024
    system_prompts: int = 0
    system_tokens: int = 0
    patience_s: float | None = None
    hot_share: float = 0.0
    fate: Fate = SERVED


class Arrivals(Protocol):
    """Where a server's requests come from: `Traffic`, or a file."""

    settings: ServerSettings

    @property
    def next_at(self) -> float:
        """When the next request comes, in simulated seconds; inf when none is due."""

    @property
    def load(self) -> Load:
        """What clients do now."""

    def switch(self, load: Load, now: float) -> None:
        """Let clients behave like this from `now` on."""

    def take(self) -> Request:
        """Return the request that comes at `next_at`."""

    def answered(self, request: Request, now: float) -> None:
        """Hear that a request is over."""


class Traffic:
    """Turns a `Load` into arrivals. `next_at`, `take`, and `answered` for clients who wait for their answers."""

    def __init__(self, settings: ServerSettings, seed: int) -> None:
        self.settings = settings
        self._random = Random(seed)  # noqa: S311 - a simulation
        self._fates = Random(seed + 2)  # noqa: S311 - a stream of its own, so that fates change no arrival
        self._load = Load()
        self._count = 0
        self._poisson = inf
        self._clients: list[tuple[float, int]] = []
        self._active = 0

    @property
    def next_at(self) -> float:
        """When the next request comes, in simulated seconds; inf when none is due."""
        return min(self._poisson, self._clients[0][0] if self._clients else inf)

    @property
    def load(self) -> Load:
        """What clients do now."""
        return self._load

    def switch(self, load: Load, now: float) -> None:
        """From `now` on clients behave like this; surplus ones leave once they have their answer."""
        self._load = load
        self._poisson = now + self._random.expovariate(load.rate) if load.rate else inf
        self._clients = [entry for entry in self._clients if entry[1] < load.clients]
        for client in range(self._active, load.clients):
            # New clients do not start in the same instant.
            heappush(self._clients, (now + self._random.random() * max(load.think_s, 0.5), client))
        self._active = load.clients

    def take(self) -> Request:
        """Return the request that comes at `next_at`."""
        at, client = self.next_at, -1
        if at == self._poisson:
            self._poisson = at + self._random.expovariate(self._load.rate)
        else:
            client = heappop(self._clients)[1]
        return self._request(at, client)

    def answered(self, request: Request, now: float) -> None:
        """End a request: its client, if it waits for answers, thinks and comes back."""
        if 0 <= request.client < self._load.clients:
            pause = self._load.think_s
            heappush(self._clients, (now + (self._random.expovariate(1 / pause) if pause else 0.0), request.client))

    def _request(self, at: float, client: int) -> Request:
        load, settings, random = self._load, self.settings, self._random
        prompt = min(load.prompt.draw(random) + load.system_tokens, settings.max_model_len - 1)
        room = settings.max_model_len - prompt
        caps = [cap for cap in (load.max_tokens, settings.default_max_tokens, room) if cap is not None]
        wanted = load.output.draw(random)
        output = min(wanted, *caps)
        reason: FinishReason = "stop" if wanted <= output else "length"
        self._count += 1
        request = Request(
            id=self._count,
            arrival=at,
            prompt=prompt,
            output=output,
            max_tokens=min(caps),
            reason=reason,
            prefix=(random.randrange(load.system_prompts),) if load.system_prompts else (),
            prefix_tokens=load.system_tokens if load.system_prompts else 0,
            prefix_block=load.system_tokens,
            patience=load.patience_s,
            client=client,
        )
        load.fate.mark(request, self._fates)
        return request
