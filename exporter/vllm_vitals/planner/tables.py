"""A what-if and a comparison of snapshots for a terminal: what to try first, then a table that fits.

Input: a `WhatIf`, a `Comparison`. Output: text and tables on a console. Invariant: the figures are those of the
Markdown, and what to try first is the what-if's own choice.
"""

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
_SHORT = {"ends the loop of preemptions": "ends loop", "a loop of preemptions": "loop"}


def experiment(console: Console, found: WhatIf) -> None:
    """Print a what-if."""
    first = found.first or "nothing: no change here is better for users beyond the error bars"
    console.print(Text.assemble(("Try this first: ", "bold"), clean(first)))
    for text in found.rolled_back:
        console.print(Text(clean(f"Not advised, for it would be rolled back: {text}")))
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
            table.add_row(row.knob or "as it is", clean(row.setting if row.knob else ""), *cells, _last(row))
    console.print(table)
    if idle := [f"{row.knob} {row.setting}" for row in found.rows if row.idle]:
        console.print(Text(clean(f"Change nothing here: {'; '.join(idle)}.")))
    if found.pairs:
        console.print(Text(f"Error bars are put right by {found.pairs} measured pair{'s' if found.pairs > 1 else ''}."))
    console.print(Text("±: error bar; in brackets only the direction counts. All measures: --format md", style="dim"))


def _last(row: Row) -> str:
    """Return what users would get from a row, and what becomes of a loop."""
    parts = (row.verdict.word if row.verdict is not None else "", _SHORT.get(row.note, row.note))
    return "; ".join(part for part in parts if part)


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
