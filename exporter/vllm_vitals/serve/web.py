"""What is served: /metrics, the status page, JSON, health, reload.

Input: a fleet's newest snapshots. Output: responses. Invariant: a request never waits for a target and changes nothing
but by POST; everything on the page is escaped; nothing served holds a credential.
"""

import platform
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, Sequence

import jinja2
import orjson
from aiohttp import web
from aiohttp.typedefs import Middleware
from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.openmetrics.exposition import generate_latest as generate_openmetrics

from vllm_vitals import __version__
from vllm_vitals.clock import Clock
from vllm_vitals.core.render import OPENMETRICS, TEXT, Families, pieces, render_samples
from vllm_vitals.core.snapshot import TargetSnapshot
from vllm_vitals.core.states import State
from vllm_vitals.impairment import KINDS, Impairment
from vllm_vitals.logs.watch import LogWatch
from vllm_vitals.scrape.fleet import Fleet
from vllm_vitals.serve import page, views
from vllm_vitals.serve.bodies import HEADERS, SharedBodies
from vllm_vitals.serve.memory import EnginePast, Memory
from vllm_vitals.terms import TERMS

Reload = Callable[[], Coroutine[None, None, str]]
Sample = tuple[str, dict[str, str], float]


class Site:
    """Handlers over one fleet and its logs."""

    def __init__(
        self,
        fleet: Fleet,
        logs: LogWatch,
        clock: Clock,
        reload: Reload,
        impairment: Impairment | None = None,
        memory: Memory | None = None,
    ) -> None:
        self._memory = memory or Memory()
        self._fleet, self._logs, self._clock, self._reload = fleet, logs, clock, reload
        self._impairment = impairment or Impairment(clock.now)
        self._registry = CollectorRegistry()
        ProcessCollector(registry=self._registry)
        self._build = render_samples(
            [("build_info", {"version": __version__, "python": platform.python_version()}, 1.0)]
        )
        self._page, self._log = (templates().get_template(name) for name in ("status.html", "events.html"))
        self._bodies = SharedBodies()

    def close(self) -> None:
        """End."""
        self._bodies.close()

    def app(self, *gates: Middleware) -> web.Application:
        """Return the application, without access log or state of its own. ``gates`` decide who may come in."""
        app = web.Application(middlewares=[_safely, *gates], client_max_size=1024**2)
        app.add_routes(
            [
                web.get("/metrics", self._metrics),
                web.get("/", self._status),
                web.get("/events", self._events),
                web.get("/glossary", self._glossary),
                web.get("/api/v1/engines", self._engines),
                web.get("/-/healthy", self._healthy),
                web.get("/-/ready", self._ready),
                web.post("/-/reload", self._reloaded),
                web.post("/api/v1/logs", self._logs.push),
            ]
        )
        return app

    async def _metrics(self, request: web.Request) -> web.StreamResponse:
        openmetrics = "application/openmetrics-text" in request.headers.get("Accept", "")
        pollers = self._fleet.pollers
        own = render_samples(self._own_samples())
        logs = render_samples(self._logs.samples({poller.target.name for poller in pollers}))
        parts: list[Families] = [self._build, own, logs, *(poller.families for poller in pollers)]
        write = generate_openmetrics if openmetrics else generate_latest
        more = write(self._registry).removesuffix(b"# EOF\n")
        headers = {"Content-Type": OPENMETRICS if openmetrics else TEXT}
        return await self._bodies.send(
            request, ("metrics", openmetrics), lambda: pieces(parts, openmetrics, more), headers
        )

    def _own_samples(self) -> Iterator[Sample]:
        """Yield the daemon's own metrics."""
        active = self._impairment.active()
        for kind in KINDS:
            yield "monitor_impaired", {"reason": kind}, float(kind in active)
        yield "event_loop_lag_seconds", {}, round(self._impairment.lag(), 3)

    async def _status(self, request: web.Request) -> web.StreamResponse:
        snapshots = [poller.snapshot for poller in self._fleet.pollers if poller.snapshot is not None]
        only = request.query.get("target", "")
        unfolded = [key for key in request.query.getall("open", []) if len(key) == page.FOLD_LETTERS]
        model, engine, words = (request.query.get(name, "")[: page.MAX_QUERY] for name in ("model", "engine", "q"))
        asked = page.Asked(only, frozenset(unfolded[: page.MAX_CARDS]), model, engine, " ".join(words.split()))
        lost = bool(only) and all(poller.target.name != only for poller in self._fleet.pollers)
        nothing = f"no target is called {only}" if lost else "no target has been tried yet"
        nothing = f"no engine matches {asked.told}" if asked.told and not lost else nothing
        now, impaired = self._clock.now(), self._impairment.active()
        logged = {snapshot.target: self._logs.truncation(snapshot) for snapshot in _drawn_at_length(snapshots)}
        events = self._memory.events(now)
        past = {engine.key: self._memory.later(engine.key, now) for each in snapshots for engine in each.engines}

        def draw() -> Iterable[bytes]:
            drawn = page.build(
                snapshots, now, lambda target: logged.get(target.target, {}), asked, nothing, impaired,
                lambda key: past[key]() if key in past else EnginePast(), events,
            )  # fmt: skip
            yield self._page.render(page=drawn, version=__version__).encode(errors="replace")

        headers = {"Content-Type": "text/html; charset=utf-8"}
        return await self._bodies.send(request, ("page", asked), draw, headers, 404 if lost else 200)

    async def _events(self, request: web.Request) -> web.StreamResponse:
        now = self._clock.now()
        events = self._memory.events(now)

        def draw() -> Iterable[bytes]:
            yield self._log.render(events=page.log(events, now), version=__version__).encode(errors="replace")

        return await self._bodies.send(request, "events", draw, {"Content-Type": "text/html; charset=utf-8"})

    async def _glossary(self, _: web.Request) -> web.StreamResponse:
        return web.Response(text=glossary(), content_type="text/html")

    async def _engines(self, request: web.Request) -> web.StreamResponse:
        now, skew = self._clock.now(), self._clock.skew
        snapshots = [poller.snapshot for poller in self._fleet.pollers if poller.snapshot is not None]
        impaired = dict(self._impairment.active())
        said = {each.target: self._logs.complaints(each.target) for each in snapshots}

        def tell() -> Iterable[bytes]:
            """One target at a time: of a thousand engines the objects would take ten times the text."""
            yield orjson.dumps({"schema": views.SCHEMA, "now": now + skew, "impaired": impaired})[:-1] + b',"targets":['
            for number, each in enumerate(views.worst_first(snapshots)):
                told = {**views.target_or_fault(each, now, skew), **views.complaints(said[each.target])}
                yield (b"," if number else b"") + orjson.dumps(told)
            yield b"]}"

        return await self._bodies.send(request, "engines", tell, {"Content-Type": "application/json"})

    async def _healthy(self, _: web.Request) -> web.StreamResponse:
        return web.Response(text="healthy\n")

    async def _ready(self, _: web.Request) -> web.StreamResponse:
        """Ready once every target has been tried, whether it answered or not."""
        pollers = self._fleet.pollers
        untried = sum(poller.snapshot is None for poller in pollers)
        if untried:
            return web.Response(status=503, text=f"{untried} of {len(pollers)} targets not tried yet\n")
        return web.Response(text="ready\n")

    async def _reloaded(self, _: web.Request) -> web.StreamResponse:
        why = await self._reload()
        return web.Response(
            status=500 if why else 200, text=f"{why}\nthe old config stays in force\n" if why else "reloaded\n"
        )


def glossary() -> str:
    """Return the page of terms and states."""
    specs = [(state.spec.label, state.severity, state.spec.headline) for state in State]
    return templates().get_template("glossary.html").render(terms=TERMS.items(), states=specs, version=__version__)


def templates() -> jinja2.Environment:
    """Return what our pages are drawn by: nothing that a server says is markup, or invisible."""
    loader = jinja2.PackageLoader("vllm_vitals.serve")
    return jinja2.Environment(loader=loader, autoescape=True, undefined=jinja2.StrictUndefined, finalize=_visible)


def _visible(value: object) -> object:
    """Write out what a server says that cannot be seen. What the template itself made stays."""
    return views.visible(value) if type(value) is str else value


def _drawn_at_length(snapshots: Sequence[TargetSnapshot]) -> Sequence[TargetSnapshot]:
    """Return the targets that may get a card: those not healthy; all where there are few."""
    if len(snapshots) <= page.FEW:
        return snapshots
    troubled = [each for each in snapshots if any(engine.state.severity != "ok" for engine in each.engines)]
    return views.worst_first(troubled)[: page.MAX_CARDS]


@web.middleware
async def _safely(
    request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
) -> web.StreamResponse:
    """Headers on every answer; errors in plain words."""
    try:
        response = await handler(request)
    except web.HTTPException as error:
        response = web.Response(status=error.status, text=f"{error.status} {error.reason}\n", headers=_allow(error))
    if not response.prepared:
        response.headers.update(HEADERS)
    return response


def _allow(error: web.HTTPException) -> dict[str, str]:
    return {"Allow": error.headers["Allow"]} if "Allow" in error.headers else {}
