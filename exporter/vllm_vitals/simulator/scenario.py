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
    """The process ends; after ``down_s`` seconds it is back, with other settings if given. Every client's wait ends."""

    down_s: float
    settings: ServerSettings | None = None


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


Action = Load | Restart | Sleep | Freeze | HangUp


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
