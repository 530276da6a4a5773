"""The daemon whole: real servers, good and bad, in one loop; its pages, reload and end."""

import asyncio
import contextlib
import gc
import json
import os
import re
import signal
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text
from structlog.testing import capture_logs

from tests import fed_time
from tests.edges.servers import bodies, http, plays, says, serving
from tests.fleet.daemons import Running, configured, running
from tests.programs import DEADLINE_S
from vllm_vitals.config import loader
from vllm_vitals.config.errors import ConfigError
from vllm_vitals.config.loader import Config
from vllm_vitals.daemon import Daemon
from vllm_vitals.scrape.poller import next_due, phase


def forever(recording: str = "spiral_chunked") -> Any:
    """A recording's bodies, the last one for ever."""
    yield from bodies(recording)
    while True:
        yield bodies(recording)[-1]


def test_bad_targets_cost_a_good_one_nothing_and_each_says_why() -> None:
    async def silent(_: bytes, writer: asyncio.StreamWriter) -> None:
        await asyncio.Event().wait()

    async def flood(_: bytes, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
        while True:
            writer.write(b"# filler\n" * 20_000)
            await writer.drain()

    bad = {
        "unauthorized": says(http(b"", "401 Unauthorized")),
        "http_error": says(http(b"", "500 Internal Server Error")),
        "redirect": says(http(b"", "302 Found", Location="http://10.0.0.1/")),
        "not_metrics": says(http(b"<html>hello</html>")),
        "empty": says(http(b"")),
        "timeout": silent,
        "too_large": flood,
        "encoding": says(http(b'vllm:num_requests_running{a="\xff"} 1\n')),
        "protocol": says(b"hello\r\n\r\n"),
    }

    async def run() -> None:
        async with contextlib.AsyncExitStack() as stack:
            good = await stack.enter_async_context(serving(plays(forever())))
            urls = {reason: await stack.enter_async_context(serving(reply)) for reason, reply in bad.items()}
            loaded = configured(good, *urls.values(), "http://127.0.0.1:1", limits={"body": "1MiB"})
            daemon = await stack.enter_async_context(running(lambda: loaded))

            async def all_judged() -> bool:
                found = await daemon.targets()
                seen = found.get(good.removeprefix("http://"))
                done = seen is not None and seen["engines"][0]["values"]["generation_tokens_total"] is not None
                return done and all(target["reason"] for name, target in found.items() if target is not seen) \
                    and len(found) == len(bad) + 2  # fmt: skip

            await daemon.until(all_judged)
            found = await daemon.targets()
            assert {reason: found[url.removeprefix("http://")]["reason"] for reason, url in urls.items()} == {
                reason: reason for reason in bad
            }
            assert found["127.0.0.1:1"]["reason"] == "refused"
            first = found[good.removeprefix("http://")]["last_scrape"]

            async def good_goes_on() -> bool:
                return bool((await daemon.targets())[good.removeprefix("http://")]["last_scrape"] > first + 0.5)

            await daemon.until(good_goes_on)
            assert (await daemon.get("/-/ready"))[0] == 200

    fed_time.run(run())


def test_what_is_served_parses_in_both_formats_and_on_the_page() -> None:
    async def run() -> None:
        async with serving(plays(forever())) as good, running(lambda: configured(good)) as daemon:
            await daemon.until(lambda: _ready(daemon))
            _, text = await daemon.get("/metrics")
            names = {family.name for family in parse_text(text)}
            assert {"vllm_vitals_state", "vllm_vitals_build_info", "vllm_vitals_ttft_seconds"} < names
            assert any(name.startswith("process_") for name in names)
            accept = "application/openmetrics-text; version=1.0.0; charset=utf-8"
            _, open_text = await daemon.get("/metrics", Accept=accept)
            assert {family.name for family in parse_openmetrics(open_text)} >= {"vllm_vitals_preemptions"}
            _, packed = await daemon.get("/metrics", **{"Accept-Encoding": "gzip"})
            assert "vllm_vitals_state" in packed
            status, page = await daemon.get("/")
            assert status == 200
            assert good.removeprefix("http://") in page
            assert "<script" not in page
            for path, wanted in (("/-/healthy", 200), ("/nothing", 404), ("/-/reload", 405)):
                assert (await daemon.get(path))[0] == wanted

    fed_time.run(run())


async def _ready(daemon: Running) -> bool:
    return (await daemon.get("/-/ready"))[0] == 200


def test_hostile_names_are_escaped_on_the_page() -> None:
    evil = '<script>alert("x")</script>'
    body = bodies()[0].replace(b'model_name="tiny"', f'model_name="{evil}"'.replace('"x"', r"\"x\"").encode())

    async def run() -> tuple[str, str]:
        async with serving(says(http(body))) as url, running(lambda: configured(url)) as daemon:
            await daemon.until(lambda: _ready(daemon))
            _, text = await daemon.get("/metrics")
            return (await daemon.get("/"))[1], text

    page, text = fed_time.run(run())
    assert "<script" not in page
    assert "&lt;script&gt;" in page
    list(parse_text(text))


def test_a_page_for_a_target_that_nobody_knows_says_so(tmp_path: Path) -> None:
    async def run() -> None:
        async with running(lambda: configured("http://127.0.0.1:1")) as daemon:
            await daemon.until(lambda: _ready(daemon))
            assert (await daemon.get("/?target=127.0.0.1:1"))[0] == 200
            status, text = await daemon.get("/?target=n%3Cb%3Eope&open=x&open=" + "y" * 8)
            assert (status, "No target is called n&lt;b&gt;ope." in text) == (404, True)
            assert "<b>ope" not in text
            assert (await daemon.get("/?target=%ff"))[0] == 404

    fed_time.run(run())


def test_credentials_are_nowhere_to_be_seen(capsys: pytest.CaptureFixture[str]) -> None:
    async def run() -> str:
        async with serving(says(http(b"", "401 Unauthorized"))) as url:
            secret = url.replace("http://", "http://user:S3CRET@") + "/metrics?token=S3CRET"
            async with running(lambda: configured(secret, "http://u:S3CRET@127.0.0.1:1")) as daemon:
                await daemon.until(lambda: _ready(daemon))
                return "".join([(await daemon.get(path))[1] for path in ("/", "/metrics", "/api/v1/engines")])

    with capture_logs() as events:
        served = fed_time.run(run())
    printed = capsys.readouterr()
    assert "S3CRET" not in served + repr(events) + printed.out + printed.err
    assert "unauthorized" in served


def test_reload_adds_removes_and_keeps_the_old_config_when_the_new_one_is_bad() -> None:
    now: list[Config | ConfigError] = []

    def load() -> Config:
        if isinstance(now[-1], ConfigError):
            raise now[-1]
        return now[-1]

    async def run() -> None:
        async with serving(plays(forever())) as one, serving(plays(forever("dp2_pressure"))) as two:
            first, second = one.removeprefix("http://"), two.removeprefix("http://")
            now.append(configured(one))
            async with running(load) as daemon:
                await daemon.until(lambda: _ready(daemon))
                tasks = len(asyncio.all_tasks())
                now.append(configured(one, two))
                assert await daemon.post("/-/reload") == (200, "reloaded\n")
                await daemon.until(lambda: _ready(daemon))
                assert set(await daemon.targets()) == {first, second}
                now.append(ConfigError("c.yaml: targets[0].url: is needed"))
                status, text = await daemon.post("/-/reload")
                assert (status, text.splitlines()[0]) == (500, "c.yaml: targets[0].url: is needed")
                assert set(await daemon.targets()) == {first, second}
                now.append(configured(one))
                assert (await daemon.post("/-/reload"))[0] == 200
                assert set(await daemon.targets()) == {first}
                assert second not in (await daemon.get("/metrics"))[1]
                assert len(asyncio.all_tasks()) <= tasks
                assert (await daemon.post("/-/reload", **{"Sec-Fetch-Site": "cross-site"}))[0] == 403

    with capture_logs() as events:
        fed_time.run(run())
    assert [e["why"] for e in events if e["event"] == "reload_failed"] == ["c.yaml: targets[0].url: is needed"]


def test_an_unchanged_target_keeps_its_past_over_a_reload() -> None:
    async def run() -> None:
        async with serving(plays(forever())) as one, serving(plays(forever())) as two:
            name, now = one.removeprefix("http://"), [configured(one)]
            async with running(lambda: now[-1]) as daemon:
                await daemon.until(lambda: _ready(daemon))
                since = (await daemon.targets())[name]["engines"][0]["since"]
                now.append(configured(two, one))
                await daemon.post("/-/reload")
                assert (await daemon.targets())[name]["engines"][0]["since"] == since

    fed_time.run(run())


def test_a_target_that_comes_and_goes_leaves_nothing_behind() -> None:
    async def run() -> tuple[int, int]:
        async with serving(plays(forever())) as one, serving(says(http(bodies()[0]))) as two:
            now = [configured(one)]
            async with running(lambda: now[-1]) as daemon:
                await daemon.until(lambda: _ready(daemon))
                counts = []
                for _ in range(30):
                    now.append(configured(one, two))
                    await daemon.post("/-/reload")
                    await daemon.until(lambda: _ready(daemon))
                    now.append(configured(one))
                    await daemon.post("/-/reload")
                    gc.collect()
                    counts.append(
                        sum(type(o).__name__ in ("Poller", "TargetEvaluator", "Task") for o in gc.get_objects())
                    )
                return counts[2], counts[-1]

    early, late = fed_time.run(run())
    assert late <= early + 2


def test_a_state_change_is_one_event_with_its_evidence() -> None:
    async def run() -> None:
        async with running(lambda: configured("http://127.0.0.1:1")) as daemon:

            async def down() -> bool:
                found = (await daemon.targets()).get("127.0.0.1:1")
                return found is not None and found["engines"][0]["state"] == "down"

            await daemon.until(down)

    with capture_logs() as events:
        fed_time.run(run())
    first, change = [event for event in events if event["event"] == "state_changed"]
    assert (first["state"], first["log_level"]) == ("starting", "info")
    assert (change["was"], change["state"], change["log_level"]) == ("starting", "down", "warning")
    assert "refuses connections" in change["evidence"][0]
    assert [event["event"] for event in events if event["event"] == "scrape_failed"] == ["scrape_failed"]


def test_the_folder_of_the_checkpoint_is_made(tmp_path: Path) -> None:
    checkpoint = tmp_path / "new" / "deeper" / "c.json"
    logs = {"sources": [{"name": "a", "push": True}], "checkpoint": str(checkpoint)}

    async def run() -> None:
        async with running(lambda: configured("http://127.0.0.1:1", logs=logs)):
            pass

    fed_time.run(run())
    assert checkpoint.parent.is_dir()


def test_a_port_that_is_taken_is_one_error() -> None:
    async def run() -> None:
        async with serving(says(b"")) as taken:
            loaded = loader.build("t", {"listen": taken.removeprefix("http://"), "targets": ["a"]})
            await Daemon(lambda: loaded).run()

    with pytest.raises(OSError, match="address already in use"):
        fed_time.run(run())


def test_targets_are_spread_evenly_and_stay_where_they_are() -> None:
    phases = sorted(phase(f"host-{number}:8000") for number in range(1000))
    assert phase("host-1:8000") == phase("host-1:8000")
    assert max(later - earlier for earlier, later in pairwise(phases)) < 0.02
    for now in (0.0, 3.2, 7.9, 12.5):
        due = next_due(now, 5.0, 1.3)
        assert 2.5 < due - now <= 7.5
        assert (due - 1.3) % 5.0 == pytest.approx(0.0, abs=1e-9) or (due - 1.3) % 5.0 == pytest.approx(5.0)


def start(*arguments: str, cwd: Path) -> "asyncio.subprocess.Process":
    return asyncio.create_subprocess_exec(  # type: ignore[return-value]
        sys.executable, "-m", "vllm_vitals", *arguments,
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE, cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parent.parent.parent / "exporter")},
    )  # fmt: skip


def test_signals_reload_and_end_the_program_with_json_lines_on_standard_error(tmp_path: Path) -> None:
    file = tmp_path / "c.yaml"
    file.write_text('listen: "127.0.0.1:0"\ninterval: "200ms"\ntargets: ["127.0.0.1:1"]\n')

    async def run() -> tuple[int | None, list[dict[str, Any]]]:
        process = await start("run", "--config", str(file), cwd=tmp_path)  # type: ignore[misc]
        assert process.stderr is not None
        events: list[dict[str, Any]] = []

        async def until(name: str) -> None:
            async with asyncio.timeout(DEADLINE_S):
                while not events or events[-1]["event"] != name:
                    events.append(json.loads(await process.stderr.readline()))

        try:
            await until("listening")
            for bad in ("interval: 5\n", ""):
                file.write_text(bad)
                process.send_signal(signal.SIGHUP)
                await until("reload_failed")
                events[-1]["event"] = "told"
            file.write_text('listen: "127.0.0.1:0"\ntargets: ["127.0.0.1:2"]\n')
            process.send_signal(signal.SIGHUP)
            await until("reloaded")
            process.send_signal(signal.SIGTERM)
            await until("stopped")
            return await asyncio.wait_for(process.wait(), DEADLINE_S), events
        finally:
            if process.returncode is None:
                process.kill()

    code, events = asyncio.run(run())
    assert code == 0
    wrong, empty = [event["why"] for event in events if event["event"] == "told"]
    assert re.search(r"interval: 5 is no duration: write 5s", wrong)
    assert f"{file}: no targets" in empty
