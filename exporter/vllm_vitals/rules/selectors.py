"""Whom a rule is about: folded selectors of states and signals, and how services whose users can wait are left out.

Batch models are skipped by a matcher, batch servers by the record `shared.BATCH`; that is decided here, once.
"""

from vllm_vitals.config.alerts import Config
from vllm_vitals.core.states import State
from vllm_vitals.rules.baseline_rules import BATCH
from vllm_vitals.rules.model import Alert, Scope, Severity
from vllm_vitals.rules.promql import Fold, by, metric, on, selector
from vllm_vitals.rules.text import label, preamble, scope_labels

# A server never yet seen has no model and no engine to name.
WHO = (
    '{{ or $labels.model_name "A model not yet seen" }}'
    f" on {label('target')}{{{{ with $labels.engine }}}} (engine {{{{ . }}}}){{{{ end }}}}"
)
KEEP = 900  # a ticket outlasts a quarter of an hour's pause


def fold(config: Config, scope: Scope = Scope.ENGINE) -> Fold:
    """Return a fold that reads one series per victim of this scope."""
    return Fold(scope_labels(config, scope), config.evaluation_seconds)


def interactive(config: Config) -> tuple[str, ...]:
    """Matchers that leave out the models whose users can wait."""
    return (f'model_name!~"({"|".join(config.batch.models)})"',) if config.batch.models else ()


def but_batch(config: Config) -> str:
    """PromQL that takes servers whose users can wait out of what stands before it."""
    return f"unless {on(config.target_identity)} {BATCH}"


def in_state(config: Config, *states: State, matchers: tuple[str, ...] = (), lately: int = 0) -> str:
    """Engines in one of ``states`` now, or within the last ``lately`` seconds."""
    which = f'state="{states[0]}"' if len(states) == 1 else f'state=~"{"|".join(states)}"'
    own = fold(config)
    series = selector(metric("state"), which, *matchers)
    # Compared before they are folded, so that only the few that are in it are.
    there = f"max_over_time({series}{own.range(lately)})" if lately else series
    return f"max {by(own.labels)} ({there} == 1)"


def ticket(
    config: Config,
    name: str,
    signal: str,
    expr: str,
    summary: str,
    body: str,
    dashboard: str,
    hold: int,
    scope: Scope = Scope.ENGINE,
    keep: int = KEEP,
) -> Alert:
    """Return a ticket of this scope; its text may use every sentence of `text`."""
    return Alert(
        name,
        Severity.TICKET,
        signal,
        scope,
        expr,
        summary,
        preamble(config, scope) + body,
        dashboard,
        hold=hold,
        keep=keep,
    )
