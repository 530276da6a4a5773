import asyncio
import base64
import ssl
from collections.abc import Awaitable, Callable
from pathlib import Path

import aiohttp
import bcrypt
import pytest
import trustme
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st

from tests import fed_time
from vllm_vitals.serve import access as gates
from vllm_vitals.serve.access import Access, AccessControl, dummy_hash
from vllm_vitals.serve.web_config import WebConfigError, load

SECRET = "correct horse"
HASH = bcrypt.hashpw(SECRET.encode(), bcrypt.gensalt(4)).decode()
USERS = {"ann": HASH.encode()}


def basic(name: str, password: str) -> dict[str, str]:
    return {"Authorization": "Basic " + base64.b64encode(f"{name}:{password}".encode()).decode()}


async def serve(
    gate: AccessControl, story: Callable[[str], Awaitable[None]], tls: ssl.SSLContext | None = None
) -> None:
    async def page(_: web.Request) -> web.Response:
        return web.Response(text="inside")

    app = web.Application(middlewares=[gate.middleware()])
    app.router.add_get("/metrics", page)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls).start()
        await story(f"{'https' if tls else 'http'}://localhost:{runner.addresses[0][1]}/metrics")
    finally:
        await runner.cleanup()


async def status(url: str, headers: dict[str, str] | None = None, context: ssl.SSLContext | bool = True) -> int:
    async with aiohttp.ClientSession() as session, session.get(url, headers=headers, ssl=context) as response:
        return response.status


def write(folder: Path, text: str) -> Path:
    file = folder / "web.yml"
    file.write_text(text)
    return file


# basic auth


def test_only_the_right_name_with_the_right_password_comes_in() -> None:
    async def story(url: str) -> None:
        assert await status(url, basic("ann", SECRET)) == 200
        assert await status(url, basic("ann", SECRET)) == 200
        assert await status(url, basic("ann", "wrong")) == 401
        assert await status(url, basic("bob", SECRET)) == 401
        assert await status(url) == 401

    fed_time.run(serve(AccessControl(Access(USERS)), story))


def test_the_costly_check_runs_once_for_who_is_known_and_each_time_for_who_is_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    checked = []
    real = bcrypt.checkpw
    monkeypatch.setattr(bcrypt, "checkpw", lambda p, h: checked.append(h) or real(p, h))

    async def story(url: str) -> None:
        for _ in range(3):
            await status(url, basic("ann", SECRET))
        assert checked == [USERS["ann"]]
        await status(url, basic("bob", "guess"))
        await status(url, basic("bob", "guess"))
        assert checked[1:] == [dummy_hash(USERS)] * 2

    fed_time.run(serve(AccessControl(Access(USERS)), story))


@pytest.mark.parametrize("cost", [4, 9, 14])
def test_an_unknown_name_costs_as_much_as_the_costliest_known_one(cost: int) -> None:
    users = {"a": USERS["ann"], "b": b"$2b$%02d$" % cost + b"x" * 53}
    assert dummy_hash(users)[4:6] == b"%02d" % cost


def test_users_that_are_taken_out_are_out_at_once() -> None:
    gate = AccessControl(Access(USERS))

    async def story(url: str) -> None:
        assert await status(url, basic("ann", SECRET)) == 200
        gate.use(Access({"ann": bcrypt.hashpw(b"new", bcrypt.gensalt(4))}))
        assert await status(url, basic("ann", SECRET)) == 401
        gate.use(Access())
        assert await status(url) == 200

    fed_time.run(serve(gate, story))


def test_a_flood_of_guesses_is_turned_away_instead_of_queued(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(url: str) -> None:
        release = asyncio.Event()

        async def slow(*_: object) -> bool:
            await release.wait()
            return False

        monkeypatch.setattr(AccessControl, "_matches", slow)
        async with aiohttp.ClientSession() as session:

            async def guess(n: int) -> int:
                async with session.get(url, headers=basic("ann", str(n))) as response:
                    return response.status

            most = gates.MAX_WAITING_OF_ONE + 1  # one is checked while the others wait
            guesses = [asyncio.create_task(guess(n)) for n in range(most + 5)]
            done, _ = await asyncio.wait(guesses, return_when=asyncio.FIRST_COMPLETED)
            assert {task.result() for task in done} == {503}
            release.set()
            answers = await asyncio.gather(*guesses)
        assert sorted(answers) == [401] * most + [503] * 5

    fed_time.run(serve(AccessControl(Access(USERS)), story))


def test_what_is_remembered_is_bounded_and_holds_no_password() -> None:
    users = {f"u{n}": bcrypt.hashpw(SECRET.encode(), bcrypt.gensalt(4)) for n in range(30)}
    gate = AccessControl(Access(users))

    async def story(url: str) -> None:
        for name in users:
            assert await status(url, basic(name, SECRET)) == 200

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gates, "MAX_VERIFIED", 10)
        fed_time.run(serve(gate, story))
    assert len(gate._verified) == 10
    assert SECRET not in repr(vars(gate))


@given(st.one_of(st.text(max_size=80), st.binary(max_size=200).map(lambda b: "Basic " + base64.b64encode(b).decode())))
def test_no_header_whatever_breaks_the_gate(header: str) -> None:
    decoded = gates._decode(header)
    assert decoded is None or len(decoded[1]) <= gates.MAX_PASSWORD


# the file


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("basic_auth_users: {ann: hunter2}", "basic_auth_users.ann: expected a bcrypt hash"),
        ("basic_auth_users: {ann: $2b$31$" + "a" * 53 + "}", "cost 4 to 14"),
        ("basic_auth_users: [ann]", "basic_auth_users: "),
        ("tls_server_config: {cert_file: a.pem}", "tls_server_config.key_file: is needed"),
        ("tls_server_config: {cert_file: a.pem, key_file: b.pem}", "cert_file: cannot use a.pem: No such file"),
        (
            "tls_server_config: {cert_file: a, key_file: b, min_version: TLS10}",
            "min_version: expected 'TLS12' or 'TLS13'",
        ),
        ("tls_server_config: {cert_file: a, key_file: b, client_auth_type: RequestClientCert}", "not verified proves"),
        ("tls_server_config: {cert_file: a, key_file: b, client_ca_file: c}", "goes with a client_auth_type"),
        ("tls_config: {}", "tls_config: unknown key"),
        ("basic_auth_users: {a: x", "web.yml:"),
        ("- a", "expected keys and values"),
    ],
)
def test_every_wrong_file_has_one_line_that_names_the_key(tmp_path: Path, text: str, why: str) -> None:
    with pytest.raises(WebConfigError) as caught:
        load(write(tmp_path, text))
    assert why in str(caught.value)
    assert str(tmp_path / "web.yml") in str(caught.value)
    assert "\n" not in str(caught.value)
    assert "hunter2" not in str(caught.value)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(WebConfigError, match=r"none\.yml: No such file or directory"):
        load(tmp_path / "none.yml")


def test_an_empty_file_serves_anyone_without_tls(tmp_path: Path) -> None:
    config = load(write(tmp_path, ""))
    assert config.tls is None
    assert config.access.users == {}


def test_the_users_do_not_show_when_the_config_is_printed(tmp_path: Path) -> None:
    config = load(write(tmp_path, f"basic_auth_users: {{ann: '{HASH}'}}"))
    assert config.access.users == USERS
    assert HASH not in repr(config)


# TLS


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


def files(folder: Path, authority: trustme.CA, more: str = "") -> Path:
    server = authority.issue_cert("localhost")
    server.private_key_pem.write_to_path(str(folder / "key.pem"))
    server.cert_chain_pems[0].write_to_path(str(folder / "cert.pem"))
    authority.cert_pem.write_to_path(str(folder / "ca.pem"))
    return write(folder, f"tls_server_config: {{cert_file: cert.pem, key_file: key.pem{more}}}\n")


@pytest.mark.parametrize(
    ("broken", "why"),
    [
        ("cert.pem", "tls_server_config.cert_file: cert.pem holds no certificate in PEM format"),
        ("key.pem", "tls_server_config.key_file: key.pem holds no private key in PEM format"),
        ("ca.pem", "tls_server_config.client_ca_file: ca.pem holds no certificate in PEM format"),
    ],
)
def test_a_file_that_is_no_certificate_or_key_is_named(
    tmp_path: Path, authority: trustme.CA, broken: str, why: str
) -> None:
    file = files(tmp_path, authority, ", client_ca_file: ca.pem, client_auth_type: RequireAndVerifyClientCert")
    (tmp_path / broken).write_text("hello\n")
    with pytest.raises(WebConfigError) as caught:
        load(file)
    assert str(caught.value) == f"{file}: {why}"


def trusting(authority: trustme.CA) -> ssl.SSLContext:
    context = ssl.create_default_context()
    authority.configure_trust(context)
    return context


def test_pages_come_over_tls_with_files_named_beside_the_config(tmp_path: Path, authority: trustme.CA) -> None:
    async def story(url: str) -> None:
        assert await status(url, context=trusting(authority)) == 200
        with pytest.raises(aiohttp.ClientConnectorCertificateError):
            await status(url)

    fed_time.run(serve(AccessControl(Access()), story, load(files(tmp_path, authority)).tls))


def test_a_client_without_the_wanted_certificate_stays_outside(tmp_path: Path, authority: trustme.CA) -> None:
    text = ", client_ca_file: ca.pem, client_auth_type: RequireAndVerifyClientCert"
    ours, theirs = trusting(authority), trusting(authority)
    authority.issue_cert("client").configure_cert(ours)
    trustme.CA().issue_cert("client").configure_cert(theirs)

    async def story(url: str) -> None:
        assert await status(url, context=ours) == 200
        for stranger in (theirs, trusting(authority)):
            with pytest.raises(aiohttp.ClientError):
                await status(url, context=stranger)

    fed_time.run(serve(AccessControl(Access()), story, load(files(tmp_path, authority, text)).tls))


def test_an_old_protocol_is_refused(tmp_path: Path, authority: trustme.CA) -> None:
    old = trusting(authority)
    old.maximum_version = ssl.TLSVersion.TLSv1_2

    async def story(url: str) -> None:
        with pytest.raises(aiohttp.ClientError):
            await status(url, context=old)

    fed_time.run(serve(AccessControl(Access()), story, load(files(tmp_path, authority, ", min_version: TLS13")).tls))
