import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vllm_vitals.logs import checkpoint
from vllm_vitals.logs.aggregate import LogAggregator, SourceInfo
from vllm_vitals.logs.decode import LineDecoder
from vllm_vitals.logs.events import RESULTS, Decoded, EngineStats, RequestFinished
from vllm_vitals.logs.framer import TOO_LONG
from vllm_vitals.logs.metrics import log_families
from vllm_vitals.logs.schema import shipped

NOW = 1_790_000_000.0
SCHEMAS = shipped()
STATS = (
    "Engine 000: Avg prompt throughput: 16.0 tokens/s, Avg generation throughput: 240.0 tokens/s, Running: 8 reqs, "
    "Waiting: 3 reqs, GPU KV cache usage: 91.5%, Prefix cache hit rate: 25.0%"
)
JSON = json.dumps({"asctime": "2026-09-21 10:00:00,500", "levelname": "INFO", "name": "x", "message": STATS})
TEXT = f"INFO 09-21 10:00:00 [loggers.py:118] {STATS}"
USAGE = '{"id":"chatcmpl-1","usage":{"completion_tokens":5},"model":"m"}'


def decode(line: str | bytes) -> Decoded:
    return LineDecoder(SCHEMAS).decode(line.encode() if isinstance(line, str) else line, NOW)


def cri(text: str, tag: str, stream: str = "stdout") -> bytes:
    return f"2026-09-21T10:00:00.123456789Z {stream} {tag} {text}".encode()


def docker(text: str, stream: str = "stdout") -> bytes:
    return json.dumps({"log": text, "stream": stream, "time": "2026-09-21T10:00:00.1Z"}).encode()


@pytest.mark.parametrize(
    "line",
    [
        JSON,
        JSON + "\r",
        f"(APIServer pid=1) {JSON}",
        f"(EngineCore_DP0 pid=77) {JSON}",
        f"(VllmWorker rank=3 pid=77) {JSON}",
        f"\x1b[1;36m(ApiServer_0 pid=1)\x1b[0;0m {JSON}",
        TEXT,
        f"(APIServer pid=1) {TEXT}",
        f"\x1b[0;36m(APIServer pid=1)\x1b[0;0m \x1b[32mINFO\x1b[0m 09-21 10:00:00 [loggers.py:118] {STATS}",
        f"INFO 09-21 10:00:00 loggers.py:118] {STATS}",
        docker(JSON + "\n"),
        docker(f"(APIServer pid=1) {JSON}\n"),
        docker(TEXT + "\n"),
        cri(JSON, "F"),
        cri(f"(APIServer pid=1) {JSON}", "F"),
        json.dumps({"message": JSON, "source_type": "file", "host": "a", "timestamp": "2026-09-21T10:00:01Z"}),
        json.dumps({"log": JSON, "kubernetes": {"pod_name": "p"}, "stream": "stdout", "time": "x", "logtag": "F"}),
        json.dumps({"message": STATS}),
        json.dumps({"msg": STATS, "severity": "INFO", "ts": NOW}),
    ],
)
def test_a_stats_record_is_found_through_every_wrapper(line: str | bytes) -> None:
    decoded = decode(line)
    assert decoded.result == "stats"
    (event,) = decoded.events
    assert isinstance(event, EngineStats)
    assert (event.running, event.waiting, event.kv_usage, event.prefix_hit_ratio) == (8, 3, 0.915, 0.25)


@pytest.mark.parametrize(
    ("line", "result"),
    [
        (b"", "blank"),
        (b"  \t\r", "blank"),
        (b"Triton is installed, but doesn't include CPU backend.", "text"),
        (b"[Gloo] Rank 0 is connected to 0 peer ranks.", "text"),
        (b"(Worker pid=2) ", "text"),
        (b"(Worker pid=2) RuntimeError: no driver", "text"),
        (b'INFO:     10.0.0.5:4 - "GET /health HTTP/1.1" 200 OK', "text"),
        (b"INFO 09-21 10:00:00 [api_server.py:1] Nothing of interest", "ignored"),
        (b'{"message": "Engine started"}', "ignored"),
        (b'{"answer": 42}', "no_schema"),
        (b'{"message": 42}', "no_schema"),
        (b'{"message": "cut in the midd', "malformed"),
        (b'{"message": NaN', "malformed"),
        (b'{"id":"a","usage":{"completion_tokens":-3}}', "invalid"),
        (b'{"id":"a","usage":{"completion_tokens":"many"}}', "invalid"),
        (b'{"id":"a","usage":{"completion_tokens":1e99}}', "invalid"),
        (b'{"id":"a","usage":{"completion_tokens":true}}', "invalid"),
        (TOO_LONG, "too_long"),
    ],
)
def test_other_lines_have_their_results(line: bytes, result: str) -> None:
    assert LineDecoder(SCHEMAS).decode(line, NOW).result == result


@pytest.mark.parametrize("glued", [JSON + JSON, f"{JSON} {JSON}", f"{JSON}(APIServer pid=1) {JSON}", TEXT + TEXT])
def test_two_records_on_one_line_are_both_read(glued: str) -> None:
    decoded = decode(glued)
    assert decoded.result == "stats"
    assert len(decoded.events) == 2


def test_a_record_glued_to_text_or_to_a_torn_record_is_still_read() -> None:
    assert decode(f"{JSON}Traceback (most recent call last):").result == "stats"
    assert len(decode(JSON + JSON[:40]).events) == 1


def test_broken_utf8_and_line_separators_inside_strings_lose_nothing() -> None:
    line = USAGE.replace('"m"', '"m\u2028n"').encode().replace(b"chatcmpl-1", b"chatcmpl-\xff\xfe")
    decoded = decode(line)
    assert decoded.result == "response"
    (event,) = decoded.events
    assert isinstance(event, RequestFinished)
    assert event.model == "m\u2028n"
    assert event.completion_tokens == 5


@pytest.mark.parametrize("wrap", [cri, docker])
def test_pieces_of_a_split_line_are_one_line_and_each_counts_once(wrap: object) -> None:
    decoder = LineDecoder(SCHEMAS)
    text = JSON if wrap is cri else JSON + "\n"
    cuts = [text[:20], text[20:90], text[90:]]
    tags = [("P",), ("P",), ("F",)] if wrap is cri else [(), (), ()]
    lines = [wrap(piece, *tag) for piece, tag in zip(cuts, tags, strict=True)]  # type: ignore[operator]
    first, second, third = (decoder.decode(line, NOW) for line in lines)
    assert first.result is None
    assert second.result is None
    assert (third.result, third.held, len(third.events)) == ("stats", 2, 1)
    assert not decoder.holding


def test_pieces_of_two_streams_do_not_mix() -> None:
    decoder = LineDecoder(SCHEMAS)
    decoder.decode(cri(JSON[:50], "P"), NOW)
    decoder.decode(cri("Trace", "P", "stderr"), NOW)
    assert decoder.decode(cri("back", "F", "stderr"), NOW).result == "text"
    assert decoder.decode(cri(JSON[50:], "F"), NOW).result == "stats"


def test_a_split_line_longer_than_the_limit_is_dropped_whole_and_counted() -> None:
    decoder = LineDecoder(SCHEMAS, max_line_bytes=1000)
    for _ in range(50):
        assert decoder.decode(cri("x" * 100, "P"), NOW).result is None
    last = decoder.decode(cri("end", "F"), NOW)
    assert (last.result, last.held) == ("too_long", 50)
    assert decoder.decode(cri(JSON, "F"), NOW).result == "stats"


def test_a_line_whose_last_piece_never_comes_is_decoded_at_the_end() -> None:
    decoder = LineDecoder(SCHEMAS)
    decoder.decode(cri(JSON, "P"), NOW)
    (decoded,) = decoder.drain(NOW)
    assert (decoded.result, decoded.held) == ("stats", 1)


def test_time_comes_from_the_record_the_year_from_the_reading() -> None:
    (event,) = decode(JSON).events
    assert event.at == pytest.approx(1789984800.5)
    (event,) = decode(TEXT).events
    assert event.at == pytest.approx(1789984800.0)
    december = LineDecoder(SCHEMAS).decode(TEXT.replace("09-21", "12-31").encode(), 1_767_227_000.0)
    assert december.events[0].at == pytest.approx(1767175200.0)  # 2025, read on 1 January 2026


pieces = st.sampled_from([b"{", b"}", b'"message":', b'"log":', JSON.encode(), TEXT.encode(), USAGE.encode(),
                          b"\x1b[0m", b"(a pid=1) ", b"2026-09-21T10:00:00Z stdout P ", b"[", b"\xff",
                          b"\\u2028", b"null", b"1e999"])  # fmt: skip


@settings(deadline=None)
@given(st.lists(st.one_of(pieces, st.binary(max_size=20)), max_size=8).map(b"".join))
def test_any_bytes_give_exactly_one_result(line: bytes) -> None:
    decoder = LineDecoder(SCHEMAS)
    decoded = decoder.decode(line.replace(b"\n", b""), NOW)
    drained = decoder.drain(NOW)
    results = [one.result for one in (decoded, *drained) if one.result is not None]
    assert len(results) == 1
    assert results[0] in RESULTS


def test_deep_nesting_is_malformed_not_fatal() -> None:
    assert decode(b'{"a":' * 5000).result == "malformed"
    assert decode(b'{"log":"' + b"{" * 100_000 + b'\\n"}').result == "malformed"


DIGITS = "9" * 5000


@pytest.mark.parametrize(
    "line",
    [
        f"INFO 09-21 10:00:00 [loggers.py:1] Engine {DIGITS}: {STATS[12:]}",
        f"INFO 09-21 10:00:00 [loggers.py:1] {STATS.replace('8 reqs', DIGITS + ' reqs').replace('91.5', '9.1.5')}",
        f"INFO 09-21 10:00:00 [model.py:1] Using max model len {DIGITS}",
        f"INFO 09-21 10:00:00 [a.py:1] non-default args: {{'a': {DIGITS}, 'b': 1, 'c': '\\ud800', 'd': 1e999}}",
        f"INFO 09-21 10:00:00 [a.py:1] non-default args: {{'b': {'9' * 30}, 'c': '\\ud800', '\\ud800': 1e999}}",
        f"INFO 09-21 10:00:00 [a.py:1] non-default args: {'{' * 5000}",
        '{"asctime": "0001-01-01 00:00:00+23:59", "message": "Using max model len 5"}',
        '{"id": "a", "model": "\\ud800", "ts": "9999-12-31T23:59:59-23:59", "usage": {"completion_tokens": 5}}',
        f'{{"id": "a", "usage": {{"completion_tokens": {DIGITS}}}}}',
        '{"id": {"a": 1}, "model": ["m"], "usage": {"completion_tokens": 5}, "choices": {"0": 1}}',
    ],
)
def test_a_poisonous_line_neither_raises_nor_spoils_what_must_be_written_down(line: str) -> None:
    judge = LogAggregator({"gw": SourceInfo("server")})
    decoder = LineDecoder(SCHEMAS)
    for one in (line, JSON):
        judge.observe("gw", decoder.decode(one.encode(), NOW), NOW)
    assert checkpoint.decode(checkpoint.encode({}, judge.tally)).tally.records["gw"]["stats"] >= 1
    assert sum(judge.tally.records["gw"].values()) == 2
    for _, labels, _ in log_families(judge.snapshot(NOW)):
        "".join(labels.values()).encode()
