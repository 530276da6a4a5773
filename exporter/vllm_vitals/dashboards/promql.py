"""The query vocabulary of the dashboards: every expression is built from the catalogue here.

Input: a catalogue name, labels to keep, a range. Output: PromQL with Grafana's variables in it. Invariant: whatever
produced a series (one daemon, two, recording rules, both), it is folded by `max` over its identity before anything
is summed, so that redundant producers change no number.
"""

import re

from vllm_vitals.catalog import BY_NAME, ENGINE_LABELS, TARGET_LABELS, Kind, Metric
from vllm_vitals.dashboards.site import Site
from vllm_vitals.vllm.lookup import wire

RATE_RANGE = "$__rate_interval"
# More lines than these nobody reads.
MOST = 12
BY_ENGINE = ", ".join(ENGINE_LABELS)
ENGINE_LEGEND = "{{model_name}} · {{target}} · {{engine}}"
# A server has one model: a long model name would push the values out of a narrow legend.
ENGINE_BRIEFLY = "{{target}} · {{engine}}"
_SELECTORS = {"target": 'target=~"$target"', "model_name": 'model_name=~"$model_name"', "engine": 'engine=~"$engine"'}
# A server that has not answered yet has a state but no model, and vLLM's own log lines name none: both must be seen
# whatever model is chosen.
_OF_NAMELESS_TOO = frozenset({"state", "state_since_timestamp_seconds"})
_OR_NAMELESS = {"model_name": 'model_name=~"$model_name|"', "engine": 'engine=~"$engine|"'}
_CHOOSES = re.compile(r" (?:and on \([^)]*\) topk\(\d|unless on \([^)]*\) \(min by).*", re.DOTALL)
# Two missed scrapes, where they are rare; a series that is gone for good is not shown much longer.
_LOOK_BACK = "2m"
# A selector of ours or of a record that stands without a range.
_BARE = re.compile(r"(?<![\w:])(?<!timestamp\()(?:\w+:)?vllm_vitals_\w+(?::\w+)?\{[^{}]*\}(?! ?\[)")


def metric(name: str) -> Metric:
    """Return the catalogue's entry. Raises KeyError for an unknown name, so that a build cannot invent one."""
    return BY_NAME[name]


def selector(of: Metric, *matchers: str) -> str:
    """``{...}`` with the dashboard's variables for the metric's scope, and more matchers."""
    chosen = _SELECTORS | _OR_NAMELESS if of.name in _OF_NAMELESS_TOO or not of.scope else _SELECTORS
    return "{" + ", ".join([chosen[label] for label in of.all_labels if label in chosen] + list(matchers)) + "}"


def identity(of: Metric, keep: tuple[str, ...] = ()) -> str:
    """Return the labels that a fold keeps; a family without a scope keeps its own."""
    return ", ".join(of.scope + keep if of.scope else of.labels)


def gauge(name: str, *matchers: str, keep: tuple[str, ...] = ()) -> str:
    """Return a gauge per identity, from either producer."""
    of = metric(name)
    return f"max by ({identity(of, keep)}) ({of.full_name}{selector(of, *matchers)})"


def age(selected: str, by: str) -> str:
    """Return how old (s) the newest sample of what is selected is, as far as instant queries look back."""
    return f"time() - max by ({by}) (max_over_time(timestamp({selected})[{_LOOK_BACK}:15s]))"


def most(expr: str, by: str, rank: str, count: int = MOST) -> str:
    """Return the lines whose ``rank``, one number for all of the range, is highest; ``by``: the labels of the rank."""
    return f"({expr}) and on ({by}) topk({count}, {rank})"


def drawn(expr: str) -> str:
    """Return what of an expression is drawn, without what only chooses its lines: the tail of `most`, or of `few`."""
    return _CHOOSES.sub("", expr)


def highest(name: str, by: str) -> str:
    """Return a gauge's largest sample of the whole range, to rank by."""
    of = metric(name)
    return f"max by ({by}) (max_over_time({of.full_name}{selector(of)}[$__range] @ end()))"


def overall(name: str, by: str) -> str:
    """Return a counter's rate over the whole range, all of its series together, to rank by."""
    of = metric(name)
    each = f"max by ({identity(of)}) (rate({of.full_name}{selector(of)}[$__range] @ end()))"
    return f"sum by ({by}) ({each})"


def rate(name: str, *matchers: str, keep: tuple[str, ...] = (), over: str = RATE_RANGE) -> str:
    """Return a counter's rate per identity. Raises ValueError for what is no counter."""
    of = metric(name)
    if of.kind is not Kind.COUNTER:
        raise ValueError(f"{name} is a {of.kind}: only a counter has a rate")
    return f"max by ({identity(of, keep)}) (rate({of.full_name}{selector(of, *matchers)}[{over}]))"


def worst(expr: str, by: str = "model_name") -> str:
    """Return a model's worst engine."""
    return f"max by ({by}) ({expr})"


def total(expr: str, by: str = "model_name") -> str:
    """Sum of already folded series."""
    return f"sum by ({by}) ({expr})" if by else f"sum({expr})"


def ratio(part: str, whole: str) -> str:
    """part / whole, absent where the whole is 0: no traffic is not 0 %."""
    return f"{part} / ({whole} > 0)"


def histogram(name: str, site: Site, part: str = "bucket") -> str:
    """Return a histogram's buckets, sum or count as a rate per identity: the daemon's, else vLLM's own."""
    of = metric(name)
    labels = identity(of, ("le",) if part == "bucket" else ())
    ours = f"max by ({labels}) (rate({of.full_name}_{part}{selector(of)}[{RATE_RANGE}]))"
    if not site.native:
        return ours
    raw = " or ".join(_raw(site.config.spellings, raw, labels) for raw in wire(name, part))
    # By engine, not by bucket: one writes le as 1, another as 1.0, and both together would count twice.
    return f"{ours} or (({raw}) unless on ({BY_ENGINE}) {ours})" if site.daemon else raw


def _raw(prefixes: tuple[str, ...], name: str, labels: str) -> str:
    # Ray and OpenTelemetry spell the prefix their own way; a server uses one of them.
    named = f'__name__=~"({"|".join(prefixes)}){name}", instance=~"$target", model_name=~"$model_name"'
    # vLLM before 0.8.3 has no engine label; both forms meet in one window while a server is upgraded.
    labelled = f'rate({{{named}, engine!="", engine=~"$engine"}}[{RATE_RANGE}])'
    bare = f'label_replace(rate({{{named}, engine=""}}[{RATE_RANGE}]), "engine", "0", "", "")'
    return f'max by ({labels}) (label_replace({labelled} or {bare}, "target", "$1", "instance", "(.+)"))'


def quantile(q: float, name: str, site: Site, by: str = "model_name") -> str:
    """Return a quantile from buckets, by interpolation inside one bucket; ``by`` may be empty for all together."""
    labels = f"{by}, le" if by else "le"
    return f"histogram_quantile({q:g}, sum by ({labels}) ({histogram(name, site)}))"


def bounded(name: str, *matchers: str) -> str:
    """Return the daemon's quantile per engine, whose label ``bound`` says what it is.

    An estimate; where a fast server's lies in the first bucket, that bucket's upper edge; where a slow one's lies above
    the last, the lower edge. Where requests finish, one of them is there.
    """
    of = [gauge(name, *matchers, f'bound="{bound}"', keep=("bound",)) for bound in ("estimate", "upper", "lower")]
    return f" or on ({BY_ENGINE}) ".join(of)


def in_words(expr: str, estimate: str = "about") -> str:
    """``bounded`` series whose label is what a person says before the number; a series without it is an estimate."""
    for bound, said in (("estimate|", estimate), ("upper", "at most"), ("lower", "at least")):
        expr = f'label_replace({expr}, "bound", "{said}", "bound", "{bound}")'
    return expr


def mean(name: str, site: Site, by: str = "model_name") -> str:
    """Return a histogram's mean over the rate's range."""
    return ratio(total(histogram(name, site, "sum"), by), total(histogram(name, site, "count"), by))


def folded_target(name: str, *matchers: str, keep: tuple[str, ...] = ()) -> str:
    """Return a server's own gauge (settings, up), per target."""
    if metric(name).scope != TARGET_LABELS:
        raise ValueError(f"{name} is not a target's metric")
    return gauge(name, *matchers, keep=keep)


def looking_back(expr: str) -> str:
    """Return an instant query that a missed scrape does not empty: each series' last sample, of any range alike."""
    if "$__range" in expr:
        return expr
    return _BARE.sub(lambda found: f"last_over_time({found[0]}[{_LOOK_BACK}])", expr)


def of_engine(what: str) -> str:
    """Return a legend that distinguishes engines where several are chosen."""
    return f"{what} · {ENGINE_BRIEFLY}"
