"""One strip an engine: the state it was in, all through the period."""

from vllm_vitals.core.states import State
from vllm_vitals.planner.review import words
from vllm_vitals.planner.review.charts import style
from vllm_vitals.planner.review.charts.style import Chart
from vllm_vitals.planner.review.report import ModelReview
from vllm_vitals.planner.telemetry.telemetry import STATES, UNKNOWN, Telemetry

MAX_STRIPS = 24


def draw(telemetry: Telemetry, model: ModelReview, salt: str) -> Chart:
    """Return the engines with most trouble first, as many as fit the chart."""
    from matplotlib.patches import Patch  # noqa: PLC0415

    engines = telemetry.of(model.model_name)
    rows = sorted(model.engines, key=lambda row: (-row.harmful_minutes, row.engine))[:MAX_STRIPS]
    names = [str(entry.engine)[-34:] for entry in rows]
    drawing, axis = style.figure(1.3 + 0.3 * len(rows), left=0.25 + 0.085 * max(map(len, names)), top=0.42)
    seen: set[State] = set()
    for row, entry in enumerate(rows):
        for first, last, code in _runs(engines[entry.engine].states, telemetry.states.windows):
            start, end = telemetry.states.at(first), telemetry.states.at(last)
            seen.add(STATES[code])
            width = style.moment(end) - style.moment(start)
            axis.broken_barh(
                [(style.moment(start), width)],
                (row - 0.4, 0.8),
                facecolors=style.STATE_COLOURS[STATES[code]],
                linewidth=0,
            )
    axis.set_yticks(range(len(rows)), names)
    axis.set_ylim(len(rows) - 0.5, -0.5)
    axis.grid(visible=False)
    style.times(axis, telemetry.grid.start, telemetry.grid.end)
    style.labels(axis, x="time (UTC)")
    patches = [
        Patch(color=style.STATE_COLOURS[state], label=words.state(state.value)) for state in State if state in seen
    ]
    if patches:
        drawing.legend(handles=patches, loc="upper left", ncols=7, frameon=False, fontsize=8.5)
    return Chart("incidents", "States", style.svg(drawing, salt), _sentence(model, len(rows)))


def _runs(codes: bytearray, windows: int) -> list[tuple[int, int, int]]:
    """(first, one past last, code) of each period of one state; what is too short to be seen joins the worse."""
    every = max(1, windows // (2 * style.MAX_COLUMNS))
    worst = [min(codes[first : first + every], default=UNKNOWN) for first in range(0, len(codes), every)]
    found: list[tuple[int, int, int]] = []
    for index, code in enumerate(worst):
        if found and found[-1][2] == code:
            found[-1] = (found[-1][0], (index + 1) * every, code)
        else:
            found.append((index * every, (index + 1) * every, code))
    return [run for run in found if run[2] != UNKNOWN]


def _sentence(model: ModelReview, shown: int) -> str:
    harm = sum(row.harmful_minutes for row in model.engines)
    more = (
        f" The {shown} engines with most trouble of {len(model.engines)} are shown."
        if len(model.engines) > shown
        else ""
    )
    if not harm:
        return f"No engine was ever in a harmful state; white is time without any reading.{more}"
    worst = max(model.engines, key=lambda row: row.harmful_minutes)
    return (
        f"{words.number(harm)} engine-minutes were spent in harmful states, {words.number(worst.harmful_minutes)} of "
        f"them by {worst.engine}; white is time without any reading.{more}"
    )
