"""Draw the pictures of the terminal in the documentation: docs/images/top.svg.

    python tools/screens.py

What is drawn is `vllm-vitals top` over recordings of real servers, at a moment in each.
"""

from io import StringIO
from pathlib import Path

from rich.console import Console
from rich.terminal_theme import SVG_EXPORT_THEME
from rich.text import Text

from vllm_vitals.recordings import recording
from vllm_vitals.recordings.replay import judge
from vllm_vitals.serve import views
from vllm_vitals.top.draw import Canvas, draw
from vllm_vitals.top.memory import Book
from vllm_vitals.top.view import View

ROOT = Path(__file__).parent.parent
RECORDINGS = ROOT / "tests" / "data" / "recordings"
# Address, recording, and how far into it (scrapes).
SHOWN = (
    ("gpu-1:8000", "spiral_chunked", 76),
    ("gpu-2:8000", "overcommit_thrash", 90),
    ("gpu-3:8000", "preempting_productive", 60),
    ("gpu-4:8000", "saturated_no_preemption", 60),
    ("gpu-5:8000", "truncation_mix", 60),
    ("gpu-6:8000", "runaway_slot", 60),
)
WIDTH, HEIGHT = 120, 22


def main() -> None:
    """Write the files."""
    book = Book()
    played = [
        list(judge(name, recording.read(RECORDINGS / folder / "metrics.jsonl.gz")))[:until]
        for name, folder, until in SHOWN
    ]
    longest = max(map(len, played))
    for number in range(longest):
        polls = [polls[max(0, len(polls) - longest + number)] for polls in played]
        book.take(float(number), [views.target_or_fault(each, each.at) for each in polls])
    view = View()
    shown = view.ordered(book.entries.values())
    lines = draw(book, shown, view, "6 servers, every 2 s", Canvas(WIDTH, HEIGHT))
    console = Console(
        record=True, width=WIDTH, height=HEIGHT, file=StringIO(), force_terminal=True, color_system="truecolor"
    )
    console.print(Text("\n").join(lines), no_wrap=True, overflow="crop")
    svg = console.export_svg(title="vllm-vitals top", theme=SVG_EXPORT_THEME, unique_id="top")
    (ROOT / "docs" / "images" / "top.svg").write_text(svg)


if __name__ == "__main__":
    main()
