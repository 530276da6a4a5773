"""A simulated vLLM server on a real port.

Input: a `World` and a clock. Output: ``/metrics``, ``/health``, ``/version``, ``/v1/models``, ``/v1/completions`` and
``/v1/chat/completions``; log lines. Simulated time follows the clock, so the clock alone decides the speed. Invariant:
while the scenario has the server down, its port is closed.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Any

import orjson
from aiohttp import web

from vllm_vitals.scrape.target import joined
from vllm_vitals.serve.httpd import HttpServer
from vllm_vitals.simulator.exposed_families import Dialect
from vllm_vitals.simulator.logs import STATS_INTERVAL_S, VERSION, LogWriter
from vllm_vitals.simulator.request import Request
from vllm_vitals.simulator.scenario import Scenario
from vllm_vitals.simulator.workload import Arrivals
from vllm_vitals.simulator.world import Happening, World

_VERSIONS = {Dialect.V0: "0.6.6", Dialect.V0_11: "0.11.0", Dialect.V0_32: VERSION}
# How often simulated time is brought up to date when nobody asks, in real seconds.
MAX_CLIENTS = 65_536  # as many as load generators open
_TICK_S = 0.05
_DEFAULT_MAX_TOKENS = 16
_MAX_BODY_BYTES = 1024**2


class SimulatedServer:
    """One server. ``clock`` gives epoch seconds in simulated time; ``write_log`` takes whole JSON lines.

    ``skip_s``: so many simulated seconds of the scenario are already over when it starts.
    """

    def __init__(
        self,
        scenario: Scenario,
        clock: Callable[[], float],
        seed: int = 0,
        dialect: Dialect = Dialect.V0_32,
        write_log: Callable[[bytes], object] | None = None,
        log_requests: bool = False,
        skip_s: float = 0.0,
        repeat: bool = False,
        traffic: Arrivals | None = None,
    ) -> None:
        self._clock = clock
        self._dialect = dialect
        self._log_requests = log_requests
        self._write_log = write_log
        self._log: LogWriter | None = None
        self._answers: dict[int, asyncio.Future[bool]] = {}
        self._next_stats = STATS_INTERVAL_S
        self.world = World(scenario, seed, clock() - skip_s, dialect, self._happened, repeat, traffic)

    @contextlib.asynccontextmanager
    async def serve(self, host: str, port: int) -> AsyncIterator[tuple[str, int]]:
        """Listen on `host`:`port` (0 takes a free one) until the context ends; yields the address. Raises OSError."""
        async with HttpServer(self._app(), shutdown_s=1.0, handler_cancellation=True, most=MAX_CLIENTS) as server:
            await server.listen(host, port, "--port")
            address = server.address
            if self._write_log is not None:
                url = f"http://{joined(*address)}"
                self._log = LogWriter(self._write_log, self.world.epoch, url, self._log_requests)
                self.world.advance(0.0)
                if self.world.up:
                    self._log.started(self.world, 0.0)
            ticking = asyncio.create_task(self._tick(server, *address))
            try:
                yield address[0], address[1]
            finally:
                ticking.cancel()
                await asyncio.gather(ticking, return_exceptions=True)

    def sync(self) -> None:
        """Bring the simulation to the clock's time, with the statistics lines that are due on the way."""
        now = max(self.world.now, self._clock() - self.world.epoch)
        while self._next_stats <= now:
            self.world.advance(self._next_stats)
            if self._log is not None and self.world.up:
                self._log.stats(self.world, self._next_stats)
            self._next_stats += STATS_INTERVAL_S
        self.world.advance(now)

    # ------------------------------------------------------------------ inside

    async def _tick(self, server: HttpServer, host: str, port: int) -> None:
        listens = True
        while True:
            self.sync()
            answering = bool(self.world.up or self.world.answers)
            if listens and not answering:
                await server.stop_listening()
            elif not listens and answering:
                await server.listen(host, port, "--port")
            listens = answering
            await asyncio.sleep(_TICK_S)

    def _happened(self, happening: Happening) -> None:
        if happening.what == "started" and self._log is not None:
            self._log.started(self.world, happening.at)
        elif self._log is not None:
            self._log.happened(happening)
        if happening.request is not None and happening.what in ("finished", "dropped"):
            answer = self._answers.pop(happening.request.id, None)
            if answer is not None and not answer.done():
                answer.set_result(happening.what == "finished")

    def _app(self) -> web.Application:
        app = web.Application(middlewares=[self._only_while_up], client_max_size=_MAX_BODY_BYTES)
        app.add_routes(
            [
                web.get("/metrics", self._metrics),
                web.get("/health", self._health),
                web.get("/version", self._version),
                web.get("/v1/models", self._models),
                web.post("/v1/completions", self._completions),
                web.post("/v1/chat/completions", self._completions),
                web.post("/pause", self._pause),
                web.post("/resume", self._resume),
                web.get("/is_paused", self._is_paused),
            ]
        )
        return app

    @web.middleware
    async def _only_while_up(self, request: web.Request, handler: Callable[[web.Request], Any]) -> web.StreamResponse:
        self.sync()
        if not self.world.up and self.world.answers:
            return web.Response(status=self.world.answers)
        if not self.world.up and request.transport is not None:
            request.transport.abort()  # a connection from before the process ended
        response: web.StreamResponse = await handler(request)
        return response

    async def _metrics(self, _: web.Request) -> web.Response:
        text = self.world.scrape(self.world.now)
        headers = {"Content-Type": "text/plain; version=1.0.0; charset=utf-8"}
        return web.Response(body=(text or "").encode(), headers=headers)

    async def _health(self, _: web.Request) -> web.Response:
        return web.Response()

    async def _pause(self, http: web.Request) -> web.Response:
        """Pause as dev mode does (VLLM_SERVER_DEV_MODE), in the one mode that is simulated."""
        if http.query.get("mode", "keep") != "keep":
            return self._counted(http, _refuse(400, "only mode=keep is simulated"))
        self.world.pause()
        return _json({"status": "paused"})

    async def _resume(self, _: web.Request) -> web.Response:
        self.world.resume()
        return _json({"status": "resumed"})

    async def _is_paused(self, http: web.Request) -> web.Response:
        return self._counted(http, _json({"is_paused": any(engine.paused for engine in self.world.engines)}))

    def _counted(self, http: web.Request, response: web.Response) -> web.Response:
        """Count an answer that the world knows nothing of."""
        self.world.http.count(http.path, http.method, response.status)
        return response

    async def _version(self, _: web.Request) -> web.Response:
        return _json({"version": _VERSIONS[self._dialect]})

    async def _models(self, http: web.Request) -> web.Response:
        settings = self.world.settings
        model = {
            "id": settings.model_name,
            "object": "model",
            "created": int(self.world.epoch),
            "owned_by": "vllm",
            "root": settings.model_name,
            "parent": None,
            "max_model_len": settings.max_model_len,
        }
        return self._counted(http, _json({"object": "list", "data": [model]}))

    async def _completions(self, http: web.Request) -> web.Response:
        try:
            asked = _object(await http.read())
            prompt, max_tokens = self._sizes(asked)
        except ValueError as error:
            return self._counted(http, _refuse(400, f"{error}"))
        if asked.get("model") not in (None, self.world.settings.model_name):
            return self._counted(http, _refuse(404, f"The model `{asked.get('model')}` does not exist."))
        if asked.get("stream"):
            return self._counted(http, _refuse(400, "stream is not simulated: leave it out"))
        request = self.world.submit(prompt, max_tokens, max_tokens, http.path)
        if request is None:
            return _refuse(503, "the server is going down")
        if request.refused:
            return _refuse(request.refused, "the server cannot take this request now")
        answer = self._answers[request.id] = asyncio.get_running_loop().create_future()
        try:
            finished = await answer
        except asyncio.CancelledError:
            self._answers.pop(request.id, None)
            self.world.drop(request)
            raise
        return _answer(request, self.world, chat="messages" in asked) if finished else _refuse(500, "aborted")

    def _sizes(self, asked: dict[str, Any]) -> tuple[int, int]:
        """Return prompt tokens (about four letters each) and max_tokens; raises ValueError with vLLM's own words."""
        given = asked.get("prompt", asked.get("messages", ""))
        prompt = len(given) if isinstance(given, list) and given and isinstance(given[0], int) else len(str(given)) // 4
        settings = self.world.settings
        cap = asked.get("max_tokens") or asked.get("max_completion_tokens") or settings.default_max_tokens
        max_tokens = cap or _DEFAULT_MAX_TOKENS
        if not isinstance(max_tokens, int) or isinstance(max_tokens, bool):
            raise ValueError("max_tokens must be a whole number.")
        prompt = max(1, prompt)
        if max_tokens < 1:
            raise ValueError(f"max_tokens must be at least 1, got {max_tokens}.")
        if prompt + max_tokens > settings.max_model_len:
            raise ValueError(
                f"This model's maximum context length is {settings.max_model_len} tokens. However, you requested "
                f"{prompt + max_tokens} tokens ({prompt} in the prompt, {max_tokens} for the completion)."
            )
        return prompt, max_tokens


def _object(body: bytes) -> dict[str, Any]:
    """Return the request that a body holds. Raises ValueError in words."""
    try:
        asked = orjson.loads(body)
    except orjson.JSONDecodeError:
        raise ValueError("The body is not JSON.") from None
    if not isinstance(asked, dict):
        raise ValueError("The body must be a JSON object.")
    return asked


def _json(value: dict[str, Any], status: int = 200) -> web.Response:
    return web.Response(body=orjson.dumps(value), status=status, content_type="application/json")


def _refuse(status: int, why: str) -> web.Response:
    kinds = {400: "BadRequestError", 404: "NotFoundError"}
    error = {"message": why, "type": kinds.get(status, "InternalServerError"), "param": None, "code": status}
    return _json({"error": error}, status)


def _answer(request: Request, world: World, chat: bool) -> web.Response:
    text = " token" * request.output
    choice: dict[str, Any] = {"index": 0, "logprobs": None, "finish_reason": request.reason, "stop_reason": None}
    choice |= {"message": {"role": "assistant", "content": text}} if chat else {"text": text}
    usage = {
        "prompt_tokens": request.prompt,
        "completion_tokens": request.output,
        "total_tokens": request.prompt + request.output,
    }
    return _json(
        {
            "id": f"{'chatcmpl' if chat else 'cmpl'}-{-request.id:016x}",
            "object": "chat.completion" if chat else "text_completion",
            "created": int(world.epoch + request.arrival),
            "model": world.settings.model_name,
            "choices": [choice],
            "usage": usage,
        }
    )
