"""vLLM's own series, of every release and spelling, as one folded value per victim.

Input: names without prefix, from the one table of them (`vllm_vitals.vllm`). Output: PromQL labelled target,
model_name, engine (and identity labels). A server upgraded across a rename or across the birth of the ``engine`` label
(0.8.3) keeps one identity throughout: the newer spelling wins by ``or``, and ``max by`` drops every other label.
"""

from collections.abc import Sequence

from vllm_vitals.config.alerts import Config
from vllm_vitals.rules.promql import Fold, by, selector
from vllm_vitals.vllm.family import Wire


def either(*names: Sequence[Wire]) -> tuple[Wire, ...]:
    """Join the names of several quantities, for where any of them says it."""
    return tuple(name for group in names for name in group)


def targeted(expression: str) -> str:
    """Name the target of what Prometheus scraped itself."""
    return f'label_replace({expression}, "target", "$1", "instance", "(.+)")'


def folded(
    config: Config, names: Sequence[Wire], *matchers: str, function: str, window: str, keep: Sequence[str] = ()
) -> str:
    """Write ``function`` over ``window`` of the first of ``names`` that a victim has, under any spelling."""
    choices = []
    for name in names:
        for prefix in config.spellings:
            labelled = selector(prefix + name, 'engine!=""', *matchers)
            bare = selector(prefix + name, 'engine=""', *matchers)
            choices.append(f"{function}({labelled}{window})")
            choices.append(f'label_replace({function}({bare}{window}), "engine", "0", "", "")')
    union = " or ".join(choices)
    return f"max {by((*config.identity, *keep))} ({targeted(union)})"


def latest(config: Config, names: Sequence[Wire], *matchers: str, keep: Sequence[str] = ()) -> str:
    """Write the last value within three scrapes, so that one missed scrape leaves no hole."""
    window = Fold(config.identity, config.evaluation_seconds).range(3 * config.scrape_seconds)
    return folded(config, names, *matchers, function="last_over_time", window=window, keep=keep)
