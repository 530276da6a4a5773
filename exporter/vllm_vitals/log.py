"""What we say while running: structlog, JSON off a terminal, one event a state change, one line a poll at debug.

Invariant: no event holds a secret, a body or a traceback; everything in it comes from a snapshot or our own config.
structlog is loaded by who logs: a command that says nothing but its verdict (`QUIET`) does not wait for it.
"""

import logging
import os
import sys
from typing import Any, Protocol, TextIO

from vllm_vitals.core.snapshot import EngineSnapshot, TargetSnapshot
from vllm_vitals.core.states import State

MAX_CHANGES = 20  # engines of one target that a poll tells of one by one


class Logger(Protocol):
    """What takes events: a name, and values by name. structlog's loggers do."""

    def debug(self, event: str, **values: Any) -> Any:
        """Take what is told at every poll."""
        ...

    def info(self, event: str, **values: Any) -> Any:
        """Take what is well."""
        ...

    def warning(self, event: str, **values: Any) -> Any:
        """Take what somebody should look at."""
        ...

    def error(self, event: str, **values: Any) -> Any:
        """Take a fault of ours."""
        ...


class _Quiet:
    """Takes every event and writes none."""

    def debug(self, event: str, **values: Any) -> None:
        """Write nothing."""

    info = warning = error = debug


QUIET: Logger = _Quiet()


def silence_libraries() -> None:
    """Let libraries write nothing: a command whose answer stands on the terminal has its own words for what fails."""
    logging.basicConfig(handlers=[logging.NullHandler()])


def configure(level: str = "info", stream: TextIO | None = None) -> None:
    """Set up structlog once, at start. ``stream`` is standard error unless given."""
    import structlog  # noqa: PLC0415 - slow to import, see above

    out = stream or sys.stderr
    pretty = out.isatty()
    renderer = (
        structlog.dev.ConsoleRenderer(colors=not os.environ.get("NO_COLOR"), repr_native_str=True)
        if pretty
        else structlog.processors.JSONRenderer(sort_keys=False)
    )
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(getattr(logging, level.upper())),
        logger_factory=structlog.PrintLoggerFactory(out),
        cache_logger_on_first_use=False,
    )
    logging.basicConfig(level=logging.ERROR, handlers=[_Libraries()])


class _Libraries(logging.Handler):
    """What libraries say through the standard library: their own words, without arguments, and an error's kind.

    What they would put into the text, or into a traceback, may be a part of a request.
    """

    def emit(self, record: logging.LogRecord) -> None:
        """Write one event."""
        words = str(record.msg).partition("\n")[0][:200]
        error = record.exc_info[0].__name__ if record.exc_info and record.exc_info[0] else ""
        get_logger().error("library_failed", library=record.name, what=words, error=error)


def get_logger() -> Logger:
    """Return the program's logger, bound now: a lazy one is set up anew for each debug line that is not written."""
    import structlog  # noqa: PLC0415 - slow to import, see above

    logger: Logger = structlog.get_logger().bind()
    return logger


def log_transitions(log: Logger, before: TargetSnapshot | None, now: TargetSnapshot) -> None:
    """Tell what a poll changed: every engine that entered a state, and a target that began or ceased to answer."""
    known = {engine.key: engine.state for engine in before.engines} if before is not None else {}
    changed = [
        engine
        for engine in now.engines
        if engine.state is not known.get(engine.key) and (engine.key in known or engine.state is not State.UNKNOWN)
    ]
    for engine in changed[:MAX_CHANGES]:
        _state_change(log, known.get(engine.key), engine, now)
    if len(changed) > MAX_CHANGES:
        log.warning("more_states_changed", target=now.target, engines=len(changed) - MAX_CHANGES)
    if before is None or before.up != now.up or before.reason != now.reason:
        if now.up:
            log.info("target_up", target=now.target, version=now.version, dialect=now.dialect)
        else:
            log.warning("scrape_failed", target=now.target, reason=now.reason, detail=now.detail)
    log.debug(
        "poll",
        target=now.target,
        up=now.up,
        reason=now.reason,
        duration_s=round(now.duration_s, 4),
        engines=len(now.engines),
        worst=now.engines[0].state.value if now.engines else None,
    )


def _state_change(log: Logger, old: State | None, engine: EngineSnapshot, now: TargetSnapshot) -> None:
    say = log.info if engine.state.severity in ("ok", "unknown") else log.warning
    say(
        "state_changed",
        target=engine.key.target,
        model_name=engine.key.model_name,
        engine=engine.key.engine,
        was=old.value if old else None,
        state=engine.state.value,
        evidence=[item.text for item in engine.evidence] or ([now.detail] if now.detail else []),
        advice=[f"{item.knob}: {item.size}" for item in engine.advice[:1]],
    )
