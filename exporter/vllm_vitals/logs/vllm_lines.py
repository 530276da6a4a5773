"""What vLLM's messages mean. Input: one record's message, level and time. Output: a result and its events.

Formats: vLLM 0.2 to 0.33, ``v1/metrics/loggers.py``, ``entrypoints/.../request_logger.py`` and their V0 ancestors; what
it says while it starts is in `startup_lines`. Invariant: a message is matched at its start, so that a prompt or an
output inside a message can never pose as one.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, tzinfo
from typing import Any

from vllm_vitals.logs import startup_lines
from vllm_vitals.logs.events import Decoded, EngineError, EngineStats, ErrorKind, RequestFinished
from vllm_vitals.logs.schema import route_of
from vllm_vitals.logs.values import epoch, finish_reason

MAX_OPEN_REQUESTS = 10_000
IGNORED = Decoded("ignored")
_REQUEST = Decoded("request")

_STATS = re.compile(
    r"(?:Engine (?P<engine>\d{1,6}): |(?P<all>\d{1,6}) Engines Aggregated: )?"
    r"Avg prompt (?:throughput|tput): (?P<prompt>[\d.]+) tok(?:en)?s/s, "
    r"Avg generation (?:throughput|tput): (?P<generation>[\d.]+) tok(?:en)?s/s, "
    r"(?:.{0,80}?, )?(?:Reqs )?Running: (?P<running>\d{1,15})(?: reqs)?, "
    r"(?:Swapped: \d+ reqs, )?(?:Waiting|Pending): (?P<waiting>\d{1,15})"
)
_STATS_REST = 2000  # letters of the line's optional parts
_KV_USAGE = re.compile(r"\b\w{1,16} KV cache (?:usage|used): ([\d.]+)%")
_HIT_RATE = re.compile(r"(?<!External )Prefix cache hit rate: (?:GPU: )?([\d.]+)%")
_DEFERRED = re.compile(r"Deferred: (\d{1,15})")
_PREEMPTIONS = re.compile(r"Preemptions: (\d{1,15})")

_MAX_TOKENS = re.compile(r"\bmax_tokens=(\d{1,15})")
# A client may choose its request's id (X-Request-Id): as many characters as are kept.
_RECEIVED = re.compile(r"Received request (\S{1,256}): ")
_GENERATED = re.compile(r"Generated response (\S{1,256}?)(?P<stream> \(streaming (?:delta|complete)\))?: output: ")
_ABORTED = re.compile(r"Request (\S{1,256}) aborted\.")
_FAILED = re.compile(r"Request (\S{1,256}) failed (?:\(engine dead\)|due to)")
_TOKEN_IDS = re.compile(r"output_token_ids: [(\[]([\d, ]+)[)\]]")
_INTERNAL_SUFFIX = re.compile(r"-[0-9a-f]{8}$")

# Complaints by their beginning, at any level: the engine says the worst of them at INFO.
_COMPLAINTS: tuple[tuple[str, ErrorKind], ...] = (
    ("No available shared memory broadcast block found", "shm_broadcast_wait"),
    ("EngineCore encountered a fatal error", "engine_dead"),
    ("EngineCore failed to start", "engine_dead"),
    ("MQLLMEngine is already dead", "engine_dead"),
    ("AsyncLLM output_handler failed", "output_handler_failed"),
    ("Uncaught exception", "uncaught_exception"),
    ("Sequence group", "kv_preemption"),
)
# Complaints by what they contain, only in records that claim to be errors or tell no level.
_SIGNS: tuple[tuple[str, ErrorKind], ...] = (
    ("EngineDeadError", "engine_dead"),
    ("died unexpectedly", "engine_dead"),
    ("out of memory", "out_of_memory"),
    ("OutOfMemoryError", "out_of_memory"),
    ("RPC call to ", "rpc_timeout"),
    ("NCCL error", "collective_failed"),
    ("NCCL watchdog", "collective_failed"),
)
_BAD_LEVELS = frozenset({"ERROR", "CRITICAL", "FATAL"})
_CONTINUATIONS = ("Traceback ", " ", "\t", "During handling of", "The above exception")


@dataclass(slots=True)
class _Open:
    """A request that has begun: what its response will not say."""

    max_tokens: int | None
    at: float | None
    finish: str | None = None


class VllmLines:
    """Reads messages of one log; remembers the requests that are open, at most MAX_OPEN_REQUESTS."""

    def __init__(self, zone: tzinfo = UTC) -> None:
        self._zone = zone
        self._open: dict[str, _Open] = {}
        self._last_error: object = None

    def read(self, message: str, level: str, said_at: Any, read_at: float, place: object = None) -> Decoded:
        """Say what a message means. ``said_at`` is its time as the log has it, ``read_at`` when it was read (epoch s).

        ``place`` tells text lines that continue one record: same time, file and line.
        """
        return (
            self.says(message, said_at, read_at) or self.complains(message, level, said_at, read_at, place) or IGNORED
        )

    def says(self, message: str, said_at: Any, read_at: float) -> Decoded | None:
        """Read a message that vLLM is known to write; None for any other."""
        space = message.find(" ", 0, 24)
        rules = _RULES.get(message[:space] if space > 0 else message[:24])
        if rules is None and message.startswith("Engines Aggregated", space + 1):
            rules = _AGGREGATED
        if rules is not None:
            at = epoch(said_at, self._zone, read_at)
            for rule in rules:
                decoded = rule(self, message, at)
                if decoded is not None:
                    return decoded
        return startup_lines.logo(message) if message[:1] in " █" else None

    def complains(self, message: str, level: str, said_at: Any, read_at: float, place: object = None) -> Decoded | None:
        """Read a message whose level, or in the absence of one whose words, tell an error; None for any other."""
        if level and level not in _BAD_LEVELS:
            return None
        return self._error(message, level, epoch(said_at, self._zone, read_at), place)

    def _error(self, message: str, level: str, at: float | None, place: object) -> Decoded | None:
        for sign, kind in _SIGNS:
            if sign in message:
                return _complaint(at, kind, message)
        if not level:
            return None
        continued = message.startswith(_CONTINUATIONS) or (place is not None and place == self._last_error)
        self._last_error = place
        return Decoded("text") if continued else _complaint(at, "other", message)

    def received(self, message: str, at: float | None) -> Decoded | None:
        """Read a request's start: its effective max_tokens, after the server's default (OpenAI layer)."""
        match = _RECEIVED.match(message)
        if match is None:
            return None
        params = message.rfind("params: SamplingParams(")  # the last one: a logged prompt comes before it
        found = _MAX_TOKENS.search(message, params) if params >= 0 else None
        while len(self._open) >= MAX_OPEN_REQUESTS:
            del self._open[next(iter(self._open))]
        self._open[match[1]] = _Open(int(found[1]) if found else None, at)
        return _REQUEST

    def generated(self, message: str, at: float | None) -> Decoded | None:
        """Read a response; one that streams ends twice, and only its last delta tells the true reason."""
        match = _GENERATED.match(message)
        if match is None:
            return None
        request_id, stream = match[1], match["stream"]
        said = message.rfind("finish_reason: ")
        reason = message[said + 15 : said + 79].strip() if said >= 0 else "None"
        if stream == " (streaming delta)":
            if reason not in ("None", "") and (begun := self._find(request_id)):
                begun.finish = reason
            return IGNORED
        begun = self._find(request_id, forget=True) or _Open(None, None)
        if reason in ("None", "streaming_complete", ""):
            reason = begun.finish or ""
        ids = _TOKEN_IDS.search(message, max(match.end(), message.rfind("output_token_ids: ")))
        finished = RequestFinished(
            at,
            request_id,
            route=route_of(request_id),
            completion_tokens=ids[1].count(",") + 1 if ids else None,
            max_tokens=begun.max_tokens,
            finish_reason=finish_reason(reason) if reason else None,
            e2e_s=at - begun.at if at is not None and begun.at is not None and at >= begun.at else None,
            cap_is_effective=True,
        )
        return Decoded("response", (finished,))

    def ended(self, message: str, at: float | None) -> Decoded | None:
        """Read that a request ended without an answer; an abort's line is the only trace of a client that left."""
        if match := _ABORTED.match(message):
            self._find(match[1], forget=True)
            return Decoded("aborted", (RequestFinished(at, match[1], route=route_of(match[1]), finish_reason="abort"),))
        if match := _FAILED.match(message):
            self._find(match[1], forget=True)
            kind: ErrorKind = "engine_dead" if "(engine dead)" in match[0] else "request_failed"
            return _complaint(at, kind, message)
        return None

    def _find(self, request_id: str, forget: bool = False) -> _Open | None:
        # Completions log "cmpl-x-0" at the start and "cmpl-x" at the end; aborts add the engine's own suffix.
        for name in (request_id, request_id + "-0", _INTERNAL_SUFFIX.sub("", request_id)):
            if name in self._open:
                return self._open.pop(name) if forget else self._open[name]
        return None


def _stats(_reader: VllmLines, message: str, at: float | None) -> Decoded | None:
    match = _STATS.match(message)
    if match is None:
        return None
    rest, end = match.end(), match.end() + _STATS_REST
    usage, hits = _KV_USAGE.search(message, rest, end), _HIT_RATE.search(message, rest, end)
    deferred, preemptions = _DEFERRED.search(message, rest, end), _PREEMPTIONS.search(message, rest, end)
    stats = EngineStats(
        at,
        "all" if match["all"] else str(int(match["engine"])) if match["engine"] else "",
        float(match["prompt"]),
        float(match["generation"]),
        int(match["running"]),
        int(match["waiting"]),
        float(usage[1]) / 100 if usage else None,
        float(hits[1]) / 100 if hits else None,
        int(deferred[1]) if deferred else None,
        int(preemptions[1]) if preemptions else None,
    )
    return Decoded("stats", (stats,))


def _complains(_reader: VllmLines, message: str, at: float | None) -> Decoded | None:
    for beginning, kind in _COMPLAINTS:
        if message.startswith(beginning) and (kind != "kv_preemption" or " is preempted by " in message):
            return _complaint(at, kind, message)
    return None


def _complaint(at: float | None, kind: ErrorKind, message: str) -> Decoded:
    return Decoded("error", (EngineError(at, kind, message[:200].partition("\n")[0]),))


def _setting(rule: startup_lines.Rule) -> "Rule":
    return lambda _reader, message, at: rule(message, at)


Rule = Callable[[VllmLines, str, float | None], Decoded | None]
_AGGREGATED: tuple[Rule, ...] = (_stats,)
# By the message's first word: a line that says nothing of interest costs one look-up.
_RULES: dict[str, tuple[Rule, ...]] = {
    "Engine": (_stats,),
    "Avg": (_stats,),
    "Received": (VllmLines.received,),
    "Generated": (VllmLines.generated,),
    "Request": (VllmLines.ended,),
    **{word: (_setting(rule),) for word, rule in startup_lines.RULES.items()},
    **dict.fromkeys({beginning.split(" ")[0] for beginning, _ in _COMPLAINTS}, (_complains,)),
}
