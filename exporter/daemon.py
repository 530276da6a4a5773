"""The daemon: a fleet, the pages, signals and reload, on one event loop.

Inputs: a way to read the config (again). Output: an exit code. Invariant: a config that cannot be used changes
nothing and says why; SIGTERM ends within seconds with every file whole.
"""

import asyncio
import contextlib
import resource
import signal
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

from aiohttp import web as aiohttp_web

from exporter import log as logs
from exporter import web
from exporter.clock import Clock
from exporter.config import Config, ConfigError
from exporter.fetch import Fetcher
from exporter.fleet import Fleet
from exporter.logs.config import LogsConfig
from exporter.logwatch import LogWatch

RESOLVER_THREADS = 64  # a name lookup blocks its thread: many dead names must not keep live ones waiting

LoadConfig = Callable[[], Config]


class Daemon:
    """Runs until told to stop. ``load`` reads the config at start and at every reload."""

    def __init__(self, load: LoadConfig, log: logs.Logger | None = None) -> None:
        self._load = load
        self._log = log or logs.get()
        self._clock = Clock()
        self._stop = asyncio.Event()
        self._one_at_a_time = asyncio.Lock()
        self._listens: tuple[str, int] | None = None

    async def run(self, ready: Callable[[str, int], None] | None = None) -> None:
        """Serve until `stop`; ``ready`` is called with the address once it listens. Raises ConfigError, OSError."""
        config = self._load()
        self._listens = config.listen_host, config.listen_port
        loop = asyncio.get_running_loop()
        loop.set_default_executor(ThreadPoolExecutor(RESOLVER_THREADS, thread_name_prefix="resolve"))
        raise_file_limit()
        async with Fetcher(self._clock.now, config.limits.body) as fetcher:
            watch = LogWatch(self._clock, self._log)
            fleet = Fleet(fetcher, self._clock, self._log, watch.settings)

            async def reload() -> str:
                return await self._reload(fleet, watch)

            async with _listening(web.Site(fleet, watch, self._clock, reload).app(), config) as (host, port):
                with self._signals(reload):
                    await fleet.apply(config)
                    await watch.apply(config.logs)
                    self._log.info("listening", url=f"http://{host}:{port}", targets=len(config.targets))
                    if ready is not None:
                        ready(host, port)
                    await self._stop.wait()
            await fleet.stop()
            await watch.apply(LogsConfig())
        self._log.info("stopped")

    def stop(self) -> None:
        """End `run` soon."""
        self._stop.set()

    async def _reload(self, fleet: Fleet, watch: LogWatch) -> str:
        """Read the config again; the reason why the old one stays, or nothing."""
        async with self._one_at_a_time:
            try:
                config = self._load()
            except ConfigError as error:
                self._log.error("reload_failed", why=str(error), keeps="the config that was in force")
                return str(error)
            await fleet.apply(config)
            await watch.apply(config.logs)
        if (config.listen_host, config.listen_port) != self._listens:
            self._log.warning("listen_unchanged", why="a new address needs a restart")
        self._log.info("reloaded", targets=len(config.targets))
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


@contextlib.asynccontextmanager
async def _listening(app: aiohttp_web.Application, config: Config) -> AsyncIterator[tuple[str, int]]:
    """Serve ``app`` at the configured address; port 0 takes a free one."""
    runner = aiohttp_web.AppRunner(app, access_log=None, shutdown_timeout=2.0)
    await runner.setup()
    try:
        await aiohttp_web.TCPSite(runner, config.listen_host or None, config.listen_port).start()
        host, port = runner.addresses[0][:2]
        yield host, port
    finally:
        await runner.cleanup()


def raise_file_limit() -> None:
    """Allow as many open connections as the system lets us: the usual soft limit of 1,024 is below a big fleet."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 65_536) if hard > 0 else 65_536, hard))
