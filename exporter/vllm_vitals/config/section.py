"""A config file as its readers take it: whole, or one section for commands that need no targets.

Input: a file. Output: its plain values, or one checked section of it. Invariant: one file may hold every section, each
reader takes its own, and what one would refuse in a section the others refuse there with the same words. A key at the
top that nobody reads is refused by all: a misspelt section is not an empty one.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from vllm_vitals.config import strict_yaml
from vllm_vitals.config.alerts import Config as AlertConfig
from vllm_vitals.config.alerts import Limits as AlertLimits
from vllm_vitals.config.errors import ConfigError, explain, keys_of
from vllm_vitals.config.renamed import ONCE_AT_THE_TOP, RENAMED
from vllm_vitals.config.review import ReviewSettings
from vllm_vitals.config.schema import File
from vllm_vitals.core.thresholds import Thresholds
from vllm_vitals.logs.config import LogsConfig

# Where nothing stands after these keys, nothing is said.
_SECTIONS = frozenset({"targets", "discovery", "thresholds", "limits", "logs", "review", "alerts"})


def document(path: Path) -> dict[str, Any]:
    """Return the plain values of a config file, unchecked but for YAML's own traps. Raises `ConfigError`."""
    try:
        return strict_yaml.read(path)
    except strict_yaml.YamlError as error:
        raise ConfigError(str(error)) from None


def checked(plain: dict[str, Any], folder: Path | None = None) -> tuple[File | None, ValidationError | None]:
    """Return the content of a file, or why it cannot be read. Relative paths begin at ``folder``."""
    filled = {key: value for key, value in plain.items() if value is not None or key not in _SECTIONS}
    try:
        return File.model_validate(filled, context={"folder": folder}), None
    except ValidationError as error:
        return None, error


def moved(name: str, plain: dict[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Return the values without keys that the alert config once had at its top, and one line on where they are now."""
    old = sorted(ONCE_AT_THE_TOP & plain.keys())
    limits = plain.get("limits")
    theirs = keys_of(AlertLimits) | {path.rpartition(".")[2] for path in RENAMED if path.startswith("alerts.limits.")}
    mine = sorted(theirs & limits.keys()) if isinstance(limits, dict) else []
    rest = {key: value for key, value in plain.items() if key not in old}
    if mine and isinstance(limits, dict):
        rest["limits"] = {key: value for key, value in limits.items() if key not in mine}
    names = [*old, *(f"limits.{key}" for key in mine)]
    mend = "the alert config is the section alerts now: put a line `alerts:` above and indent"
    return rest, [f"{name}: {', '.join(names)}: {mend}"] if names else []


def review(path: Path) -> ReviewSettings:
    """Return the section ``review``; its defaults where the file has none. Raises `ConfigError`."""
    return _read(path, "review").review


def logs(path: Path) -> LogsConfig:
    """Return the section ``logs``; its defaults where the file has none. Raises `ConfigError`."""
    return _read(path, "logs").logs


def alerts(path: Path) -> AlertConfig:
    """Return the section ``alerts``, and the file's thresholds, by which native rules judge. Raises `ConfigError`."""
    return parse_alerts(document(path), str(path))


def parse_alerts(plain: dict[str, Any], name: str = "config") -> AlertConfig:
    """Return the same of a file's plain values."""
    file = _take(name, plain, None, "alerts", "thresholds")
    return replace(file.alerts, thresholds=Thresholds(**file.thresholds.said))


def _read(path: Path, name: str) -> File:
    return _take(str(path), document(path), path.parent, name)


def _take(name: str, plain: dict[str, Any], folder: Path | None, *sections: str) -> File:
    """Return the file with nothing but these sections, and what stands at the top and is no key at all."""
    plain, problems = moved(name, plain)
    known = keys_of(File)
    file, error = checked({k: v for k, v in plain.items() if k in sections or k not in known}, folder)
    if error is not None:
        problems += explain(name, error, File)
    if problems or file is None:
        raise ConfigError("\n".join(problems))
    return file
