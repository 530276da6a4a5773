import asyncio
import io
import re
import socket
import urllib.request
from dataclasses import replace

import pytest
from click.testing import CliRunner
from rich.console import Console

from tests.programs import PATIENCE_S
from vllm_vitals.cli.main import main
from vllm_vitals.clock import Clock
from vllm_vitals.core.states import State
from vllm_vitals.recordings import recording
from vllm_vitals.recordings.replay import judge
from vllm_vitals.scrape.fetch import Fetcher
from vllm_vitals.simulator import demo as show
from vllm_vitals.simulator.command import demo, simulate
from vllm_vitals.simulator.exposed_families import Dialect
from vllm_vitals.simulator.scenarios import SCENARIOS, scenario
from vllm_vitals.simulator.server import SimulatedServer
from vllm_vitals.simulator.world import ScenarioError
from vllm_vitals.simulator.write_recording import play
from vllm_vitals.terms import TERMS
from vllm_vitals.top.draw import Canvas, draw
from vllm_vitals.top.memory import Book
from vllm_vitals.top.view import View


def test_list_shows_every_scenario_and_where_it_leads():
    result = CliRunner().invoke(simulate, ["--list"])
    assert result.exit_code == 0
    for each in SCENARIOS:
        assert re.search(rf"^{each.name} +{each.intended} ", result.output, re.MULTILINE)


def test_a_recording_is_written_that_replay_can_judge(tmp_path):
    file = tmp_path / "saturated.jsonl.gz"
    result = CliRunner().invoke(simulate, ["--scenario", "saturated", "--record", str(file), "--interval", "10s"])
    assert result.exit_code == 0
    assert "60 scrapes" in result.output
    assert list(judge("saturated", recording.read(file)))[-1].engines[0].state is State.SATURATED


@pytest.mark.parametrize("command", [simulate, demo])
def test_an_unknown_scenario_is_one_line_with_the_names(command):
    result = CliRunner().invoke(command, ["--scenario", "meltdown"])
    assert result.exit_code == 2
    assert "'death_spiral'" in result.output


@pytest.mark.parametrize(
    "arguments", [["--skip", "nan"], ["--speed", "nan"], ["--interval", "nan"], ["--interval", "inf"]]
)
def test_what_is_no_number_is_a_usage_error_that_names_the_option(arguments):
    result = CliRunner().invoke(simulate, [*arguments, "--port", "0", "--record", "/dev/null"])
    assert result.exit_code == 2
    assert f"Invalid value for '{arguments[0]}'" in result.output


def test_a_full_disk_is_one_line_that_names_the_file(capsys):
    with pytest.raises(SystemExit) as ended:
        main(["simulate", "--record", "/dev/full"])
    assert ended.value.code == 2
    assert capsys.readouterr().err == "vllm-vitals: /dev/full: No space left on device\n"


def test_ranks_in_a_dialect_without_them_are_refused_before_anything_is_written(tmp_path, capsys):
    file = tmp_path / "kept.jsonl.gz"
    file.write_bytes(b"mine")
    with pytest.raises(SystemExit) as ended:
        main(["simulate", "--scenario", "dp_imbalance", "--dialect", "v0", "--record", str(file)])
    assert ended.value.code == 2
    [line] = capsys.readouterr().err.splitlines()
    assert line == (
        "vllm-vitals: dp_imbalance has 2 data-parallel engines, and a V0 server has one: choose --dialect 0.11 or 0.32"
    )
    assert file.read_bytes() == b"mine"
    with pytest.raises(ScenarioError):
        SimulatedServer(scenario("dp_imbalance"), Clock().now, dialect=Dialect.V0)


class TimeByScrapes:
    """A clock on which so many seconds pass at each scrape, and none in between, however slow the machine is."""

    def __init__(self, monkeypatch, seconds):
        self.now, self.seconds, fetch = 0.0, seconds, Fetcher.fetch

        async def slower(fetcher, target):
            self.now += self.seconds
            return await fetch(fetcher, target)

        monkeypatch.setattr(Fetcher, "fetch", slower)

    def clock(self):
        return Clock(monotonic=lambda: self.now, wall=lambda: 1.8e9 + self.now)


def test_the_demo_tells_the_states_with_their_numbers_and_serves_the_page(monkeypatch):
    out = io.StringIO()
    console = Console(file=out, highlight=False, soft_wrap=True)
    time = TimeByScrapes(monkeypatch, 5.0)
    pages = []

    def fetch(url):
        with urllib.request.urlopen(url, timeout=PATIENCE_S) as response:
            pages.append(response.read().decode())

    async def go():
        telling = asyncio.create_task(show.run(brief(), 60.0, 0, "127.0.0.1:0", console, time.clock()))
        while "SATURATED" not in out.getvalue() and not telling.done():
            await asyncio.sleep(0.02)
        time.seconds = 0.0
        await asyncio.to_thread(fetch, re.search(r"http://127\.0\.0\.1:\d+/", out.getvalue())[0])
        time.seconds = 5.0
        await telling

    asyncio.run(asyncio.wait_for(go(), PATIENCE_S))
    text = out.getvalue()
    assert text.index("HEALTHY") < text.index("SATURATED")
    assert "max_num_seqs" in text
    assert "The scenario has ended." in text
    assert text.count("(KV cache: GPU memory") == 1
    assert text.index("What next") > text.index("SATURATED")
    assert ">>> minute 1:00: the load changes" in text
    assert "saturated" in pages[0].lower()


def test_a_page_address_in_use_is_one_line_that_names_it():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        result = CliRunner().invoke(demo, ["--listen", f"127.0.0.1:{port}", "--speed", "100"])
    assert isinstance(result.exception, OSError)  # which the command line turns into one line
    assert str(port) in str(result.exception)


def brief():
    """Healthy at once, and saturated soon."""
    whole = scenario("saturated")
    return replace(whole, script=(whole.script[0], (60, whole.script[1][1])), duration_s=250)


def test_the_demo_says_when_the_knob_is_turned():
    acts = show.happenings(scenario("story"))
    assert [at for at, _ in acts] == sorted(at for at, _ in acts)
    assert (420, "the knob is turned: restart with max_num_seqs 5 (was 64)") in acts
    told = lines("story", 430.0, None)
    assert "minute 7:10 of 10; status page: http://127.0.0.1:1/" in told
    assert "minute 7:00: the knob is turned" in told


def lines(name, elapsed, snapshot):
    """What a terminal of 100 columns shows at this time of a scenario."""
    stage, book = show.Stage(scenario(name), "http://127.0.0.1:1/", lambda: elapsed, lambda: snapshot), Book()
    story, seen = show.Story(stage, lambda: elapsed), asyncio.Event()

    async def go():
        telling = asyncio.create_task(story.run(book, seen.set))
        await seen.wait()
        telling.cancel()

    asyncio.run(go())
    view = View(one=True)
    shown = view.ordered(book.entries.values())
    return "\n".join(line.plain for line in draw(book, shown, view, story.title, Canvas(100, 40), story.story))


def test_on_a_terminal_the_story_stands_above_the_vital_signs_and_the_advice():
    last = list(judge("story", play(scenario("death_spiral"))))[-1]
    text = lines("death_spiral", 300.0, last)
    order = ["demo: death spiral", "minute 5:00", "DEATH SPIRAL", "preempt/s",
             "TPOT p99", "recomputed", "truncated", "KV usage", "gateway", "q quit"]  # fmt: skip
    places = [text.index(part) for part in order]
    assert places == sorted(places)
    assert sum(f"{term}: {line[:20]}" in text for term, line in TERMS.items()) == 1
    assert max(map(len, show.NEXT.splitlines())) < 80
    ended = lines("death_spiral", 1e6, last)
    assert ended.index("The scenario has ended.") < ended.index("check --prometheus URL") < ended.index("DEATH SPIRAL")


def test_each_term_is_explained_for_some_seconds_and_the_last_one_stays():
    stage = show.Stage(scenario("death_spiral"), "http://127.0.0.1:1/", lambda: 300.0, lambda: None)
    story = show.Story(stage, lambda: 0.0)
    story._terms += ["R: one", "thrashing: two"]
    seen = []
    for _ in range(40):
        seen += [line for line in story._lines() if line in ("R: one", "thrashing: two")]
        story._next_term()
    assert seen == ["R: one"] * 16 + ["thrashing: two"] * 24
