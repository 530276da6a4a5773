"""The config file: strict, with exact errors.

Input: YAML. Output: a frozen `Config` whose targets are ready to be read. Invariant: an unknown key, a key given
twice, a wrong type or a number where a duration belongs is an error that names the key's path; nothing is guessed.
"""

import os
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from pydantic import ValidationError

from vllm_vitals.config import strict_yaml
from vllm_vitals.config.errors import explain, show
from vllm_vitals.config.schema import (
    BasicAuthConfig,
    DiscoveryConfig,
    File,
    FlightConfig,
    Limits,
    ThresholdsConfig,
    TlsConfig,
    Watched,
)
from vllm_vitals.core.snapshot import Role
from vllm_vitals.core.thresholds import Thresholds
from vllm_vitals.logs.config import LogsConfig
from vllm_vitals.recordings.flight import Flight
from vllm_vitals.scrape.discovery import DnsSource, FileSource, HttpSource, Source
from vllm_vitals.scrape.target import CanaryPlan, Credentials, Target, Tls


class ConfigError(Exception):
    """The config cannot be used. The text is one line per problem, each naming the key's path."""


@dataclass(frozen=True, slots=True)
class Sourced:
    """Targets that a source names: ``like`` is how each is watched, but for its name and address."""

    source: Source
    like: Target


@dataclass(frozen=True, slots=True)
class Config:
    """Everything that the daemon needs to know; equal configs behave equally."""

    listen_host: str
    listen_port: int
    targets: tuple[Target, ...]
    discovery: tuple[Sourced, ...] = ()
    thresholds: Thresholds = field(default_factory=Thresholds)
    histograms: Literal["all", "latency", "none"] = "all"
    limits: Limits = field(default_factory=Limits)
    logs: LogsConfig = field(default_factory=LogsConfig)
    flight: Flight | None = None


def load(path: Path) -> Config:
    """Read and check a config file; raise `ConfigError`."""
    return build(str(path), read(path))


def read(path: Path) -> dict[str, Any]:
    """The plain values of a config file, unchecked but for YAML's own traps."""
    try:
        return strict_yaml.read(path)
    except strict_yaml.YamlError as error:
        raise ConfigError(str(error)) from None


def build(name: str, document: dict[str, Any]) -> Config:
    """A `Config` from the plain values of a file (or of the command line) called ``name`` in messages."""
    try:
        file = File.model_validate(document)
        base = ThresholdsConfig.model_validate(file.thresholds).model_dump(exclude_unset=True)
    except ValidationError as error:
        inner = error.title == "ThresholdsConfig"
        where, model = ("thresholds.", ThresholdsConfig) if inner else ("", File)
        raise ConfigError(explain(name, where, error, model)) from None
    targets = tuple(_target(name, index, file, base) for index in range(len(file.targets)))
    sourced = tuple(
        Sourced(_source(entry), _like(name, f"discovery[{index}]", entry, file, base))
        for index, entry in enumerate(file.discovery)
    )
    if len(targets) > file.limits.targets:
        raise ConfigError(f"{name}: {len(targets)} targets are more than limits.targets allows ({file.limits.targets})")
    _unique(name, targets)
    host, port = listen_address(name, file.listen)
    limits, flight = file.limits, _flight(file.flight_recorder)
    return Config(host, port, targets, sourced, Thresholds(**base), file.histograms, limits, file.logs, flight)


def warnings(config: Config) -> list[str]:
    """What is allowed and probably not meant: files that cannot be read or written now, and nothing to watch."""
    notes = (
        []
        if config.targets or config.discovery
        else ["no targets: there is nothing to watch but what the command line names"]
    )
    if config.flight is not None and not _writable(Path(config.flight.directory)):
        notes.append(f"flight_recorder.directory: {config.flight.directory} cannot be written by this user now")
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
    """Whether files can be made in a folder, or it can be made itself."""
    nearest = next(each for each in (folder.absolute(), *folder.absolute().parents) if each.exists())
    return nearest.is_dir() and os.access(nearest, os.W_OK | os.X_OK)


def listen_address(name: str, text: str) -> tuple[str, int]:
    """Host and port of ``127.0.0.1:9840``, ``[::]:9840`` or ``:9840`` (all addresses)."""
    host, colon, port = text.rpartition(":")
    if not colon or not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise ConfigError(f'{name}: listen: expected host:port such as "127.0.0.1:9840", got {show(text)}')
    return host.strip("[]"), int(port)


def _target(name: str, index: int, file: File, base: dict[str, float]) -> Target:
    entry = file.targets[index]
    like, url = _like(name, f"targets[{index}]", entry, file, base), entry.url
    who = Credentials(username=url.username, password=url.password) if url.username else like.credentials
    if entry.basic_auth is not None:
        who = like.credentials
    return replace(like, name=entry.name or url.name, url=url.url, credentials=who)


def _thresholds(where: str, interval: float, said: dict[str, Any]) -> Thresholds:
    """The thresholds of a target; windows that the file leaves open hold at least four of its scrapes."""
    least = said.get("fast_window", 0.0) / 4  # a longer fast window asks for a longer slow one too
    limits = replace(Thresholds().at_interval(max(interval, least)), **said)
    if limits.fast_window > limits.slow_window:
        windows = f"fast_window {limits.fast_window:g} s is longer than slow_window {limits.slow_window:g} s"
        raise ConfigError(f"{where}.thresholds: {windows}")
    return limits


def _like(name: str, where: str, entry: Watched, file: File, base: dict[str, float]) -> Target:
    """A target as an entry wants it watched, without name and address."""
    try:
        own = ThresholdsConfig.model_validate(entry.thresholds).model_dump(exclude_unset=True)
    except ValidationError as error:
        raise ConfigError(explain(name, f"{where}.thresholds.", error, ThresholdsConfig)) from None
    interval = entry.interval or file.interval
    timeout = entry.timeout or file.timeout or min(10.0, 0.9 * interval)
    if timeout > interval:
        raise ConfigError(f"{name}: {where}.timeout: {timeout:g} s is longer than the interval of {interval:g} s")
    canary = entry.canary or file.canary
    return Target(
        name="",
        url="",
        interval=interval,
        timeout=timeout,
        model_name=entry.model_name,
        role=Role(entry.role) if entry.role else None,
        service_class=entry.service_class,
        credentials=_credentials(entry.bearer_token_file, entry.basic_auth),
        tls=_tls(entry.tls),
        labels=entry.labels,
        settings={key: str(value) for key, value in entry.settings.items()},
        thresholds=_thresholds(f"{name}: {where}", interval, {**base, **own}),
        canary=CanaryPlan(**canary.model_dump()) if canary is not None else None,
    )


def _credentials(bearer_token_file: str, auth: BasicAuthConfig | None) -> Credentials:
    if auth is None:
        return Credentials(bearer_token_file)
    return Credentials(username=auth.username, password_file=auth.password_file)


def _tls(tls: TlsConfig) -> Tls:
    return Tls(**tls.model_dump())


def _source(entry: DiscoveryConfig) -> Source:
    if entry.file_sd is not None:
        return FileSource(tuple(entry.file_sd.files), entry.file_sd.refresh_interval)
    if entry.http_sd is not None:
        sd = entry.http_sd
        who = _credentials(sd.bearer_token_file, sd.basic_auth)
        return HttpSource(sd.url, sd.refresh_interval, who, _tls(sd.tls))
    assert entry.dns_sd is not None  # noqa: S101 - the model lets nothing else through
    dns = entry.dns_sd
    return DnsSource(tuple(dns.names), dns.type, dns.port, dns.refresh_interval)


def _flight(flight: FlightConfig | None) -> Flight | None:
    return None if flight is None else Flight(**flight.model_dump())


def _unique(name: str, targets: tuple[Target, ...]) -> None:
    first: dict[str, int] = {}
    for index, target in enumerate(targets):
        other = first.setdefault(target.name, index)
        if other != index:
            both = f"targets[{other}] and targets[{index}] are both called {show(target.name)}"
            raise ConfigError(f"{name}: {both}: remove one or give it a name")
