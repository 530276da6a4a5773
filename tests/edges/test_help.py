"""Every `--help`: each command and option is explained, in the field's words and in one form."""

from collections.abc import Iterator

import click
import pytest

from tests.typed import typed
from vllm_vitals.cli.main import cli


def commands(
    command: click.Command = cli, path: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    """Every command and group, by the words that call it."""
    yield path, command
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            inner = command.get_command(context, name)
            assert inner is not None
            yield from commands(inner, (*path, name))


EVERY = list(commands())
IDS = [" ".join(path) or "vllm-vitals" for path, _ in EVERY]


@pytest.mark.parametrize(("path", "command"), EVERY, ids=IDS)
def test_a_command_says_in_one_sentence_what_it_does(path: tuple[str, ...], command: click.Command) -> None:
    shown = typed(*path, "--help")
    assert shown.exit_code == 0
    assert shown.stdout.startswith(" ".join(("Usage: vllm-vitals", *path)))
    assert command.help
    first = command.help.split("\n")[0]
    assert first[0].isupper()
    assert first.endswith((".", "?"))
    assert len(first) <= 110


@pytest.mark.parametrize(("path", "command"), EVERY, ids=IDS)
def test_an_option_is_explained_in_one_form(path: tuple[str, ...], command: click.Command) -> None:
    for option in command.params:
        if isinstance(option, click.Option) and option.name != "help":
            assert option.help, f"{option.opts[-1]}: no help"
            text = option.help.partition(" [default")[0]
            assert text[0].isupper() or text.startswith(("vLLM", "0 ", "-")), f"{option.opts[-1]}: {text}"
            assert text.endswith("."), f"{option.opts[-1]}: {text}"
