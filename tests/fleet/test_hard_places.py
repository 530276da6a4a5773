"""Faults of the place: half a fleet that hangs, TLS taken away, a file system that takes nothing from a nobody."""

import asyncio
import json
import os
import signal
import ssl
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
import trustme

from tests import fed_time
from tests.edges.servers import RECORDINGS, Reply, bodies, http, says, serving, target
from tests.fleet.daemons import configured, running
from vllm_vitals.core.snapshot import Scrape
from vllm_vitals.scrape.fetch import Fetcher
from vllm_vitals.scrape.target import Credentials, Target, Tls

SECRET = "never-in-clear"
NOBODY = 65_534


def test_five_hundred_targets_of_which_half_hang_cost_the_other_half_no_scrape() -> None:
    asked: Counter[str] = Counter()
    body = http(bodies()[5])

    async def reply(request: bytes, writer: asyncio.StreamWriter) -> None:
        name = request.split(b" ")[1].decode().split("/")[1]
        asked[name] += 1
        if name.startswith("slow"):
            await asyncio.sleep(10_000)
        writer.write(body)
        await writer.drain()

    async def run() -> None:
        async with serving(reply) as url:
            names = [f"{kind}{n}" for n in range(250) for kind in ("good", "slow")]
            config = configured(*({"url": f"{url}/{name}", "name": name} for name in names), interval="5s")
            async with running(lambda: config) as daemon:
                await asyncio.sleep(45.0)  # all have been tried, and half of them three times in vain
                found = await daemon.targets()
                assert {found[f"slow{n}"]["engines"][0]["state"] for n in range(250)} == {"blind"}
                assert all(found[f"good{n}"]["up"] for n in range(250))
                assert {found[f"good{n}"]["reason"] for n in range(250)} == {""}
                polls = [asked[f"good{n}"] for n in range(250)]
                assert max(polls) - min(polls) <= 4  # one of them is the look at /version and /v1/models

    fed_time.run(run())


# TLS taken away


def listening(heard: list[bytes], answer: bytes) -> Reply:
    async def reply(request: bytes, writer: asyncio.StreamWriter) -> None:
        heard.append(request)
        writer.write(answer)
        await writer.drain()

    return reply


def trusting(authority: trustme.CA, folder: Path, url: str) -> Target:
    ca, token = folder / "ca.pem", folder / "token"
    authority.cert_pem.write_to_path(str(ca))
    token.write_text(SECRET)
    return target(url, tls=Tls(ca_file=str(ca)), credentials=Credentials(bearer_token_file=str(token)))


def server_side(authority: trustme.CA) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    return context


async def scrape(wanted: Target) -> Scrape:
    async with Fetcher(lambda: 0.0) as fetcher:
        return await fetcher.fetch(wanted)


def test_a_server_that_stopped_to_speak_tls_is_not_told_the_secret(tmp_path: Path) -> None:
    heard: list[bytes] = []

    async def run() -> Scrape:
        async with serving(listening(heard, http(bodies()[5])), until=b"\n") as url:
            return await scrape(trusting(trustme.CA(), tmp_path, url.replace("http:", "https:")))

    seen = asyncio.run(run())
    assert (seen.body, seen.reason) == (None, "tls")
    assert SECRET.encode() not in b"".join(heard)


def test_a_redirect_from_https_to_http_is_not_followed(tmp_path: Path) -> None:
    authority, heard = trustme.CA(), list[bytes]()

    async def run() -> Scrape:
        async with serving(listening(heard, http(bodies()[5]))) as plain:
            away = f"HTTP/1.1 302 F\r\nLocation: {plain}/metrics\r\nContent-Length: 0\r\n\r\n".encode()
            async with serving(says(away), tls=server_side(authority)) as url:
                return await scrape(trusting(authority, tmp_path, url))

    seen = asyncio.run(run())
    assert (seen.body, seen.reason) == (None, "redirect")
    assert heard == []


def test_another_authority_or_an_old_protocol_is_no_server_of_ours(tmp_path: Path) -> None:
    ours, theirs = trustme.CA(), trustme.CA()

    async def run(context: ssl.SSLContext) -> Scrape:
        async with serving(says(http(bodies()[5])), tls=context) as url:
            return await scrape(trusting(ours, tmp_path, url))

    old = server_side(ours)
    with pytest.warns(DeprecationWarning, match="TLSv1_1"):
        old.minimum_version = old.maximum_version = ssl.TLSVersion.TLSv1_1
    assert asyncio.run(run(server_side(theirs))).reason == "tls"
    assert asyncio.run(run(old)).body is None
    assert asyncio.run(run(server_side(ours))).body == bodies()[5]


# a nobody on a read-only file system

# The interpreter may lie where a nobody cannot read: so the modules are there before the rights are dropped.
AS_NOBODY = """
import encodings.idna, encodings.unicode_escape, os, sys
import vllm_vitals.cli.main, vllm_vitals.cli.run, vllm_vitals.cli.check, vllm_vitals.cli.judge, vllm_vitals.daemon
import vllm_vitals.serve.web
import tempfile
tempfile.tempdir = os.environ["TMPDIR"]
import aiohttp.connector, vllm_vitals.cli.terminal, vllm_vitals.cli.verdict
os.setgroups([]); os.setgid(65534); os.setuid(65534); os.chdir("/")
assert not os.access("/", os.W_OK) and not os.access(os.environ["TMPDIR"], os.W_OK)
sys.exit(vllm_vitals.cli.main.main())
"""


def as_nobody(folder: Path, *arguments: str) -> subprocess.Popen[str]:
    if os.geteuid() != 0:
        pytest.skip("only root can become nobody")
    environment = {
        **os.environ,
        "TMPDIR": str(folder / "closed"),
        "HOME": "/nonexistent",
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    (folder / "closed").mkdir(mode=0o700, exist_ok=True)
    return subprocess.Popen(
        [sys.executable, "-c", AS_NOBODY, *arguments],
        env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def test_the_daemon_needs_no_file_that_it_can_write(tmp_path: Path) -> None:
    daemon = as_nobody(tmp_path, "run", "http://127.0.0.1:1", "--listen", "127.0.0.1:0", "--interval", "200ms")
    assert daemon.stderr is not None
    events: list[str] = []
    for line in daemon.stderr:
        events.append(json.loads(line)["event"])
        if "scrape_failed" in events:
            break
    daemon.send_signal(signal.SIGTERM)
    rest = daemon.communicate(timeout=60)[1]
    events += [json.loads(line)["event"] for line in rest.splitlines()]
    assert daemon.returncode == 0
    assert set(events) <= {"listening", "scrape_failed", "state_changed", "stopped"}


def test_a_replay_whose_series_have_no_place_on_disk_says_the_mend(tmp_path: Path) -> None:
    for parent in [tmp_path, *tmp_path.parents][:4]:
        if os.access(parent, os.W_OK) and str(parent).startswith("/tmp/"):
            parent.chmod(0o755)
    recorded = tmp_path / "r.jsonl.gz"
    recorded.write_bytes((RECORDINGS / "dp2_pressure" / "metrics.jsonl.gz").read_bytes())
    recorded.chmod(0o644)
    told = as_nobody(tmp_path, "check", "--replay", str(recorded))
    out, err = told.communicate(timeout=120)
    assert told.returncode in (0, 1, 2)
    assert "Worst point, at" in out
    told = as_nobody(tmp_path, "check", "--replay", str(recorded), "--json")
    out, err = told.communicate(timeout=120)
    assert not out
    assert err.count("\n") == 1
    assert "TMPDIR" in err
