"""Every `--help`: each command and option is explained, in the field's words and in one form."""

import re
from collections.abc import Iterator

import click
import pytest

from tests.typed import typed
from vllm_vitals.cli import gate, verdict
from vllm_vitals.cli.help import topics
from vllm_vitals.cli.main import cli
from vllm_vitals.core.states import State


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


def test_help_lists_its_topics_and_shows_each() -> None:
    listed = typed("help").stdout
    assert {"states", "thresholds", "metrics", "config", "exit-codes", "glossary"} <= set(topics())
    for name, text in topics().items():
        assert f"  {name} " in listed
        assert typed("help", name).stdout == text
        assert "](" not in text  # nothing to click on in a terminal
    assert all(f"**{state}**" in topics()["states"] for state in State)


def test_exit_codes_are_those_that_the_commands_end_with() -> None:
    rows = re.findall(r"^\|\s*`?([\w -]*?)`?\s*\| (\d+) \| (\w+)", topics()["exit-codes"], re.MULTILINE)
    said: dict[str, dict[str, int]] = {}
    command = ""
    for name, code, word in rows:
        command = name.strip() or command
        said.setdefault(command, {})[word] = int(code)
    assert said["check"] == verdict.EXIT_CODES
    assert said["check --gate"] == {"no": gate.EXIT_CODES["pass"], "worse": gate.EXIT_CODES["worse"],
                                    "not": gate.EXIT_CODES["unknown"]}  # fmt: skip


def test_help_of_a_commands_words_is_its_own_help() -> None:
    assert typed("help", "rules", "build").stdout.startswith("Usage: vllm-vitals rules build")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["stats"], "'stats': did you mean states?"),
        (["zzzz"], "'zzzz': `vllm-vitals help` lists the topics"),
        (["rules", "bild"], "'rules bild': `vllm-vitals help` lists the topics"),
        (["states", "down"], "'states down': "),
    ],
)
def test_a_topic_that_there_is_not_is_one_line(words: list[str], said: str) -> None:
    done = typed("help", *words)
    assert (done.exit_code, done.stdout) == (2, "")
    assert done.stderr.startswith("vllm-vitals: no topic and no command is called ")
    assert said in done.stderr
    assert done.stderr.count("\n") == 1
