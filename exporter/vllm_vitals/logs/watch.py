"""The log reader beside the fleet: started, replaced and stopped as the config says.

Input: the ``logs`` section. Outputs: samples for /metrics, settings for the targets' judges, lines for the page, the
push route. Invariant: an unchanged section keeps its reader, so a reload loses no line and counts none twice.
"""

import asyncio
import contextlib
from collections.abc import Collection, Iterator, Mapping, Sequence

from aiohttp import web

from vllm_vitals.clock import Clock
from vllm_vitals.core.snapshot import Reading, TargetSnapshot, absent
from vllm_vitals.log import Logger
from vllm_vitals.logs.config import LogsConfig
from vllm_vitals.logs.join import truncation_views
from vllm_vitals.logs.ledger import OnTrouble, silence
from vllm_vitals.logs.metrics import Family, log_families
from vllm_vitals.logs.reader import LogReader
from vllm_vitals.logs.server_complaints import Complaint
from vllm_vitals.logs.snapshot import LogSnapshot

SNAPSHOT_AGE_S = 1.0  # many targets ask for their settings at every poll


class LogWatch:
    """The reader of the config in force, if that names any source."""

    def __init__(self, clock: Clock, log: Logger, on_trouble: OnTrouble = silence) -> None:
        self._clock, self._log, self._on_trouble = clock, log, on_trouble
        self._config = LogsConfig()
        self._reader: LogReader | None = None
        self._task: asyncio.Task[None] | None = None
        self._stop = asyncio.Event()
        self._push: web.RouteDef | None = None
        self._seen: tuple[float, LogSnapshot] | None = None

    async def apply(self, config: LogsConfig) -> None:
        """Read what this config says; an empty one stops the reader."""
        if config == self._config:
            return
        if self._task is not None:
            self._stop.set()
            with contextlib.suppress(Exception):
                await self._task
        self._config, self._reader, self._task, self._push, self._seen = config, None, None, None, None
        if config.sources:
            self._stop = asyncio.Event()
            if config.checkpoint is not None:
                with contextlib.suppress(OSError):  # the reader says it, each time that it cannot write
                    config.checkpoint.parent.mkdir(parents=True, exist_ok=True)
            self._reader = LogReader(config, self._log, on_trouble=self._on_trouble)
            self._push = next(iter(self._reader.push_routes()), None)
            self._task = asyncio.create_task(self._reader.run(self._stop), name="logs")

    def samples(self, watched: Collection[str]) -> Iterator[Family]:
        """Tell what the logs count, without settings of ``watched`` targets: those show them with what metrics say."""
        snapshot = self._snapshot()
        if snapshot is not None:
            for name, labels, value in log_families(snapshot):
                if name != "server_setting" or labels["target"] not in watched:
                    yield name, labels, value

    def settings(self, target: str) -> Mapping[str, str]:
        """Tell a server's settings as its start-up log tells them, as text."""
        snapshot = self._snapshot()
        server = None if snapshot is None else snapshot.servers.get(target)
        if server is None:
            return {}
        known = {name: value for name, value in server.settings.items() if value is not None}
        return {name: str(int(value) if isinstance(value, bool) else value)[:200] for name, value in known.items()}

    def complaints(self, target: str) -> Sequence[Complaint] | None:
        """Tell the newest errors in a server's log, the oldest first; None where no log of it is read."""
        if all(source.target != target for source in self._config.sources):
            return None
        snapshot = self._snapshot()
        return () if snapshot is None else snapshot.complaints.get(target, ())

    def truncation(self, target: TargetSnapshot) -> Mapping[str, Sequence[str]]:
        """Tell by model name what metrics and logs say of the share truncated at a cap, where both can ("" is any)."""
        snapshot = self._snapshot()
        if snapshot is None:
            return {}
        ratios: dict[str, Reading] = {}
        for engine in target.engines:
            model, ratio = engine.key.model_name, engine.readings.get("truncated_ratio", absent("no sample"))
            ratios[model] = absent("several engines serve it, each with its own share") if model in ratios else ratio
        said: dict[str, list[str]] = {}
        for view in truncation_views(snapshot, target.target, ratios):
            if view.disagree is not None:
                said.setdefault(view.model, []).append(view.text)
        return said

    async def push(self, request: web.Request) -> web.StreamResponse:
        """Answer ``POST /api/v1/logs``, for the reader in force."""
        if self._push is None:
            return web.json_response({"error": "no push source is configured (logs.sources)"}, status=404)
        answer: web.StreamResponse = await self._push.handler(request)
        return answer

    def _snapshot(self) -> LogSnapshot | None:
        if self._reader is None:
            return None
        now = self._clock.now()
        if self._seen is None or now - self._seen[0] >= SNAPSHOT_AGE_S:
            self._seen = now, self._reader.snapshot(now + self._clock.skew)
        return self._seen[1]
