"""A canary string stands wherever a secret can stand; it must come out nowhere, whatever goes wrong."""

import asyncio
import base64
import contextlib
import io
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import structlog

from tests.edges.servers import bodies, http, says, serving
from tests.fleet.daemons import running
from tests.programs import PATIENCE_S
from vllm_vitals import log as logs
from vllm_vitals.config.errors import ConfigError
from vllm_vitals.config.loader import Config, build

SECRET = "c4n4ry-S3CRET"
ENCODED = base64.b64encode(f"vitals:{SECRET}".encode()).decode()
ROOT = Path(__file__).parent.parent.parent


def secret_file(folder: Path, name: str, content: str = SECRET) -> str:
    file = folder / name
    file.write_text(content + "\n")
    return str(file)


def everything(folder: Path, urls: dict[str, str]) -> dict[str, Any]:
    """A config with a secret in every place that takes one, and servers that fail in every way."""
    token, password = secret_file(folder, "token"), secret_file(folder, "password")
    torn = secret_file(folder, "torn", f"{SECRET}\n{SECRET}")
    auth = {"username": "vitals", "password_file": password}
    targets: list[dict[str, Any]] = [
        {"url": url, "name": f"{how}-{name}", **way}
        for name, url in urls.items()
        for how, way in (("token", {"bearer_token_file": token}), ("basic", {"basic_auth": auth}))
    ]
    inside = urls["unauthorized"].replace("http://", f"http://vitals:{SECRET}@")
    targets += [
        {"url": f"{inside}/metrics?token={SECRET}"},
        {"url": f"http://vitals:{SECRET}@127.0.0.1:1"},
        {"url": "http://127.0.0.1:1", "name": "torn", "bearer_token_file": torn},
        {"url": "https://127.0.0.1:1", "name": "tls", "tls": {"cert_file": token, "key_file": password}},
    ]
    return {
        "listen": "127.0.0.1:0",
        "interval": "100ms",
        "targets": targets,
        "canary": {"interval": "100ms", "deadline": "50ms", "first": True},
        "flight_recorder": {"directory": str(folder / "flight")},
        "discovery": [
            {"http_sd": {"url": urls["unauthorized"], "refresh_interval": "50ms", "bearer_token_file": token}},
            {"file_sd": {"files": [str(folder / "sd.json")], "refresh_interval": "50ms"}, "bearer_token_file": token},
        ],
    }


def tells_what_it_got(request: bytes) -> bytes:
    """A server that throws our own request back at us: head, body and as a redirect."""
    said = b" ".join(request.split(b"\r\n")).replace(b"\n", b" ")
    return b"HTTP/1.1 302 Found\r\nLocation: http://elsewhere/" + said.replace(b" ", b"%20") + b"\r\n\r\n"


async def echo(request: bytes, writer: asyncio.StreamWriter) -> None:
    writer.write(tells_what_it_got(request))
    await writer.drain()


async def echo_body(request: bytes, writer: asyncio.StreamWriter) -> None:
    writer.write(http(request, "500 Internal Server Error"))
    await writer.drain()


async def everywhere(folder: Path) -> str:
    """Everything that a daemon with all these secrets lets out: pages, metrics, JSON, and answers to a bad reload."""
    kinds = {
        "unauthorized": says(http(b"", "401 Unauthorized")),
        "good": says(http(bodies()[0])),
        "garbage": says(b"not http at all"),
        "redirect": echo,
        "error": echo_body,
    }
    (folder / "sd.json").write_text(f'[{{"targets": ["http://u:{SECRET}@127.0.0.1:2", "ftp://{SECRET}@x"]}}]')
    out, sent = [], 'vllm_vitals_canary_requests_total{target="token-good",outcome="ok"} 3'
    async with contextlib.AsyncExitStack() as stack:
        urls = {name: await stack.enter_async_context(serving(reply)) for name, reply in kinds.items()}
        document = everything(folder, urls)
        now: list[Config | str] = [build("c.yaml", document)]

        def load() -> Config:
            if isinstance(now[-1], str):
                raise ConfigError(now[-1])
            return now[-1]

        async with running(load) as daemon:

            async def all_tried() -> bool:
                status, _ = await daemon.get("/-/ready")
                found = await daemon.targets()
                canaried = sent in (await daemon.get("/metrics"))[1]
                return status == 200 and len(found) >= 14 and canaried

            await daemon.until(all_tried)
            for path in ("/", "/metrics", "/api/v1/engines", "/-/ready"):
                out.append((await daemon.get(path))[1])
            for bad in _bad_configs(document):
                try:
                    now.append(build("c.yaml", bad))
                except ConfigError as error:
                    now.append(str(error))
                out.append((await daemon.reload())[1])
    return "\n".join(out)


def _bad_configs(document: dict[str, Any]) -> list[dict[str, Any]]:
    """Mistakes next to secrets."""
    return [
        {**document, "targets": [{"url": f"http://u:{SECRET}@host:99999"}]},
        {**document, "targets": [{"url": f"ftp://u:{SECRET}@host"}]},
        {**document, "targets": [{"url": "http://a", "basic_auth": {"username": "u", "password": SECRET}}]},
        {**document, "targets": [{"url": "http://a", "bearer_token": SECRET}]},
        {**document, "discovery": [{"http_sd": {"url": f"http://u:{SECRET}@sd/"}}]},
        {**document, "targets": [f"http://u:{SECRET}@twice:1", f"http://u:{SECRET}@twice:1"]},
    ]


def test_no_secret_comes_out_of_a_daemon_whatever_goes_wrong(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    said = io.StringIO()
    logs.configure("debug", said)
    try:
        served = asyncio.run(everywhere(tmp_path))
    finally:
        structlog.reset_defaults()
    printed = capfd.readouterr()
    assert "scrape_failed" in said.getvalue()
    assert "discovery_failed" in said.getvalue()
    assert "reload_failed" in said.getvalue()
    for what, text in (("pages", served), ("log", said.getvalue()), ("output", printed.out + printed.err)):
        for needle in (SECRET, ENCODED):
            place = text.find(needle)
            assert place < 0, f"{what}: ...{text[max(0, place - 200) : place + 40]}..."


def test_no_secret_comes_out_of_the_commands(tmp_path: Path) -> None:
    config = tmp_path / "c.yaml"
    config.write_text(f"targets: ['http://u:{SECRET}@127.0.0.1:1', 'http://u:{SECRET}@127.0.0.1:1']\n")
    commands = (
        ("config", "check", str(config)),
        ("run", "--config", str(config)),
        ("run", f"http://u:{SECRET}@127.0.0.1:99999"),
        ("check", f"http://u:{SECRET}@127.0.0.1:1", "--for", "5s", "--interval", "10ms"),
        ("check", f"http://u:{SECRET}@127.0.0.1:1", "--for", "5s", "--interval", "10ms", "--json"),
        ("record", f"http://u:{SECRET}@127.0.0.1:1", "-o", str(tmp_path / "r.jsonl.gz"), "--for", "1s"),
    )
    for command in commands:
        done = subprocess.run(
            [sys.executable, "-m", "exporter", *command],
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )
        assert SECRET not in done.stdout + done.stderr, command
        assert done.stderr + done.stdout, command
        assert "Traceback" not in done.stderr
