"""Draws the live view: a line a engine, worst first; below them the chosen one's proof and what to do.

Input: entries in order, a `View`, the terminal's size. Output: exactly as many lines as the terminal has, none wider.
Invariant: pure; states are words as well as colours; nothing that a server says can paint on the terminal.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from io import StringIO
from math import isfinite
from typing import Any

from rich.console import Console
from rich.text import Text

from vllm_vitals.core.states import State
from vllm_vitals.serve.views import duration, quantity
from vllm_vitals.top.memory import SIGNS, Book, Entry, Sign, below, value
from vllm_vitals.top.view import View

COLOURS = {"critical": "bold red", "warning": "bold yellow", "ok": "green", "unknown": "bold magenta"}
_MEASURE = Console(file=StringIO())  # Text.wrap asks for one, and writes nothing to it
_ENGINE, _SPARK, _VALUE, _GAUGE = 17, 8, 8, 5
_WHOLE, _ROOMY = 30, 100  # columns of the longest name that is shown whole, and of a terminal that has room for it
_LOGGED = 6  # errors of a log that are shown
_FIXED = 45  # mark, state, running, waiting with its bar, KV with its bar, and spaces
HELP = (
    ("up, down, k, j", "choose an engine"), ("enter, esc", "one engine in full, back to all"),
    ("/", "show only what matches: words of address, model, engine or state"),
    ("s", "sort by state, waiting, KV usage, preemptions, TPOT or name"),
    ("p, space", "pause the display; servers are still read"),
    ("w", "begin a recording of this engine's server, or end it"),
    ("[ ] { }", "in a recording, 30 s or 5 min back or on"), ("q", "quit"),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Canvas:
    """The terminal: columns, lines, and whether it can draw blocks."""

    width: int
    height: int
    blocks: bool = True

    @property
    def steps(self) -> str:
        """Signs of a sparkline, from low to high."""
        return "▁▂▃▄▅▆▇█" if self.blocks else "_.-=+*%#"


def draw(
    book: Book, shown: Sequence[Entry], view: View, title: str, size: Canvas, story: Sequence[str] = ()
) -> list[Text]:  # fmt: skip
    """Return the screen. ``story`` stands above the engines, on at most half of it."""
    head, foot = _head(book, view, title, size), _foot(view, size)
    told = [piece for line in story for piece in _wrapped(Text(clean(f" {line}"), style="cyan"), size.width)]
    head += told[: size.height // 2]
    room = max(1, size.height - len(head) - len(foot))
    if view.help:
        explained = [Text.assemble((f" {key:<16}", "bold"), what) for key, what in HELP]
        body = [piece for line in explained for piece in _wrapped(line, size.width)]
    elif view.one and shown:
        body = _one(book.at, shown[view.index(shown)], size)
        view.scroll = max(0, min(view.scroll, len(body) - room))
        body = body[view.scroll :]
    else:
        body = _all(shown, view, size, room)
    lines = [*head, *body[:room], *[Text()] * (room - len(body)), *foot][: size.height]
    for line in lines:
        line.truncate(size.width, overflow="ellipsis" if size.blocks else "crop")
    return lines


def _head(book: Book, view: View, title: str, size: Canvas) -> list[Text]:
    counts = Counter(entry.state for entry in book.entries.values())
    line = Text.assemble(
        ("vllm-vitals", "bold"), "  ", (" PAUSED ", "reverse") if view.paused else "", f"  {clean(title)}  "
    )
    for state in State:
        if counts[state]:
            line.append(f"{counts[state]} {state.spec.label}  ", COLOURS[state.severity])
    if not book.entries:
        line.append("waiting for the first answer")
    if book.left_out:
        line.append(f"{book.left_out} engines are left out")
    return [line]


def _foot(view: View, size: Canvas) -> list[Text]:
    if view.typing:
        return [Text.assemble((" filter: ", "bold"), clean(view.filter), ("_", "blink"), "  enter: keep, esc: clear")]
    if view.note:
        return [Text(f" {clean(view.note)}", style="bold")]
    kept = f" only: {clean(view.filter)} " if view.filter else ""
    back = "esc back  " if view.one or view.help else "enter one engine  "
    return [Text(f"{kept} {back}/ filter  s sort: {view.sort}  p pause  ? help  q quit", style="dim")]


def _all(shown: Sequence[Entry], view: View, size: Canvas, room: int) -> list[Text]:
    """Return the list, its heading, and as much of the chosen engine as a third of the lines holds."""
    longest = max((len(who(entry)) for entry in shown), default=0)
    name = max(_ENGINE, min(_WHOLE, longest)) if size.width >= _ROOMY else _ENGINE  # a name is worth more than a line
    signs = SIGNS[: max(0, (size.width - _FIXED - name) // (_SPARK + _VALUE + 2))]
    signs = signs[:-1] if len(signs) == len(SIGNS) else signs  # KV has its own column
    spare = size.width - _FIXED - name - len(signs) * (_SPARK + _VALUE + 2)
    width = name + min(max(0, spare), 30 - (name - _ENGINE))
    spark = _SPARK + max(0, size.width - _FIXED - width - len(signs) * (_SPARK + _VALUE + 2)) // max(1, len(signs))
    gauge = _GAUGE if size.width >= _FIXED + _ENGINE else 0  # of the queue: its number says the same
    heading = f"  {'state':<13} {'engine':<{width}} {'run':>4} {'wait':>5} {'':<{gauge}} {'KV':<11}"
    heading += "".join(f"  {sign.title:>{spark + _VALUE}}" for sign in signs)
    spare_lines = max(2, room // 3, room - 1 - len(shown))
    below = _brief(shown[view.index(shown)], size)[:spare_lines] if shown and room >= 8 else []
    rows = max(1, room - 1 - len(below))
    view.page = max(1, rows - 1)
    at = view.index(shown) if shown else 0
    first = max(0, min(at - rows // 2, len(shown) - rows))
    most = max((_value(entry, "requests_waiting") or 0.0 for entry in shown), default=0.0)
    lines = [Text(heading, style="bold")]
    for number, entry in enumerate(shown[first : first + rows], first):
        line = _row(entry, number == at, size, (width, spark, gauge), signs, most)
        line.stylize("reverse" if number == at else "")
        lines.append(line)
    if not shown:
        lines.append(Text("  no engine matches" if view.filter else ""))
    return [*lines, *[Text()] * (room - len(lines) - len(below)), *below]


def _row(
    entry: Entry, chosen: bool, size: Canvas, widths: tuple[int, int, int], signs: Sequence[Sign], most: float
) -> Text:  # fmt: skip
    width, spark, gauge = widths
    waiting, usage = _value(entry, "requests_waiting"), value(entry.engine, SIGNS[4])
    line = Text("> " if chosen else "  ")
    line.append(f"{entry.state.spec.label[:13]:<13} ", COLOURS[entry.state.severity])
    line.append(f"{_fit(who(entry), width):<{width}} {_short(_value(entry, 'requests_running')):>4}")
    line.append(f" {_short(waiting):>5} {_bar(waiting, most, gauge, size)} {_bar(usage, 1.0, 6, size)}")
    line.append(f" {'–' if usage is None else f'{100 * usage:.0f}%':>4}")
    for sign in signs:
        drawn = sparkline(list(entry.signs[sign.title])[-spark:], spark, size, sign.full)
        line.append(f"  {drawn}{_told(entry.engine, sign):>{_VALUE}}")
    return line


def _brief(entry: Entry, size: Canvas) -> list[Text]:
    """Return the chosen engine in a few lines: what it is, what proves it, what to do."""
    proof = [e.get("text", "") for e in entry.engine.get("evidence") or ()]
    lines = [Text("─" * size.width if size.blocks else "-" * size.width, style="dim"), _title(entry)]
    advice = [_advice(a) for a in (entry.engine.get("advice") or ())[:1]]
    lines += [*advice, *(Text(f" {_dot(size)} {clean(text)}") for text in proof)]
    return [piece for line in lines for piece in _wrapped(line, size.width)]


def _title(entry: Entry) -> Text:
    spec = entry.state.spec
    return Text.assemble((f" {spec.label.upper()}", COLOURS[spec.severity]), f"  {who(entry)}: {spec.headline}")


def _advice(advice: dict[str, Any]) -> Text:
    when = "now" if advice.get("when") == "now" else "at the next restart"
    way = f" {advice.get('direction')}" if advice.get("direction") in ("up", "down") else ""
    return Text.assemble(f" {when}: ", (clean(f"{advice.get('knob')}{way}"), "bold"), clean(f": {advice.get('size')}"))


def _one(now: float, entry: Entry, size: Canvas) -> list[Text]:
    engine, target = entry.engine, entry.target
    lines = [_title(entry)]
    if not target.get("up"):
        lines.append(Text(clean(f" {target.get('reason')}: {target.get('detail')}"), style="bold"))
    lines += [Text(f" {_dot(size)} {clean(e.get('text', ''))}") for e in engine.get("evidence") or ()]
    lines += [Text(f" ! {clean(c.get('text', ''))}") for c in target.get("contradictions") or ()]
    lines.append(Text())
    wide = max(8, size.width - 48)
    for sign in SIGNS:
        known = [each for each in entry.signs[sign.title] if each is not None]
        span = f"{quantity(min(known), sign.unit)} to {quantity(max(known), sign.unit)}" if known else "not known"
        drawn = sparkline(list(entry.signs[sign.title])[-wide:], wide, size, sign.full)
        lines.append(Text(f" {sign.title:<11} {drawn} {_told(engine, sign):>9}  {span}"))
    lines.append(Text())
    for advice in engine.get("advice") or ():
        lines.append(_advice(advice))
        lines += [
            Text(clean(f"     {what} {advice[key]}"), style="dim")
            for what, key in (("watch", "watch"), ("cost:", "cost"))
            if advice.get(key)
        ]
    lines.append(Text())
    lines.append(_runs(now, entry))
    lines += _log(now, target.get("log_errors"), size)
    lines += [Text(clean(f" not known: {text}"), style="dim") for text in engine.get("unknown") or ()]
    settings = target.get("settings") or {}
    if settings:
        known_settings = ", ".join(f"{name} {text}" for name, text in sorted(settings.items()))
        lines.append(Text(clean(f" settings: {known_settings}"), style="dim"))
    return [piece for line in lines for piece in (_wrapped(line, size.width))]


def _told(engine: Mapping[str, Any], sign: Sign) -> str:
    """Return a vital sign's number."""
    edge = below(engine, sign)
    return quantity(value(engine, sign), sign.unit) if edge is None else f"<{quantity(edge, sign.unit)}"


def _log(now: float, errors: object, size: Canvas) -> list[Text]:
    """Return the newest errors of the server's log, the newest first; nothing where no log is read."""
    if not isinstance(errors, list):
        return []
    if not errors:
        return [Text(" log: no error since the daemon reads it", style="dim")]
    shown = [each for each in errors if isinstance(each, dict)][: -_LOGGED - 1 : -1]
    ago = [duration(now - each["at"]) if isinstance(each.get("at"), int | float) else "?" for each in shown]
    told = [clean(f"{when} ago {each.get('kind')}: {each.get('text')}") for when, each in zip(ago, shown, strict=True)]
    return [Text(" errors in its log:"), *(Text(f" {_dot(size)} {line}") for line in told)]


def _wrapped(line: Text, width: int) -> Iterable[Text]:
    """Break a line that is too long at words; what follows is indented."""
    if line.cell_len <= width:
        return [line]
    pieces = list(line.wrap(_MEASURE, max(10, width - 3)))
    return [pieces[0], *(Text.assemble("   ", piece) for piece in pieces[1:])]


def _runs(now: float, entry: Entry) -> Text:
    """Return the states over time, newest first."""
    line, until = Text(" states: "), now
    for since, state in reversed(entry.runs):
        line.append(state.spec.label, COLOURS[state.severity])
        line.append(f" {duration(until - since)}, ")
        until = since
    line.right_crop(2)
    return line


def sparkline(points: Sequence[float | None], width: int, size: Canvas, full: float | None = None) -> str:
    """Return points as signs from low to high, right-aligned; a gap where a value is absent."""
    known = [each for each in points if each is not None and isfinite(each)]
    top = full or max(known, default=0.0)
    steps, drawn = size.steps, []
    for each in points:
        if each is None or not isfinite(each):
            drawn.append(" ")
        else:
            share = each / top if top > 0 else 0.0
            drawn.append(steps[max(0, min(len(steps) - 1, int(share * len(steps))))])
    return "".join(drawn).rjust(width)


def _bar(amount: float | None, full: float, width: int, size: Canvas) -> str:
    """Return a bar, filled to a share."""
    if amount is None or full <= 0:
        return " " * width
    filled = round(min(1.0, max(0.0, amount / full)) * width)
    return ("█" if size.blocks else "#") * filled + ("░" if size.blocks else ".") * (width - filled)


def who(entry: Entry) -> str:
    """Name an engine: address, model, rank."""
    target, model, engine = entry.key
    return clean(" ".join(part for part in (target, model, engine and f"#{engine}") if part))


def clean(text: str) -> str:
    """Return text from a server without characters that a terminal would obey."""
    return "".join(ch if ch.isprintable() else "\N{REPLACEMENT CHARACTER}" for ch in text)


def _fit(text: str, width: int) -> str:
    return text if len(text) <= width else f"{text[: width // 2 - 1]}..{text[-(width - width // 2 - 1) :]}"


def _short(number: float | None) -> str:
    """Return a count in at most five signs."""
    if number is None or not isfinite(number):
        return "–"
    return f"{number:.0f}" if number < 10_000 else f"{number / 1000:.0f}k"


def _value(entry: Entry, name: str) -> float | None:
    found = (entry.engine.get("values") or {}).get(name)
    return float(found) if isinstance(found, int | float) else None


def _dot(size: Canvas) -> str:
    return "•" if size.blocks else "*"
