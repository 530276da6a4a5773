from typing import Any

import pytest

from vllm_vitals.logs.events import ServerSetting
from vllm_vitals.logs.server import MAX_SETTINGS, ServerState


def state(*events: tuple[str, Any]) -> ServerState:
    one = ServerState()
    for name, value in events:
        one.apply(ServerSetting(0.0, name, value))
    return one


def configured(**defaults: Any) -> tuple[str, Any]:
    return "override_generation_config", defaults


def audit(*events: tuple[str, Any]) -> dict[str, bool | None]:
    return {name: one.confirmed for name, one in state(*events).overrides().items()}


def test_defaults_in_force_confirm_what_was_configured_and_show_what_was_dropped() -> None:
    given = configured(max_new_tokens=256, temperature=0.6, presence_penalty=1.5)
    printed = ("default_sampling_params", {"temperature": 0.6, "max_tokens": 256})
    assert audit(given, printed) == {"max_new_tokens": True, "temperature": True, "presence_penalty": False}


def test_a_default_under_a_name_that_vllm_does_not_know_is_dropped() -> None:
    assert audit(configured(max_tokens=256), ("default_sampling_params", {"top_k": 20})) == {"max_tokens": False}


def test_another_value_in_force_does_not_confirm() -> None:
    assert audit(configured(max_new_tokens=256), ("default_sampling_params", {"max_tokens": 2048})) == {
        "max_new_tokens": False
    }


@pytest.mark.parametrize(
    ("version", "started", "confirmed"),
    [("0.32.0", True, False), ("0.32.0", False, None), ("0.8.1", True, None), ("0.8.2", True, False)],
)
def test_silence_means_dropped_once_the_server_has_started_and_would_have_said_so(
    version: str, started: bool, confirmed: bool | None
) -> None:
    events = [("version", version), configured(max_tokens=256)] + [("started", True)] * started
    assert audit(*events) == {"max_tokens": confirmed}


def test_the_default_cap_is_learned_from_the_defaults_in_force() -> None:
    assert state(("default_sampling_params", {"max_tokens": 256})).values["default_max_tokens"] == 256


def test_a_restart_forgets_everything_but_the_version_just_said() -> None:
    old = (("max_num_seqs", 64), ("default_sampling_params", {"max_tokens": 1}))
    one = state(*old, ("restart", True), ("version", "0.33"), ("restart", True), ("max_model_len", 10))
    assert one.values == {"version": "0.33", "max_model_len": 10}
    assert one.in_force is None


def test_the_start_command_is_not_overruled_by_one_process_view() -> None:
    one = ServerState()
    one.apply(ServerSetting(0.0, "data_parallel_size", 2, given=True))
    one.apply(ServerSetting(0.0, "max_model_len", -1, given=True))
    one.apply(ServerSetting(0.0, "data_parallel_size", 1))
    one.apply(ServerSetting(0.0, "max_model_len", 4096))
    assert one.values == {"data_parallel_size": 2, "max_model_len": 4096}


def test_settings_are_bounded() -> None:
    assert len(state(*((f"s{number}", 1) for number in range(1000))).values) == MAX_SETTINGS
