"""Which server answered, where pages carry no start times, or the same ones."""

from collections.abc import Callable

import pytest

from vllm_vitals.core.identity import IdentityWatch
from vllm_vitals.core.sample import EngineSample, Identity, TargetSample

EVERY = 15.0


def page(tokens: float, identity: Identity) -> TargetSample:
    engine = EngineSample(generation_tokens=tokens, prompt_tokens=2 * tokens)
    return TargetSample({("m", "0"): engine}, "", identity=identity)


def told(answers: Callable[[int], int], servers: int, identity: Identity, polls: int = 60) -> list[bool]:
    """Whether several servers are said after each poll; each made other tokens before, all go on at one rate."""
    watch = IdentityWatch()
    return [bool(watch.feed(1e9 + EVERY * n, page(1e6 * (1 + answers(n)) + 500.0 * n, identity))) for n in range(polls)]


@pytest.mark.parametrize(
    "identity", [pytest.param(Identity(), id="none"), pytest.param(Identity((5e8,), (5e8,)), id="equal")]
)
@pytest.mark.parametrize(
    ("answers", "servers"),
    [
        pytest.param(lambda n: n % 2, 2, id="in turn"),
        pytest.param(lambda n: n % 3, 3, id="three"),
        pytest.param(lambda n: (0, 2, 1, 1, 0, 2, 0, 1, 2, 2, 0, 1)[n % 12], 3, id="three without order"),
        pytest.param(lambda n: int(n % 6 == 0), 2, id="five to one"),
        pytest.param(lambda n: int(n % 6 != 0), 2, id="one to five"),
    ],
)
def test_servers_that_answer_by_turns_are_told_apart_by_their_counters(
    answers: Callable[[int], int], servers: int, identity: Identity
) -> None:
    seen = told(answers, servers, identity)
    assert True in seen[:30]
    assert all(seen[30:])


def test_a_server_that_crashes_again_and_again_is_one() -> None:
    watch = IdentityWatch()
    at = 1e9
    for life in range(20):
        for n in range(1, 4 + life % 5):
            at += EVERY
            assert watch.feed(at, page(300.0 * n, Identity())) == ""
        at += 3 * EVERY  # it loads its model again


def test_a_server_that_restarts_between_two_scrapes_is_one() -> None:
    watch = IdentityWatch()
    for n in range(200):
        tokens = 500.0 * (n % 50) + 1.0
        assert watch.feed(1e9 + EVERY * n, page(tokens, Identity())) == ""
