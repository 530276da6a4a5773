"""`check` before its verdict and after: what two scrapes prove, how long to look, and the JSON that others read."""

import asyncio
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from tests.edges.servers import RECORDINGS, bodies, http, plays, says, serving
from tests.typed import typed
from vllm_vitals.cli import gate, table, target_options, verdict
from vllm_vitals.cli.first_look import MAX_LINES, FirstLook
from vllm_vitals.cli.observe import hurried
from vllm_vitals.cli.options import configured
from vllm_vitals.core.snapshot import EngineKey, EngineSnapshot, Scrape, TargetSnapshot
from vllm_vitals.core.states import State
from vllm_vitals.core.target_evaluator import TargetEvaluator
from vllm_vitals.core.thresholds import Thresholds
from vllm_vitals.recordings import recording
from vllm_vitals.scrape import local_servers
from vllm_vitals.scrape.fetch import Fetcher

ROOT = Path(__file__).parent.parent.parent
SPIRAL = RECORDINGS / "spiral_chunked" / "metrics.jsonl.gz"
SCHEMA = jsonschema.Draft202012Validator(json.loads((ROOT / "docs" / "check.schema.json").read_text()))


def looked(skip: int, scrapes: int, seconds: float) -> tuple[FirstLook, list[list[str]], TargetSnapshot]:
    """A look of so many scrapes into the spiral: what it said after each, and its last snapshot."""
    look, judge, said = FirstLook(seconds), TargetEvaluator("t", hurried(Thresholds(), seconds)), []
    for scrape in list(recording.read(SPIRAL))[skip : skip + scrapes]:
        snapshot = judge.observe(scrape)
        said.append(look.see([snapshot], 1))
    return look, said, snapshot


def test_two_scrapes_prove_gauges_and_counters_once() -> None:
    _, said, _ = looked(70, 4, 6.0)
    assert [bool(lines) for lines in said] == [False, True, False, False]
    assert "running" in said[1][0]
    assert "waiting, KV" in said[1][0]
    assert "since its start" in said[1][0]
    assert "preemptions" in said[1][0]


def test_a_server_that_does_not_answer_is_said_at_once_and_many_are_counted() -> None:
    judges = [TargetEvaluator(f"t{n}") for n in range(MAX_LINES + 3)]
    look, said = FirstLook(30.0), []
    for at in (1.0, 3.0):
        said = look.see([j.observe(Scrape(at, 0.1, None, "refused", "no")) for j in judges], len(judges))
    assert said[0] == "t0: refused: no"
    assert said[-1] == "and 3 more engines"


def test_a_look_too_short_for_a_loop_says_how_long_to_look_and_one_that_is_proven_does_not() -> None:
    look, _, short = looked(70, 3, 6.0)
    assert short.engines[0].state in (State.PREEMPTING, State.UNKNOWN)
    assert look.longer([short]) in (60.0, 120.0, 300.0, 600.0)
    look, _, whole = looked(60, 60, 120.0)
    assert whole.engines[0].state is State.DEATH_SPIRAL
    assert look.longer([whole]) is None
    assert look.longer([replace(short, up=False)]) is None


def test_the_longest_look_is_proposed_where_nothing_finishes() -> None:
    look = FirstLook(6.0)
    engine = replace(looked(70, 3, 6.0)[2].engines[0], key=EngineKey("new", "m", "0"))
    assert look.longer([TargetSnapshot("new", True, 1.0, 0.1, engines=(engine,))]) == 600.0
    assert FirstLook(600.0).longer([TargetSnapshot("new", True, 1.0, 0.1, engines=(engine,))]) is None


def test_a_recording_and_servers_answer_by_the_published_schema_with_the_same_verdict(tmp_path: Path) -> None:
    answer = json.loads(typed("check", "--replay", SPIRAL, "--json").stdout)
    SCHEMA.validate(answer)
    assert (answer["verdict"]["state"], answer["verdict"]["exit_code"]) == ("death_spiral", 2)
    assert answer["targets"][0]["engines"][0]["advice"]
    _, _, live = looked(60, 60, 120.0)
    again: dict[str, Any] = json.loads(json.dumps(verdict.answer([live], live.at)))
    SCHEMA.validate(again)
    assert again["verdict"].keys() == answer["verdict"].keys()
    assert again["targets"][0].keys() == answer["targets"][0].keys()


@pytest.mark.parametrize("spoilt", [{"schema": 2}, {"targets": [{}]}, {"verdict": {"state": "fine"}}])
def test_the_schema_refuses_another_shape(spoilt: dict[str, Any]) -> None:
    _, _, live = looked(70, 3, 6.0)
    assert not SCHEMA.is_valid({**verdict.answer([live], live.at), **spoilt})


def test_every_state_and_severity_is_in_the_schema() -> None:
    names = SCHEMA.schema["$defs"]
    assert set(names["state"]["enum"]) == {state.value for state in State}
    assert set(names["severity"]["enum"]) == {state.severity for state in State}


def test_servers_on_this_machine_are_found_by_what_they_answer(tmp_path: Path) -> None:
    async def found() -> tuple[list[str], str]:
        ours = b"# TYPE vllm_vitals_target_up gauge\nvllm_vitals_target_up 1\n"
        async with serving(plays(iter(bodies()[40:]))) as vllm, serving(says(http(ours))) as other:
            ports = [int(url.rpartition(":")[2]) for url in (other, vllm)]
            async with Fetcher(lambda: 0.0) as fetcher:
                return await local_servers.vllm_servers(fetcher.fetch, [*ports, 1]), vllm

    addresses, vllm = asyncio.run(found())
    assert addresses == [vllm.removeprefix("http://")]


def test_ports_that_listen_are_read_from_the_kernels_table(tmp_path: Path) -> None:
    table = tmp_path / "tcp"
    table.write_text(
        "  sl  local_address rem_address   st\n"
        "   0: 0100007F:2710 00000000:0000 0A\n   1: 00000000:1F40 00000000:0000 0A\n"
        "   2: 0100007F:0016 0100007F:D431 01\n"
    )
    assert local_servers.listening([table]) == [8000, 10000]
    assert local_servers.listening([tmp_path / "none"]) == list(range(8000, 8010))


@pytest.mark.parametrize(
    ("urls", "is_plain"),
    [
        (("http://localhost:8000",), True),
        (("gpu-1", "gpu-2:80", "https://u:p%40w@[::1]/base/metrics?x=1", "gpu-1:8000/"), True),
        (("http://a:1/v1",), False),  # something is to be said of it
        (("http://a:1", "https://a:1"), False),  # two of one name
        (("http://a:1?k=${KEY}",), False),
        (("ftp://a",), False),
        ((), False),
    ],
)
def test_urls_alone_are_the_targets_that_the_config_s_loader_makes_of_them(
    urls: tuple[str, ...], is_plain: bool
) -> None:
    found = target_options.plainly(urls)
    assert bool(found) is is_plain
    if is_plain:
        assert found == configured(None, urls, {}, {}).targets


def test_auto_and_a_recording_exclude_each_other() -> None:
    done = typed("check", "--auto", "--replay", SPIRAL)
    assert done.exit_code == 3
    assert "give either" in done.stderr


# ---------------------------------------------------------------- many engines


def engine(target: str, state: State, **values: Any) -> EngineSnapshot:
    return EngineSnapshot(EngineKey(target, values.pop("model", "m"), "0"), state, 1.0, 1.0, **values)


def fleet(*states: State) -> list[TargetSnapshot]:
    return [
        TargetSnapshot(f"t{n}", True, 1.0, 0.1, engines=(engine(f"t{n}", state),)) for n, state in enumerate(states)
    ]


def test_many_engines_are_a_table_worst_first_and_those_that_do_not_fit_are_counted() -> None:
    drawn, below = table.table(fleet(State.HEALTHY, State.UNKNOWN, State.DEATH_SPIRAL, *[State.HEALTHY] * 80))
    assert drawn.row_count == table.MAX_ROWS
    cells = [str(cell) for cell in drawn.columns[0]._cells]
    assert cells[:3] == ["DEATH SPIRAL", "UNKNOWN", "HEALTHY"]
    assert below == "83 engines: 1 death spiral, 81 healthy, 1 unknown; 23 more are not shown"


def test_in_a_pipe_only_changes_are_told() -> None:
    changes = table.Changes()
    assert len(list(changes.since(fleet(State.HEALTHY, State.STALLED), 0.0))) == 2
    assert list(changes.since(fleet(State.HEALTHY, State.HEALTHY), 3661.0)) == ["01:01:01Z HEALTHY t1 m 0"]
    assert list(changes.since(fleet(State.HEALTHY), 0.0)) == []
    assert list(changes.since(fleet(State.HEALTHY, State.HEALTHY), 3661.0)) == ["01:01:01Z HEALTHY t1 m 0"]


def answered(*states: State, **values: Any) -> list[gate.Engine]:
    """Engines of an answer in these states, all with these values."""
    found = gate.parse(json.loads(json.dumps(verdict.answer(fleet(*states), 2.0))))
    return [{**each, "values": {**each["values"], **values}} for each in found]


def worse(before: list[gate.Engine], after: list[gate.Engine]) -> list[str]:
    return [found.text.partition(":")[0] for found in gate.compare(before, after) if found.result == "worse"]


def test_a_deploy_is_worse_only_by_what_is_proven() -> None:
    calm = answered(State.HEALTHY, State.SATURATED)
    assert gate.result(gate.compare(calm, calm)) == "pass"
    assert gate.result(gate.compare(calm, answered(State.SATURATED, State.HEALTHY, State.HEALTHY))) == "pass"
    assert worse(calm, answered(State.SATURATED, State.SATURATED)) == ["engines warning or worse"]
    assert worse(calm, answered(State.HEALTHY, State.DEATH_SPIRAL)) == ["engines critical or worse"]
    assert worse(calm, []) == ["no engine now, 2 before"]
    assert gate.result(gate.compare(calm, answered(State.HEALTHY, State.UNKNOWN))) == "unknown"
    assert gate.result(gate.compare([], calm)) == "unknown"
    assert gate.result(gate.compare([], [])) == "unknown"


@pytest.mark.parametrize(
    ("errors", "is_worse"), [(9, False), (10, True), (0, False)], ids=["too few to prove it", "ten", "none"]
)
def test_errors_count_from_ten_and_twice_the_share(errors: int, is_worse: bool) -> None:
    before = answered(State.HEALTHY, responses_total={"stop": 999, "error": 1})
    after = answered(State.HEALTHY, responses_total={"stop": 100, "error": errors})
    assert bool(worse(before, after)) is is_worse
    assert not worse(answered(State.HEALTHY, responses_total={"stop": 100, "error": 10}), after)


def test_a_latency_is_worse_where_bounds_do_not_overlap() -> None:
    before = answered(State.HEALTHY, tpot_p99_seconds_lower=0.02, tpot_p99_seconds_upper=0.03)
    slower = answered(State.HEALTHY, tpot_p99_seconds_lower=0.031, tpot_p99_seconds_upper=0.05)
    assert worse(before, slower) == ["TPOT p99"]
    assert worse(slower, before) == worse(before, before) == worse(before, answered(State.HEALTHY)) == []


def test_the_gate_as_it_is_typed(tmp_path: Path) -> None:
    before, listed = tmp_path / "before.json", tmp_path / "targets.json"
    before.write_text(json.dumps(verdict.answer(fleet(State.HEALTHY), 2.0)))
    listed.write_text('[{"targets": ["127.0.0.1:1"]}]')
    done = typed("check", "--file-sd", listed, "--for", "5s", "--interval", "10ms", "--gate", before)
    assert done.exit_code == 2
    assert "worse   m: no engine now, 1 before" in done.stdout
    done = typed("check", "127.0.0.1:1", "--for", "5s", "--interval", "10ms", "--gate", before, "--json")
    answer = json.loads(done.stdout)
    SCHEMA.validate(answer)
    assert answer["gate"]["result"] == "worse"
    for content, said in (("{", "not JSON"), ("[]", "not what"), ('{"schema": 9}', "its schema is 9")):
        before.write_text(content)
        done = typed("check", "127.0.0.1:1", "--gate", before)
        assert done.exit_code == 3
        assert said in done.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("--prometheus http://p --interval 5s", "at its interval"),
        ("a --prometheus http://p", "leave out URLs"),
        ("a --watch --json", "--watch prints a table"),
        ("--file-sd /nowhere.json", "no target in it"),
        ("--file-sd x --config y", "give either --file-sd or --config"),
        ("--prometheus ftp://p", "expected an address"),
        ("--prometheus http://127.0.0.1:1 --for 0s", "expected at least"),
        ("", "nothing to check"),
    ],
)
def test_sources_that_exclude_each_other_are_one_line(arguments: str, said: str) -> None:
    done = typed("check", *arguments.split())
    assert (done.exit_code, done.stdout) == (3, "")
    assert said in done.stderr
