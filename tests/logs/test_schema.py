import json
from datetime import UTC
from pathlib import Path
from typing import Any

import jmespath
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vllm_vitals.config.errors import ConfigError
from vllm_vitals.logs.config import load_schemas
from vllm_vitals.logs.decode import LineDecoder
from vllm_vitals.logs.events import RequestFinished
from vllm_vitals.logs.paths import getter
from vllm_vitals.logs.schema import SHIPPED, LogMapping, compile_schema, shipped

NOW = 1_790_000_000.0
LITELLM = {
    "id": "chatcmpl-1", "call_type": "acompletion", "status": "success", "prompt_tokens": 800, "completion_tokens": 401,
    "startTime": 1789990000.0, "endTime": 1789990011.25, "completionStartTime": 1789990001.25, "response_time": 1.25,
    "model": "hosted_vllm/m", "model_group": "m", "stream": True, "model_parameters": {"max_tokens": 4096},
    "metadata": {"route": "chat", "user_api_key": "sk-secret"}, "response": {"choices": [{"finish_reason": "stop"}]},
}  # fmt: skip
ENVOY = {
    "duration": 1526, "gen_ai.request.model": "m", "gen_ai.request.model_override": None,
    "gen_ai.usage.input_tokens": 15, "gen_ai.usage.output_tokens": "7", "method": "POST", "response_code": 200,
    "response_flags": "-", "start_time": "2026-08-30T16:51:37.894Z", "x-envoy-origin-path": "/v1/chat/completions",
    "x-envoy-upstream-service-time": "451", "x-request-id": "r-1",
}  # fmt: skip
OPENAI = {
    "ts": "2026-09-21T10:00:00Z", "id": "chatcmpl-1", "model": "m", "max_tokens": 8192,
    "usage": {"prompt_tokens": 100, "completion_tokens": 8192, "completion_tokens_details": {"reasoning_tokens": 8192}},
    "choices": [{"index": 0, "finish_reason": "length", "message": {"content": None}}],
}  # fmt: skip
RESPONSES = {
    "ts": "2026-09-21T10:00:02Z", "id": "resp_1", "object": "response", "status": "completed", "max_output_tokens": 64,
    "incomplete_details": None,
    "usage": {"input_tokens": 9, "output_tokens": 64, "output_tokens_details": {"reasoning_tokens": 8}},
}  # fmt: skip


def read(record: dict[str, Any]) -> tuple[str | None, RequestFinished | None]:
    decoded = LineDecoder(shipped()).decode(json.dumps(record).encode(), NOW)
    event = decoded.events[0] if decoded.events else None
    assert event is None or isinstance(event, RequestFinished)
    return decoded.result, event


def test_litellm_durations_come_from_its_instants() -> None:
    result, event = read(LITELLM)
    assert result == "response"
    assert event == RequestFinished(
        1789990011.25, "chatcmpl-1", "m", "chat", 800, 401, None, None, 4096, "stop", 1.25, 11.25
    )
    assert event.tpot_s == pytest.approx(0.025)


def test_litellm_without_streaming_knows_no_first_token() -> None:
    _, event = read(LITELLM | {"stream": False})
    assert event is not None
    assert event.ttft_s is None
    assert event.e2e_s == pytest.approx(11.25)


def test_litellm_failures_are_no_responses() -> None:
    result, event = read(LITELLM | {"status": "failure", "completion_tokens": 0, "response": {}})
    assert result == "failed"
    assert event is not None
    assert event.finish_reason == "error"


def test_no_key_of_a_user_gets_into_an_event() -> None:
    _, event = read(LITELLM)
    assert "sk-secret" not in repr(event)


def test_envoy_numbers_may_be_text_and_may_be_null() -> None:
    assert read(ENVOY) == (
        "response",
        RequestFinished(1788108697.894, "r-1", "m", "/v1/chat/completions", 15, 7, e2e_s=1.526),
    )
    result, event = read(ENVOY | {"gen_ai.usage.input_tokens": None, "gen_ai.usage.output_tokens": None})
    assert result == "response"
    assert event is not None
    assert event.completion_tokens is None


@pytest.mark.parametrize(
    ("change", "result"),
    [
        ({"response_code": 0, "response_flags": "DC"}, "aborted"),
        ({"response_code": 0, "response_flags": "UF,URX"}, "failed"),
        ({"response_code": 503}, "failed"),
        ({"response_flags": None}, "response"),
        ({"mcp.method.name": "tools/call", "gen_ai.request.model": None}, "ignored"),
        ({"response_code": "odd"}, "invalid"),
    ],
)
def test_envoy_says_how_a_request_ended(change: dict[str, Any], result: str) -> None:
    assert read(ENVOY | change)[0] == result


def test_openai_usage() -> None:
    assert read(OPENAI) == (
        "response",
        RequestFinished(1789984800.0, "chatcmpl-1", "m", "/v1/chat/completions", 100, 8192, 8192, None, 8192, "length"),
    )
    _, event = read(RESPONSES)
    assert event == RequestFinished(1789984802.0, "resp_1", "", "/v1/responses", 9, 64, 8, None, 64, "stop")


def test_an_answer_with_thinking_and_no_content_is_reasoning_only() -> None:
    _, event = read(OPENAI | {"choices": [{"finish_reason": "length", "message": {"content": "", "reasoning": "hm"}}]})
    assert event is not None
    assert event.reasoning_only


def test_openai_usage_that_is_null_says_nothing_about_lengths() -> None:
    result, event = read({"id": "chatcmpl-3", "model": "m", "usage": None, "choices": [{"finish_reason": None}]})
    assert result == "response"
    assert event is not None
    assert (event.completion_tokens, event.finish_reason, event.at) == (None, None, None)


@pytest.mark.parametrize(
    "record",
    [
        {"message": "Using max model len 2048"},  # python-json-logger, the documented sample before 0.31
        {"asctime": "2026-09-21 10:00:00,000", "levelname": "INFO", "name": "vllm.config.model",
         "processName": "MainProcess", "process": 1, "message": "Using max model len 2048",
         "vllm_process_name": "APIServer"},  # built in since 0.32
        {"timestamp": "2026-09-21T10:00:00.000000", "level": "INFO", "logger": "vllm",
         "message": "Using max model len 2048", "taskName": None},  # the new class with renamed fields
        {"ts": NOW, "severity": "INFO", "msg": "Using max model len 2048"},
    ],
)  # fmt: skip
def test_vllm_records_of_every_formatter(record: dict[str, Any]) -> None:
    decoded = LineDecoder(shipped()).decode(json.dumps(record).encode(), NOW)
    assert decoded.result == "setting"
    assert getattr(decoded.events[0], "value", None) == 2048


MINE = """
name: tgi
kind: response
keys: [timestamp, span]
skip: span.name != 'generate'
failed: level == 'ERROR'
fields:
  time: timestamp
  route: span.name
  e2e_s: span.total_time
  completion_tokens: span.tokens
  predicted_tokens: span.predicted
"""


def test_a_mapping_of_ones_own_comes_first(tmp_path: Path) -> None:
    file = tmp_path / "tgi.yaml"
    file.write_text(MINE)
    decoder = LineDecoder(load_schemas([file]))
    record = {"timestamp": "2026-09-21T10:00:00Z", "level": "INFO", "message": "Success",
              "span": {"name": "generate", "total_time": "1.553s", "tokens": 20, "predicted": 17.5}}  # fmt: skip
    assert decoder.decode(json.dumps(record).encode(), NOW).events == (
        RequestFinished(1789984800.0, route="generate", completion_tokens=20, e2e_s=1.553, predicted_tokens=17.5),
    )
    record["span"] = {"name": "health"}
    assert decoder.decode(json.dumps(record).encode(), NOW).result == "ignored"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (MINE.replace("span.total_time", "span[.x"), "fields.e2e_s: not a JMESPath expression"),
        (MINE.replace("e2e_s", "end_to_end"), "fields.end_to_end: unknown key"),
        (MINE.replace("keys: [timestamp, span]", "keys: []"), "needs keys and fields"),
        (MINE + "name: twice\n", "given twice"),
        ("- a\n", "expected keys and values"),
    ],
)
def test_a_wrong_mapping_is_one_line_that_names_the_place(tmp_path: Path, text: str, problem: str) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(text)
    with pytest.raises(ConfigError) as caught:
        load_schemas([file])
    assert problem in str(caught.value)
    assert "mine.yaml" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_path_that_fails_at_run_time_makes_the_record_invalid_and_nothing_else() -> None:
    schema = compile_schema(
        LogMapping.model_validate(
            {"name": "odd", "keys": ["a"], "fields": {"route": "a"}, "failed": "contains(b, 'x')"}
        )
    )
    assert LineDecoder([schema]).decode(b'{"a": 1}', NOW).result == "invalid"
    assert schema.response({"a": "r", "b": "xx"}, UTC, NOW) is not None


values = st.recursive(
    st.none() | st.booleans() | st.integers(-1, 2) | st.sampled_from(["", "x", "DC"]) | st.floats(0, 1),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["a", "b", "a.b"]), inner, max_size=3),
    max_leaves=8,
)
PATHS = ["a", '"a.b"', "a.b", "a.b.a", "a[0]", "a[-1].b", "a || b", "a.b || b || '\"'", "a && b", "!a", "!(a.b) && b",
         "a == b", "a != 'x'", "a == `0`", "a == `false`", "(a || b)[1]", "a[0][1]", "a && !(b[0].a)", "`1`", "a[*].b",
         "length(a || '') == `0`", "[a, b]"]  # fmt: skip


@settings(deadline=None)
@given(values, st.sampled_from(PATHS))
def test_a_compiled_path_answers_as_jmespath_does(record: Any, path: str) -> None:
    try:
        expected = jmespath.search(path, record)
    except jmespath.exceptions.JMESPathError:
        with pytest.raises(jmespath.exceptions.JMESPathError):
            getter(path)(record)
        return
    found = getter(path)(record)
    assert found == expected
    assert type(found) is type(expected)


def test_every_shipped_mapping_says_what_it_is_for() -> None:
    assert [schema.name for schema in shipped()] == list(SHIPPED)
