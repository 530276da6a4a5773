"""What recording rules have already computed, as dashboards ask for it: the same cost for ten engines and a thousand.

Input: a record of `vllm_vitals.rules`. Output: PromQL that obeys the dashboard's variables. Invariant: it is empty
where recording.yml is not loaded, and the panels say so.
"""

from collections.abc import Iterable

from vllm_vitals.core.states import State
from vllm_vitals.dashboards import states
from vllm_vitals.dashboards.promql import BY_ENGINE, MOST, RATE_RANGE, age, most
from vllm_vitals.rules import boards
from vllm_vitals.rules.fleet import ENGINES, RANK

NOT_LOADED = "no engine has been seen, or this Prometheus has not loaded recording.yml"
_ENGINE = '{target=~"$target", model_name=~"$model_name|", engine=~"$engine|"}'
# A server has one model. Short, since every chart of an engine says it four times.
_BRIEFLY = '{target=~"$target", engine=~"$engine|"}'
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
    drawn = f"(min_over_time({of_engine(boards.TROUBLE)}[{RATE_RANGE}]) or {of_engine(boards.WORST)})"
    return f"min by ({BY_ENGINE}) ({drawn} and on ({BY_ENGINE}) bottomk({MOST}, {_worst_of_range(_ENGINE)}))"


def _worst_of_range(chosen: str) -> str:
    """Return each engine's worst state of the whole range."""
    in_trouble = f"min_over_time({boards.TROUBLE}{chosen}[$__range] @ end())"
    return f"min by ({BY_ENGINE}) ({in_trouble} or {boards.WORST}{chosen} @ end())"


def few(expr: str, count: int) -> str:
    """Leave out the engines beyond the ``count`` that were worst in the range; none where nothing is recorded."""
    worst = _worst_of_range(_BRIEFLY)
    return f"({expr}) unless on ({BY_ENGINE}) ({worst} unless on ({BY_ENGINE}) bottomk({count}, {worst}))"


def peak(record: str, by: str = "model_name") -> str:
    """Return the largest of the whole range, one number a series, to rank by."""
    return f"max by ({by}) (max_over_time({of_model(record)}[$__range] @ end()))"


def worst(name: str) -> str:
    """Return what the worst engine of each model said of a gauge in each step; of the models where it was highest."""
    record = boards.of_model(name, "max")
    return most(f"max by (model_name) {over('max', of_model(record))}", "model_name", peak(record))


def largest(name: str) -> str:
    """Return ``total`` of the models where it was highest."""
    return most(total(name), "model_name", peak(boards.of_model(name, "sum")))


def busiest(expr: str, count: int = MOST) -> str:
    """Return the lines of the models that answered most in the range."""
    answers = of_model(boards.of_model(boards.BY_REASON, "rate5m"))
    mean = f"max by (model_name, finished_reason) (avg_over_time({answers}[$__range] @ end()))"
    return most(expr, "model_name", f"sum by (model_name) ({mean})", count)


def total(name: str, how: str = "sum", by: str = "model_name") -> str:
    """Return the mean over each step of what a model's engines said together."""
    return f"max by ({by}) {over('avg', of_model(boards.of_model(name, how)))}"


def of_targets(record: str, by: str) -> str:
    """Return a server's record, of those where it was highest."""
    each, who = record + '{target=~"$target"}', f"target, {by}"
    rank = f"max by ({who}) (max_over_time({each}[$__range] @ end()))"
    return most(f"max by ({who}) {over('max', each)}", who, rank)


def buckets(name: str, by: str = "model_name, le") -> str:
    """Return a histogram's buckets as rates, of each model or of all together."""
    each = total(f"{name}_bucket", "rate5m", "model_name, le")
    return each if by == "model_name, le" else f"sum by ({by}) ({each})"


def late_first_token() -> str:
    """Return each model's p99 of the time to the first token, the largest of each step, where it was highest."""
    each = f"max by (model_name) {over('max', of_model(boards.LATE_TTFT))}"
    return most(each, "model_name", peak(boards.LATE_TTFT))


def model_age() -> str:
    """Return how old (s) what is known of each model is."""
    return age(of_model(ENGINES), "model_name")


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


def worst_model() -> str:
    """Return the worst model's state, of equals of that with the worst engine, by a name that a tile can hold."""
    engine = f"min by (model_name) ({of_engine(RANK)})"
    one = f"floor(bottomk(1, {model_rank()} + on (model_name) {engine} / 100))"
    return f'label_replace({one}, "model", "$1", "model_name", "(?:.*/)?(.{{1,24}}).*")'


def minutes(interval: float) -> str:
    """Return the engine-seconds in each troubled state, from samples that are ``interval`` seconds apart."""
    bad = (state for state in State if state.severity in ("critical", "warning"))
    counted = f"sum_over_time({of_model(ENGINES, states.matcher(*bad))}[$__range])"
    return f"sort_desc({interval:g} * sum by (state) ({counted}) > 0)"


def _quoted(names: Iterable[str]) -> str:
    return '"' + "|".join(names) + '"'
