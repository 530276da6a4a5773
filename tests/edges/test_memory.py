"""What the pages remember: states, vital signs and events of an hour, in bounded memory, drawn without a script."""

import gzip
import html
import re
import subprocess
from dataclasses import replace
from importlib import resources
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests.edges.servers import RECORDINGS
from tests.edges.test_page import fleet, spiral
from tests.programs import PATIENCE_S, find
from vllm_vitals.core.sample import EngineSample
from vllm_vitals.core.snapshot import Advice, EngineKey, EngineSnapshot, Reading, TargetSnapshot
from vllm_vitals.core.states import State
from vllm_vitals.core.target_evaluator import TargetEvaluator
from vllm_vitals.recordings import recording
from vllm_vitals.serve import charts, memory, page, vitals, web
from vllm_vitals.serve.memory import POINTS, SIGNS, EnginePast, Memory

STAYS = re.compile('<meta http-equiv="refresh"[^>]*>')
KEY = EngineKey("t", "m", "0")
HOUR = 3600.0
ALL = page.Asked()


def poll(at: float, state: State = State.HEALTHY, waiting: float | None = 1.0, **more: object) -> TargetSnapshot:
    sample = EngineSample(waiting=waiting, generation_tokens=at)
    known = {"preemptions_per_second": Reading(at / 1000)}
    engine = EngineSnapshot(KEY, state, at, at, sample=sample, readings=known)
    return replace(TargetSnapshot("t", True, at, 0.1, at, engines=(engine,)), **more)  # type: ignore[arg-type]


def remembered(*polls: TargetSnapshot) -> Memory:
    kept = Memory(HOUR)
    for each in polls:
        kept.take(each)
    return kept


def drawn(kept: Memory, snapshots: list[TargetSnapshot], now: float, asked: page.Asked = ALL) -> str:
    built = page.build(snapshots, now, asked=asked, remembered=lambda key: kept.of(key, now), events=kept.events(now))
    return web.templates().get_template("status.html").render(page=built, version="0")


def test_states_of_the_span_are_kept_with_the_one_that_it_began_in() -> None:
    kept = remembered(poll(0.0), poll(100.0, State.STALLED), poll(5000.0), poll(5100.0, State.PREEMPTING))
    assert kept.of(KEY, 5200.0).runs == (
        (1600.0, State.STALLED), (5000.0, State.HEALTHY), (5100.0, State.PREEMPTING),
    )  # fmt: skip
    assert kept.of(EngineKey("other", "", ""), 5200.0).runs == ()


def test_a_vital_sign_keeps_the_highest_value_of_each_step_and_gaps_stay_gaps() -> None:
    step = HOUR / POINTS
    kept = remembered(poll(10_000.0, waiting=3.0), poll(10_001.0, waiting=9.0), poll(10_000.0 + 3 * step, waiting=None))
    waiting = kept.of(KEY, 10_000.0 + 3 * step).signs[[sign.name for sign in SIGNS].index("waiting")]
    assert waiting[-4:] == (9.0, None, None, None)
    assert len(waiting) == POINTS
    preemptions = kept.of(KEY, 10_000.0 + 3 * step).signs[0]
    assert preemptions[-4:] == (pytest.approx(10.001), None, None, pytest.approx(10.09))
    assert set(kept.of(KEY, 10_000.0 + 2 * HOUR).signs[0]) == {None}


def test_a_longer_silence_than_the_span_leaves_nothing_of_before() -> None:
    kept = remembered(poll(10_000.0), poll(10_000.0 + 5 * HOUR))
    assert sum(value is not None for value in kept.of(KEY, 10_000.0 + 5 * HOUR).signs[0]) == 1


def test_events_are_states_restarts_settings_and_versions_the_newest_first() -> None:
    advice = (Advice("KV short", "restart", "max_num_seqs", "down", "to 48", "", ""),)
    first = poll(1.0, settings={"max_num_seqs": "64", "block_size": "16"}, version="0.19.0")
    first = replace(first, engines=(replace(first.engines[0], advice=advice),))
    restarted = poll(3.0, settings={"max_num_seqs": "48", "block_size": "32"}, version="0.20.0")
    lower = replace(restarted.engines[0], sample=EngineSample(waiting=0.0, generation_tokens=0.0))
    kept = remembered(first, poll(2.0, State.STALLED, settings=first.settings), replace(restarted, engines=(lower,)))
    assert [event.text for event in kept.events(4.0)] == [
        "vLLM 0.19.0 before, 0.20.0 now", "max_num_seqs: 64 before, 48 now, as advised",
        "block_size: 16 before, 32 now", "the server restarted: its counters began anew", "healthy", "stalled",
    ]  # fmt: skip
    assert kept.events(4.0 + HOUR) == []


def test_a_first_good_verdict_is_no_event_and_a_first_bad_one_is() -> None:
    assert remembered(poll(1.0, State.UNKNOWN), poll(2.0)).events(3.0) == []
    assert [event.state for event in remembered(poll(1.0, State.DOWN)).events(3.0)] == [State.DOWN]


def test_memory_is_bounded_in_engines_runs_and_events(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "MAX_ENGINES", 5)
    kept = Memory(HOUR)
    for number in range(600):
        state = (State.HEALTHY, State.STALLED)[number % 2]
        kept.take(poll(float(number), state))
        key = EngineKey(f"t{number}", "m", "0")
        other = poll(float(number), state)
        kept.take(replace(other, target=key.target, engines=(replace(other.engines[0], key=key),)))
    assert len(kept.of(KEY, 600.0).runs) <= memory.MAX_RUNS
    assert len(kept.events(600.0)) <= memory.MAX_EVENTS
    assert sum(bool(kept.of(EngineKey(f"t{n}", "m", "0"), 600.0).runs) for n in range(600)) <= 5


def test_another_span_begins_anew_and_the_same_does_not() -> None:
    kept = remembered(poll(1.0))
    kept.keep(HOUR)
    assert kept.of(KEY, 2.0).runs
    kept.keep(2 * HOUR)
    assert not kept.of(KEY, 2.0).runs
    assert kept.of(KEY, 2.0).span == 2 * HOUR


def test_pictures_say_in_words_what_they_show_and_are_well_formed() -> None:
    past = EnginePast(
        ((0.0, State.HEALTHY), (3000.0, State.DEATH_SPIRAL)), ((1.0, None, 2.0, 2.0, 2.0, 4.0),), 3600.0, HOUR
    )
    band = charts.states(past)
    assert band is not None
    assert band.words == "death spiral 10 min, healthy 50 min"
    assert [rect.get("width") for rect in ElementTree.fromstring(band.svg)] == ["200.0", "40.0"]
    (line,) = charts.signs(past)
    svg = ElementTree.fromstring(line.svg)
    assert [len((run.get("points") or "").split()) for run in svg] == [2, 3]
    assert svg.get("role") == "img"
    assert "now 4 /s, at most 4 /s" in (svg.get("aria-label") or "")
    assert charts.states(EnginePast()) is None


def test_what_a_server_calls_itself_is_no_markup_in_a_picture() -> None:
    evil = '"><script>alert(1)</script>'
    one = poll(1.0, State.STALLED)
    one = replace(one, target=evil, engines=(replace(one.engines[0], key=EngineKey(evil, evil, "0")),))
    assert "<script>" not in drawn(remembered(one), [one], 2.0)


def history(name: str, target: str) -> tuple[Memory, TargetSnapshot]:
    kept, judge = Memory(600.0), TargetEvaluator(target)
    for scrape in recording.read(RECORDINGS / name / "metrics.jsonl.gz"):
        snapshot = judge.observe(scrape)
        kept.take(snapshot)
    return kept, snapshot


def test_an_engine_has_a_page_of_its_own_with_large_charts_settings_and_its_events_alone() -> None:
    kept, last = history("spiral_chunked", "chat-1")
    other = poll(last.at, State.STALLED)
    kept.take(other)
    key = last.engines[0].key
    text = drawn(kept, [last, other], last.at, page.Asked(key.target, (), key.model_name, key.engine))
    assert text.count("<article") == 1
    assert 'class="signs large"' in text
    assert "block_size&nbsp;=" in text
    assert 'class="chip critical">death spiral' in text
    assert "stalled" not in text.replace("status.css", "")
    assert "url=?target=chat-1&amp;model=tiny&amp;engine=0" in text  # the refresh stays on it
    assert page.link(key) == "?target=chat-1&model=tiny&engine=0"


@pytest.mark.parametrize(("words", "found"), [("t1", 2), ("STALLED", 1), ("t1 healthy", 1), ("nothing", 0)])
def test_a_search_finds_words_of_address_model_rank_and_state(words: str, found: int) -> None:
    snapshots = fleet([State.HEALTHY, State.STALLED, *[State.HEALTHY] * 8])
    snapshots[2] = replace(snapshots[2], engines=(replace(snapshots[2].engines[0], key=EngineKey("x", "t1", "0")),))
    built = page.build(snapshots, 100.0, asked=page.Asked(words=words))
    assert len(built.cards) + len(built.rows) == found
    assert built.words == words
    assert "q=" in built.refresh


def test_many_engines_begin_with_their_models_and_few_do_not() -> None:
    many = page.build(fleet([State.STALLED, *[State.HEALTHY] * 20]), 100.0)
    assert [(model.name, model.engines) for model in many.models] == [("m", 21)]
    assert many.models[0].counts == [("stalled", "critical", 1), ("healthy", "ok", 20)]
    assert not page.build(fleet([State.STALLED]), 100.0).models


def test_two_hundred_engines_with_their_hour_are_small() -> None:
    kept, last = history("preempting_productive", "chat-1")
    snapshots = []
    for number in range(200):
        key = replace(last.engines[0].key, target=f"chat-{number}.internal:8000")
        one = replace(last, target=key.target, engines=(replace(last.engines[0], key=key),))
        kept.take(one)
        snapshots.append(one)
    assert len(gzip.compress(drawn(kept, snapshots, last.at).encode())) < 200_000


def test_what_is_known_to_lie_below_the_first_bucket_is_no_gap_between_tokens() -> None:
    engine = replace(poll(10.0).engines[0], readings={
        "tpot_p99_seconds": Reading(None, 0.0, 0.01), "tpot_p99_seconds.inter_token": Reading(0.0236),
    })  # fmt: skip
    assert memory._value(engine, SIGNS[2]) is None
    unknown = replace(engine, readings={**engine.readings, "tpot_p99_seconds": Reading(None)})
    assert memory._value(unknown, SIGNS[2]) == 0.0236


@pytest.mark.parametrize(("state", "is_told"), [(State.SATURATED, True), (State.PAUSED, False), (State.STALLED, False)])
def test_how_long_a_queue_lasts_is_not_told_of_one_that_stands_still(state: State, is_told: bool) -> None:
    readings = {"expected_wait_seconds": Reading(120.0)}
    engine = replace(poll(10.0).engines[0], state=state, readings=readings)
    assert bool(vitals.vitals(engine)[1].note) is is_told


# Each page in a frame, with axe-core in it, which tells the page around what it found.
FRAME = '<iframe title="{name}" style="width: {width}px; height: 900px" srcdoc="{page}"></iframe>'
AUDIT = """<script>{axe}</script><script>onload = () => axe.run().then(found => parent.postMessage(
  found.violations.concat(found.incomplete).map(rule => `{name}: ${{rule.id}}: ${{rule.nodes[0].html}}`)))</script>"""
AROUND = """<!doctype html><title></title>{frames}<script>const all = []; onmessage = told => {{ all.push(told.data);
  if (all.length == {count}) document.title = "found: " + all.flat().join("; ") + ";"; }}</script>"""


@pytest.mark.parametrize(("scheme", "width"), [("light", 1280), ("dark", 390)])
def test_axe_core_finds_nothing_on_any_page(tmp_path: Path, scheme: str, width: int) -> None:
    axe_core_python = pytest.importorskip("axe_core_python")
    axe = (resources.files(axe_core_python) / "axe.min.js").read_text()
    kept, last = history("spiral_chunked", "chat-1")
    (engine,), log = last.engines, web.templates().get_template("events.html")
    one = page.Asked("chat-1", (page.fold(engine.key),), engine.key.model_name, engine.key.engine)
    pages = {
        "every state": drawn(kept, [last, *fleet([*State] * 2)], last.at),
        "one engine": drawn(kept, [last], last.at, one),
        "nothing": drawn(kept, [], last.at),
        "events": log.render(events=page.log(kept.events(last.at), last.at), version="0"),
        "glossary": web.glossary(),
        "broken": "<title>x</title><img src=x>",  # what it would find is found
    }
    frames = [
        FRAME.format(name=name, width=width, page=html.escape(STAYS.sub("", text) + AUDIT.format(axe=axe, name=name)))
        for name, text in pages.items()
    ]
    assert "<script" not in "".join(pages.values())
    file = tmp_path / "pages.html"
    file.write_text(AROUND.format(frames="".join(frames), count=len(frames)))
    dark = ("--blink-settings=preferredColorScheme=0",) if scheme == "dark" else ()
    command = [
        find("chromium", "google-chrome"), "--headless", "--no-sandbox", "--disable-gpu", *dark,
        f"--user-data-dir={tmp_path}/profile", "--virtual-time-budget=600000", "--dump-dom", file.as_uri(),
    ]  # fmt: skip
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=PATIENCE_S)
    found = html.unescape(done.stdout.partition("<title>found: ")[2].partition(";</title>")[0]).split("; ")
    assert any(each.startswith("broken: image-alt") for each in found)
    assert not [each for each in found if not each.startswith("broken: ")]


def test_the_log_of_events_names_when_where_and_why() -> None:
    kept, last = history("spiral_chunked", "chat-1")
    lines = page.log(kept.events(last.at), last.at)
    text = web.templates().get_template("events.html").render(events=lines, version="0")
    assert [line.text for line in lines if line.severity == "critical"] == ["death spiral"]
    assert "preemptions per finished request" in text
    assert 'href="./?target=chat-1&amp;model=tiny&amp;engine=0"' in text
    assert spiral().target in text
    assert "No change of state" in web.templates().get_template("events.html").render(events=[], version="0")
