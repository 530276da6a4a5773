"""The config file of the daemon: strict, with exact errors, all of them at once.

Input: YAML. Output: a frozen `Config` whose targets are ready to be read. Invariant: an unknown key, a key given
twice, a wrong type or a number where a duration belongs is an error that names the key's path; nothing is guessed.
"""

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

from vllm_vitals.config import section
from vllm_vitals.config.errors import ConfigError, explain, unique
from vllm_vitals.config.schema import File, FlightConfig, Limits
from vllm_vitals.config.show import show
from vllm_vitals.config.watched import Reader, Sourced
from vllm_vitals.core.thresholds import Thresholds
from vllm_vitals.logs.config import LogsConfig
from vllm_vitals.recordings.flight import Flight
from vllm_vitals.scrape.discovery import DnsSource
from vllm_vitals.scrape.target import Target

_UNFILLED = re.compile(r"\$\{\w+[^}\s]{0,40}\}")
# While one of these keys is wrong, nothing can be said of what entries make of it.
_LISTS = ("targets", "discovery")
_SHARED = frozenset({"interval", "timeout", "thresholds", "canary"})


@dataclass(frozen=True, slots=True)
class Config:
    """Everything that the daemon needs to know; equal configs behave equally. ``notes`` are for a person."""

    listen_host: str
    listen_port: int
    targets: tuple[Target, ...]
    discovery: tuple[Sourced, ...] = ()
    thresholds: Thresholds = field(default_factory=Thresholds)
    histograms: Literal["all", "latency", "none"] = "all"
    limits: Limits = field(default_factory=Limits)
    logs: LogsConfig = field(default_factory=LogsConfig)
    flight: Flight | None = None
    state_file: Path | None = None
    history: float = 3600.0
    notes: tuple[str, ...] = ()


def load(path: Path) -> Config:
    """Read and check a config file. Raises `ConfigError`."""
    return build(str(path), section.document(path), path.parent)


def build(name: str, document: dict[str, Any], folder: Path | None = None) -> Config:
    """Make a `Config` of the plain values of a file (or of the command line) called ``name`` in messages.

    Relative paths begin at ``folder``. Raises `ConfigError` with every problem that there is.
    """
    plain, problems = section.moved(name, document)
    unfilled = dict(_unfilled("", plain))
    problems += [f"{name}: {path}: {what}" for path, what in unfilled.items()]
    file, error = section.checked(plain, folder)
    if error is not None:
        said = tuple(f"{name}: {path}{key}: " for path in unfilled for key in ("", ".url"))
        problems += [line for line in explain(name, error, File) if not line.startswith(said)]
        wrong = [problem["loc"] for problem in error.errors()]
        file = section.checked(_without(plain, wrong), folder)[0] or File()
        plain, steady = _without(plain, wrong, keep_places=True), not _SHARED & {place[0] for place in wrong}
    else:
        steady = True
    assert file is not None  # noqa: S101 - it is one or the other
    reader = Reader(file, steady)
    targets = [reader.target(*each) for each in zip(_places(plain, "targets"), file.targets, strict=True)]
    sourced = [reader.sourced(*each) for each in zip(_places(plain, "discovery"), file.discovery, strict=True)]
    if len(targets) > file.limits.targets:
        most = file.limits.targets
        reader.problems.append(f"{len(targets)} targets are more than limits.targets allows ({most})")
    reader.compare_names()
    problems += [f"{name}: {problem}" for problem in reader.problems]
    if problems:
        raise ConfigError("\n".join(unique(problems)))
    base, limits, flight = Thresholds(**file.thresholds.said), file.limits, _flight(file.flight_recorder)
    return Config(
        *file.listen, tuple(targets), tuple(sourced), base, file.histograms, limits, file.logs, flight,
        Path(file.state_file) if file.state_file else None, file.history, tuple(reader.notes),
    )  # fmt: skip


def _without(plain: dict[str, Any], wrong: list[tuple[int | str, ...]], keep_places: bool = False) -> dict[str, Any]:
    """Return the values without errors: a list loses its wrong entries (or has None there), the file its wrong keys."""
    entries = {(str(place[0]), place[1]) for place in wrong if place[0] in _LISTS and len(place) > 1}
    whole = {place[0] for place in wrong if place[:2] not in entries}
    rest = {key: value for key, value in plain.items() if key not in whole}
    for key in {key for key, _ in entries} & rest.keys():
        marked = [None if (key, index) in entries else entry for index, entry in enumerate(rest[key])]
        rest[key] = marked if keep_places else [entry for entry in marked if entry is not None]
    return rest


def _places(plain: dict[str, Any], key: str) -> list[int]:
    """Return where in the file the entries of a list stand that can be used."""
    return [index for index, entry in enumerate(plain.get(key) or []) if entry is not None]


def _unfilled(path: str, value: object) -> Iterator[tuple[str, str]]:
    """Yield every text that still holds ``${NAME}``: this file is read as it stands."""
    if isinstance(value, dict):
        for key, each in value.items():
            yield from _unfilled(f"{path}.{key}" if path else key, each)
    elif isinstance(value, list):
        for index, each in enumerate(value):
            yield from _unfilled(f"{path}[{index}]", each)
    elif isinstance(value, str) and (found := _UNFILLED.search(value)):
        yield path, f"{found[0]} is not filled in: write the value, or run the file through envsubst first"


def missing_packages(config: Config) -> list[str]:
    """Return what this installation lacks for a config: without it the config is right, and does not work here."""
    if find_spec("dns") is not None:
        return []
    return [
        f"discovery[{index}].dns_sd: SRV records need dnspython: pip install 'vllm-vitals[dns]', or use type: A"
        for index, entry in enumerate(config.discovery)
        if isinstance(entry.source, DnsSource) and entry.source.type == "SRV"
    ]


def warnings(config: Config) -> list[str]:
    """Return what is allowed and probably not meant: files that cannot be read or written now, and nothing to watch."""
    notes = list(config.notes)
    if not config.targets and not config.discovery:
        notes.append("no targets: there is nothing to watch but what the command line names")
    if config.flight is not None and not _writable(Path(config.flight.directory)):
        notes.append(f"flight_recorder.directory: {config.flight.directory} cannot be written by this user now")
    if config.state_file is not None and not _writable(config.state_file.parent):
        notes.append(f"state_file: {config.state_file} cannot be written by this user now")
    checkpoint, names = config.logs.checkpoint, {target.name for target in config.targets}
    if checkpoint is not None and not _writable(checkpoint.parent):
        notes.append(f"logs.checkpoint: {checkpoint} cannot be written by this user now")
    for index, source in enumerate(config.logs.sources):
        if source.target and source.target not in names and not config.discovery:
            notes.append(f"logs.sources[{index}].target: no target is called {show(source.target)}")
    for target in config.targets:
        files = (target.credentials.bearer_token_file, target.credentials.password_file)
        for file in (*files, target.tls.ca_file, target.tls.cert_file, target.tls.key_file):
            if file and not os.access(file, os.R_OK):
                notes.append(f"target {target.name}: {file} cannot be read by this user now")
    return notes


def _writable(folder: Path) -> bool:
    """Return whether files can be made in a folder, or it can be made itself."""
    nearest = next(each for each in (folder.absolute(), *folder.absolute().parents) if each.exists())
    return nearest.is_dir() and os.access(nearest, os.W_OK | os.X_OK)


def _flight(flight: FlightConfig | None) -> Flight | None:
    if flight is None:
        return None
    return Flight(max_bytes=flight.max_size, **flight.model_dump(exclude={"max_size"}))
