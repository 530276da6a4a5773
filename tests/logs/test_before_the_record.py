"""What people and collectors put before and around vLLM's lines: four lines from the field, in every dress."""

import base64
import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vllm_vitals.logs import headers
from vllm_vitals.logs.aggregate import LogAggregator, SourceInfo
from vllm_vitals.logs.decode import MAX_RECORDS, LineDecoder
from vllm_vitals.logs.events import EngineError, EngineStats
from vllm_vitals.logs.schema import shipped

NOW = 1_777_416_900.0
SCHEMAS = shipped()
MESSAGES = {
    "setting": ("INFO", "kv_cache_utils.py:1087", "GPU KV cache size: 128,000 tokens"),
    "stats": (
        "INFO",
        "loggers.py:257",
        "Engine 000: Avg prompt throughput: 0.0 tokens/s, Avg generation throughput: 5.4 tokens/s, Running: 1 reqs, "
        "Waiting: 14 reqs, GPU KV cache usage: 76.5%, Prefix cache hit rate: 92.0%",
    ),
    "failed": ("ERROR", "async_llm.py:707", "AsyncLLM output_handler failed."),
    "hung": (
        "INFO",
        "shm_broadcast.py:466",
        "No available shared memory broadcast block found in 60 seconds. This typically happens when some processes "
        "are hanging or doing some time-consuming work (e.g. compilation)",
    ),
}
PROCESS = ["", "(APIServer pid=1) ", "(APIServer pid=1) (EngineCore_DP0 pid=72) ",
           "(RayWorkerWrapper pid=9, ip=10.0.0.5) ",
           "\x1b[36m(EngineCore_DP0 pid=72)\x1b[0m ", "(VllmWorkerProcess pid=77) ", "[Stage-0] "]  # fmt: skip
BEFORE = {
    "nothing": "",
    "kubectl --timestamps": "2026-04-28T22:54:32.123456789Z ",
    "kubectl --prefix": "[pod/vllm-0/vllm] ",
    "kubectl --prefix --timestamps": "[pod/vllm-0/vllm] 2026-04-28T22:54:32.123456789Z ",
    "stern": "vllm-decode-6b9c vllm ",
    "stern, coloured": "\x1b[38;5;81mvllm-decode-6b9c\x1b[0m \x1b[38;5;81mvllm\x1b[0m ",
    "docker compose": "vllm-1  | ",
    "docker compose -t": "vllm-1  | 2026-04-28T22:54:32.123456789Z ",
    "docker service": "vllm_api.1.x7kq2m3n4p5r@gpu-1    | ",
    "journalctl": "Apr 28 22:54:32 gpu-1 vllm[123]: ",
    "journalctl -o short-iso": "2026-04-28T22:54:32+0200 gpu-1 vllm[123]: ",
    "journalctl -o export": "MESSAGE=",
    "journalctl -o verbose": "    MESSAGE=",
    "RFC 5424": "<14>1 2026-04-28T22:54:32.123Z gpu-1 vllm 123 - - ",
    "srun --label": "0: ",
    "srun --label, padded": "  12: ",
    "mpirun --tag-output": "[1,0]<stdout>:",
    "a log viewer": "2026-04-28 22:54:32.281 | ",
    "logcli": '2026-04-28T22:54:32Z {pod="vllm-0", container="vllm"} ',
    "logcli without times": '{pod="vllm-0"} ',
    "aws logs tail": "2026-04-28T22:54:32.123000+00:00 vllm/vllm/0123456789abcdef ",
    "a CSV export": '2026-04-28T22:54:32.123Z,vllm-0,"',
    "logfmt": 'time="2026-04-28T22:54:32Z" level=info msg="',
    "indented JSON": '    "textPayload": "',
    "multilog": "@400000006278d0a51c2b3d44 ",
    "PM2": "0|vllm     | ",
    "supervisord": "vllm stdout | ",
    "SageMaker": "[INFO ] PyProcess W-204-model-stdout: [1,0]<stdout>:",
    "VLLM_LOGGING_PREFIX": "gpu-1/blue: ",
    "rsyslog, colours spelled out": "Apr 28 22:54:32 gpu-1 vllm[1]: #033[36m(EngineCore pid=7)#033[0;0m ",
    "far in": "x" * 80 + " " + "y" * 60 + " ",
}


def text(what: str, process: str = "(APIServer pid=1) ") -> str:
    level, place, message = MESSAGES[what]
    return f"{process}{level} 04-28 22:54:32 [{place}] {message}"


def found(lines: list[str]) -> tuple[Any, ...]:
    """What a person would know after reading the lines."""
    decoder, judge = LineDecoder(SCHEMAS), LogAggregator({"s": SourceInfo("gpu-0")})
    for line in lines:
        judge.observe("s", decoder.decode(line.encode(), NOW), NOW)
    tally = judge.snapshot(NOW)
    server = tally.servers.get("gpu-0")
    size = None if server is None else server.settings.get("kv_cache_size_tokens")
    return size, tally.stats_lines.get("s", 0), dict(tally.errors.get("s", {}))


WHOLE = (128_000, 1, {"output_handler_failed": 1, "shm_broadcast_wait": 1})


@pytest.mark.parametrize("process", PROCESS, ids=repr)
@pytest.mark.parametrize("before", BEFORE)
def test_a_header_is_found_behind_whatever_stands_before_it(before: str, process: str) -> None:
    assert found([BEFORE[before] + text(what, process) for what in MESSAGES]) == WHOLE


@pytest.mark.parametrize("before", [name for name in BEFORE if BEFORE[name][-1:] not in ('"', "=", ":")])
def test_a_json_record_is_found_behind_whatever_stands_before_it(before: str) -> None:
    def record(what: str) -> str:
        level, _, message = MESSAGES[what]
        return json.dumps({"asctime": "2026-04-28 22:54:32,1", "levelname": level, "name": "vllm", "message": message})

    assert found([BEFORE[before] + record(what) for what in MESSAGES]) == WHOLE
    assert found([BEFORE[before] + "(APIServer pid=1) " + record(what) for what in MESSAGES]) == WHOLE


@pytest.mark.parametrize(
    "coloured",
    ["\x1b[32m{}\x1b[0m \x1b[90m04-28 22:54:32\x1b[0m", "#033[32m{}#033[0m #033[90m04-28 22:54:32#033[0m",
     "^[[32m{}^[[0m ^[[90m04-28 22:54:32^[[0m", "\\u001b[32m{}\\u001b[0m \\u001b[90m04-28 22:54:32\\u001b[0m"],
)  # fmt: skip
def test_colours_come_off_as_bytes_and_as_others_spell_them(coloured: str) -> None:
    lines = []
    for level, place, message in MESSAGES.values():
        lines.append(f"vllm-1  | (APIServer pid=1) {coloured.format(level)} [{place}] {message}")
    assert found(lines) == WHOLE


def otlp(line: str) -> dict[str, Any]:
    record = {"timeUnixNano": "1777416872123456789", "severityText": "INFO", "body": {"stringValue": line},
              "attributes": [{"key": "log.iostream", "value": {"stringValue": "stdout"}}]}  # fmt: skip
    return {"resourceLogs": [{"resource": {}, "scopeLogs": [{"scope": {}, "logRecords": [record]}]}]}


ENVELOPES: dict[str, Callable[[str], Any]] = {
    "Cloud Logging": lambda line: {"textPayload": line, "timestamp": "2026-04-28T22:54:32.12Z", "severity": "ERROR"},
    "journald": lambda line: {"__REALTIME_TIMESTAMP": "1777416872123456", "MESSAGE": line, "PRIORITY": "6"},
    "journald, with colours": lambda line: {"MESSAGE": list(f"\x1b[0m{line}".encode()), "PRIORITY": "6"},
    "logcli": lambda line: {"timestamp": "2026-04-28T22:54:32Z", "line": line, "labels": {"pod": "vllm-0"}},
    "Loki push": lambda line: {"streams": [{"stream": {"pod": "vllm-0"}, "values": [["1777416872123456789", line]]}]},
    "Loki answer": lambda line: {"status": "success", "data": {"resultType": "streams", "result": [
        {"stream": {"pod": "vllm-0"}, "values": [["1777416872123456789", line]]}]}},
    "OpenTelemetry": lambda line: {"Body": line, "SeverityText": "INFO", "Timestamp": "2026-04-28T22:54:32Z"},
    "OpenTelemetry, small": lambda line: {"body": line, "severity": "INFO", "attributes": {}, "resources": {}},
    "OTLP": otlp,
    "Vector": lambda line: {"message": line, "source_type": "kubernetes_logs", "stream": "stdout"},
    "Vector, a list": lambda line: [{"message": line, "source_type": "kubernetes_logs"}],
    "CloudWatch events": lambda line: {"events": [{"logStreamName": "s", "timestamp": 1, "message": line}]},
    "CloudWatch subscription": lambda line: {"messageType": "DATA_MESSAGE", "logEvents": [{"id": "1", "message": line}],
                                             "logGroup": "g"},
    "CloudWatch Insights": lambda line: {"results": [[{"field": "@timestamp", "value": "x"},
                                                      {"field": "@message", "value": line}]]},
    "CloudWatch Insights, flat": lambda line: {"@timestamp": "2026", "@message": line, "@logStream": "s"},
    "Datadog": lambda line: {"id": "A", "type": "log", "attributes": {"message": line, "status": "error", "tags": []}},
    "Datadog agent": lambda line: {"message": line, "status": "info", "ddsource": "vllm", "hostname": "gpu-1"},
    "Fluent Bit": lambda line: {"log": line, "stream": "stdout", "kubernetes": {"pod_name": "p"}, "time": "x"},
    "Filebeat": lambda line: {"@timestamp": "2026", "message": line, "log": {"offset": 1}, "event": {"dataset": "x"}},
    "Elasticsearch": lambda line: {"_index": "logs", "_source": {"message": line, "stream": "stdout"}},
    "Elasticsearch hits": lambda line: {"took": 1, "hits": {"total": 1, "hits": [{"_source": {"message": line}}]}},
    "Splunk HEC": lambda line: {"time": 1777416872, "host": "gpu-1", "sourcetype": "vllm", "event": line},
    "Splunk export": lambda line: {"preview": False, "result": {"_raw": line, "_time": "x"}},
    "Azure": lambda line: {"TimeGenerated": "2026", "LogMessage": line, "PodName": "vllm-0"},
    "OTLP, bytes": lambda line: {"body": {"bytesValue": base64.b64encode(line.encode()).decode()}, "severityText": "x"},
    "VictoriaLogs": lambda line: {"_time": "2026-04-28T22:54:32Z", "_stream": "{pod='vllm-0'}", "_msg": line},
    "Elastic, kept": lambda line: {"@timestamp": "2026", "event": {"original": line, "dataset": "x"}},
    "GELF": lambda line: {"version": "1.1", "host": "gpu-1", "short_message": line, "level": 6},
    "rsyslog": lambda line: {"@timestamp": "2026", "host": "gpu-1", "severity": "info", "msg": " " + line},
    "Docker json-file": lambda line: {"log": line + "\n", "stream": "stdout", "time": "2026-04-28T22:54:32.1Z"},
}  # fmt: skip


@pytest.mark.parametrize("process", ["", "(APIServer pid=1) ", "2026-04-28T22:54:32.1Z stdout F (APIServer pid=1) "])
@pytest.mark.parametrize("envelope", ENVELOPES)
def test_a_line_is_found_inside_every_envelope_whatever_it_begins_with(envelope: str, process: str) -> None:
    wrap = ENVELOPES[envelope]
    assert found([json.dumps(wrap(text(what, process))) for what in MESSAGES]) == WHOLE


@pytest.mark.parametrize("envelope", ENVELOPES)
def test_a_json_record_is_found_inside_every_envelope(envelope: str) -> None:
    wrap = ENVELOPES[envelope]
    lines = []
    for level, _, message in MESSAGES.values():
        inner = {"asctime": "2026-04-28 22:54:32,123", "levelname": level, "name": "vllm", "message": message}
        lines.append(json.dumps(wrap(json.dumps(inner))))
    assert found(lines) == WHOLE


@pytest.mark.parametrize("outer", ["Vector", "journald", "Docker json-file", "Splunk HEC", "OTLP"])
@pytest.mark.parametrize("inner", ENVELOPES)
def test_envelopes_inside_envelopes_are_opened(outer: str, inner: str) -> None:
    lines = [json.dumps(ENVELOPES[outer](json.dumps(ENVELOPES[inner](text(what))))) for what in MESSAGES]
    assert found(lines) == WHOLE


def test_a_parsed_record_inside_an_envelope_is_read() -> None:
    inner = {"levelname": "ERROR", "name": "vllm", "message": "AsyncLLM output_handler failed."}
    wrapped: list[dict[str, Any]] = [
        {"jsonPayload": inner, "severity": "ERROR", "timestamp": "2026-04-28T22:54:32.12Z"},
        {"log": inner, "stream": "stdout"},
        {"message": inner, "source_type": "file"},
        {"structured": inner, "kubernetes": {}},
        {
            "body": {
                "kvlistValue": {"values": [{"key": key, "value": {"stringValue": one}} for key, one in inner.items()]}
            }
        },
    ]
    for record in wrapped:
        assert found([json.dumps(record)])[2] == {"output_handler_failed": 1}, record
    response = {"id": "chatcmpl-1", "model": "m", "usage": {"completion_tokens": 5}}
    decoded = LineDecoder(SCHEMAS).decode(json.dumps({"jsonPayload": response}).encode(), NOW)
    assert decoded.result == "response"


QUOTED = "ERROR 04-28 22:54:33 [async_llm.py:707] AsyncLLM output_handler failed."


@pytest.mark.parametrize(
    "line",
    [
        f"DEBUG 04-28 22:50:00 [logger.py:1] Received request a: prompt: 'say {QUOTED}', params: SamplingParams(n=1)",
        f"DEBUG 04-28 22:50:00 [logger.py:1] Received request a: prompt: 'x.{QUOTED}', params: SamplingParams(n=1)",
        f"DEBUG 04-28 22:50:00 [logger.py:1] Generated response a: output: '.{QUOTED}', finish_reason: stop",
        f'vllm-1 | DEBUG 04-28 22:50:00 [logger.py:1] Request a JSON body: {{"prompt": "{QUOTED}"}}',
        f"INFO 04-28 22:50:00 [logger.py:1] Somebody said {QUOTED}",
        json.dumps({"name": "vllm", "message": f"Received request a: prompt: '{QUOTED}', params: SamplingParams(n=1)"}),
        json.dumps({"name": "vllm", "message": 'Request a JSON body: {"id": 1, "usage": {"completion_tokens": 5}}'}),
        f'POST {{"messages": [{{"role": "user", "content": "{QUOTED}"}}]}} 200',
        f"request body: {{'content': 'explain: {QUOTED}'}}",
        f"prompt '{QUOTED}'",
        json.dumps({"model": "m", "messages": [{"role": "user", "content": QUOTED}]}),
        "x" * 250 + " " + QUOTED,
        f"MY{QUOTED}",
    ],
)
def test_a_record_that_a_client_quotes_is_none(line: str) -> None:
    decoded = LineDecoder(SCHEMAS).decode(line.encode(), NOW)
    assert not [event for event in decoded.events if isinstance(event, EngineError | EngineStats)]
    assert decoded.result not in ("error", "stats")
    if "completion_tokens" in line:
        assert decoded.result == "ignored"


@pytest.mark.parametrize(
    ("line", "result"),
    [
        ({"textPayload": "Traceback (most recent call last):", "severity": "ERROR"}, "text"),
        ({"MESSAGE": "Started vllm.service.", "PRIORITY": "6"}, "text"),
        ({"MESSAGE": None}, "no_schema"),
        ({"MESSAGE": [999, 1]}, "no_schema"),
        ({"MESSAGE": []}, "no_schema"),
        ({"line": "hello", "labels": {}}, "no_schema"),
        ({"event": "user logged in", "level": "info"}, "no_schema"),
        ({"body": {"stringValue": 5}}, "no_schema"),
        ({"body": {"bytesValue": "?"}}, "no_schema"),
        ({"data": [1, 2, [], None, [[["x"]]]]}, "no_schema"),
        ({"resourceLogs": []}, "no_schema"),
        ({"message": "hello", "source_type": "file", "host": "a"}, "text"),
        ({"message": "hello", "levelname": "INFO"}, "ignored"),
        ({"message": 'Overriding the config with {"rope": 1}', "levelname": "INFO"}, "ignored"),
        ({"message": 'Odd config {"rope": 1}', "levelname": "ERROR"}, "error"),
    ],
)
def test_what_an_envelope_holds_that_is_no_record_is_not_said_to_be_one(line: dict[str, Any], result: str) -> None:
    assert LineDecoder(SCHEMAS).decode(json.dumps(line).encode(), NOW).result == result


def test_many_lines_in_one_record_are_all_read_up_to_a_bound() -> None:
    values = [["1", text("stats")] for _ in range(50)]
    decoded = LineDecoder(SCHEMAS).decode(json.dumps({"streams": [{"stream": {}, "values": values}]}).encode(), NOW)
    assert (decoded.result, len(decoded.events)) == ("stats", 50)
    many = b"[" + b",".join([b'{"message": "Using max model len 5"}'] * 25_000) + b"]"
    decoded = LineDecoder(SCHEMAS).decode(many, NOW)
    assert decoded.result == "setting"
    assert len(decoded.events) == MAX_RECORDS
    assert LineDecoder(SCHEMAS).decode(b"{}" * 500_000, NOW).result == "too_long"
    nested = b'{"body":' * 200 + b'"INFO"' + b"}" * 200
    assert LineDecoder(SCHEMAS).decode(nested, NOW).result == "no_schema"


@pytest.mark.parametrize(
    ("line", "result"),
    [
        (text("stats") + ", " + "w" * 1_000_000, "stats"),
        ("INFO 04-28 22:54:32 [a.py:1] non-default args: {'" + "_auth" * 13_000 + "!': 1}", "setting"),
        ("INFO 04-28 22:54:32 [a.py:1] " + "INFO 04-28 22:54:32 " * 50_000, "ignored"),
        ("\x1b[0;" * 200_000 + "]", "text"),
        ("INFO 04-28 22:54:32 " + "a" * 1_000_000, "text"),
        ('x {"' * 250_000, "text"),
        ("#033[" * 200_000, "text"),
    ],
    ids=["a word", "a name", "levels", "colours", "a place", "objects", "spelled colours"],
)
def test_no_line_costs_more_than_its_length(line: str, result: str) -> None:
    """A pattern that looks at every pair of places in a line would not come to an end here."""
    assert LineDecoder(SCHEMAS).decode(line.encode(), NOW).result == result


def test_shapes_of_records_are_remembered_within_bounds() -> None:
    decoder = LineDecoder(SCHEMAS)
    for number in range(2000):
        decoder.decode(json.dumps({f"key {number}": 1}).encode(), NOW)
    decoder.decode(json.dumps({str(number): 1 for number in range(5000)}).encode(), NOW)
    decoder.decode(json.dumps({"x" * 100_000: 1}).encode(), NOW)
    kept = decoder._shapes
    assert len(kept) <= 512
    assert sum(len(key) for keys in kept for key in keys) < 20_000


noise = st.text(st.characters(exclude_characters="\n{}\"'`\\", exclude_categories=("Cs",)), max_size=60)


@settings(deadline=None)
@given(noise, st.sampled_from(PROCESS), st.sampled_from(sorted(MESSAGES)))
def test_any_text_without_quotes_may_stand_before_a_header(before: str, process: str, what: str) -> None:
    line = f"{before} {text(what, process)}"
    assert LineDecoder(SCHEMAS).decode(line.encode(), NOW).events


@settings(deadline=None)
@given(st.text(max_size=400), st.integers(0, 200))
def test_a_header_is_where_it_says(line: str, window: int) -> None:
    header = headers.find(line + " INFO 04-28 22:54:32 [a.py:1] x", window)
    if header is not None:
        assert header.start <= window
        assert line[header.start :].startswith(header.level) or header.start >= len(line)


parts = st.recursive(
    st.one_of(st.none(), st.integers(-5, 300), st.just(text("stats")), st.just("x"), st.binary(max_size=8).map(list)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.dictionaries(
            st.sampled_from(["message", "msg", "log", "MESSAGE", "body", "Body", "line", "values", "streams", "data",
                             "result", "results", "hits", "_source", "resourceLogs", "scopeLogs", "logRecords", "event",
                             "events", "attributes", "textPayload", "jsonPayload", "field", "value", "stringValue",
                             "kvlistValue", "stream", "time", "logtag", "level", "id", "usage"]),
            inner, max_size=4),
    ),
    max_leaves=20,
)  # fmt: skip


@settings(deadline=None)
@given(st.dictionaries(st.sampled_from(["message", "body", "data", "streams", "log", "hits", "events"]), parts))
def test_envelopes_of_any_shape_give_one_result_and_never_a_fault(record: dict[str, Any]) -> None:
    decoder = LineDecoder(SCHEMAS)
    decoded = decoder.decode(json.dumps(record).encode(), NOW)
    assert decoded.result != "invalid"
    assert [decoded.result is None, *decoder.drain(NOW)].count(True) <= 1
