"""The client against a small server that misbehaves in every way we know of."""

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from vllm_vitals.prometheus.promapi import PromApi, PromError, access

Answer = tuple[int, bytes, dict[str, str]]
GOOD = {"status": "success", "data": {"resultType": "matrix", "result": [{"metric": {"a": "b"}, "values": [[1, "2"]]}]}}


def said(document: Any, status: int = 200, **headers: str) -> Answer:
    return status, json.dumps(document).encode(), headers


@contextmanager
def api(answer: Callable[[int, dict[str, str], str], Answer]) -> Iterator[tuple[str, list[dict[str, str]]]]:
    """A server whose ``answer`` gets each request's number, headers and body; yields its URL and what came."""
    came: list[dict[str, str]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0))).decode()
            came.append({**{k.lower(): v for k, v in self.headers.items()}, "path": self.path, "body": body})
            status, content, headers = answer(len(came) - 1, came[-1], body)
            self.send_response(status)
            self.send_header("Content-Length", str(len(content)))
            for name, value in headers.items():
                self.send_header(name.replace("_", "-"), value)
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}", came
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def client(url: str, **rest: Any) -> tuple[PromApi, list[float]]:
    slept: list[float] = []
    return PromApi(access(url, **rest), sleep=slept.append), slept


def test_an_answer_comes_as_series() -> None:
    with api(lambda *_: said(GOOD)) as (url, came):
        [series] = client(url)[0].range("up", 1, 2, 1)
    assert (series.labels, series.points) == ({"a": "b"}, [[1, "2"]])
    assert came[0]["path"] == "/api/v1/query_range"
    assert "query=up&start=1.000&end=2.000&step=1" in came[0]["body"]


@pytest.mark.parametrize("ending", ["", "/", "/prometheus", "/prometheus/api/v1"])
def test_paths_before_the_api_are_kept(ending: str) -> None:
    with api(lambda *_: said(GOOD)) as (url, came):
        client(url + ending)[0].range("up", 1, 2, 1)
    prefix = "/prometheus" if "prometheus" in ending else ""
    assert came[0]["path"] == f"{prefix}/api/v1/query_range"


@pytest.mark.parametrize("status", [429, 500, 502, 503, 504])
def test_what_may_pass_is_asked_again(status: int) -> None:
    with api(lambda n, *_: said({"status": "error", "error": "busy"}, status) if n < 2 else said(GOOD)) as (url, came):
        asker, slept = client(url)
        assert asker.range("up", 1, 2, 1)
    assert len(came) == 3
    assert slept == [0.5, 1.0]


def test_retry_after_is_heeded_within_bounds() -> None:
    with api(lambda n, *_: said({}, 503, Retry_After="7200") if n == 0 else said(GOOD)) as (url, _):
        asker, slept = client(url)
        asker.range("up", 1, 2, 1)
    assert slept == [10.0]


def test_it_gives_up_in_one_line() -> None:
    with (
        api(lambda *_: said({"status": "error", "error": "no\nluck"}, 503)) as (url, came),
        pytest.raises(PromError) as caught,
    ):
        client(url)[0].range("up", 1, 2, 1)
    assert len(came) == 4
    assert str(caught.value) == f"{url}: HTTP 503: no luck"
    assert not caught.value.fatal


def test_wrong_credentials_are_fatal_and_say_the_mend() -> None:
    with (
        api(lambda *_: (401, b"no", {})) as (url, came),
        pytest.raises(PromError, match="--bearer-token-file") as caught,
    ):
        client(url)[0].range("up", 1, 2, 1)
    assert caught.value.fatal
    assert len(came) == 1


def test_a_question_too_large_says_so() -> None:
    error = {
        "status": "error",
        "errorType": "bad_data",
        "error": "exceeded maximum resolution of 11,000 points per timeseries",
    }
    with api(lambda *_: said(error, 400)) as (url, came), pytest.raises(PromError) as caught:
        client(url)[0].range("up", 1, 2, 1)
    assert caught.value.too_much
    assert len(came) == 1


@pytest.mark.parametrize(
    "body",
    [b"<html>sign in</html>", b"", b"[]", b'{"status": "success", "data": {"result": ', b'{"status": "success"}'],
)
def test_what_is_no_prometheus_answer_is_refused(body: bytes) -> None:
    with api(lambda *_: (200, body, {})) as (url, _), pytest.raises(PromError, match="Prometheus API"):
        client(url)[0].range("up", 1, 2, 1)


def test_nothing_listens() -> None:
    with api(lambda *_: said(GOOD)) as (url, _):
        pass
    with pytest.raises(PromError, match="connection refused"):
        client(url)[0].range("up", 1, 2, 1)


def test_warnings_of_partial_answers_are_kept() -> None:
    with api(lambda *_: said({**GOOD, "warnings": ["store 3 timed out"]})) as (url, _):
        asker, _ = client(url)
        asker.range("up", 1, 2, 1)
    assert asker.warnings == {"store 3 timed out"}


def test_secrets_come_from_files_and_stay_out_of_texts(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("s3cret\n")
    (tmp_path / "password").write_text("hunter2\n")
    with api(lambda *_: said({"status": "error", "error": "x"}, 400)) as (url, came):
        for how in (
            {"bearer_token_file": str(tmp_path / "token")},
            {"user": "me", "password_file": str(tmp_path / "password")},
        ):
            with pytest.raises(PromError) as caught:
                client(url, **how)[0].range("up", 1, 2, 1)
            assert "s3cret" not in str(caught.value)
            assert "hunter2" not in str(caught.value)
        with pytest.raises(PromError) as caught:
            client(url.replace("http://", "http://me:hunter2@"))[0].range("up", 1, 2, 1)
    assert [c["authorization"].split()[0] for c in came] == ["Bearer", "Basic", "Basic"]
    assert came[1]["authorization"] == came[2]["authorization"]
    assert "hunter2" not in str(caught.value)
    assert "hunter2" not in repr(access(url, "me", str(tmp_path / "password")))


def test_headers_are_sent() -> None:
    with api(lambda *_: said(GOOD)) as (url, came):
        client(url, headers={"X-Scope-OrgID": "team"})[0].range("up", 1, 2, 1)
    assert came[0]["x-scope-orgid"] == "team"


def test_a_redirect_is_not_followed_with_our_credentials() -> None:
    with api(lambda *_: (302, b"", {"Location": "http://127.0.0.1:1/"})) as (url, came), pytest.raises(PromError):
        client(url)[0].range("up", 1, 2, 1)
    assert len(came) == 1


@pytest.mark.parametrize(("url", "match"), [("ftp://x", "expected an address"), ("http://", "expected an address")])
def test_addresses_that_are_none(url: str, match: str) -> None:
    with pytest.raises(PromError, match=match):
        access(url)


def test_a_missing_secret_file_is_named() -> None:
    with pytest.raises(PromError, match=r"/nowhere/token: No such file"):
        access("http://x", bearer_token_file="/nowhere/token")
