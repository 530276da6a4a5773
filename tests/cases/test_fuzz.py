"""Whatever a server sends, at whatever times: a judge answers, and its answer can be served."""

import gzip
import json
from math import inf, isfinite, nan

import orjson
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from tests.cases.edit import DATA, Server, ranks, recording
from vllm_vitals.core.render import TargetRenderer, join
from vllm_vitals.core.snapshot import SCRAPE_ERRORS, Canary, Scrape, TargetSnapshot
from vllm_vitals.core.target_evaluator import TargetEvaluator
from vllm_vitals.serve import views
from vllm_vitals.vllm.lookup import MAX_SUFFIXES, stem

BODIES = [recording(path)[8][1] for path in ("recordings/spiral_chunked", "versions/0.8.5", "versions/0.11.2")]
NUMBERS = (
    "NaN",
    "-1",
    "+Inf",
    "-Inf",
    "0",
    "1e308",
    "-1e308",
    "1.7976931348623157e308",
    "5e-324",
    "12",
    "1_0",
    "x",
    "",
)


@st.composite
def bodies(draw: st.DrawFn) -> bytes:
    """A real body with some of its lines gone, doubled, moved, or given other numbers and labels."""
    lines = draw(st.sampled_from(BODIES)).split("\n")
    for _ in range(draw(st.integers(0, 12))):
        at = draw(st.integers(0, len(lines) - 1))
        what = draw(st.sampled_from(("number", "number", "number", "drop", "twice", "move", "label", "engine")))
        if what == "number":
            lines[at] = lines[at].rsplit(" ", 1)[0] + " " + draw(st.sampled_from(NUMBERS))
        elif what == "drop":
            del lines[at : at + draw(st.integers(1, 30))]
            lines = lines or [""]
        elif what == "twice":
            lines.insert(at, lines[at])
        elif what == "move":
            lines.insert(draw(st.integers(0, len(lines) - 1)), lines.pop(at))
        elif what == "label":
            lines[at] = lines[at].replace("tiny", draw(st.text(max_size=8)))
        else:
            lines[at] = lines[at].replace('engine="0"', f'engine="{draw(st.integers(-1, 3))}"')
    body = "\n".join(lines).encode(errors="surrogatepass")
    cut = draw(st.one_of(st.none(), st.integers(0, len(body))))
    return body if cut is None else body[:cut] + draw(st.sampled_from((b"", b"\n", b"\xff", b"\0")))


failures = st.sampled_from(SCRAPE_ERRORS)
steps = st.one_of(st.floats(0.5, 120), st.sampled_from((0.0, -1.0, -3600.0, 1e5, 1e-9)))
scrapes = st.lists(st.tuples(steps, st.one_of(bodies(), failures)), min_size=1, max_size=12)


def served(snapshot: TargetSnapshot, renderer: TargetRenderer) -> None:
    text = join([renderer.render(snapshot, 0.0)])
    for family in text_string_to_metric_families(text.decode()):
        assert all(isfinite(sample.value) for sample in family.samples if not sample.name.endswith("_bucket"))
    json.loads(orjson.dumps(views.target(snapshot, snapshot.at)))
    for engine in snapshot.engines:
        for name, reading in engine.readings.items():
            assert (reading.value is None) or reading.status == "value", name
            if name.endswith(("_ratio",)) and name.startswith(("trunc", "repeat", "recompute", "prefix")):
                assert reading.value is None or 0 <= reading.value <= 1, name


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(scrapes, st.dictionaries(st.sampled_from(("max_num_seqs", "max_model_len")), st.sampled_from(NUMBERS)))
def test_a_judge_answers_whatever_comes(come: list[tuple[float, bytes | str]], learned: dict[str, str]) -> None:
    judge, renderer, at = TargetEvaluator("a:8000"), TargetRenderer({"target": "a:8000"}, "all"), 1e9
    judge.learn(learned)
    for step, what in come:
        at += step
        scrape = Scrape(at, 0.1, None, what, "why") if isinstance(what, str) else Scrape(at, 0.1, what)
        snapshot = judge.observe(scrape)
        assert snapshot.engines
        assert snapshot.up == (isinstance(what, bytes) and not snapshot.reason)
        served(snapshot, renderer)


amounts = st.floats(0, 1e6, allow_nan=False)
moves = st.fixed_dictionaries(
    {
        **{name: st.floats(0, 500).map(float) for name in ("running", "waiting")},
        "kv_usage": st.floats(0, 1),
        **dict.fromkeys(("generated", "prompts", "preempted", "started", "finished", "looked_up", "found"), amounts),
        "gap": st.sampled_from((0.0001, 0.03, 2.0, 1e5)),
        "seconds": st.sampled_from((0.1, 5.0, 30.0, 700.0)),
    }
)


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(moves, min_size=2, max_size=25), st.sampled_from(("recordings/same_load_reserved", "versions/0.8.5")))
def test_a_judge_answers_whatever_the_counters_do(moved: list[dict[str, float]], form: str) -> None:
    server, renderer = Server(form), TargetRenderer({"target": "a:8000"}, "all")
    for index, each in enumerate(moved):
        if each["gap"] == 1e5 and index % 3 == 0:
            server.restart()
        if each["kv_usage"] == 1.0:
            server.judging.canary(Canary(server.at, 5.0, "timeout"))
        server.step(**each)  # type: ignore[arg-type]
        served(server.told[-1], renderer)


def test_a_thousand_ranks_and_a_life_of_a_day_stay_bounded() -> None:
    """What a judge keeps of one engine does not grow with the time that it watches."""
    server = Server(judged=False)
    judge, sizes = TargetEvaluator("a:8000"), []
    for hour in range(3):
        for _ in range(400):
            server.step(3.0, generated=100.0, finished=1.0, running=3.0)
            judge.observe(Scrape(server.at, 0.1, server.text.encode()))
        kept = next(iter(judge._judges.values()))._window._times
        sizes.append(len(kept))
        assert hour < 1 or sizes[-1] <= sizes[1] + 2
    many = ranks([server.text] * 64)
    assert len(judge.observe(Scrape(server.at + 3, 0.1, many.encode())).engines) == 64


def test_numbers_that_are_no_numbers_in_a_recording_are_one_failed_scrape() -> None:
    with gzip.open(DATA / "recordings" / "truncation_mix" / "metrics.jsonl.gz", "rt") as file:
        text = json.loads(file.readline())["text"]
    judge = TargetEvaluator("a:8000")
    for at in (nan, inf, -inf, 0.0, 5.0):
        judge.observe(Scrape(at, 0.1, text.encode()))


def test_a_name_that_is_nothing_but_suffixes_costs_no_more_than_its_length() -> None:
    name = "vllm:x" + "_total" * 1000
    assert stem(name) == "x" + "_total" * (1000 - MAX_SUFFIXES)
