"""Everything about the rules that a user may change: where they run, whom they serve, and every limit.

`load` reads a YAML file over the defaults and names the key of each mistake. Each limit carries the sentence that says
when to move it; the runbooks print the same sentence. Limits of the states themselves are the daemon's
(`vllm_vitals.core.thresholds`), since both producers must judge by the same numbers.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field, TypeAdapter, ValidationError

from vllm_vitals.config import strict_yaml
from vllm_vitals.config.errors import explain
from vllm_vitals.config.schema import SHARES, TIMES, parse_duration
from vllm_vitals.core.thresholds import Thresholds

Indicator = Literal["ttft", "tpot", "inter_token", "e2e", "queue_time"]
Share = Annotated[float, Field(gt=0, lt=1)]
Positive = Annotated[float, Field(gt=0)]
Seconds = Annotated[int, Field(gt=0)]


def _compiles(pattern: str) -> str:
    try:
        re.compile(pattern)
    except re.error as error:
        raise ValueError(f"not a regular expression: {error}") from None
    return pattern


def _seconds(raw: object) -> object:
    """Thresholds as the exporter's config writes them, ``hold: "45s"``; seconds as a number will do as well."""
    if not isinstance(raw, dict):
        return raw
    return {key: parse_duration(v) if key in TIMES and isinstance(v, str) else v for key, v in raw.items()}


def _shares(limits: Thresholds) -> Thresholds:
    for name in sorted(SHARES):
        if not 0 <= (value := getattr(limits, name)) <= 1:
            raise ValueError(f"{name}: expected a share from 0 to 1 (0.9 for 90 %), got {value:g}")
    return limits


Pattern = Annotated[str, AfterValidator(_compiles)]
LabelName = Annotated[str, Field(pattern=r"^[a-zA-Z_][a-zA-Z0-9_]*$")]


class ConfigError(Exception):
    """The config file cannot be used; the text names each key and its mend."""


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of the alerts. Durations end in ``_for`` or ``_seconds`` and are whole seconds."""

    __pydantic_config__ = ConfigDict(extra="forbid")

    ttft_objective_seconds: Positive = field(
        default=10, metadata={"move": "Move it to the longest wait that your users accept before the first token."}
    )
    queue_for: Seconds = field(
        default=900,
        metadata={
            "move": "Move it up where a queue is planned, as in a nightly run; mark that service batch instead if"
            " you can."
        },
    )
    thrash_rise_seconds: Seconds = field(
        default=600,
        metadata={"move": "Move it down if a wait that has grown for less than ten minutes already hurts you."},
    )
    thrash_for: Seconds = field(
        default=300,
        metadata={"move": "Move it up if short bursts of mutual eviction open tickets that nobody acts on."},
    )
    unavailable_for: Seconds = field(
        default=180,
        metadata={"move": "Move it above the time that your server takes to restart, if a restart must not page."},
    )
    engine_down_for: Seconds = field(
        default=600, metadata={"move": "Move it above the time that a replica takes to load its weights."}
    )
    engine_restarts: Positive = field(
        default=3, metadata={"move": "Move it up where servers are restarted on purpose several times an hour."}
    )
    preempting_for: Seconds = field(default=1800, metadata={"move": "Move it up for fleets run full."})
    kv_pressure_for: Seconds = field(default=3600, metadata={"move": "Move it up for fleets run full."})
    tail_ratio: Positive = field(
        default=4,
        metadata={
            "move": "Healthy servers were measured between 1.1 and 3.4. Move it up if your mix of lengths is wide."
        },
    )
    tail_samples: Positive = field(default=200, metadata={"move": "Never below 100: a p99 needs requests behind it."})
    tail_for: Seconds = field(
        default=900, metadata={"move": "Move it up if a tail of a few minutes is of no use to you."}
    )
    truncated_ratio: Share = field(
        default=0.3,
        metadata={"move": "Move it to the share of cut answers that your product accepts; up for benchmarks."},
    )
    truncated_samples: Positive = field(
        default=50, metadata={"move": "Move it up for models whose answers vary with the hour."}
    )
    truncated_for: Seconds = field(default=1800, metadata={"move": "Move it down while you are changing max_tokens."})
    reasoning_truncated_ratio: Share = field(
        default=0.05,
        metadata={"move": "Each of these answers is empty for its reader: move it up only if you retry them."},
    )
    reasoning_samples: Positive = field(default=20, metadata={"move": "Move it up for rarely used routes."})
    starved_for: Seconds = field(
        default=300, metadata={"move": "Move it up where long prompts come in short bursts that you accept."}
    )
    runaway_factor: Positive = field(
        default=8,
        metadata={
            "move": "How many times the mean output an open request must have made. Move it up for heavy-tailed"
            " outputs."
        },
    )
    runaway_tokens: Positive = field(
        default=4096,
        metadata={
            "move": "Below this many tokens nobody minds. Move it to the length at which you would look at a request."
        },
    )
    runaway_for: Seconds = field(
        default=120,
        metadata={
            "move": "Move it up if long answers are normal here. At 160 tokens a second an answer reaches 32768 tokens,"
            " where many end, three and a half minutes after its first."
        },
    )
    straggler_ratio: Positive = field(
        default=8,
        metadata={
            "move": "p99 output length over the mean, where no SLO states its own. Move it to what you planned for."
        },
    )
    straggler_samples: Positive = field(
        default=200, metadata={"move": "Never below 100: a p99 needs requests behind it."}
    )
    straggler_for: Seconds = field(
        default=1800, metadata={"move": "Move it down after a change of prompts or of the model."}
    )
    assumption_factor: Positive = field(
        default=1.5, metadata={"move": "How far the output length may leave the one that an SLO assumes."}
    )
    imbalance_factor: Positive = field(
        default=3, metadata={"move": "Move it up where the balancer pins sessions to ranks on purpose."}
    )
    imbalance_requests: Positive = field(
        default=10, metadata={"move": "Below this many requests on the busiest rank, imbalance costs nothing."}
    )
    imbalance_for: Seconds = field(default=1800, metadata={"move": "Move it down if you tune a balancer."})
    blind_for: Seconds = field(
        default=300,
        metadata={
            "move": "Move it up for servers whose /metrics is slow under load; better, raise the scrape timeout."
        },
    )
    asleep_for: Seconds = field(default=300, metadata={"move": "Move it above the time that waking a server takes."})
    engine_errors: Positive = field(
        default=20,
        metadata={
            "move": "Move it up where clients' own mistakes are logged at ERROR, or where a start-up of many workers"
            " waits for shared memory while it compiles."
        },
    )
    silent_seconds: Seconds = field(
        default=300,
        metadata={"move": "Move it up for models with so little traffic that a healthy replica may idle this long."},
    )
    stale_seconds: Seconds = field(
        default=120, metadata={"move": "Move it above four scrape intervals of the exporter."}
    )
    slo_samples: Positive = field(
        default=20,
        metadata={
            "move": "With fewer requests in the short window no SLO is judged. Move it up for noisy small models."
        },
    )


@dataclass(frozen=True, slots=True)
class OutputLength:
    """The output-length distribution, in tokens, for which an SLO was promised."""

    __pydantic_config__ = ConfigDict(extra="forbid")

    mean: Positive
    p99: Positive


@dataclass(frozen=True, slots=True)
class Slo:
    """``share`` of the requests of models matching ``models`` meet ``indicator`` <= ``seconds``.

    ``seconds`` must be a bucket bound of that histogram ; the build says where it is not.
    ``output_tokens`` is the length the promise assumes: when it no longer holds, VLLMOutputStragglers says so.
    """

    __pydantic_config__ = ConfigDict(extra="forbid")

    name: LabelName
    indicator: Indicator
    seconds: Positive
    share: Share
    output_tokens: OutputLength
    models: Pattern = ".+"


@dataclass(frozen=True, slots=True)
class Batch:
    """Regular expressions of victims whose users can wait: only a spiral, a stall or a lost model pages for them.

    A target that the exporter's own config calls ``service_class: batch`` need not be repeated here.
    """

    __pydantic_config__ = ConfigDict(extra="forbid")

    targets: tuple[Pattern, ...] = ()
    models: tuple[Pattern, ...] = ()


@dataclass(frozen=True, slots=True)
class Email:
    """One mailbox, through one smarthost."""

    __pydantic_config__ = ConfigDict(extra="forbid")

    to: str
    smarthost: str
    sender: str
    username: str = ""
    password_file: str = ""


@dataclass(frozen=True, slots=True)
class Receiver:
    """Where notifications go. Secrets are paths of files; a receiver without any is shown in Alertmanager alone."""

    __pydantic_config__ = ConfigDict(extra="forbid")

    webhook_url: str = ""
    webhook_credentials_file: str = ""
    slack_url_file: str = ""
    slack_channel: str = ""
    pagerduty_key_file: str = ""
    email: Email | None = None


@dataclass(frozen=True, slots=True)
class Receivers:
    """One receiver for each audience."""

    __pydantic_config__ = ConfigDict(extra="forbid")

    pager: Receiver = field(default_factory=Receiver)
    tickets: Receiver = field(default_factory=Receiver)
    watchdog: Receiver = field(default_factory=Receiver)


@dataclass(frozen=True, slots=True)
class Config:
    """The whole of it. Times are seconds."""

    __pydantic_config__ = ConfigDict(extra="forbid")

    limits: Limits = field(default_factory=Limits)
    thresholds: Annotated[Thresholds, BeforeValidator(_seconds), AfterValidator(_shares)] = field(
        default_factory=Thresholds
    )
    slos: tuple[Slo, ...] = ()
    batch: Batch = field(default_factory=Batch)
    receivers: Receivers = field(default_factory=Receivers)
    # Labels that tell apart victims with the same host:port and model, such as cluster: on every series or none.
    identity_labels: tuple[LabelName, ...] = ()
    # Prometheus' evaluation interval for these groups. Keep it at or below half the hold of the states.
    evaluation_seconds: Annotated[int, Field(ge=5, le=300)] = 15
    # How often Prometheus scrapes vLLM, in native mode.
    scrape_seconds: Annotated[int, Field(ge=1, le=120)] = 15
    # Job of the exporters, only to notice that one of them is gone.
    exporter_job: str = "vllm-vitals"
    # Prefixes of vLLM's raw names: plain, through OpenTelemetry, through Ray.
    spellings: tuple[str, ...] = ("vllm:", "vllm_", "ray_vllm_")
    grafana_url: str = "http://localhost:3000"
    # Where the runbooks are published. The project publishes them nowhere, so the default is their path in a checkout;
    # a pager wants a URL, and the build says so.
    runbook_base: str = "alerts/runbooks"
    # Label team on every rule, where set.
    team: str = ""

    @property
    def identity(self) -> tuple[str, ...]:
        """The labels that a victim has."""
        return ("target", "model_name", "engine", *self.identity_labels)

    @property
    def model_identity(self) -> tuple[str, ...]:
        """The labels that a model has, all its engines together."""
        return ("model_name", *self.identity_labels)

    @property
    def target_identity(self) -> tuple[str, ...]:
        """The labels that a server has."""
        return ("target", *self.identity_labels)


def move_when(name: str) -> str:
    """The sentence that says when to move limit ``name``."""
    return {f.name: str(f.metadata["move"]) for f in fields(Limits)}[name]


def load(path: Path) -> Config:
    """The defaults with ``path``'s keys over them. Raises ConfigError, one line for each mistake."""
    try:
        return parse(strict_yaml.read(path), str(path))
    except strict_yaml.YamlError as error:
        raise ConfigError(str(error)) from None


def parse(raw: Mapping[str, object], where: str = "config") -> Config:
    """The defaults with ``raw`` over them. Raises ConfigError, one line for each mistake."""
    try:
        config = TypeAdapter(Config).validate_python(raw)
    except ValidationError as error:
        raise ConfigError(explain(where, "", error, Config)) from None
    names = [slo.name for slo in config.slos]
    if len(set(names)) < len(names):
        raise ConfigError(f"{where}: slos: two SLOs have the same name; give each its own")
    return config
