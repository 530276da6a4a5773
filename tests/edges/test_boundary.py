"""What pages of other sites may do to us: nothing. Names, origins, content types, roles and tokens."""

import asyncio
import base64
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import bcrypt
import pytest

from tests import fed_time
from tests.fleet.daemons import Running, configured, running
from vllm_vitals.serve import access as gates
from vllm_vitals.serve import boundary
from vllm_vitals.serve.access import Access, AccessControl
from vllm_vitals.serve.fair_turns import TooMany, Turns
from vllm_vitals.serve.web_config import WebConfig, WebConfigError, load

LINE = b'{"model":"m","usage":{"prompt_tokens":1,"completion_tokens":2},"choices":[{"finish_reason":"stop"}]}\n'
JSON = {"Content-Type": "application/x-ndjson"}
PASSWORD = "correct horse"
HASH = bcrypt.hashpw(PASSWORD.encode(), bcrypt.gensalt(4))
TOKEN = b"0123456789abcdef-shipper"
LOGS = {"sources": [{"name": "shipper", "push": True}, {"name": "other", "push": True}]}


def pushes(web: WebConfig | None = None) -> AbstractAsyncContextManager[Running]:
    config = configured("http://127.0.0.1:1", logs=LOGS)
    return running(lambda: config, load_web=lambda: web or WebConfig())


async def post(daemon: Running, path: str, body: bytes = b"", **headers: str) -> int:
    fields = {name.replace("_", "-"): value for name, value in headers.items()}
    skip = () if "Content-Type" in fields else ("Content-Type",)
    async with daemon.session.post(daemon.url + path, data=body, headers=fields, skip_auto_headers=skip) as answer:
        return answer.status


PUSH, RELOAD = "/api/v1/logs?source=shipper", "/-/reload"
FOREIGN = {
    "another site": {"Origin": "http://evil.example", "Sec_Fetch_Site": "cross-site"},
    "an old browser": {"Origin": "http://evil.example"},
    "a page from a file": {"Origin": "null"},
    "another port": {"Origin": "http://127.0.0.1:1", "Sec_Fetch_Site": "same-site"},
    "a sibling": {"Sec_Fetch_Site": "same-site"},
    "what is no origin": {"Origin": "http://[x"},
}


@pytest.mark.parametrize("headers", FOREIGN.values(), ids=FOREIGN)
def test_a_page_of_another_site_changes_nothing(headers: dict[str, str]) -> None:
    async def run() -> None:
        async with pushes() as daemon:
            assert await post(daemon, RELOAD, **headers) == 403
            assert await post(daemon, PUSH, LINE, **headers, Content_Type="application/x-ndjson") == 403
            _, metrics = await daemon.get("/metrics")
            assert 'log_records_total{source="shipper",result="ok"} 1' not in metrics

    fed_time.run(run())


def test_our_own_page_a_shipper_and_curl_may() -> None:
    async def run() -> None:
        async with pushes() as daemon:
            ours = {"Origin": daemon.url, "Sec_Fetch_Site": "same-origin"}
            assert await post(daemon, RELOAD, **ours) == 200
            assert await post(daemon, RELOAD) == 200
            assert await post(daemon, PUSH, LINE, Content_Type="application/x-ndjson") == 200
            assert await post(daemon, PUSH, LINE, Content_Type="application/json; charset=utf-8") == 200

    fed_time.run(run())


@pytest.mark.parametrize(
    "kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", ""]
)
def test_what_a_page_can_send_without_asking_first_is_no_push(kind: str) -> None:
    async def run() -> None:
        async with pushes() as daemon:
            headers = {"Content_Type": kind} if kind else {}
            assert await post(daemon, PUSH, LINE, **headers) == 415

    fed_time.run(run())


OURS = ["127.0.0.1:9840", "[::1]:9840", "localhost", "LOCALHOST:1", "app.localhost", "vllm-vitals:9840",
        "vitals.monitoring.svc:9840", "vitals.monitoring.svc.cluster.local", "10.1.2.3",
        "vitals.corp.example:9840", ""]  # fmt: skip
STRANGE = ["evil.example", "127.0.0.1.evil.example", "localhost.evil.example", "evil.example.:9840", "1.2.3.4.5", "[x"]


@pytest.mark.parametrize("host", OURS)
def test_names_that_are_ours_are_answered(host: str) -> None:
    assert boundary.is_ours(boundary.host_of(host), {"vitals.corp.example"})


@pytest.mark.parametrize("host", STRANGE[:-1])
def test_names_that_anybody_can_let_point_to_us_are_not(host: str) -> None:
    assert not boundary.is_ours(boundary.host_of(host), {"vitals.corp.example"})
    assert boundary.is_ours(boundary.host_of(host), {boundary.ANY})


def test_a_rebound_name_reads_nothing_and_is_told_the_mend() -> None:
    async def run() -> None:
        async with pushes() as daemon:
            for path in ("/", "/metrics", "/api/v1/engines"):
                status, text = await daemon.get(path, Host="evil.example")
                assert status == 403
                assert "--web.allowed-hosts=evil.example" in text
            assert (await daemon.get("/-/healthy", Host="evil.example"))[0] == 200
            assert await post(daemon, RELOAD, Host="evil.example") == 403

    fed_time.run(run())


def test_where_a_password_is_asked_for_any_name_will_do() -> None:
    async def run() -> None:
        async with pushes(WebConfig(access=Access({"ann": HASH}))) as daemon:
            assert (await daemon.get("/", Host="vitals.corp.example"))[0] == 401

    fed_time.run(run())


# roles and tokens


def login(name: str) -> dict[str, str]:
    return {"Authorization": "Basic " + base64.b64encode(f"{name}:{PASSWORD}".encode()).decode()}


def test_who_may_read_and_who_may_write() -> None:
    users = dict.fromkeys(("reads", "writes", "both"), HASH)
    roles = {"reads": frozenset({"read"}), "writes": frozenset({"write"}), "both": frozenset({"read", "write"})}

    async def run() -> None:
        async with pushes(WebConfig(access=Access(users, roles))) as daemon:
            may = {
                name: ((await daemon.get("/metrics", **login(name)))[0], await post(daemon, RELOAD, **login(name)))
                for name in users
            }
            assert may == {"reads": (200, 403), "writes": (403, 200), "both": (200, 200)}

    fed_time.run(run())


def test_a_push_source_with_a_token_takes_nothing_without_it() -> None:
    tokens = {"shipper": TOKEN, "other": b"another-token-of-16"}

    async def run() -> None:
        async with pushes(WebConfig(access=Access({"ann": HASH}, {}, tokens))) as daemon:
            right = {"Authorization": f"Bearer {TOKEN.decode()}", "Content_Type": "application/x-ndjson"}
            assert await post(daemon, PUSH, LINE, **right) == 200
            assert await post(daemon, "/api/v1/logs?source=other", LINE, **right) == 401
            assert await post(daemon, "/api/v1/logs", LINE, **right) == 401
            assert await post(daemon, PUSH, LINE, Content_Type="application/x-ndjson", **login("ann")) == 401
            assert await post(daemon, RELOAD, Authorization=right["Authorization"]) == 401
            assert (await daemon.get("/metrics", Authorization=right["Authorization"]))[0] == 401

    fed_time.run(run())


def written(folder: Path, text: str) -> Path:
    (folder / "token").write_bytes(TOKEN + b"\n")
    (folder / "short").write_bytes(b"short\n")
    file = folder / "web.yml"
    file.write_text(f"basic_auth_users: {{ann: '{HASH.decode()}', bob: '{HASH.decode()}'}}\n{text}\n")
    return file


def test_the_web_config_names_roles_and_token_files(tmp_path: Path) -> None:
    text = "roles: {read: [ann, bob], write: [bob]}\npush_token_files: {shipper: token}"
    access = load(written(tmp_path, text)).access
    assert access.roles == {"ann": {"read"}, "bob": {"read", "write"}}
    assert access.tokens == {"shipper": TOKEN}
    assert TOKEN.decode() not in repr(access)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("roles: {read: [ann], write: [eve]}", "roles: 'eve' is none of basic_auth_users"),
        ("roles: {read: [ann]}", "roles: 'bob' has none"),
        ("roles: {admin: [ann]}", "roles.admin: unknown key"),
        ("push_token_files: {shipper: none}", "push_token_files.shipper: cannot read none: No such file"),
        ("push_token_files: {shipper: short}", "push_token_files.shipper: short must hold one token of 16 to 4096"),
    ],
)
def test_every_wrong_role_or_token_has_one_line_that_names_it(tmp_path: Path, text: str, why: str) -> None:
    with pytest.raises(WebConfigError, match=rf"web\.yml: {why}"):
        load(written(tmp_path, text))


# a login flood


def test_turns_go_round_among_clients_whoever_asks_most() -> None:
    async def run() -> list[str]:
        turns, order = Turns(10, 20), list[str]()

        async def take(client: str) -> None:
            async with turns.turn(client):
                order.append(client)
                await asyncio.sleep(1.0)

        await asyncio.gather(*(take("flood") for _ in range(8)), take("ann"), take("bob"))
        return order

    assert fed_time.run(run())[:4] == ["flood", "flood", "ann", "bob"]


def test_waiting_is_bounded_for_each_client_and_in_all_and_who_leaves_leaves_room() -> None:
    async def run() -> None:
        turns = Turns(2, 3)
        release = asyncio.Event()

        async def take(client: str) -> str:
            try:
                async with turns.turn(client):
                    await release.wait()
                    return "had"
            except TooMany:
                return "refused"

        tasks = [asyncio.create_task(take(client)) for client in "aaaabbb"]
        await asyncio.sleep(0)
        assert turns.waiting == 3
        tasks[1].cancel()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        late = asyncio.create_task(take("c"))
        await asyncio.sleep(0)
        release.set()
        had = await asyncio.gather(*tasks, late, return_exceptions=True)
        assert [str(one) for one in had] == ["had", "", "had", "refused", "had", "refused", "refused", "had"]

    fed_time.run(run())


def test_users_that_stay_keep_their_login_over_a_reload_whatever_floods(monkeypatch: pytest.MonkeyPatch) -> None:
    checked = []
    real = bcrypt.checkpw
    monkeypatch.setattr(bcrypt, "checkpw", lambda p, h: checked.append(p) or real(p, h))
    control = AccessControl(Access({"ann": HASH}))

    async def run() -> None:
        header = login("ann")["Authorization"]
        assert await control._check_user(header, "1", gates.READ) is None
        control.use(Access({"ann": HASH, "bob": HASH}))
        assert await control._check_user(header, "1", gates.READ) is None
        control.use(Access({"bob": HASH}))
        refused = await control._check_user(header, "1", gates.READ)
        assert refused is not None
        assert refused.status == 401

    fed_time.run(run())
    assert checked == [PASSWORD.encode()] * 2
    control.close()
