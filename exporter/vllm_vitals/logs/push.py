"""``POST /api/v1/logs``: lines that shippers send (Vector, Fluent Bit): NDJSON or one JSON array, gzip'd or not.

Input: a request. Output: 200 with what became of the lines, once they are on disk, or an error with its mend.
Invariant: a request counts whole or not at all, and one that names itself (``Idempotency-Key``) counts once, however
often it comes.
"""

from collections import Counter
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass

from aiohttp import web

from vllm_vitals.logs.bodies import Bodies, Refused
from vllm_vitals.logs.events import Result

MAX_KEY = 256


@dataclass(frozen=True, slots=True)
class Batch:
    """One push: its source, the id that its sender gave it ("" for none), its bytes."""

    source: str
    key: str
    body: bytes


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a batch's lines. ``repeated``: they had been counted before."""

    results: "Counter[Result]"
    repeated: bool = False


Consume = Callable[[Batch], Awaitable[Outcome]]


class PushHandler:
    """Takes pushes for the named sources, at most ``max_pending`` bytes of bodies at a time."""

    def __init__(self, sources: Collection[str], consume: Consume, max_body: int, max_pending: int) -> None:
        self._sources = sources
        self._consume = consume
        self._bodies = Bodies(max_body, max_pending)

    async def handle(self, request: web.Request) -> web.Response:
        """Answer one request; ``?source=`` names the source where there is more than one."""
        try:
            source, key = self._source(request), _key(request)
            async with self._bodies.of(request) as body:
                outcome = await self._consume(Batch(source, key, body))
        except Refused as refused:
            return _error(refused)
        answer = {"lines": outcome.results.total(), "results": dict(outcome.results)}
        return web.json_response({**answer, "repeated": True} if outcome.repeated else answer)

    def _source(self, request: web.Request) -> str:
        source = request.query.get("source") or (next(iter(self._sources)) if len(self._sources) == 1 else "")
        if source not in self._sources:
            names = ", ".join(sorted(self._sources)) or "none is configured"
            raise Refused(404, f"no such push source; name one by ?source= ({names})")
        return source


def _key(request: web.Request) -> str:
    """Read the batch's id; the draft standard puts it in quotes, senders often do not."""
    key = request.headers.get("Idempotency-Key", "").strip()
    if len(key) >= 2 and key[0] == key[-1] == '"':
        key = key[1:-1]
    if len(key) > MAX_KEY or not key.isprintable():
        raise Refused(400, f"Idempotency-Key: give at most {MAX_KEY} printable characters")
    return key


def _error(refused: Refused) -> web.Response:
    headers = {"Retry-After": str(refused.retry_after_s)} if refused.retry_after_s is not None else None
    answer = web.json_response({"error": str(refused)}, status=refused.status, headers=headers)
    if refused.status in (413, 429):
        answer.force_close()  # the rest of the body is not worth reading
    return answer
