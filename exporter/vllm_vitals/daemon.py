"""The daemon: a fleet, the pages, signals and reload, on one event loop.

Inputs: a way to read the config (again). Output: an exit code. Invariant: a config that cannot be used changes
nothing and says why; SIGTERM ends within seconds with every file whole.
"""

import asyncio
import contextlib
import signal
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

from vllm_vitals.clock import Clock
from vllm_vitals.config.errors import ConfigError
from vllm_vitals.config.loader import Config
from vllm_vitals.core.snapshot import TargetSnapshot
from vllm_vitals.impairment import Impairment
from vllm_vitals.log import Logger, get_logger
from vllm_vitals.logs.config import LogsConfig
from vllm_vitals.logs.watch import LogWatch
from vllm_vitals.process import raise_file_limit, return_memory, spare_the_collector, watched_loop
from vllm_vitals.scrape.fetch import Fetcher
from vllm_vitals.scrape.fleet import Fleet
from vllm_vitals.scrape.shards import WHOLE, Shard
from vllm_vitals.scrape.target_manager import TargetManager
from vllm_vitals.serve import boundary, web
from vllm_vitals.serve.access import AccessControl
from vllm_vitals.serve.crowd import Crowd
from vllm_vitals.serve.listener import Listener
from vllm_vitals.serve.memory import Memory
from vllm_vitals.serve.web_config import WebConfig, WebConfigError

RESOLVER_THREADS = 64  # a name lookup blocks its thread: many dead names must not keep live ones waiting

LoadConfig = Callable[[], Config]
LoadWeb = Callable[[], WebConfig]


class Daemon:
    """Runs until told to stop. ``load`` and ``load_web`` read the files at start and at every reload.

    ``names`` are hosts under which our pages may be asked for, besides those that can only be ours.
    """

    def __init__(
        self,
        load: LoadConfig,
        log: Logger | None = None,
        shard: Shard = WHOLE,
        load_web: LoadWeb = WebConfig,
        clock: Clock | None = None,
        names: Collection[str] = (),
    ) -> None:
        self._names = names
        self._load, self._load_web, self._shard = load, load_web, shard
        self._log = log or get_logger()
        self._clock = clock or Clock()
        self._fleet: Fleet | None = None
        self._stop = asyncio.Event()
        self._one_at_a_time = asyncio.Lock()

    async def run(self, ready: Callable[[str, int], None] | None = None) -> None:
        """Serve until `stop`; ``ready`` is called with the address once it listens. Raises as loading does, OSError."""
        config, web_config = self._load(), self._load_web()
        loop = asyncio.get_running_loop()
        loop.set_default_executor(ThreadPoolExecutor(RESOLVER_THREADS, thread_name_prefix="resolve"))
        raise_file_limit()
        spare_the_collector()
        return_memory()
        async with contextlib.AsyncExitStack() as parts:
            impairment = Impairment(self._clock.now)
            fetcher = await parts.enter_async_context(Fetcher(self._clock.now, config.limits.body, impairment))
            watch = LogWatch(self._clock, self._log, _on_disk(impairment))
            memory = Memory(config.history)
            watching = Watching(
                config, Fleet(fetcher, self._clock, self._log, watch.settings, memory.take), watch,
                TargetManager(fetcher.fetch, self._log, self._shard), memory,
            )  # fmt: skip
            access = AccessControl(web_config.access)
            parts.callback(access.close)
            self._fleet = watching.fleet

            async def reload() -> str:
                return await self._reload(watching, listener, access)

            site = web.Site(watching.fleet, watch, self._clock, reload, impairment, memory)
            parts.callback(site.close)

            def names() -> Collection[str]:
                """Names of ours; where a password or a certificate is asked for, no page can borrow another."""
                return {boundary.ANY} if access.asks or listener.is_tls else {*self._names, config.listen_host}

            gates = boundary.middleware(names), access.middleware(), Crowd().middleware()
            app = site.app(*gates)
            parts.enter_context(watched_loop(impairment, self._log))
            listener = await parts.enter_async_context(
                Listener(app, config.listen_host, config.listen_port, web_config.tls, self._log)
            )
            with self._signals(reload):
                await self._settle(watching, config)
                count = len(watching.fleet.pollers)
                self._log.info("listening", url=listener.url, targets=count, shard=str(self._shard))
                if ready is not None:
                    ready(listener.host, listener.port)
                await self._stop.wait()
            await listener.close()
            await watching.end()
        self._log.info("stopped")

    @property
    def snapshots(self) -> list[TargetSnapshot]:
        """The newest of every target that has been tried."""
        pollers = self._fleet.pollers if self._fleet is not None else []
        return [poller.snapshot for poller in pollers if poller.snapshot is not None]

    def stop(self) -> None:
        """End `run` soon."""
        self._stop.set()

    async def _settle(self, watching: "Watching", config: Config) -> None:
        """Watch what this config says, from now on also as its sources change."""

        async def changed() -> None:
            async with self._one_at_a_time:
                await watching.apply(watching.config)

        await watching.roster.follow(config, changed)
        await watching.apply(config)
        await watching.logs.apply(config.logs)

    async def _reload(self, watching: "Watching", listener: Listener, access: AccessControl) -> str:
        """Read the files again; the reason why the old ones stay, or nothing."""
        try:
            config, web_config = self._load(), self._load_web()
        except (ConfigError, WebConfigError) as error:
            self._log.error("reload_failed", why=str(error), keeps="the config that was in force")
            return str(error)
        async with self._one_at_a_time:
            await self._settle(watching, config)
            access.use(web_config.access)
            await listener.serve(web_config.tls)
        if (config.listen_host, config.listen_port) != listener.wanted:
            self._log.warning("listen_unchanged", why="a new address needs a restart")
        self._log.info("reloaded", targets=len(watching.fleet.pollers))
        return ""

    @contextlib.contextmanager
    def _signals(self, reload: web.Reload) -> Iterator[None]:
        loop, reloads = asyncio.get_running_loop(), set[asyncio.Task[str]]()

        def hang_up() -> None:
            task = loop.create_task(reload())
            reloads.add(task)
            task.add_done_callback(reloads.discard)

        handlers = {signal.SIGTERM: self.stop, signal.SIGINT: self.stop, signal.SIGHUP: hang_up}
        for number, handler in handlers.items():
            with contextlib.suppress(ValueError, RuntimeError):  # not in the main thread: whoever runs us stops us
                loop.add_signal_handler(number, handler)
        try:
            yield
        finally:
            for number in handlers:
                with contextlib.suppress(ValueError, RuntimeError):
                    loop.remove_signal_handler(number)


def _on_disk(impairment: Impairment) -> Callable[[str], None]:
    """Tell of counts that are not stored as what keeps us from our work."""
    return lambda why: impairment.meet("disk", why) if why else impairment.over("disk")


@dataclass(slots=True)
class Watching:
    """The config in force and those who carry it out."""

    config: Config
    fleet: Fleet
    logs: LogWatch
    roster: TargetManager
    memory: Memory

    async def apply(self, config: Config) -> None:
        """Watch the targets that this config and its sources name now."""
        self.config = config
        self.memory.keep(config.history)
        await self.fleet.apply(replace(config, targets=self.roster.targets(config)))

    async def end(self) -> None:
        """Stop watching."""
        nothing = replace(self.config, targets=(), discovery=(), logs=LogsConfig())
        await self.roster.follow(nothing, self.fleet.stop)
        await self.fleet.stop()
        await self.logs.apply(nothing.logs)
