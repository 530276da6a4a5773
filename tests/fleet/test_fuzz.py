"""Hostile input of every kind: nothing raises, nothing hangs, and every refusal is one line.

A few hundred examples each in the suite; ``make fuzz`` runs them for minutes (FUZZ_EXAMPLES).
"""

import json
import os
import sys
from typing import get_args

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from tests import fed_time
from tests.edges.servers import bodies, says, serving
from vllm_vitals.config import loader, schema
from vllm_vitals.config.errors import ConfigError
from vllm_vitals.config.strict_yaml import YamlError, load
from vllm_vitals.core.render import TargetRenderer, join
from vllm_vitals.core.snapshot import SCRAPE_ERRORS, Scrape
from vllm_vitals.core.target_evaluator import TargetEvaluator
from vllm_vitals.logs.decode import LineDecoder
from vllm_vitals.logs.events import Result
from vllm_vitals.logs.framer import LineFramer
from vllm_vitals.logs.schema import shipped
from vllm_vitals.scrape.fetch import Fetcher
from vllm_vitals.scrape.target import Target, parse_address

RESULTS = set(get_args(Result))
SCHEMAS = shipped()
EXAMPLES = int(os.environ.get("FUZZ_EXAMPLES", "60"))
fuzz = settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))

REAL = [bodies(name)[5] for name in ("spiral_chunked", "dp2_pressure")]
ODD = st.sampled_from([
    b"NaN", b"-1", b"+Inf", b"1e999", b"-0", b"{", b"}", b'"', b"\\", b"\n", b"\x00", b"\xff", b"\xe2\x80\xa8", b"le=",
    b"engine=", b"vllm:", b"# TYPE ", b"_bucket", b"9" * 400, b"\r\n", b"{a=\"1\"}", b"1_0", "١".encode(),
])  # fmt: skip


@st.composite
def damaged(draw: st.DrawFn) -> bytes:
    """A real body with pieces cut, doubled, moved or replaced."""
    body = draw(st.sampled_from(REAL))
    for _ in range(draw(st.integers(1, 6))):
        start = draw(st.integers(0, len(body)))
        end = min(len(body), start + draw(st.sampled_from([0, 1, 7, 60, 900])))
        what = draw(st.sampled_from(["cut", "double", "replace", "end", "lines"]))
        if what == "cut":
            body = body[:start] + body[end:]
        elif what == "double":
            body = body[:end] + body[start:]
        elif what == "replace":
            body = body[:start] + draw(st.one_of(ODD, st.binary(max_size=12))) + body[end:]
        elif what == "end":
            body = body[:start]
        else:
            lines = body.split(b"\n")
            at, to = (draw(st.integers(0, len(lines) - 1)) for _ in range(2))
            lines[at], lines[to] = lines[to], lines[at]
            body = b"\n".join(lines)
    return body


def readable(detail: str) -> bool:
    return len(detail) < 400 and all(ch.isprintable() for ch in detail)


@fuzz
@given(st.lists(st.one_of(damaged(), st.sampled_from(REAL), st.binary(max_size=200)), min_size=1, max_size=4))
def test_no_body_whatever_breaks_a_judge_or_what_we_serve(given_bodies: list[bytes]) -> None:
    judge, renderer, at = TargetEvaluator("a:8000"), TargetRenderer(), 1_000.0
    for body in [REAL[0], *given_bodies, REAL[0]]:
        at += 5.0
        snapshot = judge.observe(Scrape(at, 0.1, body))
        assert snapshot.up or snapshot.reason in SCRAPE_ERRORS
        assert readable(snapshot.detail)
        list(text_string_to_metric_families(join([renderer.render(snapshot)]).decode()))
    assert snapshot.up


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=12), inner, max_size=4),
    max_leaves=12,
)
log_keys = st.sampled_from([
    "usage", "model", "id", "choices", "finish_reason", "completion_tokens", "prompt_tokens", "timestamp", "message",
    "level", "response", "request", "max_tokens", "duration",
])  # fmt: skip
log_lines = st.one_of(
    st.binary(max_size=300),
    st.text(max_size=200).map(str.encode),
    st.dictionaries(log_keys, json_values, max_size=8).map(lambda d: json.dumps(d).encode()),
)


@fuzz
@given(st.lists(log_lines, max_size=5), st.integers(1, 50))
def test_no_log_line_whatever_breaks_the_reader(lines: list[bytes], step: int) -> None:
    framer, stream, framed = LineFramer(4_096), b"\n".join(lines) + b"\n", []
    for start in range(0, len(stream), step):
        framed += framer.feed(stream[start : start + step])
    decoder = LineDecoder(SCHEMAS, max_line_bytes=4_096)
    results = [decoder.decode(line, 1_000.0).result for line in framed] + [d.result for d in decoder.drain(1_001.0)]
    assert len(framed) == stream.count(b"\n")
    assert set(results) <= RESULTS


config_keys = st.sampled_from([
    *schema.File.model_fields, "url", "name", "labels", "role", "tls", "ca_file", "files", "names", "directory",
    "x",
])  # fmt: skip
config_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20)
    | st.sampled_from(["5s", "1m", "http://a:1", "16MiB", "a:8000", "all"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(config_keys, inner, max_size=4),
    max_leaves=15,
)  # fmt: skip


@fuzz
@given(st.dictionaries(config_keys, config_values, max_size=5))
def test_no_config_whatever_does_anything_but_work_or_explain(document: dict[str, object]) -> None:
    try:
        loader.build("c.yaml", document)
    except ConfigError as error:
        why = str(error)
    else:
        why = "c.yaml: fine"
    assert all(line.startswith("c.yaml: ") for line in why.split("\n"))


@fuzz
@given(st.one_of(st.text(max_size=200).map(str.encode), st.binary(max_size=200)))
def test_no_yaml_whatever_does_anything_but_load_or_explain(content: bytes) -> None:
    why = ""
    try:
        assert isinstance(load("c.yaml", content), dict)
    except YamlError as error:
        why = str(error)
    assert "\n" not in why


@fuzz
@given(st.text(max_size=80))
def test_no_address_whatever_does_anything_but_parse_or_explain(text: str) -> None:
    try:
        address = parse_address(text)
    except ValueError as error:
        assert "\n" not in str(error)  # noqa: PT017 - either way is right
        return
    assert address.url.startswith(("http://", "https://"))
    assert "@" not in address.url.split("/")[2]


http_answers = st.one_of(
    st.binary(max_size=300),
    st.tuples(
        st.sampled_from([b"HTTP/1.1 200 OK", b"HTTP/1.1 200", b"HTTP/1.0 500 X", b"HTTP/1.1 302 F", b"HTTP/9 2", b"I"]),
        st.lists(
            st.sampled_from([
                b"Content-Length: 5", b"Content-Length: -1", b"Content-Length: 5, 6", b"Transfer-Encoding: chunked",
                b"Content-Encoding: gzip", b"Content-Encoding: br", b"Location: http://[::1", b"Location: //x",
                b"Location: \xff", b"Content-Type: text/html", b"X: " + b"y" * 20_000, b": ", b"Connection: upgrade",
            ]),
            max_size=4,
        ),
        st.one_of(st.binary(max_size=100), st.sampled_from([b"5\r\nhello\r\n0\r\n\r\n", b"zz\r\n", REAL[0]])),
    ).map(lambda parts: b"\r\n".join([parts[0], *parts[1], b"", parts[2]])),
)  # fmt: skip


@settings(fuzz, max_examples=max(20, EXAMPLES // 5))
@given(st.lists(http_answers, min_size=1, max_size=5))
def test_no_http_answer_whatever_raises_or_outlasts_its_deadline(answers: list[bytes]) -> None:
    async def story() -> None:
        async with Fetcher(lambda: 0.0, max_body=200_000) as fetcher:
            for answer in answers:
                async with serving(says(answer)) as url:
                    scrape = await fetcher.fetch(Target("a", f"{url}/metrics", timeout=2.0))
                    assert (scrape.body is None) == (scrape.reason in SCRAPE_ERRORS)
                    assert readable(scrape.detail)

    fed_time.run(story())


def test_fuzzing_is_bounded_in_the_suite() -> None:
    assert EXAMPLES <= 60 or "FUZZ_EXAMPLES" in os.environ
    assert sys.getrecursionlimit() <= 10_000
