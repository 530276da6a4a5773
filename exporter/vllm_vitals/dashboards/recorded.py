"""What recording rules have already computed, as dashboards ask for it: the same cost for ten engines and a thousand.

Input: a record of `vllm_vitals.rules`. Output: PromQL that obeys the dashboard's variables. Invariant: it is empty
where recording.yml is not loaded, and the panels say so.
"""

from collections.abc import Iterable

from vllm_vitals.core.states import State
from vllm_vitals.dashboards import states
from vllm_vitals.dashboards.promql import BY_ENGINE, RATE_RANGE
from vllm_vitals.rules import boards
from vllm_vitals.rules.fleet import ENGINES, RANK

# Engines in a timeline, worst first: more bands than these nobody reads.
MOST = 12
NOT_LOADED = "no engine has been seen, or this Prometheus has not loaded recording.yml"
_ENGINE = '{target=~"$target", model_name=~"$model_name|", engine=~"$engine|"}'
_CANNOT_SERVE = ("down", "stalled", "failing", "blind", "paused", "starting", "asleep", "unknown")


def of_model(record: str, *matchers: str) -> str:
    """Return a record per model."""
    return record + "{" + ", ".join(('model_name=~"$model_name|"', *matchers)) + "}"


def of_engine(record: str) -> str:
    """Return a record per engine."""
    return record + _ENGINE


def over(how: str, record: str, window: str = RATE_RANGE) -> str:
    """Return a record over each step, so that none of it falls between two; as it stands where steps are shorter."""
    return f"({how}_over_time({record}[{window}]) or {record})"


def rank_over_time() -> str:
    """Return the worst state of each step, so that no spell falls between two; of the engines that were worst."""
    rank, trouble = of_engine(boards.WORST), of_engine(boards.TROUBLE)
    worst = f"min by ({BY_ENGINE}) (min_over_time({trouble}[$__range] @ end()) or {rank} @ end())"
    drawn = f"(min_over_time({trouble}[{RATE_RANGE}]) or {rank}) and on ({BY_ENGINE}) bottomk({MOST}, {worst})"
    return f"min by ({BY_ENGINE}) ({drawn})"


def worst(name: str) -> str:
    """Return what the worst engine of each model said of a gauge in each step; of the models where it was highest."""
    record = of_model(boards.of_model(name, "max"))
    most = f"topk({MOST}, max by (model_name) (max_over_time({record}[$__range] @ end())))"
    return f"max by (model_name) {over('max', record)} and on (model_name) {most}"


def total(name: str, how: str = "sum", by: str = "model_name") -> str:
    """Return the mean over each step of what a model's engines said together."""
    return f"max by ({by}) {over('avg', of_model(boards.of_model(name, how)))}"


def of_targets(record: str, by: str) -> str:
    """Return a server's record, of those where it was highest."""
    each = record + '{target=~"$target"}'
    most = f"topk({MOST}, max by (target, {by}) (max_over_time({each}[$__range] @ end())))"
    return f"max by (target, {by}) {over('max', each)} and on (target, {by}) {most}"


def buckets(name: str, by: str = "model_name, le") -> str:
    """Return a histogram's buckets as rates, of each model or of all together."""
    each = total(f"{name}_bucket", "rate5m", "model_name, le")
    return each if by == "model_name, le" else f"sum by ({by}) ({each})"


def late_first_token() -> str:
    """Return each model's p99 of the time to the first token, the largest of each step."""
    return f"max by (model_name) {over('max', of_model(boards.LATE_TTFT))}"


def quantile(q: float, name: str) -> str:
    """Return a quantile of each model."""
    return f"histogram_quantile({q:g}, {buckets(name)})"


def mean(name: str) -> str:
    """Return a histogram's mean of each model, absent where nothing was counted."""
    return f"{total(f'{name}_sum', 'rate5m')} / ({total(f'{name}_count', 'rate5m')} > 0)"


def worst_engine() -> str:
    """Return each model's worst engine and its state."""
    return f"bottomk by (model_name) (1, min by ({BY_ENGINE}) ({of_engine(RANK)}))"


def engines(*matchers: str) -> str:
    """Return how many engines of each model are in these states, or in any."""
    return f"sum by (model_name) ({of_model(ENGINES, *matchers)})"


def serving() -> str:
    """Return how many engines of each model can serve; 0 is a number."""
    able = f"state!~{_quoted(_CANNOT_SERVE)}"
    return f"({engines(able)} or 0 * {engines()})"


def model_rank() -> str:
    """Return each model's state: the worst that a third of its engines are in, or in one that is worse yet."""
    clauses = []
    for state in State:
        as_bad = engines(f"state=~{_quoted(each.value for each in State if each.rank <= state.rank)}")
        clauses.append(f"{state.rank} + 0 * ({as_bad} >= on (model_name) {engines()} / 3)")
    return "min by (model_name) (\n  " + "\n  or ".join(clauses) + "\n)"


def minutes(interval: float) -> str:
    """Return the engine-seconds in each troubled state, from samples that are ``interval`` seconds apart."""
    bad = (state for state in State if state.severity in ("critical", "warning"))
    counted = f"sum_over_time({of_model(ENGINES, states.matcher(*bad))}[$__range])"
    return f"sort_desc({interval:g} * sum by (state) ({counted}) > 0)"


def _quoted(names: Iterable[str]) -> str:
    return '"' + "|".join(names) + '"'
