"""When each target last answered and each model was last served, kept over a restart of the daemon.

Input: snapshots. Output: what a new evaluator should know: whether its target has answered before, and since when its
model may have had no engine that serves. A server that loads its weights and one that has died look the same from
outside; what tells them apart is the past, and a daemon that restarts must not forget it. Invariant: a file that cannot
be read or written costs one line in the log, and never a poll.
"""

import asyncio
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import orjson

from vllm_vitals import whole_file
from vllm_vitals.core.snapshot import TargetSnapshot
from vllm_vitals.core.target_evaluator import TargetEvaluator
from vllm_vitals.log import Logger

MAX_NAMES = 20_000  # targets, and models; the oldest go first
MAX_FILE = 16 * 1024**2
KEEP_S = 7 * 86_400.0  # an address that has not answered for a week is a new one


class LastSeen:
    """Epoch seconds by target and by model; ``path`` None keeps them in memory alone."""

    def __init__(self, path: Path | None, log: Logger) -> None:
        self.path, self._log = path, log
        self._targets: dict[str, float] = {}
        self._models: dict[str, float] = {}
        self._fault = ""
        if path is not None:
            self._read(path)

    def note(self, snapshot: TargetSnapshot) -> None:
        """Take in a poll."""
        if not snapshot.up:
            return
        self._targets[snapshot.target] = snapshot.at
        for engine in snapshot.engines:
            if engine.key.model_name:
                self._models[engine.key.model_name] = snapshot.at

    def prepare(self, evaluator: TargetEvaluator, target: str, model_name: str, now: float) -> None:
        """Tell a new evaluator what is known of its target and its model."""
        answered = now - self._targets.get(target, 0.0) < KEEP_S
        served = self._models.get(model_name) if model_name else None
        evaluator.expect(answered=answered, budget_from=None if served is None else min(now, served))

    async def save(self) -> None:
        """Write the file, off the event loop."""
        if self.path is None:
            return
        document = {"targets": _newest(self._targets.items()), "models": _newest(self._models.items())}
        try:
            await asyncio.to_thread(_write, self.path, orjson.dumps(document))
        except OSError as error:
            self._tell(f"{self.path}: cannot be written: {error.strerror or error}")
        else:
            self._fault = ""

    def _read(self, path: Path) -> None:
        try:
            if path.stat().st_size > MAX_FILE:
                raise ValueError("too large")
            document = orjson.loads(path.read_bytes())
            self._targets, self._models = _times(document["targets"]), _times(document["models"])
        except FileNotFoundError:
            return
        except OSError as error:
            self._tell(f"{path}: cannot be read: {error.strerror or error}")
        except (ValueError, KeyError, TypeError, AttributeError):
            self._tell(f"{path}: is no state file: it is written anew")

    def _tell(self, why: str) -> None:
        if why != self._fault:
            self._fault = why
            self._log.warning("state_file", why=why)


def _times(plain: Any) -> dict[str, float]:
    return {str(name): float(at) for name, at in plain.items() if isinstance(at, int | float)}


def _newest(times: Iterable[tuple[str, float]]) -> dict[str, float]:
    return dict(sorted(times, key=lambda item: item[1])[-MAX_NAMES:])


def _write(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    whole_file.replace(path, content)
