"""What the generators write, and one line where they cannot.

Input: texts by path below a folder. Output: the files. Ends the program with status 2 and one line where a file cannot
be written, or where a package is missing that only generators need.
"""

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import click


def write(out: Path, texts: Mapping[str, str]) -> None:
    """Write the files below ``out``."""
    for name, text in texts.items():
        target = out / name
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(text, encoding="utf-8")
        except OSError as error:
            click.echo(f"{target}: cannot be written: {error.strerror}", err=True)
            sys.exit(2)


@contextmanager
def needing_packages() -> Iterator[None]:
    """Around the imports of a generator."""
    try:
        yield
    except ModuleNotFoundError as error:
        click.echo(f"{error.name} is not installed: the generators need it: pip install '.[build]'", err=True)
        sys.exit(2)
