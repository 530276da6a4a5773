"""``vllm-vitals check``: its options, and what is said of them. What it then does is loaded then.

Input: a command line. Output: an exit code; a usage error where options contradict each other.
"""

import sys
from pathlib import Path

import click
from click.core import ParameterSource

from vllm_vitals.cli.options import DURATION, FILE, Access, access_options, configured, say_notes


@click.command()
@click.argument("urls", nargs=-1, metavar="[URL]...")
@click.option(
    "--for", "seconds", type=DURATION, default="30s", show_default=True, help="Observe for this long; at least 5s."
)
@click.option("--interval", type=DURATION, default="2s", show_default=True, help="Scrape interval.")
@access_options
@click.option("--replay", "recorded", type=FILE, help="Recording to judge instead of live servers; - is stdin.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.pass_context
def check(
    context: click.Context,
    urls: tuple[str, ...],
    seconds: float,
    interval: float,
    file: Path | None,
    access: Access,
    recorded: Path | None,
    as_json: bool,
) -> None:
    """Judge the state of vLLM servers.

    Exit code: 0 healthy, 1 warning, 2 critical, 3 unknown; it reflects the worst engine. With --replay, the verdict is
    for the worst point in the recording.
    """
    from vllm_vitals import log
    from vllm_vitals.cli import judge, observe

    log.configure("critical")
    if recorded is not None:
        given = context.get_parameter_source
        if urls:
            raise click.UsageError("give either URLs or --replay, not both")
        if ParameterSource.COMMANDLINE in (given("seconds"), given("interval")):
            raise click.UsageError("--for and --interval are for live servers: a recording has its own times")
        if access:
            raise click.UsageError("options such as --bearer-token-file are for live servers, not for --replay")
        sys.exit(judge.recording(recorded, file, as_json))
    if seconds < observe.SHORTEST_S:
        raise click.UsageError(f"--for: a verdict needs {observe.SHORTEST_S:g}s at least")
    config = configured(file, urls, {}, access)
    if not config.targets:
        raise click.UsageError("nothing to check: give a URL such as http://localhost:8000, or --replay FILE")
    say_notes(config)
    targets = [observe.at_pace(target, interval, seconds) for target in config.targets]
    sys.exit(judge.live(targets, seconds, as_json))
