"""The style of every chart, and how one becomes SVG text.

Input: a matplotlib Figure. Output: SVG that can stand inside a page. Matplotlib is imported only here, when a picture
is drawn, and its global state is never touched. Invariant: ids are unique in the page, so that one picture's clip paths
do not cut another's.
"""

import io
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from vllm_vitals.core.states import State
from vllm_vitals.planner.review import words

WIDTH = 10.4  # inches, of a page's text
INK, SOFT, GRID = "#1f2733", "#5b6675", "#e3e7ec"
BLUE, ORANGE, GREEN, RED, PURPLE, GREY = "#2563b0", "#d9730d", "#2e7d4f", "#c4162a", "#7b4ea8", "#8a94a3"
MAX_COLUMNS = 600  # more points than this no page can show
STATE_COLOURS = {state: state.spec.colour for state in State}


class ChartsMissingError(Exception):
    """Matplotlib is not installed."""


@dataclass(frozen=True, slots=True)
class Chart:
    """``topic`` is the section it belongs to; ``sentence`` says what to see in it."""

    topic: str
    title: str
    svg: str
    sentence: str


def figure(
    height: float, rows: int = 1, columns: int = 1, left: float = 0.95, top: float = 0.3, **options: Any
) -> tuple[Any, Any]:
    """Return a figure of the page's width and its axes, in the house style; margins in inches.

    Margins are fixed: matplotlib's own layout engines draw everything twice to find them.
    """
    try:
        from matplotlib.figure import Figure  # noqa: PLC0415 - only a picture needs it
    except ImportError:
        raise ChartsMissingError(
            "the HTML report has no charts: they need matplotlib, in the extra vllm-vitals[review]"
        ) from None
    drawing = Figure(figsize=(WIDTH, height))
    axes = drawing.subplots(rows, columns, **options)
    drawing.subplots_adjust(
        left=left / WIDTH, right=1 - 0.1 / WIDTH, bottom=0.62 / height, top=1 - top / height,
        hspace=0.45 / ((height - 1) / rows), wspace=1.05 * columns / WIDTH,
    )  # fmt: skip
    for axis in axes.flat if hasattr(axes, "flat") else [axes]:
        plain(axis)
    return drawing, axes


def plain(axis: Any) -> None:
    """Light grid, no box."""
    axis.grid(visible=True, color=GRID, linewidth=0.8)
    axis.set_axisbelow(True)
    for side in ("top", "right"):
        axis.spines[side].set_visible(False)
    for side in ("left", "bottom"):
        axis.spines[side].set_color(GREY)
    axis.tick_params(colors=SOFT, labelsize=9)
    axis.yaxis.label.set_color(INK)


def labels(axis: Any, y: str = "", x: str = "", title: str = "") -> None:
    """Axis labels with units, in one size."""
    if y:
        axis.set_ylabel(y, fontsize=9.5, color=INK)
    if x:
        axis.set_xlabel(x, fontsize=9.5, color=INK)
    if title:
        axis.set_title(title, fontsize=10.5, color=INK, loc="left", fontweight="bold")


def legend(axis: Any, **options: Any) -> None:
    """Add a legend without a frame, above the data at the title's height unless ``loc`` says otherwise."""
    handles, _ = axis.get_legend_handles_labels()
    if handles:
        above = {"loc": "lower right", "bbox_to_anchor": (1.0, 0.98), "ncols": len(handles), "borderaxespad": 0.2}
        axis.legend(
            frameon=False, fontsize=8.5, labelcolor=INK, handlelength=1.6, columnspacing=1.2, **(options or above)
        )


def log_seconds(axis: Any) -> None:
    """Make a logarithmic axis of durations, labelled as people say them."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter  # noqa: PLC0415

    axis.set_yscale("log")
    low, high = axis.get_ylim()
    if high / low < 30:  # less than one and a half decades: whole decades alone would leave two labels
        axis.yaxis.set_major_locator(LogLocator(10, subs=(1, 2, 5)))
    axis.yaxis.set_major_formatter(FuncFormatter(lambda value, _: words.seconds(value)))
    axis.yaxis.set_minor_formatter(NullFormatter())


def times(axis: Any, start: float, end: float) -> None:
    """Make a time axis in UTC from start to end (epoch s)."""
    from matplotlib import dates  # noqa: PLC0415

    make: Any = dates  # untyped
    locator = make.AutoDateLocator(tz=UTC, minticks=4, maxticks=9)
    axis.xaxis.set_major_locator(locator)
    axis.xaxis.set_major_formatter(make.ConciseDateFormatter(locator, tz=UTC))
    axis.set_xlim(moment(start), moment(max(end, start + 1)))


def moment(at: float) -> Any:
    """Return an epoch time as matplotlib's date number."""
    return datetime.fromtimestamp(at, UTC)


def svg(drawing: Any, salt: str) -> str:
    """SVG text without a prologue; ``salt`` must be unique in the page. A $ in a name is a $, and no formula."""
    from matplotlib import rc_context  # noqa: PLC0415
    from matplotlib.text import Text  # noqa: PLC0415

    for text in drawing.findobj(Text):
        text.set_parse_math(False)
    style: Any = {"text.parse_math": False, "svg.fonttype": "none", "svg.hashsalt": salt, "font.family": "sans-serif",
             "font.sans-serif": ["DejaVu Sans", "Verdana", "Arial", "sans-serif"]}  # fmt: skip
    out = io.StringIO()
    with rc_context(style):
        drawing.savefig(out, format="svg", metadata={"Date": None, "Creator": None})
    written = out.getvalue()
    written = re.sub(r"<metadata>.*?</metadata>", "", written[written.index("<svg") :], count=1, flags=re.DOTALL)
    written = re.sub(r' id="(?![pmh][0-9a-f]{10}")[^"]*"', "", written)
    opening, rest = written.split(">", 1)
    return re.sub(r' (width|height)="[^"]*"', "", opening) + ' class="chart" role="img">' + rest


def columns(values: Sequence[float], start: float, step: float, how: str = "max") -> tuple[list[Any], list[float]]:
    """At most `MAX_COLUMNS` points: each part's largest value, or mean, at its middle; nan where unknown."""
    every = -(-len(values) // MAX_COLUMNS)
    at, found = [], []
    for first in range(0, len(values), every):
        part = [value for value in values[first : first + every] if value == value]  # noqa: PLR0124 - nan
        at.append(moment(start + (first + every / 2) * step))
        found.append(float("nan") if not part else max(part) if how == "max" else sum(part) / len(part))
    return at, found
