"""The command line: a group whose commands are imported when they are called.

Invariant: no traceback reaches a user. An error is one line on standard error; the exit code is then 2, or 3 (unknown)
for `check`, whose 2 means critical. Where the reader of a pipe goes away it is 141, as a shell has it.
"""

import importlib
import os
import sys
from collections.abc import Sequence

import click

from vllm_vitals import __version__
from vllm_vitals.cli import terminal

COMMANDS = {
    "run": "vllm_vitals.cli.run",
    "check": "vllm_vitals.cli.check",
    "top": "vllm_vitals.cli.top",
    "incident": "vllm_vitals.planner.incident.command",
    "record": "vllm_vitals.cli.record",
    "config": "vllm_vitals.cli.config",
    "logs": "vllm_vitals.logs.command",
    "simulate": "vllm_vitals.simulator.command",
    "demo": "vllm_vitals.simulator.command",
    "review": "vllm_vitals.planner.command",
    "snapshot": "vllm_vitals.planner.command",
    "compare": "vllm_vitals.planner.command",
    "whatif": "vllm_vitals.planner.command",
    "tune": "vllm_vitals.planner.tune.command",
    "rules": "vllm_vitals.rules.command",
    "dashboards": "vllm_vitals.dashboards.command",
    "kubernetes": "vllm_vitals.kubernetes.command",
    "doctor": "vllm_vitals.doctor.command",
    "help": "vllm_vitals.cli.help",
}


class LazyGroup(click.Group):
    """Imports a command's module when that command is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the commands in the order in which a person meets them."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return one command, or None where there is none of that name."""
        if cmd_name not in COMMANDS:
            return None
        command: click.Command = getattr(importlib.import_module(COMMANDS[cmd_name]), cmd_name)
        return command


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="vllm-vitals")
def cli() -> None:
    """Monitor vLLM: what is wrong now, why, which knob first, and how much room is left."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry point: run a command, turn every error into one line."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    failed = 3 if given[:1] == ["check"] else 2
    terminal.prepare()
    try:
        code = _run(given)
    except click.exceptions.Abort:
        sys.exit(130)
    except click.ClickException as error:
        _say(error.format_message())
        if isinstance(error, click.UsageError) and error.ctx is not None:
            click.echo(f"Try: {error.ctx.command_path} --help", err=True)
        sys.exit(failed)
    except KeyboardInterrupt:
        sys.exit(130)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(141)
    except Exception as error:
        _say(_in_words(error))
        sys.exit(failed)
    sys.exit(code if isinstance(code, int) else 0)


def _run(given: list[str]) -> object:
    """Run the command; return what it returns. Raises BrokenPipeError also where click and rich would end with 1."""
    out = sys.stdout
    try:
        code = cli.main(given, prog_name="vllm-vitals", standalone_mode=False)
        out.flush()
    except SystemExit as ended:
        # rich ends inside its handler; click replaces the stream first, so that its last flush is silent
        if sys.stdout is not out or isinstance(ended.__context__, BrokenPipeError):
            raise BrokenPipeError from None
        out.flush()
        raise
    return code


def _say(text: str) -> None:
    for line in text.splitlines():
        click.echo(f"vllm-vitals: {line}", err=True)


def _in_words(error: Exception) -> str:
    """Put an error into one line: ours say what to do, the system's name a file or address, the rest is a bug."""
    if type(error).__module__.startswith("vllm_vitals."):
        return str(error)
    if isinstance(error, OSError):
        where = f"{error.filename}: " if error.filename else ""
        return f"{where}{error.strerror or error}"
    trace, last = error.__traceback__, None
    while trace is not None:
        trace, last = trace.tb_next, trace
    place = f" at {last.tb_frame.f_code.co_name}:{last.tb_lineno}" if last is not None else ""
    return (
        f"a bug in vllm-vitals: {type(error).__name__}: {error}{place}; please report it with `vllm-vitals --version`"
    )
