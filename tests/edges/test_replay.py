"""Every recording of a real server, through the command line's own path, against what a correct monitor says."""

import json
import tracemalloc
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from vllm_vitals.catalog import BY_NAME
from vllm_vitals.cli.main import cli
from vllm_vitals.core.snapshot import Scrape
from vllm_vitals.core.states import State
from vllm_vitals.recordings import recording, replay
from vllm_vitals.recordings.replay_series import SeriesSpool

RECORDINGS = Path(__file__).parent.parent / "data" / "recordings"
NAMES = sorted(path.parent.name for path in RECORDINGS.glob("*/metrics.jsonl.gz"))


def replayed(path: Path) -> dict[str, Any]:
    result = CliRunner().invoke(cli, ["check", "--replay", str(path), "--json"])
    assert result.exit_code in (0, 1, 2, 3)
    answer: dict[str, Any] = json.loads(result.stdout)
    return answer


@pytest.fixture(scope="module", params=NAMES)
def told(request: pytest.FixtureRequest) -> tuple[dict[str, Any], dict[str, Any]]:
    folder = RECORDINGS / request.param
    return replayed(folder / "metrics.jsonl.gz"), json.loads((folder / "expect.json").read_text())


def judged(answer: dict[str, Any], expect: dict[str, Any]) -> list[dict[str, Any]]:
    """The engines that the expectation speaks about."""
    return [engine for engine in answer["engines"] if expect.get("engine") in (None, "*", engine["engine"])]


def test_every_scrape_has_a_state_that_the_rules_allow(told: tuple[dict[str, Any], dict[str, Any]]) -> None:
    answer, expect = told
    assert judged(answer, expect)
    wrong = [
        (engine["engine"], round(entry["t"] - start, 1), entry["state"], rule["states"])
        for engine in judged(answer, expect)
        for start in [engine["series"][0]["t"]]
        for entry in engine["series"]
        for rule in expect["rules"]
        if rule["from"] <= entry["t"] - start <= rule["to"] and entry["state"] not in rule["states"]
    ]
    assert wrong == []


def test_no_state_appears_that_never_may(told: tuple[dict[str, Any], dict[str, Any]]) -> None:
    answer, expect = told
    seen = {entry["state"] for engine in judged(answer, expect) for entry in engine["series"]}
    assert not seen & set(expect["never"])


def test_signals_lie_where_they_must(told: tuple[dict[str, Any], dict[str, Any]]) -> None:
    answer, expect = told
    for signal in expect["signals"]:
        for engine in judged(answer, expect):
            start = engine["series"][0]["t"]
            entry = min(engine["series"], key=lambda e: abs(e["t"] - start - signal["t"]))
            assert signal["min"] <= entry[signal["name"]] <= signal["max"], (signal, entry[signal["name"]])


def test_the_timeline_and_the_series_tell_one_story(told: tuple[dict[str, Any], dict[str, Any]]) -> None:
    answer, _ = told
    for engine in answer["engines"]:
        series, runs = engine["series"], engine["timeline"]
        assert (runs[0]["from"], runs[-1]["to"]) == (series[0]["t"], series[-1]["t"])
        for earlier, later in pairwise(runs):
            assert earlier["to"] == later["from"]
            assert earlier["state"] != later["state"]
        for entry in series[:-1]:
            assert next(r["state"] for r in runs if r["from"] <= entry["t"] < r["to"]) == entry["state"]


def test_there_is_one_entry_per_scrape_and_every_name_is_the_catalogues(
    told: tuple[dict[str, Any], dict[str, Any]],
) -> None:
    answer, _ = told
    scrapes = list(recording.read(Path(answer["recording"])))
    for engine in answer["engines"]:
        assert [entry["t"] for entry in engine["series"]] == [scrape.at for scrape in scrapes]
        for key in engine["series"][-1]:
            name = key.replace("_inter_token", "").removesuffix("_by_reason")
            base = name.removesuffix("_lower").removesuffix("_upper")
            assert key in ("t", "state") or name in BY_NAME or base in BY_NAME, key


@pytest.mark.parametrize("name", ["dp2_pressure", "spiral_chunked"])
def test_counters_agree_exactly_with_what_the_load_generator_took_down(name: str) -> None:
    truth = json.loads((RECORDINGS / name / "truth.json").read_text())
    engines = replayed(RECORDINGS / name / "metrics.jsonl.gz")["engines"]
    for phase in truth["phases"]:
        first, last = ([at(engine, phase[edge]) for engine in engines] for edge in ("counters_from", "counters_to"))
        for ours, theirs in (
            ("preemptions_total", "num_preemptions_total"),
            ("prompt_tokens_total", "prompt_tokens_total"),
            ("generation_tokens_total", "generation_tokens_total"),
        ):
            assert sum(e[ours] for e in last) - sum(e[ours] for e in first) == phase[theirs], (phase["label"], ours)
        for reason, count in phase["finished"].items():
            grown = sum(e["responses_total"][reason] for e in last) - sum(e["responses_total"][reason] for e in first)
            assert grown == count, (phase["label"], reason)


def at(engine: dict[str, Any], since_start: float) -> dict[str, Any]:
    """The entry of the scrape so many seconds after the first."""
    start = engine["series"][0]["t"]
    entry: dict[str, Any] = min(engine["series"], key=lambda e: abs(e["t"] - start - since_start))
    return entry


def series(target: str, scrapes: list[Scrape]) -> list[dict[str, Any]]:
    """The engines of a recording with their series, as its JSON has them."""
    with SeriesSpool() as spool:
        done = replay.Replay(target, spool)
        done.take(scrapes)
        return [
            {
                "engine": key.engine,
                "model_name": key.model_name,
                "series": json.loads(b"[%b]" % b"".join(spool.read(key))),
            }
            for key, _ in done.engines
        ]


def test_before_an_engine_is_seen_it_is_unknown_and_afterwards_it_has_its_own_series() -> None:
    scrapes = list(recording.read(RECORDINGS / "dp2_pressure" / "metrics.jsonl.gz"))
    late = [Scrape(s.at, s.duration_s, None, "refused", "no") if i < 2 else s for i, s in enumerate(scrapes)]
    engines = series("t", late)
    assert [engine["engine"] for engine in engines] == ["0", "1"]
    for engine in engines:
        assert [entry["state"] for entry in engine["series"][:2]] == ["unknown", "unknown"]
        assert engine["series"][0]["requests_running"] is None


def test_a_recording_without_one_good_scrape_still_says_what_it_saw() -> None:
    scrapes = [Scrape(float(at), 0.1, None, "refused", "no") for at in range(5)]
    (engine,) = series("t", scrapes)
    assert (engine["model_name"], engine["engine"]) == ("", "")
    assert [entry["state"] for entry in engine["series"]] == ["unknown", "unknown", "down", "down", "down"]


def test_a_recording_that_breaks_off_is_judged_up_to_there_and_says_so(tmp_path: Path) -> None:
    whole = (RECORDINGS / "spiral_chunked" / "metrics.jsonl.gz").read_bytes()
    path = tmp_path / "cut.jsonl.gz"
    path.write_bytes(whole[: 3 * len(whole) // 4])
    result = CliRunner().invoke(cli, ["check", "--replay", str(path), "--json"])
    answer = json.loads(result.stdout)
    assert len(answer["engines"][0]["series"]) > 50
    assert "cut off or damaged" in answer["cut_off"]
    assert answer["cut_off"] in result.stderr


def test_a_recording_with_a_long_interval_is_judged_over_four_of_its_scrapes() -> None:
    path = RECORDINGS / "spiral_chunked" / "metrics.jsonl.gz"
    sparse = list(recording.read(path))[::20]  # every 40 s: two would lie in the usual window
    polls = list(replay.judge("x", sparse))
    assert polls[-1].engines[0].window_s == pytest.approx(160, abs=5)
    assert State.DEATH_SPIRAL in {poll.engines[0].state for poll in polls}
    assert len(polls) == len(sparse)
    assert len(list(replay.judge("x", sparse[:2]))) == 2


def test_memory_does_not_grow_with_a_recording(monkeypatch: pytest.MonkeyPatch) -> None:
    """A file of 2.5 MB can hold 50 million lines of a failed scrape."""

    def failed(count: int) -> Iterator[Scrape]:
        return (Scrape(float(n % 7), 0.1, None, "http_error", "HTTP 500") for n in range(count))

    def peak(count: int) -> int:
        tracemalloc.start()
        try:
            with SeriesSpool() as spool:
                replay.Replay("x", spool).take(failed(count))
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    monkeypatch.setattr(replay, "MAX_WORST", 500)
    peak(500)  # caches
    assert peak(6_000) < peak(2_000) + 300_000


def test_the_middle_of_the_worst_is_found_with_bounded_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    scrapes = [Scrape(float(5 * n), 0.1, None, "refused", "no") for n in range(1_000)]
    exact, few = replay.WorstMoment(), replay.WorstMoment()
    polls = list(replay.judge("x", scrapes))
    for poll in polls:
        exact.add(poll)
    monkeypatch.setattr(replay, "MAX_WORST", 64)
    for poll in polls:
        few.add(poll)
    assert exact.poll is polls[2:][len(polls[2:]) // 2]  # the first two are not yet down
    assert len(few._kept) <= 65
    assert few.poll is not None
    assert abs(few.poll.at - exact.poll.at) <= 5 * 1_000 / 32


def test_series_that_would_fill_the_disk_stop_and_say_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vllm_vitals.recordings.replay_series.MAX_ENTRIES", 40)
    path = RECORDINGS / "dp2_pressure" / "metrics.jsonl.gz"
    result = CliRunner().invoke(cli, ["check", "--replay", str(path), "--json"])
    answer = json.loads(result.stdout)
    assert [len(engine["series"]) for engine in answer["engines"]] == [20, 20]
    assert "the rest of the series is left out" in answer["cut_off"]
    assert answer["engines"][0]["timeline"][-1]["to"] > answer["engines"][0]["series"][-1]["t"]


def test_engines_without_number_are_left_out_of_a_replay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replay, "MAX_ENGINES", 3)
    body = "# TYPE vllm:num_requests_running gauge\n" + "".join(
        f'vllm:num_requests_running{{model_name="m",engine="{n}"}} 1\n' for n in range(9)
    )
    done = replay.Replay("x")
    done.take([Scrape(5.0 * n, 0.1, body.encode()) for n in range(9)])
    assert len(done.engines) == 3
