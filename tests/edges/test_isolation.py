"""A hostile target costs nobody else anything: caps on what is read, turns beside the event loop, a budget of CPU."""

import asyncio
import itertools
import threading
from collections.abc import Callable, Iterator

import pytest
from structlog.testing import CapturingLogger

from tests import fed_time
from tests.edges.servers import bodies, plays, serving, target
from tests.fleet.daemons import configured, running
from vllm_vitals.clock import Clock
from vllm_vitals.core import exposition, fold_series
from vllm_vitals.core.render import TargetRenderer
from vllm_vitals.core.series_index import MAX_ENGINES
from vllm_vitals.core.snapshot import OUR_REASONS, Scrape
from vllm_vitals.core.states import State
from vllm_vitals.core.target_evaluator import TargetEvaluator
from vllm_vitals.recordings.ring_buffer import ScrapeRingBuffer
from vllm_vitals.scrape.budget import INLINE_BYTES, INLINE_S, LONGEST_S, SHARE, Budget
from vllm_vitals.scrape.poller import Poller

GOOD = bodies()[5]
HISTOGRAMS = (
    "request_prompt_tokens", "request_generation_tokens", "time_to_first_token_seconds", "e2e_request_latency_seconds",
    "inter_token_latency_seconds",
)  # fmt: skip


def engines(count: int, tag: str = "") -> bytes:
    names = ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc", "num_preemptions_total")
    lines = []
    for name in names:
        lines.append(f"# TYPE vllm:{name} gauge")
        lines += [f'vllm:{name}{{model_name="m{tag}",engine="{tag}{i}"}} 0.5' for i in range(count)]
    return "\n".join([*lines, ""]).encode()


def buckets(count: int, tag: int = 0) -> bytes:
    lines = []
    for name in HISTOGRAMS:
        lines.append(f"# TYPE vllm:{name} histogram")
        lines += [f'vllm:{name}_bucket{{model_name="t",engine="0",le="{i}.{tag}"}} {i}' for i in range(count)]
        lines.append(f'vllm:{name}_bucket{{model_name="t",engine="0",le="+Inf"}} {count}')
        lines += [f'vllm:{name}_{part}{{model_name="t",engine="0"}} {count}' for part in ("sum", "count")]
    return "\n".join([*lines, ""]).encode()


def families(count: int, tag: int = 0) -> bytes:
    return GOOD + b"".join(b"# TYPE vllm:zz%d_%d gauge\nvllm:zz%d_%d 1\n" % (tag, i, tag, i) for i in range(count))


def foreign(count: int, tag: int = 0) -> bytes:
    return GOOD + b"# TYPE vllm:zz gauge\n" + b"".join(b'vllm:zz{a="%d_%d"} 1\n' % (tag, i) for i in range(count))


def wanted(count: int, tag: int = 0) -> bytes:
    line = b'vllm:request_success_total{engine="0",model_name="t",finished_reason="%d_%d"} 1\n'
    return GOOD + b"# TYPE vllm:request_success_total counter\n" + b"".join(line % (tag, i) for i in range(count))


def configs(count: int) -> bytes:
    line = b'vllm:cache_config_info{engine="%d"} 1\n'
    return GOOD + b"# TYPE vllm:cache_config_info gauge\n" + b"".join(line % i for i in range(count))


def labels(count: int) -> bytes:
    return GOOD + b"vllm:num_requests_running{" + b",".join(b'a%d="1"' % i for i in range(count)) + b"} 1\n"


HOSTILE: dict[str, Callable[[int], bytes]] = {
    "engines under new names": lambda n: engines(1000, f"r{n}_"),
    "foreign series under new names": lambda n: foreign(60_000, n),
    "families under new names": lambda n: families(30_000, n),
    "wanted series under new names": lambda n: wanted(70_000, n),
    "buckets under new names": lambda n: buckets(14_000, n),
    "an endless line": lambda _: labels(50_000),
}


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (families(exposition.MAX_FAMILIES), "too_many_series"),
        (wanted(exposition.MAX_WANTED), "too_many_series"),
        (buckets(exposition.MAX_WANTED // 4), "too_many_series"),
        (configs(exposition.MAX_WANTED), "too_many_series"),
        (engines(MAX_ENGINES + 1), "too_many_series"),
        (labels(exposition.MAX_LINE // 8), "too_large"),
    ],
    ids=["families", "wanted series", "buckets", "configs", "engines", "a line"],
)
def test_what_one_body_may_ask_of_us_is_capped_and_said(body: bytes, reason: str) -> None:
    seen = TargetEvaluator("bad").observe(Scrape(0.0, 0.1, body))
    assert (seen.up, seen.reason) == (False, reason)
    assert "limit" in seen.detail


def test_what_real_servers_say_is_far_below_every_cap() -> None:
    """vLLM 0.32's page, times 100 ranks of one server."""
    read = exposition.parse(GOOD, exposition_wanted())
    assert 100 * len(read.series) < exposition.MAX_WANTED
    assert 100 * GOOD.count(b"\n") < exposition.MAX_SERIES
    assert 10 * len(read.families) < exposition.MAX_FAMILIES
    assert 100 * max(map(len, GOOD.split(b"\n"))) < exposition.MAX_LINE


def exposition_wanted() -> frozenset[str]:
    from vllm_vitals.vllm.lookup import WANTED

    return WANTED


def test_a_histogram_of_absurdly_many_buckets_is_dropped_and_counted_and_the_rest_is_kept() -> None:
    judge, renderer = TargetEvaluator("bad"), TargetRenderer()
    seen = judge.observe(Scrape(0.0, 0.1, engines(1) + buckets(fold_series.MAX_BUCKETS)))
    assert seen.up
    assert not seen.engines[0].sample.histograms  # type: ignore[union-attr]
    assert set(seen.invalid) >= {"ttft_seconds", "request_prompt_tokens"}
    assert sum(map(len, renderer.render(seen).values())) < 64 * 1024
    seen = judge.observe(Scrape(5.0, 0.1, engines(1) + buckets(fold_series.MAX_BUCKETS - 1)))
    assert "ttft_seconds" in seen.engines[0].sample.histograms  # type: ignore[union-attr]


def test_engines_under_new_names_at_every_scrape_do_not_pile_up() -> None:
    judge = TargetEvaluator("bad")
    for number in range(4):
        seen = judge.observe(Scrape(5.0 * number, 0.1, engines(MAX_ENGINES - 1, f"r{number}_")))
        assert len(seen.engines) <= 2 * MAX_ENGINES


# the budget


def test_who_costs_more_than_a_share_of_a_core_is_left_alone_until_it_is_paid_back() -> None:
    budget = Budget(interval=5.0)
    assert budget.spend(100.0, 0.01) == 0.0
    assert budget.free_at == 0.0
    assert budget.spend(100.0, 2.0) == 2.0 / SHARE
    assert budget.free_at == 100.0 + 2.0 / SHARE
    assert budget.spend(200.0, 1e9) == LONGEST_S


def test_large_bodies_and_those_of_a_costly_target_are_read_beside_the_loop() -> None:
    budget = Budget(interval=5.0)
    assert budget.is_light(INLINE_BYTES)
    assert not budget.is_light(INLINE_BYTES + 1)
    budget.spend(0.0, INLINE_S * 2)
    assert not budget.is_light(10)


class Costs:
    """CPU time as the poller reads it: each look costs what a test says."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.each, self._now = 0.0, 0.0
        monkeypatch.setattr("vllm_vitals.scrape.poller.thread_time", self)

    def __call__(self) -> float:
        self._now += self.each / 2
        return self._now


def test_a_costly_target_is_polled_more_seldom_and_that_is_no_verdict(monkeypatch: pytest.MonkeyPatch) -> None:
    costs, log, polls = Costs(monkeypatch), CapturingLogger(), itertools.count()
    done = asyncio.Event()

    async def fetch(_: object) -> Scrape:
        number = next(polls)
        costs.each = 2 * 0.2 if 2 <= number < 4 else 0.0  # two looks at 0.2 s of CPU: 2 s each are to be paid back
        if number >= 8:
            done.set()
        return Scrape(100.0 + 5 * number, 0.01, GOOD)

    async def run() -> Poller:
        poller = Poller(target("http://a", interval=0.1), fetch, TargetEvaluator("a"), Clock(), log)  # type: ignore[arg-type]
        task = asyncio.create_task(poller.run(0.0))
        async with asyncio.timeout(30):
            await done.wait()
        task.cancel()
        return poller

    poller = asyncio.run(run())
    assert poller.snapshot is not None
    assert poller.snapshot.errors["over_budget"] >= 2 * 15
    assert {engine.state for engine in poller.snapshot.engines}.isdisjoint({State.BLIND, State.DOWN})
    assert poller.snapshot.detail == ""
    told = [(call.args[0], call.kwargs.get("why", "")) for call in log.calls if "budget" in call.args[0]]
    assert [event for event, _ in told] == ["over_budget", "within_budget"]
    assert "cost too much to read" in told[0][1]


@pytest.mark.parametrize("reason", sorted(OUR_REASONS))
def test_where_we_could_not_look_nothing_is_said_of_the_server(reason: str) -> None:
    judge, at = TargetEvaluator("a"), 0.0
    for body in bodies()[:4]:
        at += 5.0
        before = judge.observe(Scrape(at, 0.1, body))
    for number in range(6):
        at += 5.0
        seen = judge.observe(Scrape(at, 0.1, None, reason, "our own fault"))
        assert seen.engines[0].state is (before.engines[0].state if number < 2 else State.UNKNOWN)
        assert seen.errors[reason] == number + 1
    assert "says nothing about the server" in seen.engines[0].unknown[0]
    assert judge.observe(Scrape(at + 5.0, 0.1, bodies()[4])).up


# in the daemon


def one_after_another(make: Callable[[int], bytes]) -> Iterator[bytes]:
    made = [make(0), make(1)]  # made once: making them must not cost the loop under test
    yield from itertools.cycle(made)


@pytest.mark.parametrize("attack", HOSTILE)
def test_ten_good_targets_are_scraped_on_time_beside_a_hostile_one(attack: str) -> None:
    """No body of more than `INLINE_BYTES` is ever read on the event loop, whatever it holds."""
    loops, on_loop = [threading.get_ident()], []
    real = TargetEvaluator.observe

    def observe(self: TargetEvaluator, scrape: Scrape) -> object:
        if scrape.body is not None and len(scrape.body) > INLINE_BYTES and threading.get_ident() in loops:
            on_loop.append(len(scrape.body))
        return real(self, scrape)

    async def run() -> None:
        answers = one_after_another(HOSTILE[attack])
        async with (
            serving(plays(itertools.repeat(GOOD))) as good,
            serving(plays(answers)) as bad,
        ):
            urls = [{"url": good, "name": f"good{n}"} for n in range(10)]
            config = configured(*urls, {"url": bad, "name": "bad"}, interval="500ms", timeout="500ms")
            async with running(lambda: config) as daemon:

                async def seen_often() -> bool:
                    targets = await daemon.targets()
                    assert (await daemon.get("/-/healthy"))[0] == 200
                    bad_one = targets.get("bad", {})
                    tried = bad_one.get("last_scrape") is not None or bool(bad_one.get("reason"))
                    return tried and all(targets.get(f"good{n}", {}).get("up") for n in range(10))

                await daemon.until(seen_often)
                states = {
                    engine["state"]
                    for name, one in (await daemon.targets()).items()
                    for engine in one["engines"]
                    if name.startswith("good")
                }
                assert states.isdisjoint({"down", "blind"})

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TargetEvaluator, "observe", observe)
        fed_time.run(run())
    assert on_loop == []


def test_a_body_larger_than_the_flight_recorder_keeps_is_not_even_packed(monkeypatch: pytest.MonkeyPatch) -> None:
    packed: list[int] = []
    monkeypatch.setattr("vllm_vitals.recordings.ring_buffer.pack", lambda a, b: packed.append(len(a)) or b"")
    tape = ScrapeRingBuffer(300.0, 100_000)
    for number in range(5):
        tape.push(Scrape(float(number), 0.1, b"x" * 100_001))
    assert packed == []
    assert tape.nbytes == 0
    assert tape.copy() == []


def test_what_is_cached_of_bucket_bounds_is_bounded_in_bytes() -> None:
    from vllm_vitals.core import series_block

    judge, renderer = TargetEvaluator("bad"), TargetRenderer()
    for number in range(3):
        body = engines(1) + buckets(fold_series.MAX_BUCKETS - 1, number)
        renderer.render(judge.observe(Scrape(5.0 * number, 0.1, body)))
    cached = series_block._histogram
    a_text = len(cached("ttft_seconds", tuple(float(n) for n in range(fold_series.MAX_BUCKETS))))
    assert a_text * cached.cache_info().maxsize < 20 * 1024**2  # type: ignore[operator]
