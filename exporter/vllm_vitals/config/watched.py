"""From the entries of ``targets`` and ``discovery`` to how each target is watched.

Input: a checked file. Output: `Target`s and `Sourced`, and what contradicts what. Invariant: a key of an entry stands
over the same key of the file, and that over the default.
"""

from dataclasses import dataclass, replace
from typing import Any

from vllm_vitals.config.schema import BasicAuthConfig, DiscoveryConfig, File, TargetConfig, TlsConfig, Watched
from vllm_vitals.config.show import show
from vllm_vitals.core.snapshot import Role
from vllm_vitals.core.thresholds import Thresholds
from vllm_vitals.scrape.discovery import DnsSource, FileSource, HttpSource, KubernetesSource, Source
from vllm_vitals.scrape.target import CanaryPlan, Credentials, Target, Tls


@dataclass(frozen=True, slots=True)
class Sourced:
    """Targets that a source names: ``like`` is how each is watched, but for its name and address."""

    source: Source
    like: Target


class Reader:
    """Reads entries; ``problems`` and ``notes`` are lines without the file's name.

    Where the file's own keys are not ``steady``, because one of them is wrong, what entries make of them is not judged.
    """

    def __init__(self, file: File, steady: bool = True) -> None:
        self.problems: list[str] = []
        self.notes: list[str] = []
        self._file, self._steady = file, steady
        self._base: dict[str, Any] = file.thresholds.said
        self._named: dict[str, list[int]] = {}

    def target(self, index: int, entry: TargetConfig) -> Target:
        """Return the target that an entry of ``targets`` describes."""
        like, url = self._like(f"targets[{index}]", entry), entry.url
        who = Credentials(username=url.username, password=url.password) if url.username else like.credentials
        if entry.basic_auth is not None:
            who = like.credentials
        name = entry.name or url.name
        self._named.setdefault(name, []).append(index)
        if url.note:
            self.notes.append(f"targets[{index}].url: {url.note}")
        return replace(like, name=name, url=url.url, credentials=who)

    def sourced(self, index: int, entry: DiscoveryConfig) -> Sourced:
        """Return the source that an entry of ``discovery`` describes, and how its targets are watched."""
        return Sourced(_source(entry), self._like(f"discovery[{index}]", entry))

    def compare_names(self) -> None:
        """Find names that two targets have; nobody could tell their series apart."""
        for name, places in self._named.items():
            if len(places) > 1:
                both = " and ".join(f"targets[{index}]" for index in places[:5])
                self.problems.append(
                    f"{both} are {'all' if len(places) > 2 else 'both'} called {show(name)}: remove "
                    "one or give it a name"
                )

    def _like(self, where: str, entry: Watched) -> Target:
        """Return a target as an entry wants it watched, without name and address."""
        file = self._file
        interval = entry.interval or file.interval
        timeout = entry.timeout or file.timeout or min(10.0, 0.9 * interval)
        if timeout > interval and self._steady:
            self.problems.append(f"{where}.timeout: {timeout:g} s is longer than the interval of {interval:g} s")
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
            headers=entry.headers,
            labels=entry.labels,
            settings={key: str(value) for key, value in entry.settings.items()},
            thresholds=self._thresholds(where, interval, {**self._base, **entry.thresholds.said}),
            canary=CanaryPlan(**canary.model_dump()) if canary is not None else None,
        )

    def _thresholds(self, where: str, interval: float, said: dict[str, Any]) -> Thresholds:
        """Return the thresholds of a target; windows that the file leaves open hold at least four of its scrapes."""
        least = said.get("fast_window", 0.0) / 4  # a longer fast window asks for a longer slow one too
        limits = replace(Thresholds().at_interval(max(interval, least)), **said)
        if limits.fast_window > limits.slow_window and self._steady:
            windows = f"fast_window {limits.fast_window:g} s is longer than slow_window {limits.slow_window:g} s"
            self.problems.append(f"{where}.thresholds: {windows}")
        return limits


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
    if entry.kubernetes_sd is not None:
        k8s = entry.kubernetes_sd
        selector = {"kubernetes.io/service-name": k8s.service} if k8s.service else k8s.selector
        return KubernetesSource(
            k8s.api_server, k8s.namespace, tuple(selector.items()), k8s.port, k8s.refresh_interval,
            _credentials(k8s.bearer_token_file, None), _tls(k8s.tls),
        )  # fmt: skip
    assert entry.dns_sd is not None  # noqa: S101 - the model lets nothing else through
    dns = entry.dns_sd
    return DnsSource(tuple(dns.names), dns.type, dns.port, dns.refresh_interval)
