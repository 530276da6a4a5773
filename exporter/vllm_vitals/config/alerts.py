"""The section ``alerts``: where the rules run, whom they serve, what their limits are, and who is told.

Input: plain values. Output: `Config`, which rules, dashboards and Kubernetes objects are built from. Invariant: what
states are judged by is the file's ``thresholds``, as for the daemon: both producers must judge by the same numbers.
Each limit carries the sentence that says when to move it; the runbooks print the same sentence.
"""

import re
from dataclasses import dataclass, field, fields
from typing import Annotated, Literal, NoReturn, TypeVar, get_type_hints

from pydantic import AfterValidator, BeforeValidator, Field
from pydantic.fields import FieldInfo
from pydantic_core import PydanticCustomError

from vllm_vitals.config.durations import duration_text, parse_duration
from vllm_vitals.config.objectives import Availability, Slo
from vllm_vitals.config.values import (
    SECTION,
    Duration,
    LabelName,
    Pattern,
    Positive,
    Share,
    WholeSeconds,
)
from vllm_vitals.core.thresholds import Thresholds

_Promise = TypeVar("_Promise", Slo, Availability)
OpenShare = Annotated[Share, Field(gt=0, lt=1)]


def _elsewhere(_: object) -> NoReturn:
    raise PydanticCustomError(
        "moved", "write thresholds at the top of the file: the daemon and the rules judge by the same numbers"
    )


def _names(slos: tuple[_Promise, ...]) -> tuple[_Promise, ...]:
    names = [slo.name for slo in slos]
    if len(set(names)) < len(names):
        raise PydanticCustomError("pair", "two SLOs have the same name; give each its own")
    return slos


# What rules set themselves, or an exporter's own series carry.
_TAKEN = frozenset((
    "target", "model_name", "engine", "state", "reason", "finished_reason", "le", "job", "instance",
    "alertname", "severity", "signal", "slo",
))  # fmt: skip


def _free(labels: tuple[str, ...]) -> tuple[str, ...]:
    if taken := next((name for name in labels if name in _TAKEN), None):
        raise PydanticCustomError("taken", "{name} has a meaning of its own here; leave it out", {"name": taken})
    return labels


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of the alerts. Times are seconds; a file's keys name no unit, since a duration brings its own."""

    __pydantic_config__ = SECTION

    ttft_objective_seconds: Annotated[Duration, Field(alias="ttft_objective")] = field(
        default=10, metadata={"move": "Move it to the longest wait that your users accept before the first token."}
    )
    queue_for: WholeSeconds = field(
        default=900,
        metadata={
            "move": "Move it up where a queue is planned, as in a nightly run; mark that service batch instead if"
            " you can."
        },
    )
    model_share: OpenShare = field(
        default=0.333333333,
        metadata={
            "move": "Engines of a model in trouble that are one page together. Move it up where a model is served by"
            " few engines that fail one at a time; one of three is never a page by its share alone."
        },
    )
    overload_wait_seconds: Annotated[float, BeforeValidator(parse_duration), Field(ge=0, alias="overload_wait")] = (
        field(
            default=30,
            metadata={"move": "Move it to the wait at which your users give up; 0s turns the page off."},
        )
    )
    overload_for: WholeSeconds = field(
        default=600, metadata={"move": "Move it up where bursts of a quarter of an hour are usual and accepted."}
    )
    paused_for: WholeSeconds = field(
        default=900, metadata={"move": "Move it above the longest pause that an update of weights takes."}
    )
    kv_held_for: WholeSeconds = field(
        default=600, metadata={"move": "Move it above the longest lease of a KV transfer."}
    )
    degraded_for: WholeSeconds = field(
        default=300, metadata={"move": "Move it up where slow spells of a shared GPU are of no use to know."}
    )
    thrash_rise_seconds: Annotated[WholeSeconds, Field(alias="thrash_rise")] = field(
        default=600,
        metadata={"move": "Move it down if a wait that has grown for less than ten minutes already affects you."},
    )
    thrash_for: WholeSeconds = field(
        default=300,
        metadata={"move": "Move it up if short bursts of mutual preemption open tickets without need."},
    )
    unavailable_for: WholeSeconds = field(
        default=180,
        metadata={"move": "Move it above the time that your server takes to restart, if a restart must not page."},
    )
    engine_down_for: WholeSeconds = field(
        default=600, metadata={"move": "Move it above the time that a replica takes to load its weights."}
    )
    engine_restarts: Positive = field(
        default=3, metadata={"move": "Move it up where servers are restarted on purpose several times an hour."}
    )
    preempting_for: WholeSeconds = field(default=1800, metadata={"move": "Move it up for fleets run full."})
    kv_pressure_for: WholeSeconds = field(default=3600, metadata={"move": "Move it up for fleets run full."})
    tail_ratio: Positive = field(
        default=4,
        metadata={
            "move": "Healthy servers were measured between 1.1 and 3.4. Move it up if your mix of lengths is wide."
        },
    )
    tail_samples: Positive = field(default=200, metadata={"move": "Never below 100: a p99 needs requests behind it."})
    tail_for: WholeSeconds = field(
        default=900, metadata={"move": "Move it up if a tail of a few minutes is of no use to you."}
    )
    truncated_ratio: OpenShare = field(
        default=0.3,
        metadata={"move": "Move it to the share of cut answers that your product accepts; up for benchmarks."},
    )
    truncated_samples: Positive = field(
        default=50, metadata={"move": "Move it up for models whose answers vary with the hour."}
    )
    truncated_for: WholeSeconds = field(
        default=1800, metadata={"move": "Move it down while you are changing max_tokens."}
    )
    reasoning_truncated_ratio: OpenShare = field(
        default=0.05,
        metadata={"move": "Each of these answers is empty for its reader: move it up only if you retry them."},
    )
    reasoning_samples: Positive = field(default=20, metadata={"move": "Move it up for rarely used routes."})
    starved_for: WholeSeconds = field(
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
            "move": "Shorter outputs never alert. Move it to the length at which you would investigate a request."
        },
    )
    runaway_for: WholeSeconds = field(
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
    straggler_for: WholeSeconds = field(
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
    imbalance_for: WholeSeconds = field(default=1800, metadata={"move": "Move it down if you tune a balancer."})
    blind_for: WholeSeconds = field(
        default=300,
        metadata={
            "move": "Move it up for servers whose /metrics is slow under load; better, raise the scrape timeout."
        },
    )
    asleep_for: WholeSeconds = field(
        default=300, metadata={"move": "Move it above the time that waking a server takes."}
    )
    engine_errors: Positive = field(
        default=20,
        metadata={
            "move": "Move it up where clients' own mistakes are logged at ERROR, or where a start-up of many workers"
            " waits for shared memory while it compiles."
        },
    )
    silent_seconds: Annotated[WholeSeconds, Field(alias="silent_for")] = field(
        default=300,
        metadata={"move": "Move it up for models with so little traffic that a healthy replica may idle this long."},
    )
    stale_seconds: Annotated[WholeSeconds, Field(alias="stale_for")] = field(
        default=120, metadata={"move": "Move it above four scrape intervals of the exporter."}
    )
    slo_samples: Positive = field(
        default=20,
        metadata={
            "move": "With fewer requests in the short window no SLO is judged. Move it up for noisy small models."
        },
    )


_HINTS = get_type_hints(Limits, include_extras=True)


@dataclass(frozen=True, slots=True)
class Batch:
    """Regular expressions of victims whose users can wait: only a spiral, a stall or a lost model pages for them.

    A target that the exporter's own config calls ``service_class: batch`` need not be repeated here.
    """

    __pydantic_config__ = SECTION

    targets: tuple[Pattern, ...] = ()
    models: tuple[Pattern, ...] = ()


@dataclass(frozen=True, slots=True)
class Email:
    """One mailbox, through one smarthost."""

    __pydantic_config__ = SECTION

    to: str
    smarthost: str
    sender: str
    username: str = ""
    password_file: str = ""


@dataclass(frozen=True, slots=True)
class Receiver:
    """Where notifications go. Secrets are paths of files; a receiver without any is shown in Alertmanager alone."""

    __pydantic_config__ = SECTION

    webhook_url: str = ""
    webhook_credentials_file: str = ""
    slack_url_file: str = ""
    slack_channel: str = ""
    pagerduty_key_file: str = ""
    opsgenie_key_file: str = ""
    teams_url_file: str = ""  # of a workflow; Alertmanager 0.28 or later
    email: Email | None = None


@dataclass(frozen=True, slots=True)
class Receivers:
    """One receiver for each audience."""

    __pydantic_config__ = SECTION

    pager: Receiver = field(default_factory=Receiver)
    tickets: Receiver = field(default_factory=Receiver)
    watchdog: Receiver = field(default_factory=Receiver)


def _time(value: object) -> object:
    """HH:MM, or 24:00; YAML reads a bare 09:00 as text, and 17:00 as a number of minutes."""
    if isinstance(value, str) and re.fullmatch(r"([01]\d|2[0-3]):[0-5]\d|24:00", value):
        return value
    raise PydanticCustomError("time", 'expected a time such as "09:00", in quotes')


_Time = Annotated[str, BeforeValidator(_time)]


@dataclass(frozen=True, slots=True)
class WorkingHours:
    """When tickets are told; pages always are. Weekdays and their spans as Alertmanager writes them."""

    __pydantic_config__ = SECTION

    start: _Time = "09:00"
    end: _Time = "17:00"
    weekdays: tuple[str, ...] = ("monday:friday",)
    location: str = "UTC"


@dataclass(frozen=True, slots=True)
class Config:
    """The whole section. Times are seconds."""

    __pydantic_config__ = SECTION

    limits: Limits = field(default_factory=Limits)
    # The file's own ``thresholds``; not a key of this section.
    thresholds: Annotated[Thresholds, BeforeValidator(_elsewhere)] = field(default_factory=Thresholds)
    slos: Annotated[tuple[Slo, ...], AfterValidator(_names)] = ()
    # Shares of requests that end without an error: {name: answered, share: 0.999}; burn alerts as for the others.
    availability: Annotated[tuple[Availability, ...], AfterValidator(_names)] = ()
    # Labels that Prometheus adds as it sends alerts (external_labels): they keep apart what Alertmanager groups and
    # inhibits, and no rule reads them.
    external_labels: tuple[LabelName, ...] = ("cluster",)
    batch: Batch = field(default_factory=Batch)
    receivers: Receivers = field(default_factory=Receivers)
    # When tickets are told: {start: "09:00", end: "17:00", weekdays: ["monday:friday"], location: Europe/Berlin}.
    # Without it, at once.
    working_hours: WorkingHours | None = None
    # So many engines of a model must be seen, or it pages: {llama-70b: 3}.
    min_engines: dict[str, Annotated[int, Field(ge=1)]] = field(default_factory=dict)
    # What one engine of a model carries within its objectives, requests/s (the review says it): for autoscalers.
    capacity: dict[str, Positive] = field(default_factory=dict)
    # PromQL of how many engines are wanted, as from kube-state-metrics: explains why fewer are seen. Empty: not known.
    desired_replicas: str = ""
    # What the label severity is called here: {page: critical, ticket: warning}.
    severity_labels: dict[Literal["page", "ticket", "none"], LabelName] = field(default_factory=dict)
    # Labels that tell apart victims with the same host:port and model, such as cluster: on every series or none.
    identity_labels: tuple[LabelName, ...] = ()
    # Labels of a target that describe it and never identify it, such as pod and node: they travel into texts, and with
    # the alerts of one target into routes.
    description_labels: Annotated[tuple[LabelName, ...], AfterValidator(_free)] = ()
    # Labels that all targets of a model share, such as team: they travel with every alert of the model, to route it by.
    routing_labels: Annotated[tuple[LabelName, ...], AfterValidator(_free)] = ()
    # PromQL of where targets stand: series with target (and identity labels), and these labels. Beside it, what the
    # target's own series are labelled with.
    description_query: str = ""
    # Prometheus' evaluation interval for these groups. Keep it at or below half the hold of the states.
    evaluation_seconds: Annotated[WholeSeconds, Field(ge=5, le=300, alias="evaluation_interval")] = 15
    # How often Prometheus scrapes vLLM, in native mode.
    scrape_seconds: Annotated[WholeSeconds, Field(ge=1, le=120, alias="scrape_interval")] = 15
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

    def severity_label(self, severity: str) -> str:
        """Return what the label severity is called here."""
        return {str(key): name for key, name in self.severity_labels.items()}.get(str(severity), str(severity))

    @property
    def identity(self) -> tuple[str, ...]:
        """The labels that a victim has."""
        return ("target", "model_name", "engine", *self.identity_labels)

    @property
    def model_identity(self) -> tuple[str, ...]:
        """The labels that a model has, all its engines together."""
        return ("model_name", *self.identity_labels)

    @property
    def describing(self) -> tuple[str, ...]:
        """The labels that describe a target beside those that identify it."""
        return tuple(name for name in dict.fromkeys(self.description_labels) if name not in self.identity_labels)

    @property
    def routing(self) -> tuple[str, ...]:
        """The labels that route a model's alerts beside those that identify it."""
        return tuple(name for name in dict.fromkeys(self.routing_labels) if name not in self.identity_labels)

    @property
    def promises(self) -> tuple[Slo | Availability, ...]:
        """Everything whose error budget can burn."""
        return (*self.slos, *self.availability)

    @property
    def told_apart(self) -> tuple[str, ...]:
        """The labels beside victims' own that keep alerts apart in Alertmanager."""
        return (*self.identity_labels, *(name for name in self.external_labels if name not in self.identity_labels))

    @property
    def target_identity(self) -> tuple[str, ...]:
        """The labels that a server has."""
        return ("target", *self.identity_labels)


def key_of(name: str) -> str:
    """Return what limit ``name`` is called in a file, where the value brings the unit."""
    found = (part.alias for part in getattr(_HINTS[name], "__metadata__", ()) if isinstance(part, FieldInfo))
    return next(filter(None, found), name)


def written(limits: Limits, name: str) -> str:
    """Return the value of limit ``name`` as a file has it."""
    value: float = getattr(limits, name)
    return duration_text(value) if name.endswith(("_for", "_seconds")) else f"{value:.12g}"


def move_when(name: str) -> str:
    """Return the sentence that says when to move limit ``name``."""
    return {f.name: str(f.metadata["move"]) for f in fields(Limits)}[name]
