"""Discovery, shards, canaries, flight recorder, TLS and logins in a daemon that runs."""

import asyncio
import base64
import json
import re
from collections.abc import Iterator
from pathlib import Path

import aiohttp
import bcrypt
import pytest
import trustme
from structlog.testing import capture_logs

from tests import fed_time
from tests.edges.servers import bodies, http, says, serving
from tests.fleet.daemons import Running, configured, running, write
from vllm_vitals.recordings import recording
from vllm_vitals.scrape.shards import Shard, owner
from vllm_vitals.serve import web_config
from vllm_vitals.serve.web_config import WebConfig


def short(url: str) -> str:
    return url.removeprefix("http://")


def forever(name: str) -> Iterator[bytes]:
    yield from bodies(name)
    while True:
        yield bodies(name)[-1]


def test_targets_come_and_go_by_file_without_a_restart(tmp_path: Path) -> None:
    file = tmp_path / "t.json"

    async def story() -> None:
        answer = says(http(bodies()[0]))
        async with serving(answer) as one, serving(answer) as two:
            write(file, one, cluster="x")
            sd = [{"file_sd": {"files": [str(file)], "refresh_interval": "20ms"}}]
            async with running(lambda: configured(discovery=sd)) as daemon:
                await daemon.until_watching(short(one))
                assert f'target="{short(one)}",cluster="x"' in (await daemon.get("/metrics"))[1]
                write(file, one, two)
                await daemon.until_watching(short(one), short(two))
                write(file, two)
                await daemon.until_watching(short(two))
                assert short(one) not in (await daemon.get("/metrics"))[1]
                file.write_text("broken")
                write_marker = tmp_path / "u.json"
                write(write_marker, one)
                await asyncio.sleep(0.1)
                assert set(await daemon.targets()) == {short(two)}

    with capture_logs() as events:
        fed_time.run(story())
    assert [e["why"] for e in events if e["event"] == "discovery_failed"] == [
        f'{file}: expected a list of {{"targets": [...], "labels": {{...}}}}'
    ]


def test_a_shard_watches_its_own_targets_alone() -> None:
    async def story() -> None:
        urls = [f"http://127.0.0.{n}:1" for n in range(1, 9)]
        async with running(lambda: configured(*urls), shard=Shard(2, 3)) as daemon:
            await daemon.until_watching(*(short(u) for u in urls if owner(short(u), 3) == 2))

    fed_time.run(story())


def hanging(canaries: list[dict[str, object]], first: bytes) -> object:
    """A server whose metrics look idle and whose engine answers nothing."""

    async def reply(request: bytes, writer: asyncio.StreamWriter) -> None:
        head = request.partition(b"\r\n\r\n")[0]
        if b"POST /v1/" not in head:
            writer.write(http(first) if b" /metrics " in head.split(b"\r\n")[0] else http(b"", "404 Not Found"))
            await writer.drain()
            return
        canaries.append({"path": head.split()[1].decode(), "head": head.decode()})
        await asyncio.Event().wait()

    return reply


def test_a_frozen_server_is_found_by_its_canary_and_recorded(tmp_path: Path) -> None:
    canaries: list[dict[str, object]] = []

    async def story() -> None:
        more = {
            "canary": {"interval": "1s", "deadline": "300ms", "first": True},
            "flight_recorder": {"directory": str(tmp_path), "after": "500ms"},
            "thresholds": {"min_span": "200ms"},
        }
        frozen = hanging(canaries, bodies("engine_hang")[0])
        async with serving(frozen) as url, running(lambda: configured(url, **more)) as daemon:  # type: ignore[arg-type]

            async def stalled() -> bool:
                found = await daemon.targets()
                return bool(found) and found[short(url)]["engines"][0]["state"] == "stalled"

            await daemon.until(stalled)
            engine = (await daemon.targets())[short(url)]["engines"][0]
            assert "canary" in json.dumps(engine["evidence"])
            _, text = await daemon.get("/metrics")
            assert re.search(r'canary_requests_total\{.*outcome="timeout"\} [1-9]', text)
            assert re.search(r"canary_duration_seconds\{.*\} 0\.3\n", text)

    with capture_logs() as events:
        fed_time.run(story())
    (file,) = tmp_path.iterdir()
    kept = list(recording.read(file))
    assert kept
    assert all(scrape.body == bodies("engine_hang")[0] for scrape in kept)
    assert canaries[0]["path"] == "/v1/completions"
    assert "X-Request-Id: vllm-vitals-canary-" in str(canaries[0]["head"])
    assert [e["outcome"] for e in events if e["event"] == "canary"] == ["timeout"]


def test_a_server_that_does_another_task_is_asked_for_that_and_a_sleeping_one_not_at_all() -> None:
    asked: list[str] = []
    awake = bodies()[0]
    asleep = re.sub(rb'(engine_sleep_state\{[^}]*"awake"\}) 1', rb"\1 0", awake)
    asleep = re.sub(rb'(engine_sleep_state\{[^}]*"weights_offloaded"\}) 0', rb"\1 1", asleep)
    assert asleep != awake

    def server(body: bytes, name: str) -> object:
        async def reply(request: bytes, writer: asyncio.StreamWriter) -> None:
            path = request.split()[1].decode()
            if path == "/metrics":
                writer.write(http(body))
            elif path.startswith("/v1/") and path != "/v1/models":
                asked.append(f"{name} {path}")
                writer.write(http(b"{}") if path == "/v1/embeddings" else http(b"{}", "400 Bad Request"))
            else:
                writer.write(http(b"", "404 Not Found"))
            await writer.drain()

        return reply

    async def story() -> None:
        async with serving(server(awake, "awake")) as one, serving(server(asleep, "asleep")) as two:  # type: ignore[arg-type]
            more = {"canary": {"interval": "50ms", "deadline": "50ms", "first": True}}
            async with running(lambda: configured(one, two, **more)) as daemon:

                async def answered() -> bool:
                    return 'outcome="ok"} 2' in (await daemon.get("/metrics"))[1]

                await daemon.until(answered)
                assert (await daemon.targets())[short(two)]["engines"][0]["state"] == "asleep"

    fed_time.run(story())
    paths = ["awake /v1/completions", "awake /v1/chat/completions", "awake /v1/embeddings", "awake /v1/embeddings"]
    assert asked[:4] == paths
    assert not any(line.startswith("asleep") for line in asked)


# TLS and logins


def credentials(password: str) -> str:
    return "Basic " + base64.b64encode(f"ann:{password}".encode()).decode()


async def refused(daemon: Running, password: str) -> bool:
    return (await daemon.get("/metrics", Authorization=credentials(password)))[0] == 401


def test_logins_follow_the_web_config_and_a_bad_one_keeps_the_old(tmp_path: Path) -> None:
    file = tmp_path / "web.yml"

    def use(password: str) -> None:
        hashed = bcrypt.hashpw(password.encode(), bcrypt.gensalt(4)).decode()
        file.write_text(f"basic_auth_users: {{ann: '{hashed}'}}\n")

    async def story() -> None:
        use("one")
        async with running(lambda: configured("127.0.0.1:1"), load_web=lambda: web_config.load(file)) as daemon:
            daemon.session.headers["Authorization"] = credentials("one")
            for path in ("/", "/metrics", "/api/v1/engines"):
                assert (await daemon.get(path))[0] == 200
                assert (await daemon.get(path, Authorization=""))[0] == 401
            assert (await daemon.get("/-/healthy", Authorization=""))[0] == 200
            file.write_text("basic_auth_users: {ann: S3CRET}\n")
            status, text = await daemon.reload()
            assert status == 500
            assert "bcrypt" in text
            assert "S3CRET" not in text
            assert not await refused(daemon, "one")
            use("two")
            assert (await daemon.reload())[0] == 200
            assert await refused(daemon, "one")
            assert not await refused(daemon, "two")

    fed_time.run(story())


def test_a_new_certificate_takes_the_old_ones_place_on_reload(tmp_path: Path) -> None:
    file = tmp_path / "web.yml"
    file.write_text("tls_server_config: {cert_file: c.pem, key_file: k.pem}\n")
    old, new = trustme.CA(), trustme.CA()

    def use(authority: trustme.CA) -> None:
        server = authority.issue_cert("localhost")
        server.private_key_pem.write_to_path(str(tmp_path / "k.pem"))
        server.cert_chain_pems[0].write_to_path(str(tmp_path / "c.pem"))

    async def believes(daemon: Running, authority: trustme.CA) -> bool:
        import ssl

        context = ssl.create_default_context()
        authority.configure_trust(context)
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=context)) as session:
            try:
                async with session.get(f"{daemon.url}/-/healthy") as answer:
                    return answer.status == 200
            except aiohttp.ClientConnectorCertificateError:
                return False

    async def story() -> None:
        use(old)
        load_web = lambda: web_config.load(file)  # noqa: E731
        async with running(lambda: configured("127.0.0.1:1"), load_web=load_web, scheme="https") as daemon:
            assert await believes(daemon, old)
            use(new)
            reload = aiohttp.TCPConnector(ssl=False)
            async with aiohttp.ClientSession(connector=reload) as session:
                async with session.post(f"{daemon.url}/-/reload") as answer:
                    assert answer.status == 200
                (tmp_path / "c.pem").write_text("nonsense")
                async with session.post(f"{daemon.url}/-/reload") as answer:
                    assert answer.status == 500
                    assert "c.pem holds no certificate" in await answer.text()
            assert await believes(daemon, new)
            assert not await believes(daemon, old)

    fed_time.run(story())


def test_without_a_web_config_nothing_changes() -> None:
    assert WebConfig().tls is None
    assert dict(WebConfig().access.users) == {}
    with pytest.raises(AttributeError):
        WebConfig().tls = None  # type: ignore[misc]
