"""What the config file may say: its keys and their types, section by section.

Input: plain values. Output: checked models. Invariant: nothing is converted silently: a number where a duration
belongs, a text where a number belongs, or an unknown key is an error.
"""

from typing import Annotated, Literal

from pydantic import AfterValidator, BeforeValidator, Field, ValidationInfo, field_validator
from pydantic_core import PydanticCustomError

from vllm_vitals.catalog import METRICS
from vllm_vitals.config.alerts import Config as AlertConfig
from vllm_vitals.config.review import ReviewSettings
from vllm_vitals.config.thresholds import ThresholdsConfig
from vllm_vitals.config.values import (
    ClusterLabel,
    ClusterName,
    ClusterValue,
    Duration,
    FilePath,
    HeaderName,
    HeaderValue,
    LabelName,
    ListenAddress,
    ServiceUrl,
    Size,
    Strict,
    TargetAddress,
    Text,
)
from vllm_vitals.logs.config import LogsConfig
from vllm_vitals.scrape.target import Address

MAX_TARGETS = 10_000
SERVICE_ACCOUNT = "/var/run/secrets/kubernetes.io/serviceaccount"  # where a pod finds its token
RESERVED_LABELS = frozenset(label for metric in METRICS for label in metric.all_labels) | {"le", "job", "instance"}


class BasicAuthConfig(Strict):
    """Basic authentication; the password lives in a file."""

    username: Text
    password_file: FilePath


class TlsConfig(Strict):
    """TLS towards a target."""

    ca_file: FilePath = ""
    cert_file: FilePath = ""
    key_file: Annotated[FilePath, Field(validate_default=True)] = ""
    server_name: Text = ""
    insecure_skip_verify: bool = False

    @field_validator("key_file")
    @classmethod
    def _pair(cls, key: str, info: ValidationInfo) -> str:
        if "cert_file" in info.data and bool(info.data["cert_file"]) != bool(key):
            raise PydanticCustomError("pair", "cert_file and key_file belong together: give both")
        return key


def _within_interval(deadline: float, info: ValidationInfo) -> float:
    if deadline > info.data.get("interval", deadline):
        raise PydanticCustomError("pair", "deadline is longer than interval: canaries never overlap")
    return deadline


class CanaryConfig(Strict):
    """One tiny request at a time, to find hangs that metrics cannot show."""

    interval: Duration = 60.0
    deadline: Annotated[Duration, AfterValidator(_within_interval)] = 20.0
    task: Literal["auto", "completions", "chat", "embeddings"] = "auto"
    model: Text = ""
    first: bool = False  # also before the server has finished a request of its own


class Watched(Strict):
    """How targets are watched, wherever their addresses come from."""

    model_name: Text = ""
    role: Literal["serve", "prefill", "decode", "pooling"] | None = None
    service_class: Literal["interactive", "batch"] = "interactive"
    interval: Duration | None = None
    timeout: Duration | None = None
    bearer_token_file: FilePath = ""
    basic_auth: BasicAuthConfig | None = None
    tls: TlsConfig = Field(default_factory=TlsConfig)
    headers: dict[HeaderName, HeaderValue] = Field(default_factory=dict)
    labels: dict[LabelName, Text] = Field(default_factory=dict)
    settings: dict[LabelName, int | float | str] = Field(default_factory=dict)
    thresholds: ThresholdsConfig = Field(default_factory=ThresholdsConfig)
    canary: CanaryConfig | None = None

    @field_validator("basic_auth")
    @classmethod
    def _one_way_in(cls, auth: BasicAuthConfig | None, info: ValidationInfo) -> BasicAuthConfig | None:
        if auth is not None and info.data.get("bearer_token_file"):
            raise PydanticCustomError("auth", "give either bearer_token_file or basic_auth, not both")
        return auth

    @field_validator("labels")
    @classmethod
    def _own_labels(cls, labels: dict[str, str]) -> dict[str, str]:
        if taken := sorted(RESERVED_LABELS & set(labels)):
            what = "{name} would hide a label that vllm-vitals sets itself"
            raise PydanticCustomError("label", what, {"name": taken[0]})
        return labels


class TargetConfig(Watched):
    """One entry of ``targets``. Only ``url`` is needed."""

    url: TargetAddress
    name: Annotated[str, Field(min_length=1, max_length=256)] | None = None

    @field_validator("url")
    @classmethod
    def _no_third_way_in(cls, url: Address, info: ValidationInfo) -> Address:
        if url.username and info.data.get("bearer_token_file"):
            raise PydanticCustomError("auth", "give either bearer_token_file or a user in the address, not both")
        return url


class FileSd(Strict):
    """Prometheus' file_sd: files of target groups; the last part of a path may hold ``*``."""

    files: Annotated[list[FilePath], Field(min_length=1)]
    refresh_interval: Duration = 5.0


class HttpSd(Strict):
    """Prometheus' http_sd: a URL that answers target groups, and how to prove who asks."""

    url: ServiceUrl
    refresh_interval: Duration = 60.0
    bearer_token_file: FilePath = ""
    basic_auth: BasicAuthConfig | None = None
    tls: TlsConfig = Field(default_factory=TlsConfig)


class DnsSd(Strict):
    """Names whose A, AAAA or SRV records are targets."""

    names: Annotated[list[Annotated[str, Field(min_length=1, max_length=253)]], Field(min_length=1)]
    type: Literal["A", "AAAA", "SRV"] = "SRV"
    port: Annotated[int, Field(gt=0, le=65535)] = 8000
    refresh_interval: Duration = 30.0


def _in_pod() -> TlsConfig:
    return TlsConfig(ca_file=f"{SERVICE_ACCOUNT}/ca.crt")


class KubernetesSd(Strict):
    """Pods as the cluster's API lists them: those behind one Service, or behind all whose labels are ``selector``."""

    namespace: ClusterName
    service: ClusterName | None = None
    selector: Annotated[dict[ClusterLabel, ClusterValue], Field(validate_default=True)] = Field(default_factory=dict)
    port: Annotated[int, Field(gt=0, le=65535)] = 8000
    refresh_interval: Duration = 15.0
    api_server: ServiceUrl = "https://kubernetes.default.svc"
    bearer_token_file: FilePath = f"{SERVICE_ACCOUNT}/token"
    tls: TlsConfig = Field(default_factory=_in_pod)

    @field_validator("selector")
    @classmethod
    def _one_way_to_name(cls, selector: dict[str, str], info: ValidationInfo) -> dict[str, str]:
        if (info.data.get("service", cls) is not None) is bool(selector):
            raise PydanticCustomError("pair", "give either service, by its name, or selector: labels of Services")
        return selector


class DiscoveryConfig(Watched):
    """One entry of ``discovery``: where targets come from, and how those are watched."""

    file_sd: FileSd | None = None
    http_sd: HttpSd | None = None
    kubernetes_sd: KubernetesSd | None = None
    dns_sd: Annotated[DnsSd | None, Field(validate_default=True)] = None

    @field_validator("dns_sd")
    @classmethod
    def _one_source(cls, dns: DnsSd | None, info: ValidationInfo) -> DnsSd | None:
        others = [info.data.get(name, cls) is not None for name in _OTHERS]  # a wrong one counts too
        if sum(others) + (dns is not None) != 1:
            raise PydanticCustomError("pair", "give exactly one of file_sd, http_sd, kubernetes_sd and dns_sd")
        return dns


_OTHERS = ("file_sd", "http_sd", "kubernetes_sd")


class FlightConfig(Strict):
    """What is kept of the minutes before and after an engine got into trouble."""

    directory: Annotated[FilePath, Field(min_length=1)]
    before: Duration = 300.0
    after: Duration = 300.0
    memory_per_target: Size = 384 * 1024
    max_size: Size = 1024**3
    max_files: Annotated[int, Field(gt=0, le=100_000)] = 200


class Limits(Strict):
    """What one target may cost."""

    body: Size = 8 * 1024**2
    targets: Annotated[int, Field(gt=0, le=MAX_TARGETS)] = 5_000


def _bare_addresses(value: object) -> object:
    """Let an address alone stand for a target without further keys."""
    return [{"url": item} if isinstance(item, str) else item for item in value] if isinstance(value, list) else value


class File(Strict):
    """The whole file. Every key has a default."""

    listen: ListenAddress = ("127.0.0.1", 9840)
    interval: Duration = 5.0
    timeout: Duration | None = None
    histograms: Literal["all", "latency", "none"] = "all"
    targets: Annotated[list[TargetConfig], BeforeValidator(_bare_addresses)] = Field(default_factory=list)
    discovery: list[DiscoveryConfig] = Field(default_factory=list)
    thresholds: ThresholdsConfig = Field(default_factory=ThresholdsConfig)
    canary: CanaryConfig | None = None
    flight_recorder: FlightConfig | None = None
    history: Annotated[Duration, Field(ge=600.0, le=86_400.0)] = 3600.0  # of states and vital signs on the pages
    state_file: FilePath = ""  # when each target last answered, over a restart of the daemon
    limits: Limits = Field(default_factory=Limits)
    logs: LogsConfig = Field(default_factory=LogsConfig)
    # Not the daemon's: read by the review, and by the generators; checked with the rest.
    review: ReviewSettings = Field(default_factory=ReviewSettings)
    alerts: AlertConfig = Field(default_factory=AlertConfig)
