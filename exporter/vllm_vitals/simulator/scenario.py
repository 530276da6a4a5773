"""What a scenario is: a server, and a script of what happens to it.

Input: nothing. Output: the value types that `scenarios` is written in and that `world` plays. Invariant: a scenario is
data alone; two plays with one seed are the same.
"""

from dataclasses import dataclass, field

from vllm_vitals.simulator.settings import ServerSettings
from vllm_vitals.simulator.steptime import StepTime
from vllm_vitals.simulator.workload import Load


@dataclass(frozen=True, slots=True)
class Restart:
    """The process ends; after ``down_s`` seconds it is back, with other settings if given. Every client's wait ends.

    ``answers`` is the HTTP status that something before it (an ingress, a service without endpoints) gives meanwhile;
    0 where the connection is refused, as vLLM itself does until its engine is up.
    """

    down_s: float
    settings: ServerSettings | None = None
    answers: int = 0


@dataclass(frozen=True, slots=True)
class Sleep:
    """``POST /sleep?level=``: 1 offloads the weights, 2 discards them, 0 wakes up. What is running is aborted."""

    level: int


@dataclass(frozen=True, slots=True)
class Freeze:
    """The engine process stops stepping (a hung collective, a dead worker); the API server still answers."""


@dataclass(frozen=True, slots=True)
class HangUp:
    """Every client disconnects at once, and nobody comes after: the gauges keep their last values (vllm#22545)."""


@dataclass(frozen=True, slots=True)
class Pause:
    """``POST /pause?mode=keep`` (dev mode): nothing steps; what runs goes back to the queue with the next request."""


@dataclass(frozen=True, slots=True)
class Resume:
    """``POST /resume``: it goes on with what is in the queue."""


@dataclass(frozen=True, slots=True)
class HoldKv:
    """So large a share of the KV blocks is held by no request from now on; 0 gives them back."""

    share: float


@dataclass(frozen=True, slots=True)
class LeakKv:
    """Every request that finishes leaves so many of its KV blocks held by nobody."""

    blocks: int


@dataclass(frozen=True, slots=True)
class Slow:
    """Every step takes ``factor`` times as long as the server's own step time, on one rank or on all (None)."""

    factor: float
    rank: int | None = None


@dataclass(frozen=True, slots=True)
class Accept:
    """Draft tokens are accepted with this chance, each after those before it (speculative decoding)."""

    chance: float


Action = Load | Restart | Sleep | Freeze | HangUp | Pause | Resume | HoldKv | LeakKv | Slow | Accept


@dataclass(frozen=True, slots=True)
class Scenario:
    """One story. ``intended`` is the worst state that a correct monitor reports while it plays, ``then`` the last one.

    ``script`` is (seconds, action) in order. ``engines`` are data-parallel ranks; ``api_servers`` answer.
    """

    name: str
    summary: str
    intended: str
    duration_s: float
    script: tuple[tuple[float, Action], ...]
    settings: ServerSettings = field(default_factory=ServerSettings)
    step_time: StepTime = field(default_factory=StepTime)
    engines: int = 1
    api_servers: int = 1
    then: str = ""
