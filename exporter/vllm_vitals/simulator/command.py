"""``vllm-vitals simulate`` and ``vllm-vitals demo``."""

import asyncio
import contextlib
import signal
import sys
from dataclasses import replace
from math import inf
from pathlib import Path

import click
from rich.console import Console

from vllm_vitals import log
from vllm_vitals.cli.options import DURATION, Duration
from vllm_vitals.clock import Clock
from vllm_vitals.recordings import recording
from vllm_vitals.scrape.target import joined
from vllm_vitals.simulator import demo as show
from vllm_vitals.simulator.exposed_families import Dialect
from vllm_vitals.simulator.file_traffic import FileTraffic
from vllm_vitals.simulator.options import Number, Requests, request_options, with_settings
from vllm_vitals.simulator.scenario import Scenario
from vllm_vitals.simulator.scenarios import SCENARIOS, scenario
from vllm_vitals.simulator.server import SimulatedServer
from vllm_vitals.simulator.write_recording import play

_MOST_QUEUED = 100_000
_SPEED = Number(min=0.1, max=1000.0)
_NAMES = click.Choice([each.name for each in SCENARIOS])


@click.command()
@click.option(
    "--scenario",
    "name",
    type=_NAMES,
    metavar="NAME",
    help="Scenario to play; --list prints all. [default: healthy; with --requests none]",
)
@click.option(
    "--set",
    "pairs",
    multiple=True,
    metavar="NAME=VALUE",
    help="Server setting, such as max_num_seqs=32 or step_time.base=0.01 (repeatable).",
)
@request_options
@click.option("--list", "listing", is_flag=True, help="List scenarios and the state that each leads to.")
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=8000,
    show_default=True,
    help="Port to listen on; 0 picks a free port.",
)
@click.option("--speed", type=_SPEED, default=1.0, show_default=True, help="Simulated seconds per second.")
@click.option("--skip", type=Duration(least=0.0, most=86_400.0), default="0s", show_default=True,
              help="Start this far into the scenario.")  # fmt: skip
@click.option("--dialect", type=click.Choice([each.value for each in Dialect]), default="0.32", show_default=True,
              help="vLLM metric-name dialect to expose.")  # fmt: skip
@click.option(
    "--seed", type=int, default=0, show_default=True, help="Random seed; the same seed plays the same requests."
)
@click.option("--repeat", is_flag=True, help="Repeat the scenario, each time from a fresh process.")
@click.option("--log-requests", is_flag=True, help="Log every request and response.")
@click.option("--quiet", is_flag=True, help="Print no log lines.")
@click.option("--record", "target", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE.jsonl.gz",
              help="Write a recording, as fast as it can be simulated; serve nothing.")  # fmt: skip
@click.option(
    "--for",
    "duration",
    type=DURATION,
    metavar="DURATION",
    help="Length of a recording. [default: the scenario; of --requests, until all are answered]",
)
@click.option("--interval", type=Duration(least=0.1, most=300.0), default="5s", show_default=True,
              help="Scrape interval of a recording.")  # fmt: skip
def simulate(
    name: str | None, pairs: tuple[str, ...], requests: Requests | None, listing: bool, host: str, port: int,
    speed: float, skip: float, dialect: str, seed: int, repeat: bool, log_requests: bool, quiet: bool,
    target: Path | None, duration: float | None, interval: float,
) -> None:  # fmt: skip
    """Simulate a vLLM server: its metrics, its JSON log on standard output, and /v1/completions. No GPU."""
    if listing:
        for each in SCENARIOS:
            click.echo(f"{each.name:20} {each.intended:13} {each.summary}")
        return
    chosen = with_settings(scenario(name) if name else _plain(requests), pairs)
    if requests is not None and chosen.settings.max_num_queued_reqs is None:
        # An overload that never ends must not fill the memory.
        chosen = replace(chosen, settings=replace(chosen.settings, max_num_queued_reqs=_MOST_QUEUED))
    if duration is not None and target is None:
        raise click.UsageError("--for is the length of a recording: give it with --record FILE.jsonl.gz")
    if requests is not None and requests.selection.loop and target is not None and duration is None:
        raise click.UsageError("a recording of --loop has no end: give its length with --for DURATION")
    traffic = requests.traffic(chosen, seed, _say) if requests is not None else None
    if target is not None:
        _record(chosen, target, seed, interval, Dialect(dialect), traffic, duration)
    else:
        clock = show.fast_clock(speed) if speed != 1.0 else Clock()
        write = None if quiet else _to_stdout
        server = SimulatedServer(
            chosen, clock.now, seed, Dialect(dialect), write, log_requests, skip, repeat, traffic=traffic
        )
        _say(asyncio.run(_serve(server, host, port)))


def _plain(requests: Requests | None) -> Scenario:
    """Return the scenario where none is named: clients of our own, or those of the file."""
    if requests is None:
        return scenario("healthy")
    return Scenario(requests.path.name, f"the requests of {requests.path}", "", inf, ())


@click.command()
@click.option("--scenario", "name", type=_NAMES, default="story", show_default=True, metavar="NAME",
              help="Scenario to play; `vllm-vitals simulate --list` prints all.")  # fmt: skip
@click.option("--speed", type=_SPEED, default=10.0, show_default=True, help="Simulated seconds per second.")
@click.option(
    "--seed", type=int, default=0, show_default=True, help="Random seed; the same seed plays the same requests."
)
@click.option(
    "--listen",
    default="127.0.0.1:9840",
    show_default=True,
    help="Address of the status page; port 0 picks a free port.",
)
def demo(name: str, speed: float, seed: int, listen: str) -> None:
    """Watch a simulated server through an incident: states, vital signs, advice, and the status page."""
    log.configure("critical")
    console = Console(highlight=False, soft_wrap=not sys.stdout.isatty())
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(show.run(scenario(name), speed, seed, listen, console))


def _record(
    chosen: Scenario, target: Path, seed: int, interval: float, dialect: Dialect, traffic: FileTraffic | None,
    duration: float | None,
) -> None:  # fmt: skip
    scrapes = play(chosen, seed, interval, dialect, traffic, duration)  # refuses before the file is touched
    try:
        with target.open("wb") as file, recording.Writer(file) as writer:
            for scrape in scrapes:
                writer.write(scrape)
            written = writer.scrapes
    except OSError as error:
        raise click.ClickException(f"{target}: {error.strerror or error}") from None
    of = f"{chosen.name!r}" if traffic is None else f"{chosen.name!r}, {traffic.sent} requests"
    _say(f"{target}: {written} scrapes of {of}; see them with `vllm-vitals check --replay {target}`")
    if traffic is not None and traffic.failed:
        raise click.ClickException(traffic.failed)


async def _serve(server: SimulatedServer, host: str, port: int) -> str:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for each in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(each, stop.set)
    async with server.serve(host, port) as (at, number):
        _say(f"simulated vLLM ({server.world.scenario.name}) on http://{joined(at, number)}")
        await stop.wait()
    return "stopped"


def _to_stdout(line: bytes) -> None:
    sys.stdout.buffer.write(line)
    sys.stdout.buffer.flush()


def _say(text: str) -> None:
    """To a person: standard output belongs to the server's log."""
    click.echo(text, err=True)
