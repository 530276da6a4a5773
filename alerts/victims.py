"""Whom a rule is about: folded selectors of states and signals, and the matchers that leave batch services out.

A rule whose users can wait (`service_class: batch`) skips them by matcher; that is decided here, once.
"""

from alerts.config import Config
from alerts.model import Scope
from alerts.promql import Fold
from alerts.text import scope_labels
from exporter.core.snapshot import State


def fold(config: Config, scope: Scope = Scope.ENGINE) -> Fold:
    """Reads one series per victim of this scope."""
    return Fold(scope_labels(config, scope), config.evaluation_seconds)


def interactive(config: Config) -> tuple[str, ...]:
    """Matchers that leave out the services whose users can wait."""
    pairs = (("model_name", config.batch.models), ("target", config.batch.targets))
    return tuple(f'{name}!~"{"|".join(patterns)}"' for name, patterns in pairs if patterns)


def in_state(config: Config, *states: State, matchers: tuple[str, ...] = (), lately: int = 0) -> str:
    """Engines in one of ``states`` now, or within the last ``lately`` seconds."""
    which = f'state="{states[0]}"' if len(states) == 1 else f'state=~"{"|".join(states)}"'
    over = "max_over_time" if lately else ""
    return f"{fold(config).gauge('state', which, *matchers, over=over, seconds=lately)} == 1"
