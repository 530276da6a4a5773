"""Pictures of an engine's last hour as SVG in the page: states as a band, a vital sign as a line.

Input: an `EnginePast`. Output: markup of numbers and of our own words alone. Invariant: pure; each picture says in
words what it shows; a gap stays a gap.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from vllm_vitals.core.states import State
from vllm_vitals.serve import views
from vllm_vitals.serve.memory import SIGNS, EnginePast, Sign

WIDTH, BAND, LINE, CHART = 240, 10, 28, 90  # of the drawing's own units


@dataclass(frozen=True, slots=True)
class Picture:
    """A drawing, its title, what it shows in words, and how long ago it begins."""

    title: str
    words: str
    svg: Markup
    begins: str = ""


def states(past: EnginePast) -> Picture | None:
    """Return the band of states; None where nothing is known yet."""
    if not past.runs:
        return None
    begin = past.until - past.span
    ends = [start for start, _ in past.runs[1:]] + [past.until]
    parts, lasted = [], dict[State, float]()
    for (start, state), end in zip(past.runs, ends, strict=True):
        lasted[state] = lasted.get(state, 0.0) + max(0.0, end - start)
        left, width = (start - begin) / past.span * WIDTH, max(0.6, (end - start) / past.span * WIDTH)
        parts.append(
            f'<rect class="{state.severity} {state.value}" x="{left:.1f}" width="{width:.1f}" height="{BAND}"/>'
        )
    order = sorted(lasted, key=lambda state: state.rank)
    words = ", ".join(f"{state.spec.label} {views.duration(lasted[state])}" for state in order)
    label = f"States in the last {_span(past)}: {words}"
    return Picture("states", words, _svg("band", BAND, label, "".join(parts)), _span(past))


def signs(past: EnginePast, height: int = LINE) -> list[Picture]:
    """Return a line for each vital sign that was ever known in the span."""
    found = []
    for sign, values in zip(SIGNS, past.signs, strict=False):
        known = [value for value in values if value is not None]
        if known:
            found.append(_line(sign, values, known, height, past))
    return found


def _line(sign: Sign, values: Sequence[float | None], known: list[float], height: int, past: EnginePast) -> Picture:
    top = sign.full or max(known) or 1.0
    last = values[-1] if values[-1] is not None else known[-1]
    words = f"now {views.quantity(last, sign.unit)}, at most {views.quantity(max(known), sign.unit)}"
    paths = "".join(f'<polyline points="{" ".join(run)}"/>' for run in _runs(values, top, height))
    label = f"{sign.name} in the last {_span(past)}: {words}"
    return Picture(sign.name, words, _svg("line", height, label, paths))


def _runs(values: Sequence[float | None], top: float, height: int) -> Iterator[list[str]]:
    """Yield the points of each part without a gap; a value that stays is drawn by its two ends."""
    step, run = WIDTH / max(1, len(values) - 1), list[tuple[int, float]]()
    for number, value in [*enumerate(values), (len(values), None)]:
        if value is not None:
            run.append((number, value))
        elif run:
            if len(run) == 1:
                run.append((run[0][0], run[0][1]))
            yield [_point(n * step, v / top, height) for n, v in _bends(run)]
            run = []


def _bends(run: list[tuple[int, float]]) -> list[tuple[int, float]]:
    inner = [
        here for before, here, after in zip(run, run[1:], run[2:], strict=False) if not before[1] == here[1] == after[1]
    ]
    return [run[0], *inner, run[-1]]


def _point(x: float, share: float, height: int) -> str:
    return f"{x:.0f},{height - 1 - min(1.0, max(0.0, share)) * (height - 2):.1f}"


def _span(past: EnginePast) -> str:
    return views.duration(past.span)


def _svg(kind: str, height: int, label: str, inside: str) -> Markup:
    head = f'<svg class="{kind}" viewBox="0 0 {WIDTH} {height}" preserveAspectRatio="none" role="img" aria-label="'
    return Markup(head) + label + Markup('">') + Markup(inside) + Markup("</svg>")  # noqa: S704 - numbers, our words
