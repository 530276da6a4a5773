"""What concerns a server as a whole: answers, pauses, identity, held KV blocks; each limit from both sides."""

from collections.abc import Mapping
from dataclasses import replace

import pytest

from vllm_vitals.core.http_answers import AnswersWatch, FailingAnswers
from vllm_vitals.core.identity import IdentityWatch
from vllm_vitals.core.kv_held import KvHeldWatch
from vllm_vitals.core.pause import PauseWatch
from vllm_vitals.core.sample import EngineSample, Identity, TargetSample
from vllm_vitals.core.server_view import ServerWatch
from vllm_vitals.core.thresholds import Thresholds
from vllm_vitals.vllm.routes import PAUSE, RESUME, HttpKey

LIMITS = Thresholds()
ROUTE = "/v1/completions"


def page(
    good: float = 0.0,
    failed: float = 0.0,
    *,
    calls: tuple[float, float] = (0.0, 0.0),
    identity: Identity | None = None,
    http: bool = True,
    **engine: object,
) -> TargetSample:
    """A page: answers by class, calls of pause and resume, and its one engine."""
    counted: Mapping[HttpKey, float] = {
        HttpKey(ROUTE, "POST", "2xx"): good, HttpKey(ROUTE, "POST", "5xx"): failed,
        HttpKey(ROUTE, "POST", "4xx"): 1e6, HttpKey("/sleep", "POST", "5xx"): 1e6,
        HttpKey(PAUSE, "POST", "2xx"): calls[0], HttpKey(RESUME, "POST", "2xx"): calls[1],
    }  # fmt: skip
    one = replace(EngineSample(running=0.0, waiting=0.0, generation_tokens=0.0, prompt_tokens=0.0), **engine)  # type: ignore[arg-type]
    return TargetSample({("m", "0"): one}, "v", http=counted if http else None, identity=identity or Identity())


# answers


def failing(*points: tuple[float, float, float, float]) -> FailingAnswers | None:
    """After points of (at, good, failed, finished)."""
    watch, last = AnswersWatch(), None
    for at, good, failed, finished in points:
        last = watch.feed(at, page(good, failed, responses={"stop": finished}), LIMITS).failing
    return last


def test_failures_are_those_of_the_shortest_span_from_a_minute_on_with_ten_answers() -> None:
    found = failing((0.0, 0, 0, 0), (100.0, 100, 0, 100), (140.0, 104, 4, 104), (160.0, 105, 5, 105))
    assert found is not None
    assert (found.failed, found.answers, found.seconds) == (5.0, 10.0, 60.0)
    assert found.share == 0.5
    assert found.good_rate == pytest.approx(5 / 60)
    assert found.good_before == pytest.approx(1.0)
    longer = failing((0.0, 0, 0, 0), (100.0, 100, 0, 100), (159.0, 105, 5, 105))  # 59 s are less than a minute
    assert longer is not None
    assert (longer.seconds, longer.answers, longer.good_before) == (159.0, 110.0, None)
    fewer = failing((0.0, 0, 0, 0), (100.0, 100, 0, 100), (160.0, 104, 5, 104))  # nine answers in the last minute
    assert fewer is not None
    assert (fewer.seconds, fewer.answers) == (160.0, 109.0)


def test_nine_answers_in_all_say_nothing_nor_do_failures_that_stand_still() -> None:
    assert failing((0.0, 0, 0, 0), (100.0, 4, 5, 4)) is None
    assert failing((0.0, 0, 0, 0), (100.0, 5, 5, 5)) is not None
    assert failing((0.0, 0, 7, 0), (100.0, 50, 7, 50)) is None
    assert failing((0.0, 0, 7, 0)) is None


def test_failures_older_than_the_slow_window_are_past() -> None:
    points = [(float(at), at / 10, 5.0 if at >= 100 else 0.0, at / 10) for at in range(0, 1201, 50)]
    found = failing(*points)
    assert found is not None
    assert found.failed == 0.0
    assert found.seconds <= 600.0


def test_a_minute_before_is_needed_to_know_how_much_was_served_before() -> None:
    for start, known in ((60.0, True), (59.0, False)):
        found = failing((0.0, 0, 0, 0), (start, 60, 0, 60), (start + 60, 65, 5, 65))
        assert found is not None
        assert (found.good_before is not None) is known


@pytest.mark.parametrize(
    ("good_rate", "before", "less"),
    [
        (0.49, 1.0, True),
        (0.5, 1.0, False),
        (0.1, None, True),
        (0.5, None, False),
        (0.2, None, True),
        (0.25, None, False),
    ],
)
def test_less_is_served_below_half_of_before_or_where_failures_outnumber_it(
    good_rate: float, before: float | None, less: bool
) -> None:
    assert FailingAnswers(10.0, 20.0, 40.0, good_rate, before).served_less is less


def test_what_is_rejected_on_purpose_is_no_failure_and_a_restart_forgets() -> None:
    watch = AnswersWatch()
    watch.feed(0.0, page(0, 0, rejections=0.0), LIMITS)
    assert watch.feed(60.0, page(10, 8, rejections=8.0), LIMITS).failing is None
    found = watch.feed(120.0, page(20, 18, rejections=8.0), LIMITS).failing
    assert found is not None
    assert found.failed == 10.0
    assert watch.feed(180.0, page(5, 30), LIMITS).failing is None  # fewer good ones: another life
    for fallen in (page(20, 60, generation_tokens=-1.0), page(20, 60, responses={"stop": -1.0})):
        again = AnswersWatch()
        again.feed(0.0, page(10, 0), LIMITS)
        assert again.feed(60.0, fallen, LIMITS).failing is None


@pytest.mark.parametrize(
    ("seconds", "answered", "uncounted"),
    [(60.0, 10.0, 10.0), (59.9, 10.0, None), (60.0, 9.0, None), (60.0, 50.0, 50.0)],
)
def test_answers_that_no_engine_counts_are_said_after_a_minute_and_ten_of_them(
    seconds: float, answered: float, uncounted: float | None
) -> None:
    watch = AnswersWatch()
    watch.feed(0.0, page(5), LIMITS)
    assert watch.feed(seconds, page(5 + answered), LIMITS).uncounted == uncounted


@pytest.mark.parametrize(
    "moved",
    [{"generation_tokens": 1.0}, {"prompt_tokens": 1.0}, {"responses": {"stop": 1.0}}, {"responses": {"error": 1.0}},
     {"responses": {"abort": 1.0}}],
)  # fmt: skip
def test_any_counter_of_the_engine_explains_the_answers(moved: dict[str, object]) -> None:
    watch = AnswersWatch()
    watch.feed(0.0, page(0), LIMITS)
    watch.feed(59.0, page(50, **moved), LIMITS)
    assert watch.feed(118.0, page(90, **moved), LIMITS).uncounted is None
    assert watch.feed(119.0, page(90, **moved), LIMITS).uncounted == 40.0


def test_a_page_without_http_or_that_is_no_later_says_nothing() -> None:
    watch = AnswersWatch()
    assert watch.feed(0.0, page(0, http=False), LIMITS).uncounted is None
    watch.feed(0.0, page(0), LIMITS)
    watch.feed(60.0, page(20), LIMITS)
    assert watch.feed(60.0, page(30), LIMITS).uncounted is None
    assert watch.feed(120.0, page(30), LIMITS).uncounted == 30.0


# pauses


def paused(*story: tuple[tuple[float, float], float], every: float = 10.0) -> list[tuple[bool, bool, bool]]:
    """Whether it is paused, evicts for that, or the order is unknown: after each (calls, tokens)."""
    watch, told = PauseWatch(), []
    for number, (calls, tokens) in enumerate(story):
        said = watch.feed(number * every, page(calls=calls, generation_tokens=tokens, running=1.0))
        told.append((said.since is not None, said.evicting, said.order_unknown))
    return told


NO, YES, AFTER, UNKNOWN = (False, False, False), (True, True, False), (False, True, False), (False, True, True)


def test_a_pause_lasts_until_a_resume_and_its_evictions_a_minute_longer() -> None:
    calls = [(0.0, 0.0), (1.0, 0.0), (1.0, 0.0), *[(1.0, 1.0)] * 8]
    assert paused(*((each, 5.0) for each in calls)) == [NO, YES, YES, *[AFTER] * 7, NO]


def test_a_pause_that_began_before_we_looked_is_one_where_nobody_resumed() -> None:
    assert paused(((2.0, 0.0), 5.0)) == [YES]
    assert paused(((0.0, 2.0), 5.0)) == [NO]
    assert paused(((2.0, 1.0), 5.0)) == [UNKNOWN]


def test_any_token_later_ends_a_pause_and_one_of_its_own_interval_does_not() -> None:
    assert paused(((0.0, 0.0), 5.0), ((1.0, 0.0), 90.0), ((1.0, 0.0), 90.0))[1:] == [YES, YES]
    assert paused(((0.0, 0.0), 5.0), ((1.0, 0.0), 5.0), ((1.0, 0.0), 5.0), ((1.0, 0.0), 6.0))[1:] == [YES, YES, AFTER]


def test_a_step_under_way_gives_eight_tokens_a_request_after_the_pause_and_no_more() -> None:
    assert paused(((0.0, 0.0), 5.0), ((1.0, 0.0), 5.0), ((1.0, 0.0), 13.0), ((1.0, 0.0), 13.0))[1:] == [YES, YES, YES]
    assert paused(((0.0, 0.0), 5.0), ((1.0, 0.0), 5.0), ((1.0, 0.0), 13.1))[1:] == [YES, AFTER]


def test_both_between_two_looks_leave_the_order_open_until_it_moves() -> None:
    story = paused(((0.0, 0.0), 5.0), ((1.0, 1.0), 5.0), ((1.0, 1.0), 5.0), ((1.0, 1.0), 6.0))
    assert story == [NO, UNKNOWN, UNKNOWN, AFTER]


def test_since_when_is_the_first_look_that_shows_it() -> None:
    watch = PauseWatch()
    watch.feed(0.0, page())
    for at in (10.0, 20.0, 30.0):
        assert watch.feed(at, page(calls=(1.0, 0.0))).since == 10.0
    assert watch.feed(40.0, page(http=False)).since == 10.0


def test_a_restart_forgets_a_pause() -> None:
    assert paused(((0.0, 0.0), 5.0), ((1.0, 0.0), 5.0), ((0.0, 0.0), 0.0))[-1][0] is False
    assert paused(((1.0, 0.0), 5.0), ((1.0, 0.0), 4.0))[-1][0] is True  # a new life that was paused as well


# identity


def answering(*starts: float, every: float = 1_000.0) -> list[bool]:
    """Whether several servers are told, by start time, at each look."""
    watch = IdentityWatch()
    return [
        bool(watch.feed(10_000.0 + number * every, page(identity=Identity(process_starts=(start,)))))
        for number, start in enumerate(starts)
    ]


def test_a_start_time_that_comes_back_is_another_server() -> None:
    assert answering(100.0, 200_000.0, 100.0) == [False, False, True]
    assert answering(100.0, 200_000.0, 101.0) == [False, False, True]
    assert answering(10_900.0, 11_900.0, 12_900.0) == [False, False, False]
    assert answering(100.0, 101.0, 100.0) == [False, False, False]  # within the tolerance: one


@pytest.mark.parametrize(("start", "several"), [(9_939.0, True), (9_940.0, False), (10_500.0, False)])
def test_a_start_a_minute_before_the_other_ones_last_answer_is_beside_it(start: float, several: bool) -> None:
    assert answering(100.0, start) == [False, several]


def test_it_is_told_for_ten_minutes_after_the_last_proof() -> None:
    watch, one = IdentityWatch(), page(identity=Identity(process_starts=(100.0,)))
    other = page(identity=Identity(created=(5_000.0,)))
    for at, each in ((10_000.0, one), (10_010.0, other)):
        told = watch.feed(at, each)
    assert told.startswith("2 servers answer in turn")
    assert watch.feed(10_610.0, other)
    assert not watch.feed(10_610.1, other)


def by_counters(*tokens: float, every: float = 10.0) -> list[bool]:
    watch = IdentityWatch()
    return [bool(watch.feed(number * every, page(generation_tokens=count))) for number, count in enumerate(tokens)]


def test_counters_that_fall_and_come_back_four_times_are_two_servers() -> None:
    two = [100.0, 10.0, 110.0, 20.0, 120.0, 30.0, 130.0, 40.0]
    assert by_counters(*two) == [False] * 7 + [True]
    assert not any(by_counters(*two[:-1]))
    crashes = [100.0, 10.0, 110.0, 5.0, 120.0, 4.0, 130.0, 3.0, 140.0, 2.0]
    assert not any(by_counters(*crashes))  # each begins anew
    assert not any(by_counters(*two, every=600.0))


@pytest.mark.parametrize(("gap", "several"), [(25.0, True), (25.1, False)])
def test_counters_prove_nothing_across_a_scrape_that_was_missed(gap: float, several: bool) -> None:
    watch = IdentityWatch()
    for number, count in enumerate((100.0, 10.0, 110.0, 20.0, 120.0, 30.0, 130.0)):
        watch.feed(10.0 * number, page(generation_tokens=count))
    assert bool(watch.feed(60.0 + gap, page(generation_tokens=40.0))) is several


def test_scrapes_that_become_slower_prove_something_again_once_the_interval_is_learnt() -> None:
    watch, at, told = IdentityWatch(), 0.0, list[bool]()
    for number in range(14):  # every 10 s, then every 30 s: a tenth more of what passes for one interval at each
        at += 10.0 if number < 4 else 30.0
        told.append(bool(watch.feed(at, page(generation_tokens=5.0 * number + (10.0 if number % 2 else 100.0)))))
    assert told.index(True) == 11


# held KV blocks


def held(*story: tuple[float, float, float | None]) -> list[tuple[float, float, int] | None]:
    """The share, the seconds and how many floors rise, after each (at, running, usage)."""
    watch, told = KvHeldWatch(), []
    for at, running, usage in story:
        found = watch.feed(at, EngineSample(running=running, waiting=0.0, kv_usage=usage))
        told.append(None if found is None else (found.usage, found.seconds, len(found.rising)))
    return told


def test_what_is_held_is_the_least_usage_of_a_lull() -> None:
    assert held((0.0, 0.0, 0.3), (10.0, 0.0, 0.2), (20.0, 0.0, 0.25), (30.0, 1.0, 0.9), (40.0, 0.0, 0.1)) == [
        (0.3, 0.0, 0), (0.2, 10.0, 0), (0.2, 20.0, 0), (0.2, 20.0, 0), (0.1, 0.0, 0),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("ended", "seen", "seconds"), [(30.0, 70.0, 60.0), (29.9, 70.0, 30.0), (30.0, 69.9, pytest.approx(29.9))]
)
def test_lulls_add_up_where_each_outlasts_the_lease_of_a_transfer(ended: float, seen: float, seconds: float) -> None:
    story = held((0.0, 0.0, 0.3), (ended, 1.0, 0.9), (40.0, 0.0, 0.3), (seen, 0.0, 0.3))
    assert story[-1] == (0.3, seconds, 0)


@pytest.mark.parametrize("unknown", ["kv_usage", "running", "waiting"])
def test_what_is_not_known_is_not_held(unknown: str) -> None:
    known = EngineSample(running=0.0, waiting=0.0, kv_usage=0.5)
    assert KvHeldWatch().feed(0.0, known) is not None
    assert KvHeldWatch().feed(0.0, replace(known, **{unknown: None})) is None  # type: ignore[arg-type]


def lulls(*floors: float, seconds: float = 5.0) -> int:
    """How many floors rise at the beginning of the last of these lulls."""
    story, at = [], 0.0
    for floor in floors[:-1]:
        story += [(at, 0.0, floor), (at + seconds - 1, 0.0, floor), (at + seconds, 1.0, 0.9)]
        at += seconds + 5.0
    last = held(*story, (at, 0.0, floors[-1]))[-1]
    assert last is not None
    return last[2]


def test_three_rises_of_a_point_from_lull_to_lull_are_a_leak() -> None:
    assert lulls(0.10, 0.12, 0.14, 0.16) == 4
    assert lulls(0.10, 0.12, 0.14) == 0
    assert lulls(0.10, 0.12, 0.14, 0.14) == 0
    assert lulls(0.10, 0.125, 0.134, 0.16) == 0  # 0.9 points
    assert lulls(0.5, 0.10, 0.12, 0.14, 0.16) == 4  # only the last count
    assert lulls(0.10, 0.12, 0.14, 0.16, seconds=4.9) == 0  # one look without a request is no lull


# the server as a whole


def test_families_that_cannot_be_read_are_named_one_by_one_and_then_counted() -> None:
    for count, lines in ((8, 8), (9, 9), (11, 9)):
        bad = replace(page(), unread={f"f{number}": "line 1: odd" for number in range(count)})
        found = ServerWatch().feed(0.0, bad, LIMITS).found
        assert len(found) == lines
        assert found[0].text.startswith("f0 is left out")
        assert count == lines == 8 or found[-1].text == f"{count - 8} more families are left out"


@pytest.mark.parametrize(
    ("engine", "calls", "withheld"),
    [({}, (0.0, 0.0), True), ({"running": 1.0}, (0.0, 0.0), False), ({"asleep": True}, (0.0, 0.0), False),
     ({}, (1.0, 0.0), False)],
)  # fmt: skip
def test_answers_without_an_engine_withhold_the_verdict_unless_something_else_explains_them(
    engine: dict[str, object], calls: tuple[float, float], withheld: bool
) -> None:
    watch = ServerWatch()
    watch.feed(0.0, page(0, calls=calls, **engine), LIMITS)
    assert bool(watch.feed(60.0, page(50, calls=calls, **engine), LIMITS).withheld) is withheld
