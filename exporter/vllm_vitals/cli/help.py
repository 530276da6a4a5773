"""``vllm-vitals help``: what the commands' own ``--help`` has no room for, without a browser.

Input: a topic, or a command's words. Output: the topic on standard output; the same in a pipe, as Markdown. The topics
are generated from the documents and the code (tools/reference.py) and are part of the package.
"""

import difflib
from importlib.resources import files

import click

from vllm_vitals.cli import terminal


@click.command()
@click.argument("words", nargs=-1, metavar="[TOPIC]")
@click.pass_context
def help(context: click.Context, words: tuple[str, ...]) -> None:
    """Explain a topic, such as states or exit-codes; without one, list them.

    The words of a command show the same as its --help.
    """
    known = topics()
    if not words:
        click.echo("vllm-vitals help TOPIC, one of:\n")
        for name, text in known.items():
            click.echo(f"  {name:16}{text.partition(chr(10))[0].lstrip('# ')}")
        click.echo("\nCommands and their options: vllm-vitals --help, vllm-vitals COMMAND --help")
    elif len(words) == 1 and words[0] in known:
        _show(known[words[0]])
    else:
        click.echo(_of_command(context, words, list(known)))


def topics() -> dict[str, str]:
    """Return each topic's Markdown, whose first line is its title, by name."""
    found = sorted(files("vllm_vitals").joinpath("topics").iterdir(), key=lambda each: each.name)
    return {each.name.removesuffix(".md"): each.read_text("utf-8") for each in found if each.name.endswith(".md")}


def _show(text: str) -> None:
    console = terminal.console()
    if not console.is_terminal:
        click.echo(text, nl=False)
        return
    from rich.markdown import Markdown

    console.print(Markdown(text))


def _of_command(context: click.Context, words: tuple[str, ...], known: list[str]) -> str:
    """Return the help of the command that the words call. Raises where there is none."""
    at = context.find_root()
    for index, word in enumerate(words):
        group = at.command
        inner = group.get_command(at, word) if isinstance(group, click.Group) else None
        if inner is None:
            names = [*known, *(group.list_commands(at) if isinstance(group, click.Group) else ())] if not index else []
            close = difflib.get_close_matches(word, names, 1)
            mend = f"did you mean {close[0]}?" if close else "`vllm-vitals help` lists the topics"
            raise click.ClickException(f"no topic and no command is called {' '.join(words)[:60]!r}: {mend}")
        at = click.Context(inner, parent=at, info_name=word)
    return at.get_help()
