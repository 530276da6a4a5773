"""What a page says that cannot be true together: each check from both sides of its tolerance."""

from dataclasses import replace
from typing import Any

import pytest

from tests.core.sequences import empty, observe
from vllm_vitals.core.contradictions import examine
from vllm_vitals.core.derive import WindowView
from vllm_vitals.core.sample import EngineSample
from vllm_vitals.core.snapshot import Role
from vllm_vitals.core.thresholds import Thresholds
from vllm_vitals.core.vital_signs import gauges
from vllm_vitals.core.window import Span

PLAIN = EngineSample(
    running=4.0, waiting=0.0, kv_usage=0.5, generation_tokens=0.0, prefix_cache_queries=0.0, prefix_cache_hits=0.0
)
PROMPT, OUTPUT = "request_prompt_tokens", "request_output_tokens"


def view(*samples: EngineSample, settings: dict[str, str] | None = None, logged: float | None = None) -> WindowView:
    seen = samples or (PLAIN,)
    span = Span(0.0, 60.0, seen[0], seen[-1])
    return WindowView(
        60.0, seen[-1], settings or {}, Thresholds(), span, None, span, list(seen), gauges(seen), None, None,
        Role.SERVE, logged_capacity=logged,
    )  # fmt: skip


def found(seen: WindowView) -> list[str]:
    return [contradiction.check for contradiction in examine(seen)[1]]


def lengths(prompt: float, output: float, **more: Any) -> tuple[EngineSample, EngineSample]:
    """A window in which ten requests of these lengths finish."""
    first = replace(PLAIN, histograms={PROMPT: empty(PROMPT), OUTPUT: empty(OUTPUT)}, **more)
    ended = {PROMPT: observe(empty(PROMPT), prompt, 10.0), OUTPUT: observe(empty(OUTPUT), output, 10.0)}
    return first, replace(first, histograms=ended)


def test_a_plain_page_contradicts_nothing() -> None:
    assert found(view()) == []
    assert found(view(replace(PLAIN, waiting=None, running=None, kv_usage=None))) == []


@pytest.mark.parametrize(
    ("label", "queries", "hits", "odd"),
    [(False, 100.0, 5.0, True), (False, 100.0, 0.0, True), (False, 0.0, 0.0, False), (True, 100.0, 5.0, False),
     (None, 100.0, 5.0, False), (False, None, None, False)],
)  # fmt: skip
def test_lookups_beside_a_label_that_says_off(
    label: bool | None, queries: float | None, hits: float | None, odd: bool
) -> None:
    sample = replace(PLAIN, prefix_caching=label, prefix_cache_queries=queries, prefix_cache_hits=hits)
    assert found(view(sample)) == ["prefix_caching"] * odd


# 4 running requests hold usage x capacity; the finished had 100 in and 100 out: 75 to 600 tokens each are believed


@pytest.mark.parametrize(
    ("capacity", "odd"),
    [(600.0, False), (599.0, True), (4800.0, False), (4801.0, True)],  # 75, 74.9, 600 and 600.1 tokens each
)
def test_a_capacity_by_what_requests_would_hold(capacity: float, odd: bool) -> None:
    seen = view(*lengths(100.0, 100.0, kv_capacity_tokens=capacity))
    assert found(seen) == ["kv_capacity"] * odd
    assert examine(seen)[0].capacity_trusted is not odd


@pytest.mark.parametrize(
    ("more", "settings", "odd"),
    [
        ({}, {}, True),
        ({}, {"max_model_len": "2000"}, False),  # so long may a request be
        ({}, {"max_model_len": "1000"}, True),
        ({"running": 0.9}, {}, False),
        ({"kv_usage": 0.049}, {}, False),
        ({"kv_capacity_tokens": None}, {}, False),
    ],
)
def test_a_capacity_is_doubted_only_where_the_numbers_for_it_are_there(
    more: dict[str, Any], settings: dict[str, str], odd: bool
) -> None:
    held = {"kv_capacity_tokens": 16_000.0, "kv_usage": 0.5, **more}  # 2000 tokens each
    assert found(view(*lengths(100.0, 100.0, **held), settings=settings)) == ["kv_capacity"] * odd


def test_the_least_usage_that_says_something_is_a_twentieth() -> None:
    for usage, odd in ((0.05, True), (0.049, False)):
        assert found(view(*lengths(100.0, 100.0, kv_capacity_tokens=1e6, kv_usage=usage))) == ["kv_capacity"] * odd
    for running, odd in ((1.0, True), (0.9, False)):
        assert found(view(*lengths(100.0, 100.0, kv_capacity_tokens=1e6, running=running))) == ["kv_capacity"] * odd


def test_shared_prefixes_let_requests_hold_less() -> None:
    first, last = lengths(100.0, 100.0, kv_capacity_tokens=400.0)  # 50 each
    assert found(view(first, last)) == ["kv_capacity"]
    shared = replace(last, prefix_cache_queries=1000.0, prefix_cache_hits=500.0)  # half of 0.5 x (50 + 50)
    assert found(view(first, shared)) == []


@pytest.mark.parametrize(("labelled", "odd"), [(1050.0, False), (1051.0, True), (950.0, False), (949.0, True)])
def test_the_log_decides_beyond_a_twentieth(labelled: float, odd: bool) -> None:
    seen = view(replace(PLAIN, kv_capacity_tokens=labelled), logged=1000.0)
    mended, contradictions = examine(seen)
    assert [c.check for c in contradictions] == ["kv_capacity"] * odd
    assert mended.sample.kv_capacity_tokens == (1000.0 if odd else labelled)
    assert mended.capacity_trusted


def waits(waiting: float, by_reason: float) -> EngineSample:
    return replace(PLAIN, waiting=waiting, waiting_by_reason={"capacity": by_reason})


@pytest.mark.parametrize(
    ("samples", "odd"),
    [
        ([waits(10.0, 7.9)] * 3, True),  # more than a fifth apart
        ([waits(10.0, 8.0)] * 3, False),
        ([waits(2.0, 0.9)] * 3, True),  # and more than one
        ([waits(2.0, 1.0)] * 3, False),
        ([waits(10.0, 0.0)] * 2, False),
        ([waits(10.0, 10.0), waits(10.0, 0.0), waits(10.0, 0.0)], False),
        ([waits(10.0, 0.0), waits(10.0, 0.0), waits(10.0, 10.0)], False),
        ([waits(10.0, 0.0)] * 2 + [replace(PLAIN, waiting=10.0)], False),
        ([waits(10.0, 0.0)] * 2 + [replace(waits(10.0, 0.0), waiting=None)], False),
    ],
)
def test_reasons_that_do_not_add_up_in_three_scrapes_are_left_out(samples: list[EngineSample], odd: bool) -> None:
    mended, contradictions = examine(view(*samples))
    assert [c.check for c in contradictions] == ["waiting_reasons"] * odd
    assert not odd or mended.sample.waiting_by_reason == {}


@pytest.mark.parametrize(("limit", "odd"), [("3", True), ("4", False), ("", False), (None, False)])
def test_more_running_than_max_num_seqs(limit: str | None, odd: bool) -> None:
    settings = {"other": "1"} if limit is None else {"max_num_seqs": limit, "other": "1"}
    mended, contradictions = examine(view(PLAIN, replace(PLAIN, running=1.0), settings=settings))
    assert [c.check for c in contradictions] == ["running_limit"] * odd
    assert ("max_num_seqs" in mended.settings) is (limit is not None and not odd)
    assert mended.settings["other"] == "1"
