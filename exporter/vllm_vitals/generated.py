"""Generated files: written below a folder, or held against what stands there.

Input: texts by path below the folder. Output: the files, or a diff for each that is not what would be written. The
generators (rules, dashboards, Kubernetes objects) share their options from here, so that each option means the same.
"""

import difflib
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import click

MODES = ("daemon", "native")
_Command = TypeVar("_Command", bound=Callable[..., Any])


def write(out: Path, texts: Mapping[str, str]) -> None:
    """Write the files below ``out``. A file that cannot be written is one line and exit status 2."""
    for name, text in texts.items():
        target = out / name
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(text, encoding="utf-8")
        except OSError as error:
            raise click.ClickException(f"{target}: cannot be written: {error.strerror}") from None


def drift(out: Path, texts: Mapping[str, str], strays: Iterable[str] = ()) -> list[str]:
    """Return a diff per file that is missing or differs, and a line per file of ``strays`` that nothing writes."""
    found = []
    for name, text in texts.items():
        path = out / name
        old = path.read_text(encoding="utf-8") if path.exists() else ""
        if old != text:
            lines = difflib.unified_diff(old.splitlines(), text.splitlines(), str(path), "built", lineterm="", n=1)
            found.append("\n".join(lines))
    kept = {out / name for name in texts}
    old_files = sorted(path for pattern in strays for path in out.glob(pattern) if path not in kept)
    return found + [f"{path}: no generator writes this file: delete it" for path in old_files]


def report(differences: list[str], command: str) -> None:
    """End with status 1 and every difference where there is any; ``command`` is what mends them."""
    if differences:
        click.echo("\n".join(differences), err=True)
        click.echo(f"{len(differences)} generated file(s) are out of date; run: {command}", err=True)
        sys.exit(1)


@contextmanager
def needing_packages() -> Iterator[None]:
    """Around the imports of a generator: a package that only generators need is named in one line."""
    try:
        yield
    except ModuleNotFoundError as error:
        raise click.ClickException(
            f"{error.name} is not installed: the generators need it: pip install 'vllm-vitals[build]'"
        ) from None


def _modes(_: click.Context, __: click.Parameter, value: str) -> frozenset[str]:
    chosen = frozenset(MODES if value == "both" else value.split(","))
    if not chosen <= set(MODES):
        raise click.BadParameter(f'expected daemon, native or both, got "{value}"')
    return chosen


def mode_option(default: str) -> Callable[[_Command], _Command]:
    """``--mode``: which producers of the series there are, as a set of `MODES`."""
    return click.option(
        "--mode", "modes", default=default, show_default=True, callback=_modes,
        help="Producer of the series: daemon, native (recording rules), or both.",
    )  # fmt: skip


def out_option(default: str) -> Callable[[_Command], _Command]:
    """``-o``/``--out``: the folder."""
    return click.option(
        "-o", "--out", type=click.Path(path_type=Path), default=Path(default), show_default=True,
        help="Directory of the generated files.",
    )  # fmt: skip


config_option = click.option(
    "--config", "path", type=click.Path(path_type=Path, dir_okay=False), help="Alert config (YAML)."
)
