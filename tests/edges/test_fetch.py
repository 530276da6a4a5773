"""Every way in which a target can be bad gives one reason and one clear line, in time, and harms no one else."""

import asyncio
import base64
import gc
import gzip
import re
import socket
import ssl
import subprocess
import tracemalloc
import zlib
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tests import fed_time
from tests.edges.servers import Reply, bodies, http, says, serving, target
from tests.programs import PATIENCE_S, find
from vllm_vitals.core.snapshot import SCRAPE_ERRORS, Scrape
from vllm_vitals.core.target_evaluator import TargetEvaluator
from vllm_vitals.scrape.fetch import Fetcher
from vllm_vitals.scrape.target import Credentials, Target, Tls

HTML = b"<!doctype html><html><body><h1>It works!</h1></body></html>"


async def scrape(url_or_target: str | Target, max_body: int = 16 * 1024**2, timeout: float = 5.0) -> Scrape:
    async with Fetcher(lambda: 1000.0, max_body) as fetcher:
        wanted = url_or_target if isinstance(url_or_target, Target) else target(url_or_target, timeout)
        return await fetcher.fetch(wanted)


async def scrape_from(reply: Reply, timeout: float = 5.0, max_body: int = 16 * 1024**2) -> Scrape:
    async with serving(reply) as url:
        return await scrape(url, max_body, timeout)


def judged(seen: Scrape) -> tuple[str, str]:
    snapshot = TargetEvaluator("t").observe(seen)
    return snapshot.reason, snapshot.detail


def free_port() -> int:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        return int(unused.getsockname()[1])


def test_a_good_body_comes_whole() -> None:
    seen = fed_time.run(scrape_from(says(http(bodies()[0]))))
    assert seen.body == bodies()[0]
    assert (seen.reason, seen.at) == ("", 1000.0)


@pytest.mark.parametrize("path", ["", "/", "/metrics", "/metrics/"])
def test_an_address_with_or_without_metrics_reads_exactly_the_metrics_path_as_plain_text(path: str) -> None:
    heard: list[bytes] = []

    async def listen(request: bytes, writer: asyncio.StreamWriter) -> None:
        heard.append(request)
        writer.write(http(bodies()[0]))

    async def run() -> Scrape:
        async with serving(listen) as url:
            return await scrape(url + path)

    assert fed_time.run(run()).reason == ""
    assert heard[0].startswith(b"GET /metrics HTTP/1.1\r\n")
    assert b"Accept: text/plain;version=0.0.4" in heard[0]


def test_nothing_at_the_port_is_refused() -> None:
    seen = fed_time.run(scrape(f"http://127.0.0.1:{free_port()}"))
    assert seen.reason == "refused"
    assert "refuses connections" in seen.detail


def test_a_name_without_address_is_dns() -> None:
    seen = fed_time.run(scrape("http://no-such-host.invalid:8000"))
    assert seen.reason == "dns"
    assert "no-such-host.invalid" in seen.detail


SERVERS: list[tuple[str, bytes, str, str]] = [
    ("unauthorized", http(b"", "401 Unauthorized"), "unauthorized", "bearer_token_file"),
    ("forbidden", http(b"", "403 Forbidden"), "unauthorized", "may not read"),
    ("no such path", http(b"", "404 Not Found"), "not_found", "is this a vLLM API server"),
    ("server error", http(b"oops", "500 Internal Server Error"), "http_error", "HTTP 500"),
    ("scaling", http(b"{}", "503 Service Unavailable"), "unavailable", "may be starting or scaling"),
    (
        "redirect",
        http(b"", "302 Found", Location="http://other.example/login?token=S3CRET"),
        "redirect",
        "other.example",
    ),
    ("redirect without address", http(b"", "302 Found"), "redirect", "HTTP 302"),
    ("html", http(HTML, Content_Type="text/html"), "not_metrics", "<!doctype html>"),
    ("empty", http(b""), "empty", "empty"),
    ("another program", http(b"go_threads 7\n"), "no_vllm_metrics", "no vLLM engine metrics"),
    ("invalid UTF-8", http(b'vllm:num_requests_running{model_name="\xff"} 1\n'), "encoding", "not UTF-8"),
    ("short body", http(b"vllm:num_requests_running 1\n", Content_Length="5000"), "truncated", "28 of 5000 bytes came"),
    ("short chunk", b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nab", "truncated", "Not enough data"),
    ("cut text", http(bodies()[0][:20_001].rsplit(b" ", 1)[0]), "truncated", "stops inside"),
    ("not HTTP", b"SSH-2.0-OpenSSH_9.2\r\n\r\n", "protocol", "not an HTTP answer: it begins with b'SSH"),
    ("silence", b"", "protocol", "closed the connection without an answer"),
]


@pytest.mark.parametrize(
    ("answer", "reason", "says_so"), [case[1:] for case in SERVERS], ids=[case[0] for case in SERVERS]
)
def test_each_bad_answer_has_its_reason_and_one_line(answer: bytes, reason: str, says_so: str) -> None:
    seen_reason, detail = judged(fed_time.run(scrape_from(says(answer))))
    assert seen_reason == reason
    assert reason in SCRAPE_ERRORS
    assert says_so in detail
    assert "\n" not in detail
    assert "Error:" not in detail
    assert "S3CRET" not in detail


def test_a_redirect_within_the_same_server_is_followed_once() -> None:
    async def moved(request: bytes, writer: asyncio.StreamWriter) -> None:
        first = request.startswith(b"GET /metrics HTTP")
        writer.write(http(b"", "307 Temporary Redirect", Location="/metrics/") if first else http(bodies()[0]))

    assert fed_time.run(scrape_from(moved)).body == bodies()[0]


def test_a_redirect_in_circles_and_one_to_another_port_are_not_followed() -> None:
    visits: list[bytes] = []

    async def run() -> tuple[Scrape, Scrape]:
        async def victim(request: bytes, writer: asyncio.StreamWriter) -> None:
            visits.append(request)
            writer.write(http(b"secret"))

        async with serving(victim) as internal:
            circle = await scrape_from(says(http(b"", "302 Found", Location="/metrics")))
            outward = await scrape_from(says(http(b"", "302 Found", Location=f"{internal}/metrics")))
            return circle, outward

    circle, outward = fed_time.run(run())
    assert (circle.reason, outward.reason) == ("redirect", "redirect")
    assert visits == []


async def drip(_: bytes, writer: asyncio.StreamWriter) -> None:
    """A byte now and then: every single read is quick, the whole never ends."""
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n\r\n")
    while True:
        writer.write(b"#")
        await writer.drain()
        await asyncio.sleep(0.01)


async def hang(_: bytes, writer: asyncio.StreamWriter) -> None:
    await asyncio.Event().wait()


@pytest.mark.parametrize("reply", [drip, hang], ids=["slow drip", "silence"])
def test_the_deadline_holds_for_the_whole_scrape(reply: Reply) -> None:
    seen = fed_time.run(scrape_from(reply, timeout=0.2))
    assert seen.reason == "timeout"
    assert "0.2 s" in seen.detail
    assert seen.duration_s == pytest.approx(0.2)


async def endless(_: bytes, writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n\r\n")
    for _line in range(1024):  # 1 GiB, if anyone reads it
        writer.write(b"# filler\n" * 116_508)
        await writer.drain()


def test_a_gigabyte_is_cut_off_at_the_cap_without_being_held() -> None:
    tracemalloc.start()
    seen = fed_time.run(scrape_from(endless, max_body=1024**2, timeout=30))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert seen.reason == "too_large"
    assert "limits.body" in seen.detail
    assert "lines, none of them huge" in seen.detail
    assert peak < 64 * 1024**2


def test_the_line_that_makes_a_body_too_large_is_named() -> None:
    row = b'vllm:model_config_info{cfg="' + b"x" * 2_000_000 + b'"} 1\n'

    async def stream(_: bytes, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n\r\nm 1\n" + row)
        await writer.drain()

    seen = fed_time.run(scrape_from(stream, max_body=1024**2, timeout=30))
    assert seen.reason == "too_large"
    assert re.search(r"one line has 1,\d{3},\d{3} bytes: vllm:model_config_info$", seen.detail)


def test_a_gigabyte_that_is_announced_is_not_even_begun() -> None:
    seen = fed_time.run(scrape_from(says(http(b"", Content_Length=str(1024**3)))))
    assert seen.reason == "too_large"
    assert "1,073,741,824 bytes" in seen.detail


def test_a_compressed_bomb_is_cut_off_at_the_cap() -> None:
    bomb = gzip.compress(b"#" * 50_000_000, mtime=0)
    seen = fed_time.run(scrape_from(says(http(bomb, Content_Encoding="gzip")), max_body=1024**2))
    assert seen.reason == "too_large"


def test_a_million_series_are_refused_in_bounded_time() -> None:
    flood = b"".join(b"x%d 1\n" % number for number in range(1_000_000))
    reason, detail = judged(fed_time.run(scrape_from(says(http(flood)))))
    assert reason == "too_many_series"
    assert "more than the limit" in detail


def test_nan_and_negative_gauges_are_dropped_and_counted_while_the_rest_is_read() -> None:
    text = bodies()[30]
    lines = text.split(b"\n")
    spoilt = b"\n".join(
        line.rsplit(b" ", 1)[0] + (b" NaN" if b"requests_running" in line else b" -0.39")
        if line.startswith((b"vllm:num_requests_running{", b"vllm:kv_cache_usage_perc{"))
        else line
        for line in lines
    )
    assert spoilt != text
    snapshot = TargetEvaluator("t").observe(fed_time.run(scrape_from(says(http(spoilt)))))
    (engine,) = snapshot.engines
    assert snapshot.up
    assert engine.sample is not None
    assert (engine.sample.running, engine.sample.kv_usage) == (None, None)
    assert engine.sample.generation_tokens is not None
    assert set(snapshot.invalid) == {"requests_running", "kv_cache_usage_ratio"}


def test_the_same_series_twice_is_dropped_and_counted_while_the_rest_is_read() -> None:
    text = bodies()[0]
    line = next(part for part in text.split(b"\n") if part.startswith(b"vllm:num_requests_running{"))
    snapshot = TargetEvaluator("t").observe(fed_time.run(scrape_from(says(http(text + line + b"1\n")))))
    (engine,) = snapshot.engines
    assert snapshot.up
    assert engine.sample is not None
    assert (engine.sample.running, engine.sample.waiting) == (None, 0)
    assert snapshot.invalid == {"requests_running": 2}


def test_credentials_are_sent_and_never_shown(tmp_path: Path) -> None:
    token, password = tmp_path / "token", tmp_path / "password"
    token.write_text("tok-S3CRET\n")
    password.write_text("pw-S3CRET\n")
    heard: list[str] = []

    async def listen(request: bytes, writer: asyncio.StreamWriter) -> None:
        fields = dict(line.split(": ", 1) for line in request.decode().split("\r\n")[1:] if ": " in line)
        heard.append(fields["Authorization"])
        writer.write(http(b"", "401 Unauthorized"))

    async def run() -> list[Scrape]:
        async with serving(listen) as url:
            return [
                await scrape(target(url, credentials=Credentials(bearer_token_file=str(token)))),
                await scrape(target(url, credentials=Credentials(username="me", password_file=str(password)))),
            ]

    seen = fed_time.run(run())
    assert heard == ["Bearer tok-S3CRET", f"Basic {base64.b64encode(b'me:pw-S3CRET').decode()}"]
    assert "S3CRET" not in repr(seen)


@pytest.mark.parametrize("content", [None, b"", b"two\nlines", b"\xff\xfe"])
def test_a_secret_that_cannot_be_read_is_one_line_naming_its_file(tmp_path: Path, content: bytes | None) -> None:
    file = tmp_path / "token"
    if content is not None:
        file.write_bytes(content)
    seen = fed_time.run(scrape(target("http://127.0.0.1:1", credentials=Credentials(bearer_token_file=str(file)))))
    assert seen.reason == "unauthorized"
    assert str(file) in seen.detail
    assert "two" not in seen.detail


def test_a_plain_server_asked_for_tls_and_a_missing_ca_file_are_tls_errors() -> None:
    async def run() -> tuple[Scrape, Scrape]:
        async with serving(says(http(b"", "400 Bad Request")), until=b"\x03") as url:
            secure = url.replace("http:", "https:")
            return await scrape(secure), await scrape(target(secure, tls=Tls(ca_file="/nowhere/ca.pem")))

    plain, missing = fed_time.run(run())
    assert (plain.reason, missing.reason) == ("tls", "tls")
    assert "write http://" in plain.detail
    assert "/nowhere/ca.pem" in missing.detail


def test_a_server_tells_its_version_and_length_where_it_will_and_nothing_otherwise() -> None:
    async def knows(request: bytes, writer: asyncio.StreamWriter) -> None:
        path = request.split()[1]
        if path == b"/version":
            writer.write(http(b'{"version": "0.32.0"}'))
        else:
            writer.write(http(b'{"data": [{"id": "m", "max_model_len": 4096}]}'))

    async def ask(reply: Reply) -> tuple[dict[str, str], str]:
        async with serving(reply) as url, Fetcher(lambda: 0.0) as fetcher:
            settings, version = await fetcher.ask(target(url, timeout=0.5))
            return dict(settings), version

    assert fed_time.run(ask(knows)) == ({"max_model_len": "4096"}, "0.32.0")
    rude: list[Callable[[bytes, asyncio.StreamWriter], Awaitable[None]]] = [
        says(http(b"[]")), says(http(b'{"data": [1], "version": 5}')), says(http(b"<html>")), hang, says(b""),
    ]  # fmt: skip
    for reply in rude:
        assert fed_time.run(ask(reply)) == ({}, "")


def openssl(*arguments: object) -> None:
    subprocess.run(["openssl", *map(str, arguments)], check=True, capture_output=True, timeout=PATIENCE_S)


@pytest.fixture(scope="module")
def pki(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A CA, a server and a client certificate."""
    find("openssl")
    folder = tmp_path_factory.mktemp("pki")
    new = ("req", "-newkey", "rsa:2048", "-nodes", "-keyout")
    ca = ("-CA", folder / "ca.pem", "-CAkey", folder / "ca.key", "-days", "2")
    openssl(*new, folder / "ca.key", "-x509", "-subj", "/CN=test CA", "-days", "2", "-out", folder / "ca.pem")
    for name in ("server", "client"):
        openssl(*new, folder / f"{name}.key", "-subj", f"/CN={name}", "-out", folder / f"{name}.csr")
        (folder / "san").write_text("subjectAltName=IP:127.0.0.1,DNS:vllm.test")
        openssl("x509", "-req", "-in", folder / f"{name}.csr", *ca, "-CAcreateserial", "-extfile", folder / "san",
                "-out", folder / f"{name}.pem")  # fmt: skip
    return folder


def test_tls_with_our_ca_a_client_certificate_and_a_server_name(pki: Path) -> None:
    server = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(pki / "ca.pem"))
    server.load_cert_chain(pki / "server.pem", pki / "server.key")
    server.verify_mode = ssl.CERT_REQUIRED
    ca = str(pki / "ca.pem")
    mine = Tls(ca_file=ca, cert_file=str(pki / "client.pem"), key_file=str(pki / "client.key"))

    async def run() -> dict[str, Scrape]:
        async with serving(says(http(bodies()[0])), tls=server) as url:
            tried = {
                "known": mine,
                "named": replace(mine, server_name="vllm.test"),
                "misnamed": replace(mine, server_name="other.test"),
                "no CA": Tls(),
                "no certificate": Tls(ca_file=ca),
                "unverified": replace(mine, ca_file="", insecure_skip_verify=True),
            }
            return {name: await scrape(target(url, tls=tls)) for name, tls in tried.items()}

    seen = fed_time.run(run())
    good = {name for name, one in seen.items() if one.body is not None}
    assert good == {"known", "named", "unverified"}, seen
    assert seen["no CA"].reason == "tls"
    assert "is not trusted" in seen["no CA"].detail
    assert "--ca-file" in seen["no CA"].detail
    assert "tls.server_name" in seen["misnamed"].detail
    assert seen["misnamed"].reason == "tls"
    assert seen["no certificate"].reason in ("tls", "protocol")  # TLS 1.3 says it only with the first answer


def test_a_failed_scrape_leaves_no_body_for_the_collector() -> None:
    """The collector hardly ever runs in the daemon (`process.spare_the_collector`): cycles would pile up."""

    async def run() -> int:
        large = http(b"#" * 2_000_000)
        async with serving(says(large)) as url, Fetcher(lambda: 0.0, max_body=1_500_000) as fetcher:
            answer = (b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n", b"#" * 2_000_000)
            async with serving(says(b"".join(answer))) as endless:
                for each in (url, endless):
                    assert (await fetcher.fetch(target(each))).reason == "too_large"
                gc.collect()
                gc.disable()
                tracemalloc.start()
                for _ in range(10):
                    await fetcher.fetch(target(endless))
                return tracemalloc.get_traced_memory()[0]

    try:
        assert asyncio.run(run()) < 3_000_000
    finally:
        tracemalloc.stop()
        gc.enable()


@pytest.mark.parametrize("encoding", ["gzip", "deflate", "x-gzip"])
def test_a_body_that_came_compressed_is_unpacked_within_the_cap(encoding: str) -> None:
    wbits = 15 if encoding == "deflate" else 31

    def packed(body: bytes) -> bytes:
        packer = zlib.compressobj(9, zlib.DEFLATED, wbits)
        return packer.compress(body) + packer.flush()

    async def run(body: bytes) -> Scrape:
        return await scrape_from(says(http(packed(body), Content_Encoding=encoding)), max_body=1_000_000)

    body = bodies()[5]
    assert asyncio.run(run(body)).body == body
    tracemalloc.start()
    try:
        bomb = asyncio.run(run(bytes(300_000_000)))
        assert bomb.reason == "too_large"
        assert tracemalloc.get_traced_memory()[1] < 310_000_000  # what this test itself makes, and little more
    finally:
        tracemalloc.stop()


def test_what_is_compressed_as_we_cannot_read_or_damaged_says_so() -> None:
    odd = asyncio.run(scrape_from(says(http(b"x", Content_Encoding="br"))))
    assert (odd.reason, odd.detail) == (
        "protocol", "the body is compressed as 'br', although no compression was asked for",
    )  # fmt: skip
    damaged = asyncio.run(scrape_from(says(http(b"no gzip at all", Content_Encoding="gzip"))))
    assert "compressed and damaged" in damaged.detail
