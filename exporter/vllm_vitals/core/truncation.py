"""Whether an exposition was cut between two lines: what the last family lacks shows it.

In: the lines of a body's last family. Out: yes or no. Invariant: a body that ends after a whole family is never called
cut, and one that ends with OpenMetrics' mark never is.
"""

import re

from vllm_vitals.core.sample_line import COMMENT, SAMPLE, read

_PART = re.compile(r"_(bucket|sum|count)$")


def ends_inside_a_family(lines: list[str]) -> bool:
    """Tell whether the body ends in a family's head, or inside a histogram or summary."""
    lines = [line for line in lines if line.strip()]
    comments = [comment for line in lines if (comment := COMMENT.match(line))]
    if lines and lines[-1].startswith("# EOF"):
        return False
    if comments and comments[-1].string == lines[-1]:
        return comments[-1][1] == "HELP"
    return _is_cut(lines, comments[-1][3] if comments else None)


def _is_cut(lines: list[str], kind: str | None) -> bool:
    """Tell whether the last series among a family's lines lacks a part that a histogram or summary always has."""
    last: tuple[str, frozenset[tuple[str, str]]] | None = None
    parts: set[str] = set()
    for line in reversed(lines):
        sample = SAMPLE.match(line)
        part = sample and _PART.search(sample[1])
        if sample is None or not part:
            break
        try:
            labels, _, _ = read(line, sample)
        except ValueError:
            return False
        bound = labels.pop("le", "")
        ident = (sample[1][: part.start()], frozenset(labels.items()))
        last = last or ident
        if ident == last:
            parts.update((part[1], bound))
    if kind == "histogram" or "bucket" in parts:
        return last is not None and not parts >= {"+Inf", "sum", "count"}
    return kind == "summary" and len(parts & {"sum", "count"}) == 1
