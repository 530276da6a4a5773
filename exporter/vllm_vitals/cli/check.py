"""``vllm-vitals check``: its options, and what is said of them. What it then does is loaded then.

Input: a command line. Output: an exit code; a usage error where options contradict each other.
"""

import sys
from contextlib import ExitStack
from pathlib import Path

import click
from click.core import ParameterSource

from vllm_vitals.cli.options import DURATION, FILE, Access, access_options, configured

MODES = (
    "give a URL such as http://localhost:8000, --auto, --file-sd FILE, --kubernetes NAMESPACE, --prometheus URL or"
    " --replay FILE"
)
ACCESS = {"bearer_token_file", "user", "password_file", "ca_file", "headers"}
LOOK_BACK_S = 900.0  # what is read of a Prometheus
FOLLOW_S = 120.0  # how long a change is followed


@click.command()
@click.argument("urls", nargs=-1, metavar="[URL]...")
@click.option(
    "--for",
    "seconds",
    type=DURATION,
    default="30s",
    show_default=True,
    help="Observe for this long; at least 5s. With --prometheus, read so much: 15m by default.",
)
@click.option("--interval", type=DURATION, default="2s", show_default=True, help="Scrape interval.")
@access_options
@click.option("--auto", is_flag=True, help="Check every vLLM server that listens on this machine.")
@click.option(
    "--file-sd",
    "listed",
    multiple=True,
    metavar="FILE",
    help="Targets from a file of Prometheus' file_sd (repeatable).",
)
@click.option(
    "--kubernetes",
    "namespace",
    default="",
    metavar="NAMESPACE",
    help="Check every vLLM pod of a namespace, by the kubeconfig that kubectl uses, or from inside the cluster.",
)
@click.option(
    "--prometheus",
    default="",
    metavar="URL",
    help="Judge every vLLM server that a Prometheus scrapes, from what it has.",
)
@click.option("--replay", "recorded", type=FILE, help="Recording to judge instead of live servers; - is stdin.")
@click.option("--watch", "again", is_flag=True, help="Go on until Ctrl-C: a table; in a pipe, a line per change.")
@click.option(
    "--gate", type=FILE, metavar="FILE", help="JSON of a check before a deploy: fail (exit code 2) if it is worse now."
)
@click.option(
    "--after",
    default="",
    metavar="NAME=VALUE",
    help="Say whether a change made just now worked, such as cap=5 or max_num_seqs=48; --for is then 2m by default.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.pass_context
def check(
    context: click.Context,
    urls: tuple[str, ...],
    seconds: float,
    interval: float,
    file: Path | None,
    access: Access,
    auto: bool,
    listed: tuple[str, ...],
    namespace: str,
    prometheus: str,
    recorded: Path | None,
    again: bool,
    gate: Path | None,
    after: str,
    as_json: bool,
) -> None:
    """Judge the state of vLLM servers.

    Exit code: 0 healthy, 1 warning, 2 critical, 3 unknown; it reflects the worst engine. With --replay, the verdict is
    for the worst point in the recording. With --gate: 0 no worse, 2 worse, 3 not comparable.
    """
    from tempfile import TemporaryDirectory

    from vllm_vitals import log
    from vllm_vitals.cli import judge, observe, target_options
    from vllm_vitals.core.follow_up import FollowUp, change
    from vllm_vitals.core.thresholds import Thresholds

    log.silence_libraries()
    given = {name for name in context.params if context.get_parameter_source(name) is ParameterSource.COMMANDLINE}
    _refuse(given)
    if again and (gate is not None or as_json):
        raise click.UsageError("--watch prints a table: leave out --gate and --json")
    try:
        follow = FollowUp(change(after)) if after else None
    except ValueError as error:
        raise click.UsageError(f"--after: {error}") from None
    if follow is not None and (again or prometheus):
        raise click.UsageError("--after follows live servers or a recording: leave out --watch and --prometheus")
    report = judge.Report(as_json, None if gate is None else judge.before(gate), follow)
    if recorded is not None:
        sys.exit(judge.recording(recorded, file, as_json, follow))
    limits = configured(file, (), {}).thresholds if file is not None and (prometheus or namespace) else Thresholds()
    if prometheus:
        look_back = seconds if "seconds" in given else LOOK_BACK_S
        sys.exit(judge.kept(target_options.prometheus(prometheus, access), look_back, limits, report, again))
    if follow is not None and "seconds" not in given:
        seconds = FOLLOW_S
    if seconds < observe.SHORTEST_S:
        raise click.UsageError(f"--for: a verdict needs {observe.SHORTEST_S:g}s at least")
    with ExitStack() as kept:
        problems: list[str] = []
        if namespace:
            folder = Path(kept.enter_context(TemporaryDirectory(prefix="vllm-vitals-")))
            found, problems = target_options.pods(namespace, limits, folder)
        else:
            found = list(target_options.targets(urls, file, access, auto, listed, MODES))
        targets = [observe.at_pace(target, interval, seconds) for target in found]
        sys.exit(judge.watched(targets) if again else judge.live(targets, seconds, report, problems))


def _refuse(given: set[str]) -> None:
    """Refuse options that the chosen source would ignore."""
    sources = given & {"recorded", "prometheus", "namespace"} or given & {"urls", "auto", "listed"}
    if "recorded" in given:
        if given & {"urls", "auto", "listed", "prometheus"}:
            raise click.UsageError("give either URLs or --replay, not both")
        if given & {"seconds", "interval"}:
            raise click.UsageError("--for and --interval are for live servers: a recording has its own times")
        if given & {"again", "gate"}:
            raise click.UsageError("--watch and --gate are for live servers, not for --replay")
        if given & ACCESS:
            raise click.UsageError("options such as --bearer-token-file are for live servers, not for --replay")
    if "namespace" in given and given & {"urls", "auto", "listed", "prometheus", "recorded", *ACCESS}:
        raise click.UsageError("--kubernetes finds the servers and gets in by the kubeconfig: leave out the others")
    if "prometheus" in given and given & {"urls", "auto", "listed", "interval"}:
        raise click.UsageError("--prometheus judges what it scrapes, at its interval: leave out URLs and --interval")
    if not sources and not given & {"file", *ACCESS}:
        raise click.UsageError(f"nothing to check: {MODES}")
