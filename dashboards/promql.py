"""The query vocabulary of the dashboards: every expression is built from the catalogue here.

Input: a catalogue name, labels to keep, a range. Output: PromQL with Grafana's variables in it. Invariant: whatever
produced a series (one daemon, two, recording rules, both), it is folded by `max` over its identity before anything
is summed, so that redundant producers change no number.
"""

from dataclasses import dataclass

from exporter.catalog import BY_NAME, ENGINE_LABELS, TARGET_LABELS, Kind, Metric

RATE_RANGE = "$__rate_interval"
_SELECTORS = {"target": 'target=~"$target"', "model_name": 'model_name=~"$model_name"', "engine": 'engine=~"$engine"'}

# vLLM's own names of the histograms, newest spelling first, for a Prometheus without the daemon.
RAW_HISTOGRAMS: dict[str, tuple[str, ...]] = {
    "tpot_seconds": ("vllm:request_time_per_output_token_seconds",),
    "inter_token_latency_seconds": ("vllm:inter_token_latency_seconds", "vllm:time_per_output_token_seconds"),
    "ttft_seconds": ("vllm:time_to_first_token_seconds",),
    "e2e_latency_seconds": ("vllm:e2e_request_latency_seconds",),
    "queue_time_seconds": ("vllm:request_queue_time_seconds",),
    "request_prompt_tokens": ("vllm:request_prompt_tokens",),
    "request_output_tokens": ("vllm:request_generation_tokens",),
    "request_max_tokens": ("vllm:request_params_max_tokens",),
    "request_preemptions": ("vllm:request_num_preemptions",),
}


@dataclass(frozen=True, slots=True)
class Producers:
    """Who feeds this Prometheus: the daemon, recording rules over vLLM's own series, or both."""

    daemon: bool = True
    native: bool = True

    @classmethod
    def parse(cls, text: str) -> "Producers":
        """``daemon``, ``native`` or ``daemon,native``. Raises ValueError that names what is wrong."""
        modes = {word.strip() for word in text.split(",") if word.strip()}
        if not modes or modes - {"daemon", "native"}:
            raise ValueError(f"--mode {text!r}: use daemon, native, or daemon,native")
        return cls("daemon" in modes, "native" in modes)


def metric(name: str) -> Metric:
    """The catalogue's entry. Raises KeyError for a name that nothing serves, so that a build cannot invent one."""
    return BY_NAME[name]


def selector(of: Metric, *matchers: str) -> str:
    """``{...}`` with the dashboard's variables for the metric's scope, and more matchers."""
    return "{" + ", ".join([_SELECTORS[label] for label in of.all_labels if label in _SELECTORS] + list(matchers)) + "}"


def identity(of: Metric, keep: tuple[str, ...] = ()) -> str:
    """The labels that a fold keeps."""
    return ", ".join(of.scope + keep)


def gauge(name: str, *matchers: str, keep: tuple[str, ...] = ()) -> str:
    """A gauge per identity, whoever serves it."""
    of = metric(name)
    return f"max by ({identity(of, keep)}) ({of.full_name}{selector(of, *matchers)})"


def rate(name: str, *matchers: str, keep: tuple[str, ...] = (), over: str = RATE_RANGE) -> str:
    """A counter's rate per identity."""
    return _of_counter("rate", name, matchers, keep, over)


def increase(name: str, *matchers: str, keep: tuple[str, ...] = (), over: str = "$__range") -> str:
    """A counter's increase per identity over a range."""
    return _of_counter("increase", name, matchers, keep, over)


def _of_counter(function: str, name: str, matchers: tuple[str, ...], keep: tuple[str, ...], over: str) -> str:
    of = metric(name)
    if of.kind is not Kind.COUNTER:
        raise ValueError(f"{name} is a {of.kind}: only a counter has a rate")
    return f"max by ({identity(of, keep)}) ({function}({of.full_name}{selector(of, *matchers)}[{over}]))"


def worst(expr: str, by: str = "model_name") -> str:
    """The worst engine speaks for its model."""
    return f"max by ({by}) ({expr})"


def total(expr: str, by: str = "model_name") -> str:
    """Sum of already folded series."""
    return f"sum by ({by}) ({expr})" if by else f"sum({expr})"


def ratio(part: str, whole: str) -> str:
    """part / whole, absent where the whole is 0: no traffic is not 0 %."""
    return f"{part} / ({whole} > 0)"


def histogram(name: str, who: Producers, part: str = "bucket", function: str = "rate", over: str = RATE_RANGE) -> str:
    """A histogram's buckets, sum or count as a rate per identity, from the daemon, from vLLM itself, or whichever is there."""
    of = metric(name)
    labels = identity(of, ("le",) if part == "bucket" else ())
    sources = []
    if who.daemon:
        sources.append(f"max by ({labels}) ({function}({of.full_name}_{part}{selector(of)}[{over}]))")
    if who.native:
        sources += [_raw(f"{raw}_{part}", labels, function, over) for raw in RAW_HISTOGRAMS[name]]
    return " or ".join(sources)


def _raw(name: str, labels: str, function: str, over: str) -> str:
    # vLLM before its V1 engine has no engine label; both spellings meet in one window while a server is upgraded.
    model = 'instance=~"$target", model_name=~"$model_name"'
    named = f'{function}({name}{{{model}, engine=~"$engine", engine!=""}}[{over}])'
    unnamed = f'label_replace({function}({name}{{{model}, engine=""}}[{over}]), "engine", "0", "", "")'
    return f'max by ({labels}) (label_replace({named} or {unnamed}, "target", "$1", "instance", "(.+)"))'


def quantile(q: float, name: str, who: Producers, by: str = "model_name", over: str = RATE_RANGE) -> str:
    """A quantile from buckets, by interpolation inside one bucket; ``by`` may be empty for all together."""
    labels = f"{by}, le" if by else "le"
    return f"histogram_quantile({q:g}, sum by ({labels}) ({histogram(name, who, over=over)}))"


def mean(name: str, who: Producers, by: str = "model_name", over: str = RATE_RANGE) -> str:
    """A histogram's mean over a range."""
    return ratio(
        total(histogram(name, who, "sum", over=over), by), total(histogram(name, who, "count", over=over), by)
    )


def folded_target(name: str, *matchers: str, keep: tuple[str, ...] = ()) -> str:
    """A server's own gauge (settings, up), per target."""
    if metric(name).scope != TARGET_LABELS:
        raise ValueError(f"{name} is not a target's metric")
    return gauge(name, *matchers, keep=keep)


BY_ENGINE = ", ".join(ENGINE_LABELS)
ENGINE_LEGEND = "{{model_name}} · {{target}} · {{engine}}"
