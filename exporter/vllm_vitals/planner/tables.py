"""A what-if and a comparison of snapshots for a terminal: what to try first, then a table that fits.

Input: a `WhatIf`, a `Comparison`. Output: text and tables on a console. Invariant: the figures are those of the
Markdown; what to try first is the row whose gain is larger than its error bar, or nothing.
"""

from collections.abc import Iterator

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from vllm_vitals.cli.verdict import clean
from vllm_vitals.planner.experiment.baseline import Baseline
from vllm_vitals.planner.experiment.compare import Comparison
from vllm_vitals.planner.review import words
from vllm_vitals.planner.whatif.whatif import Row, WhatIf

# Measures in the order of what users feel, with what they are called; a narrow terminal shows the first of them.
_MEASURES = {
    "generated": "tokens/s", "ttft_p99": "TTFT p99", "tpot_p99": "TPOT p99", "per_completion": "preempt/req",
    "ttft_p50": "TTFT p50", "tpot_p50": "TPOT p50", "truncated": "truncated",
}  # fmt: skip
_WIDTH = 16  # columns of the terminal that one measure takes
ENDS_LOOP = "ends the loop of preemptions"
_SHORT = {ENDS_LOOP: "ends loop", "a loop of preemptions": "loop"}


def experiment(console: Console, found: WhatIf) -> None:
    """Print a what-if."""
    console.print(Text.assemble(("Try this first: ", "bold"), clean(first(found))))
    console.print(Text(clean(f"Simulated, fitted to {found.engine}, {found.clients}. Trust is {found.trust}.")))
    if found.assumed:
        console.print(Text(clean(f"Assumed: {', '.join(found.assumed)}.")))
    names = list(_MEASURES)[: max(3, (console.width - 44) // _WIDTH)]
    table = Table("knob", "setting", box=SIMPLE_HEAD, header_style="dim", pad_edge=False)
    for name in names:
        table.add_column(_MEASURES[name], justify="right", no_wrap=True)
    table.add_column("", overflow="fold")
    for row in found.rows:
        if not row.idle:
            cells = [words.prediction(row.metrics[n].value, row.metrics[n].error, n) for n in names]
            table.add_row(
                row.knob or "as it is", clean(row.setting if row.knob else ""), *cells, _SHORT.get(row.note, row.note)
            )
    console.print(table)
    if idle := [f"{row.knob} {row.setting}" for row in found.rows if row.idle]:
        console.print(Text(clean(f"Change nothing here: {'; '.join(idle)}.")))
    console.print(Text("±: error bar; in brackets only the direction counts. All measures: --format md", style="dim"))


def first(found: WhatIf) -> str:
    """Return what to try first: what ends a loop, else the largest gain beyond its error bar."""
    base, rows = found.rows[0], [row for row in found.rows[1:] if not row.idle]
    ends = next((row for row in rows if row.note == ENDS_LOOP), None)
    best = max(_gains(base, rows), key=lambda each: each[0], default=None)
    chosen = ends or (best[1] if best else None)
    if chosen is None:
        return "nothing: no change here has a gain that is larger than its error bar"
    gains = [
        f"{_MEASURES[name]} {words.prediction(chosen.metrics[name].value, chosen.metrics[name].error, name)}"
        f" (now {words.prediction(base.metrics[name].value, 0.0, name).split(' ±')[0]})"
        for name in ("generated", "ttft_p99", "per_completion")
        if chosen.metrics[name].value is not None and base.metrics[name].value is not None
    ]
    note = f"; it {chosen.note}" if chosen.note else ""
    return f"{chosen.knob} {chosen.setting}: {', '.join(gains)}{note}"


def _gains(base: Row, rows: list[Row]) -> Iterator[tuple[float, Row]]:
    """Yield rows whose more tokens or faster first token is beyond the error bar, with the proven part of the gain."""
    for row in rows:
        for name, sign in (("generated", 1), ("ttft_p99", -1)):
            now, then = base.metrics[name].value, row.metrics[name].value
            if now and then is not None:
                proven = sign * (then / now - 1) - row.metrics[name].error
                if proven > 0:
                    yield proven, row


def comparison(console: Console, before: Baseline, after: Baseline, found: Comparison) -> None:
    """Print two snapshots side by side, the decision first."""
    style = {"keep": "bold green", "roll back": "bold red"}.get(found.decision, "bold yellow")
    console.print(Text.assemble((found.decision.upper(), style), clean(f": {found.why}")))
    sides = " against ".join(f"{each.name} ({words.when(each.start)} UTC)" for each in (before, after))
    console.print(Text(clean(f"{sides}, {before.model_name}")))
    for name, pair in found.changed.items():
        console.print(Text(clean(f"changed: {name}: {pair[0]} before, {pair[1]} after")))
    for kind, texts in (("refused", found.refusals), ("warning", found.warnings)):
        for text in texts:
            console.print(Text(clean(f"{kind}: {text}")))
    table = Table("", box=SIMPLE_HEAD, header_style="dim", pad_edge=False)
    for name in ("before", "after", "change", "noise"):
        table.add_column(name, justify="right")
    table.add_column("")
    for line in found.lines:
        noise = "not known" if line.noise is None else f"±{words.share(line.noise)}"
        sizes = (words.vital(value, line.unit) for value in (line.before, line.after))
        table.add_row(line.what, *sizes, words.change(line.relative), noise, line.effect)
    console.print(table)
