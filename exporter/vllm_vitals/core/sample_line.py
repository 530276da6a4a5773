"""One line of an exposition: its name, labels and value, as the format's reference parser reads them.

In: a line as text. Out: its parts, or ValueError with what is wrong. Sources: the Prometheus text format 0.0.4, the
OpenMetrics specification 1.0. Invariant: no expression goes back over what it has read, however long the line.
"""

import re

SAMPLE = re.compile(r"[ \t]*([a-zA-Z_:][a-zA-Z0-9_:]*)([ \t]*\{|[ \t]+|)")
COMMENT = re.compile(r"[ \t]*#[ \t]*(TYPE|HELP)[ \t]+(\S+)(?:[ \t]+(\S+))?")
_BLOCK = re.compile(r'\{((?:[^"}]|"(?:[^"\\]|\\.)*+")*+)\}[ \t]*')
_LABEL = re.compile(
    r'[ \t]*([a-zA-Z_][a-zA-Z0-9_]*|"(?:[^"\\]|\\.)*+")[ \t]*=[ \t]*"((?:[^"\\]|\\.)*+)"[ \t]*(?:,[ \t]*|$)'
)
_ESCAPE = re.compile(r'\\[\\n"]')
_UNESCAPED = {"\\\\": "\\", "\\n": "\n", '\\"': '"'}


def read(line: str, sample: re.Match[str]) -> tuple[dict[str, str], int, float]:
    """Give the labels, where the value begins, and the value. Raises ValueError."""
    cut = sample.end()
    if not sample[2]:
        raise ValueError("no value after the name")
    if not sample[2].endswith("{"):
        return {}, cut, _number(line[cut:])
    block = _BLOCK.match(line, cut - 1)
    if block is None:
        raise ValueError("labels do not end")
    return _labels(block[1]), block.end(), _number(line[block.end() :])


def _labels(text: str) -> dict[str, str]:
    labels: dict[str, str] = {}
    text = text.strip(" \t")
    at = 1 if text.startswith(",") else 0  # the reference parser allows one
    while at < len(text):
        label = _LABEL.match(text, at)
        if label is None:
            raise ValueError("bad label")
        name, value = label.groups()
        if name[0] == '"':
            name = _unescape(name[1:-1])
        if name in labels:
            raise ValueError("label given twice")
        labels[name] = _unescape(value) if "\\" in value else value
        at = label.end()
    return labels


def _unescape(text: str) -> str:
    return _ESCAPE.sub(lambda match: _UNESCAPED[match[0]], text)


def _number(text: str) -> float:
    """Read the value, whatever timestamp or exemplar follows it."""
    value, *rest = text.split(None, 2) or [""]
    if rest and not rest[0].startswith("#"):
        _plain(rest[0])
        if len(rest) > 1 and not rest[1].startswith("#"):
            raise ValueError("more than a value and a timestamp")
    return _plain(value)


def _plain(text: str) -> float:
    """Read a number; Python alone would also accept 1_000 and the digits of any script."""
    if "_" in text or not text.isascii():
        raise ValueError("bad number")
    try:
        return float(text)
    except ValueError:
        raise ValueError("bad number") from None


def is_sound(line: str) -> bool:
    """Tell whether a line is a sample in every respect."""
    sample = SAMPLE.match(line)
    if sample is None:
        return False
    try:
        read(line, sample)
    except ValueError:
        return False
    return True


def shown(text: str) -> str:
    """Make a piece of a body safe to print: short, one line, no control characters."""
    short = text if len(text) <= 120 else text[:117] + "..."
    return "'" + "".join(c if c.isprintable() else "?" for c in short) + "'"
