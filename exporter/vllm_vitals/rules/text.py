"""Sentences with live numbers in them, as Go templates that survive missing series.

`ask` asks Prometheus when the alert is rendered and says "unknown" where nothing answers. In its expressions ``@``
stands for the victim's matchers and ``&`` for those of its whole model. Labels of the alert are `label`.
"""

from vllm_vitals.config.alerts import Config
from vllm_vitals.rules.model import Scope
from vllm_vitals.rules.promql import metric

COUNT = 'printf "%.0f"'
RATIO = 'printf "%.2f"'
TIMES = 'printf "x %.2f"'
PERCENT = "humanizePercentage"
TIME = "humanizeDuration"
PLAIN = "humanize"


def scope_labels(config: Config, scope: Scope) -> tuple[str, ...]:
    """Return the labels that an alert of this scope carries from its expression."""
    return {
        Scope.ENGINE: config.identity,
        Scope.SERVER: tuple(name for name in config.identity if name != "engine"),
        Scope.TARGET: config.target_identity,
        Scope.MODEL: config.model_identity,
        Scope.ROUTE: (*config.model_identity, "route"),
        Scope.FLEET: (),
    }[scope]


def preamble(config: Config, scope: Scope) -> str:
    """Define ``$e``, ``$m`` and ``$t``: PromQL matchers of the victim, of its model and of its server."""
    victim = scope_labels(config, scope)
    model = tuple(name for name in victim if name in config.model_identity)
    target = tuple(name for name in victim if name in config.target_identity)
    return _define("$e", victim) + _define("$m", model) + _define("$t", target)


def _define(variable: str, labels: tuple[str, ...]) -> str:
    matchers = ",".join(f"{name}=%q" for name in labels)
    values = "".join(f" $labels.{name}" for name in labels)
    return f"{{{{ {variable} := printf `{matchers}`{values} }}}}" if labels else f"{{{{ {variable} := `` }}}}"


def label(name: str) -> str:
    """Return a label of the alert."""
    return f"{{{{ $labels.{name} }}}}"


def _printf(expression: str) -> str:
    text = expression.replace("@", "%[1]s").replace("&", "%[2]s").replace("^", "%[3]s")
    return f"`{text}`" if text == expression else f"printf `{text}` $e $m $t"


def ask(expression: str, show: str = PLAIN, unknown: str = "unknown") -> str:
    """Return the first value of ``expression``, or ``unknown``; never NaN, which compares false with everything."""
    return (
        f"{{{{ with {_printf(f'({expression}) >= 0')} | query }}}}{{{{ . | first | value | {show} }}}}{{{{"
        f" else }}}}{unknown}{{{{ end }}}}"
    )


def when(expression: str, text: str, otherwise: str = "") -> str:
    """``text`` where ``expression`` answers with anything, else ``otherwise``."""
    tail = f"{{{{ else }}}}{otherwise}" if otherwise else ""
    return f"{{{{ with {_printf(expression)} | query }}}}{text}{tail}{{{{ end }}}}"


def each(expression: str, text: str, otherwise: str) -> str:
    """``text`` once per answer (its labels are ``.Labels.x``), with commas between, or ``otherwise``."""
    items = f"{{{{ range $i, $x := . }}}}{{{{ if $i }}}}, {{{{ end }}}}{text}{{{{ end }}}}"
    return f"{{{{ with {_printf(expression)} | query }}}}{items}{{{{ else }}}}{otherwise}{{{{ end }}}}"


def facts(*rows: tuple[str, str, str], none: str = "No number is at hand: Prometheus answers nothing.\n") -> str:
    """Return numbers by one query: (what it is, PromQL whose result has no labels, count, number, share or time).

    ``what`` carries the threshold. Rows that have no answer are left out, and that is said.
    """
    parts = []
    for place, (what, expression, show) in enumerate(rows):
        part = expression
        for name, value in (("what", what.replace("%", "%%")), ("n", chr(ord("a") + place)), ("show", show)):
            part = f'label_replace({part}, "{name}", "{value}", "", "")'
        parts.append(part)
    whole = f'{{{{ else if eq .Labels.show "count" }}}}{{{{ .Value | {COUNT} }}}}'
    shown = (
        f'{{{{ if eq .Labels.show "time" }}}}{{{{ .Value | {TIME} }}}}{{{{ else if eq .Labels.show "share" }}}}'
        f'{{{{ .Value | {PERCENT} }}}}{whole}{{{{ else }}}}{{{{ .Value | printf "%.3g" }}}}{{{{ end }}}}'
    )
    lines = f'{{{{ range . | sortByLabel "n" }}}}{{{{ .Labels.what }}}}: {shown}.\n{{{{ end }}}}'
    query = _printf(" or ".join(parts))
    return f"{{{{ with {query} | query }}}}{lines}{{{{ else }}}}{none}{{{{ end }}}}"


def now(name: str, *matchers: str) -> str:
    """PromQL of the victim's gauge ``name``, folded over producers."""
    inside = ",".join(("@", *matchers))
    return f"max({metric(name)}{{{inside}}})"


def waiting() -> str:
    """PromQL of the victim's waiting requests, whatever their reason."""
    return f"sum(max by (reason) ({metric('requests_waiting')}{{@}}))"


def since(state: str) -> str:
    """PromQL of when the victim entered ``state``, as the exporter says that has seen it longest.

    A twin that restarted saw it begin with itself; one that says another state is not asked.
    """
    says = f'{metric("state")}{{@,state="{state}"}} == 1'
    return f"min({metric('state_since_timestamp_seconds')}{{@}} and ignoring (state) ({says}))"


def duration_words(seconds: float) -> str:
    """``900`` as "15 minutes"."""
    whole = int(seconds)
    for word, size in (("day", 86400), ("hour", 3600), ("minute", 60)):
        if whole % size == 0:
            count = whole // size
            return f"{count} {word}{'' if count == 1 else 's'}"
    return f"{whole} seconds"


def percent(share: float) -> str:
    """``0.4`` as "40%", as Prometheus writes it."""
    return f"{100 * share:.4g}%"
