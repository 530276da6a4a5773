from typing import Any

import pytest

from vllm_vitals.logs.events import RequestFinished
from vllm_vitals.logs.response_limits import ServerLimits, cap_of, disagrees, limits_of, reasoning_truncated, unreturned

SERVER = ServerLimits(max_model_len=2048, default_max_tokens=256)
BARE = ServerLimits()


def event(**what: Any) -> RequestFinished:
    return RequestFinished(0.0, **what)


@pytest.mark.parametrize(
    ("what", "server", "cap"),
    [
        ({"finish_reason": "stop", "completion_tokens": 10, "max_tokens": 64}, SERVER, None),
        ({"finish_reason": "length", "completion_tokens": 64, "max_tokens": 64}, SERVER, "request"),
        ({"finish_reason": "tool_calls", "completion_tokens": 8192, "max_tokens": 8192}, BARE, "request"),
        ({"finish_reason": None, "completion_tokens": 64, "max_tokens": 64}, BARE, "request"),
        # the request asked for more than the server's default allows, or for nothing
        ({"finish_reason": "length", "completion_tokens": 256, "max_tokens": 2000}, SERVER, "server_default"),
        ({"finish_reason": "length", "completion_tokens": 256}, SERVER, "server_default"),
        ({"finish_reason": "length", "prompt_tokens": 1900, "completion_tokens": 148}, SERVER, "context_window"),
        ({"finish_reason": "length", "prompt_tokens": 100, "completion_tokens": 20}, SERVER, "unknown"),
        ({"finish_reason": "length", "completion_tokens": 20}, BARE, "unknown"),
        ({"finish_reason": "length"}, SERVER, "unknown"),
        # vLLM's own log: the cap that the engine ran with
        ({"finish_reason": "length", "max_tokens": 256, "cap_is_effective": True}, SERVER, "server_default"),
        ({"finish_reason": "length", "max_tokens": 64, "cap_is_effective": True}, SERVER, "request"),
        ({"finish_reason": "length", "max_tokens": 64, "cap_is_effective": True}, ServerLimits(2048), "request"),
        ({"finish_reason": "length", "max_tokens": 1977, "cap_is_effective": True}, ServerLimits(2048), "unknown"),
        ({"finish_reason": "length", "max_tokens": 1977, "prompt_tokens": 71, "cap_is_effective": True},
         ServerLimits(2048), "context_window"),
        ({"finish_reason": "length", "max_tokens": 1000, "prompt_tokens": 71, "cap_is_effective": True},
         ServerLimits(2048), "request"),
        ({"finish_reason": "length", "max_tokens": 1977, "cap_is_effective": True}, BARE, "unknown"),
        ({"finish_reason": "length", "cap_is_effective": True}, SERVER, "unknown"),
    ],
)  # fmt: skip
def test_which_cap_cut_a_response(what: dict[str, Any], server: ServerLimits, cap: str | None) -> None:
    assert cap_of(event(**what), server) == cap


def test_a_finish_reason_that_hides_a_cap_is_a_disagreement() -> None:
    assert disagrees(event(finish_reason="tool_calls", completion_tokens=8192, max_tokens=8192))
    assert not disagrees(event(finish_reason="length", completion_tokens=8192, max_tokens=8192))
    assert not disagrees(event(finish_reason="tool_calls", completion_tokens=8191, max_tokens=8192))
    assert not disagrees(event(finish_reason=None, completion_tokens=8192, max_tokens=8192))


@pytest.mark.parametrize(
    ("what", "cut_in_thought"),
    [
        ({"finish_reason": "length", "completion_tokens": 100, "reasoning_tokens": 100}, True),
        ({"finish_reason": "length", "completion_tokens": 100, "reasoning_tokens": 99}, True),
        ({"finish_reason": "length", "completion_tokens": 100, "reasoning_tokens": 60}, False),
        ({"finish_reason": "length", "completion_tokens": 100, "reasoning_tokens": 60, "returned_tokens": 0}, True),
        ({"finish_reason": "length", "completion_tokens": 100, "reasoning_only": True}, True),
        ({"finish_reason": "length", "completion_tokens": 100}, False),
        ({"finish_reason": "stop", "completion_tokens": 100, "reasoning_tokens": 100}, False),
    ],
)
def test_reasoning_that_was_cut_before_an_answer(what: dict[str, Any], cut_in_thought: bool) -> None:
    assert reasoning_truncated(event(**what)) is cut_in_thought


def test_waste_is_what_was_generated_and_not_returned() -> None:
    assert unreturned(event(completion_tokens=500, returned_tokens=120)) == 380
    assert unreturned(event(completion_tokens=500)) == 0
    assert unreturned(event(completion_tokens=5, returned_tokens=7)) == 0


def test_limits_are_positive_numbers() -> None:
    assert limits_of({"max_model_len": -1, "default_max_tokens": "256"}) == ServerLimits(None, None)
    assert limits_of({"max_model_len": 2048, "default_max_tokens": 256}) == SERVER


def test_tpot_needs_two_tokens_and_both_times() -> None:
    assert event(ttft_s=1.0, e2e_s=3.0, completion_tokens=21).tpot_s == pytest.approx(0.1)
    assert event(ttft_s=1.0, e2e_s=3.0, completion_tokens=1).tpot_s is None
    assert event(e2e_s=3.0, completion_tokens=21).tpot_s is None
