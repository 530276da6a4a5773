"""The event types that every log shape is turned into, and the closed set of results that a line can have.

Input: nothing. Output: frozen values. Invariant: ``None`` means that the log did not say; absent is never 0.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

Result = Literal[
    "response",  # a finished response
    "failed",  # a request that ended in an error
    "aborted",  # a request whose client went away
    "request",  # a request's start, kept to explain its response
    "stats",  # the engine's periodic line
    "setting",  # something about the server's configuration
    "error",  # the engine complains
    "ignored",  # a whole record that says nothing of interest
    "text",  # not a record
    "blank",
    "partial",  # a piece of a line that a container runtime split; its last piece has the line's own result
    "no_schema",  # a JSON record that no mapping knows
    "invalid",  # a mapping knows it, but its numbers cannot be true
    "malformed",  # looks like JSON and is not
    "too_long",
]
RESULTS: tuple[Result, ...] = get_args(Result)
# Of lines with these results nothing is known, so nothing is claimed.
NOT_UNDERSTOOD = frozenset[Result]({"text", "blank", "partial", "no_schema", "invalid", "malformed", "too_long"})

ErrorKind = Literal[
    "engine_dead",
    "output_handler_failed",
    "shm_broadcast_wait",
    "out_of_memory",
    "kv_preemption",
    "rpc_timeout",
    "collective_failed",
    "request_failed",
    "uncaught_exception",
    "other",
]
ERROR_KINDS: tuple[ErrorKind, ...] = get_args(ErrorKind)

Cap = Literal["request", "server_default", "context_window", "unknown"]
CAPS: tuple[Cap, ...] = get_args(Cap)

FinishReason = Literal["stop", "length", "tool_calls", "content_filter", "repetition", "abort", "error", "other"]


@dataclass(frozen=True, slots=True)
class RequestFinished:
    """One finished, failed or aborted request. Times are epoch s, durations s, lengths tokens.

    ``returned_tokens`` is what the client got of ``completion_tokens``. ``cap_is_effective``: ``max_tokens`` is what
    the engine ran with (vLLM's own log), not what the client asked for (a gateway's log). ``reasoning_only``: the
    text held thinking and no answer.
    """

    at: float | None
    request_id: str = ""
    model: str = ""
    route: str = ""
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    reasoning_tokens: int | None = None
    returned_tokens: int | None = None
    max_tokens: int | None = None
    finish_reason: FinishReason | None = None
    ttft_s: float | None = None
    e2e_s: float | None = None
    predicted_tokens: float | None = None
    cap_is_effective: bool = False
    reasoning_only: bool = False

    @property
    def tpot_s(self) -> float | None:
        """Seconds per output token after the first; None for one token or unknown times."""
        if self.ttft_s is None or self.e2e_s is None or self.completion_tokens is None or self.completion_tokens < 2:
            return None
        return max(0.0, self.e2e_s - self.ttft_s) / (self.completion_tokens - 1)


@dataclass(frozen=True, slots=True)
class EngineStats:
    """One periodic line of vLLM. ``kv_usage`` and the hit rate are ratios 0-1 (the line prints percent).

    ``engine`` is "" where the line names none, "all" where it aggregates. With several API servers such lines are
    partial: never sum them.
    """

    at: float | None
    engine: str
    prompt_tokens_per_s: float
    generation_tokens_per_s: float
    running: int
    waiting: int
    kv_usage: float | None = None
    prefix_hit_ratio: float | None = None
    deferred: int | None = None
    preemptions: int | None = None


@dataclass(frozen=True, slots=True)
class ServerSetting:
    """What the log says about the server: vLLM's own argument names where there is one.

    Special names: ``restart`` (a start-up begins: forget what was known), ``override_generation_config`` (value: the
    configured defaults), ``default_sampling_params`` (value: the defaults in force), ``started`` (start-up is over).
    ``given``: said by the start command, so a later line that shows one process's view does not overrule it.
    """

    at: float | None
    name: str
    value: int | float | bool | str | list[Any] | Mapping[str, Any] | None
    given: bool = False


@dataclass(frozen=True, slots=True)
class EngineError:
    """A complaint of the engine, whatever its level. ``text`` is its first line, at most 200 characters."""

    at: float | None
    kind: ErrorKind
    text: str


LogEvent = RequestFinished | EngineStats | ServerSetting | EngineError


@dataclass(frozen=True, slots=True)
class Decoded:
    """What became of one line. ``result`` None: a piece held back until the rest of its line comes.

    ``held`` counts the earlier pieces that this line completes; each of them ends as ``partial``.
    """

    result: Result | None
    events: tuple[LogEvent, ...] = ()
    held: int = 0


# On a line with several records the one that says most names the line's result.
_BY_WEIGHT: tuple[Result, ...] = (
    "blank", "text", "ignored", "no_schema", "too_long", "malformed", "invalid", "request", "stats", "setting",
    "aborted", "failed", "response", "error",
)  # fmt: skip
_WEIGHT = {result: weight for weight, result in enumerate(_BY_WEIGHT)}


def together(parts: Sequence[Decoded]) -> Decoded:
    """Make one of what became of the records on one line; a line without any is malformed."""
    if len(parts) == 1:
        return parts[0]
    events = tuple(event for part in parts for event in part.events)
    results = [part.result for part in parts if part.result is not None]
    heaviest = max(results, key=lambda result: _WEIGHT.get(result, -1), default="malformed" if not parts else "partial")
    return Decoded(heaviest, events, sum(part.held for part in parts))
