"""Where a victim stands: pod, node and the like, which describe it and never identify it.

Input: config (`description_labels`, `description_query`, `routing_labels`). Output: one record a target, one a model,
and PromQL that joins them. A target has one value of a label or none: where two disagree nothing is said, since a join
with both would stop the rule. What was known last counts for an hour after its source fell silent.
"""

from vllm_vitals.config.alerts import Config
from vllm_vitals.rules import raw
from vllm_vitals.rules.model import Alert, Recording, Scope
from vllm_vitals.rules.promql import Fold, by, metric, on

_ASKED = "target:vllm_vitals_description:asked"
_FOUND, _ROUTE = "target:vllm_vitals_description", "model:vllm_vitals_route"
_MEMORY = 3600  # s
# Scopes whose alerts name one target.
_OF_A_TARGET = (Scope.ENGINE, Scope.SERVER, Scope.TARGET)


def _named(config: Config) -> tuple[str, ...]:
    """Return every label that is looked up."""
    return tuple(dict.fromkeys((*config.describing, *config.routing)))


def recordings(config: Config) -> tuple[Recording, ...]:
    """Return what is known of each target, and the labels that route each model; nothing where none is asked for."""
    labels, identity = _named(config), config.target_identity
    if not labels:
        return ()
    mine = by((*identity, *labels))
    asked = (Recording(_ASKED, f"max {mine} ({config.description_query})"),) if config.description_query else ()
    base = f"max {by(identity)} ({metric('target_up')}) * 0 + 1"
    found = _chain(config, _FOUND, identity, base, {name: _value(config, name) for name in labels})
    model = {name: _of_targets(config, name) for name in config.routing}
    every = f'max {by(config.model_identity)} ({metric("state")}{{model_name!=""}}) * 0 + 1'
    return (*asked, *found, *_chain(config, _ROUTE, config.model_identity, every, model))


def _chain(
    config: Config, prefix: str, key: tuple[str, ...], base: str, values: dict[str, str]
) -> tuple[Recording, ...]:
    """Record ``base`` with one label more each time, where its key has exactly one value of it."""
    records, before, labels = list[Recording](), f"({base})", key
    window = Fold((), config.evaluation_seconds).range(_MEMORY)
    for name, value in values.items():
        only, record = f"{prefix}_only:{name}", f"{prefix}:{name}"
        records.append(Recording(only, f"(({value}) and {on(key)} (count {by(key)} ({value}) == 1)) * 0 + 1"))
        last = f"last_over_time({only}{window})"
        last = f"({last} and {on(key)} (count {by(key)} ({last}) == 1))"
        known = f"(max {by((*key, name))} ({only} or ({last} unless {on(key)} {only})))"
        joined = f"{before} * {on(key)} group_left ({name}) {known}"
        records.append(Recording(record, f"({joined}) or ({before} unless {on(key)} {known})"))
        labels = (*labels, name)
        before = f"(max {by(labels)} ({record}))"
    return tuple(records)


def _value(config: Config, name: str) -> str:
    """Return one label of targets: as the lookup knows it, or discovery, or Prometheus where it scrapes them itself."""
    target, mine, there = on(config.target_identity), by((*config.target_identity, name)), f'{{{name}!=""}}'
    sources = [f"max {mine} ({metric('target_up')}{there})", f"max {mine} ({raw.targeted('up' + there)})"]
    if config.description_query:
        sources.insert(0, f"max {mine} ({_ASKED}{there})")
    found = sources[0]
    for source in sources[1:]:
        found = f"{found} or ({source} unless {target} ({found}))"
    return found


def _of_targets(config: Config, name: str) -> str:
    """Return one label of models, as their targets have it."""
    server = by((*config.target_identity, "model_name"))
    which = f'max {server} ({metric("state")}{{model_name!=""}})'
    there = _one(config, f'{{{name}!=""}}')
    joined = f"{which} * 0 + {on(config.target_identity)} group_left ({name}) {there}"
    return f"max {by((*config.model_identity, name))} ({joined})"


def _one(config: Config, matchers: str = "") -> str:
    """Return the descriptions of targets that have exactly one."""
    info = f"{_FOUND}:{_named(config)[-1]}{matchers}"
    return f"({info} and {on(config.target_identity)} (count {by(config.target_identity)} ({info}) == 1))"


def described(config: Config, expression: str, *, labels: tuple[str, ...] = ("target",)) -> str:
    """Join the description to PromQL in a text, whose series have a ``target``; most first.

    ``^`` stands for the matchers of identity labels.
    """
    if not config.describing:
        return expression
    info = _one(config, "{^}")
    joined = f"({expression}) * {on(labels)} group_left ({', '.join(config.describing)}) {info}"
    return f"sort_desc({joined} or (({expression}) unless {on(labels)} {info}))"


def said(config: Config, holder: str) -> str:
    """Return the template that names each description label that ``holder`` (``.Labels``, ``$labels``) has."""
    return "".join(f"{{{{ with {holder}.{name} }}}}, {name} {{{{ . }}}}{{{{ end }}}}" for name in config.describing)


def labels_of(config: Config, alert: Alert) -> tuple[str, ...]:
    """Return the labels that an alert carries only to be described and routed by."""
    if alert.scope in _OF_A_TARGET:
        return _named(config)
    return config.routing if alert.scope is Scope.MODEL else ()


def joined(config: Config, alert: Alert) -> str:
    """Return the alert's expression with these labels, where they are known; it fires without them too."""
    labels = labels_of(config, alert)
    if not labels:
        return alert.expr
    if alert.scope is Scope.MODEL:
        key, info = on(config.model_identity), f"{_ROUTE}:{config.routing[-1]}"
    else:
        key, info = on(config.target_identity), _one(config)
    expression = f"({alert.expr})"
    return f"{expression} * {key} group_left ({', '.join(labels)}) {info} or ({expression} unless {key} {info})"


def of_pods(config: Config) -> str:
    """Return PromQL that finds the pod and node behind each target's address, as kube-state-metrics knows them.

    An address that several pods have (they share their node's network, or one of them has ended) says nothing.
    """
    server = f"max {by(config.target_identity)} ({metric('target_up')})"
    address = f'label_replace({server}, "pod_ip", "$1", "target", "(.+):[0-9]+")'
    pods = 'max by (pod_ip, pod, node) (kube_pod_info{pod_ip!="",host_network!="true"})'
    one = f"({pods} and on (pod_ip) (count by (pod_ip) ({pods}) == 1))"
    return f"{address} * 0 + on (pod_ip) group_left (pod, node) {one}"
