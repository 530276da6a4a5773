import asyncio
import os
import socket
from collections.abc import Callable
from pathlib import Path
from threading import get_ident

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import CapturingLogger

from tests import fed_time
from vllm_vitals.core.snapshot import Scrape
from vllm_vitals.scrape import discovery as discovery_module
from vllm_vitals.scrape import target_groups
from vllm_vitals.scrape.discovery import Discovery, DnsSource, FileSource, HttpSource, Source, resolve_name
from vllm_vitals.scrape.target import Target
from vllm_vitals.scrape.target_groups import MAX_FOUND, Found, SourceError, parse_groups


def said(log: CapturingLogger) -> list[tuple[str, str]]:
    return [(call.args[0], str(call.kwargs.get("why", ""))) for call in log.calls]


async def nothing(target: Target) -> Scrape:
    raise AssertionError(f"nobody asked for {target.name}")


def watch(source: Source, **parts: object) -> tuple[Discovery, CapturingLogger]:
    log = CapturingLogger()
    return Discovery(source, parts.pop("fetch", nothing), log, **parts), log  # type: ignore[arg-type]


def addresses(discovery: Discovery) -> list[str]:
    return [found.address for found in discovery.found]


# file_sd


def test_json_and_yaml_files_name_targets_with_their_labels(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text('[{"targets": ["a:8000", "b:8000"], "labels": {"cluster": "x", "__meta_y": "z"}}]')
    (tmp_path / "b.yml").write_text("- targets: ['c:8000']\n")
    discovery, log = watch(FileSource((str(tmp_path / "a.json"), str(tmp_path / "*.yml"))))
    assert asyncio.run(discovery.refresh()) is True
    assert discovery.found == [
        Found("a:8000", {"cluster": "x"}), Found("b:8000", {"cluster": "x"}), Found("c:8000", {}),
    ]  # fmt: skip
    assert asyncio.run(discovery.refresh()) is False
    assert said(log) == []


def test_a_changed_file_is_read_again_and_removed_targets_vanish_at_once(tmp_path: Path) -> None:
    file = tmp_path / "targets.json"
    file.write_text('[{"targets": ["a:8000", "b:8000"]}]')
    discovery, _ = watch(FileSource((str(file),)))
    asyncio.run(discovery.refresh())
    file.write_text('[{"targets": ["b:8000"]}]')
    assert asyncio.run(discovery.refresh()) is True
    assert addresses(discovery) == ["b:8000"]


def test_a_file_swapped_by_symlink_as_a_config_map_is_read_again(tmp_path: Path) -> None:
    for number in (1, 2):
        (tmp_path / f"v{number}").mkdir()
        (tmp_path / f"v{number}" / "t.json").write_text(f'[{{"targets": ["v{number}:8000"]}}]')
        os.utime(tmp_path / f"v{number}" / "t.json", (1_000, 1_000))
    (tmp_path / "data").symlink_to("v1")
    discovery, _ = watch(FileSource((str(tmp_path / "data" / "t.json"),)))
    asyncio.run(discovery.refresh())
    (tmp_path / "next").symlink_to("v2")
    (tmp_path / "next").rename(tmp_path / "data")
    asyncio.run(discovery.refresh())
    assert addresses(discovery) == ["v2:8000"]


def test_a_broken_file_keeps_its_old_list_and_says_why_once(tmp_path: Path) -> None:
    good, bad = tmp_path / "good.json", tmp_path / "bad.json"
    good.write_text('[{"targets": ["good:8000"]}]')
    bad.write_text('[{"targets": ["old:8000"]}]')
    discovery, log = watch(FileSource((str(bad), str(good))))
    asyncio.run(discovery.refresh())
    bad.write_text('[{"targets": ["new:80')
    good.write_text('[{"targets": ["better:8000"]}]')
    for _ in range(3):
        asyncio.run(discovery.refresh())
    assert addresses(discovery) == ["old:8000", "better:8000"]
    assert len(said(log)) == 1
    assert said(log)[0][1].startswith(f"{bad}: not JSON: ")
    bad.write_text('[{"targets": ["new:8000"]}]')
    asyncio.run(discovery.refresh())
    assert addresses(discovery) == ["new:8000", "better:8000"]
    assert said(log)[-1][0] == "discovery_recovered"


def test_the_same_content_is_parsed_once_whether_it_is_good_or_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parsed: list[str] = []
    monkeypatch.setattr(discovery_module, "parse_groups", lambda w, c, g: parsed.append(w) or parse_groups(w, c, g))
    good, bad = tmp_path / "good.json", tmp_path / "bad.yml"
    good.write_text('[{"targets": ["a:8000"]}]')
    bad.write_text("- {}\n" * 10)
    discovery, log = watch(FileSource((str(good), str(bad))))
    for _ in range(3):
        asyncio.run(discovery.refresh())
        good.touch()
    assert sorted(parsed) == sorted([str(good), str(bad)])
    assert len(said(log)) == 1
    reply = Scrape(0.0, 0.1, b'[{"targets": ["a:8000"]}]')

    async def fetch(_: Target) -> Scrape:
        return reply

    discovery, _ = watch(HttpSource("http://sd:80/targets"), fetch=fetch)
    for _ in range(3):
        asyncio.run(discovery.refresh())
    assert parsed[2:] == ["http://sd:80/targets"]


def test_a_large_file_is_parsed_beside_the_event_loop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    threads: list[int] = []
    monkeypatch.setattr(
        discovery_module, "parse_groups", lambda w, c, g: threads.append(get_ident()) or parse_groups(w, c, g)
    )
    file = tmp_path / "targets.yml"
    file.write_text("- {targets: ['a:1']}\n")
    discovery, _ = watch(FileSource((str(file),)))
    asyncio.run(discovery.refresh())
    assert addresses(discovery) == ["a:1"]
    assert get_ident() not in threads


def test_yaml_is_bounded_in_nodes_and_given_up_when_nobody_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(target_groups, "MAX_NODES", 100)
    with pytest.raises(SourceError, match="more than 100 nodes: write it as JSON"):
        parse_groups("x", b"- {}\n" * 200)
    with pytest.raises(SourceError, match="no caller waits for it any more"):
        parse_groups("x", b"- {targets: []}\n", lambda: True)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    discovery, log = watch(FileSource((str(tmp_path / "none.json"),)))
    asyncio.run(discovery.refresh())
    assert said(log) == [("discovery_failed", f"{tmp_path / 'none.json'}: No such file or directory")]


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", "not JSON"),
        (b"{}", "expected a list"),
        (b"null", "expected a list"),
        (b"[1]", "[0]: expected targets: a list"),
        (b'[{"targets": "a:8000"}]', "[0]: expected targets: a list"),
        (b'[{"targets": [], "label": {}}]', "[0]: unknown key label; known are targets, labels"),
        (b'[{"targets": [8000]}]', "[0]: targets: expected an address such as host:8000, got 8000"),
        (b'[{"targets": [""]}]', "[0]: targets: expected an address"),
        (b'[{"targets": ["a"], "labels": {"n": 1}}]', "[0]: labels: n: expected text (quote it)"),
        (b'[{"targets": ["a"], "labels": {"a=\\"1\\"} 1\\nevil": "x"}}]', "is no label name such as cluster"),
        (b'[{"targets": ["a"], "labels": []}]', "[0]: expected labels"),
        (b"- targets: [a\n", "neither JSON nor YAML"),
        (b"- targets: &a [x]\n- targets: *a\n", "aliases are not accepted"),
        (b"\x80\x81", "neither JSON nor YAML"),
        (b"[" * 100_000, "not JSON"),
        (orjson.dumps([{"targets": ["h"] * (MAX_FOUND + 1)}]), f"more than {MAX_FOUND} targets"),
    ],
)
def test_every_wrong_file_has_one_line_that_names_the_place(content: bytes, why: str) -> None:
    with pytest.raises(SourceError) as caught:
        parse_groups("t.json", content)
    assert str(caught.value).startswith("t.json: ")
    assert why in str(caught.value)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 400


@given(st.one_of(st.binary(max_size=300), st.text(max_size=300).map(str.encode)))
def test_no_content_whatever_does_anything_but_parse_or_explain(content: bytes) -> None:
    why = ""
    try:
        parse_groups("t", content)
    except SourceError as error:
        why = str(error)
    assert "\n" not in why


def test_scheme_and_metrics_path_shape_the_address_as_in_prometheus() -> None:
    content = b'[{"targets": ["a:1"], "labels": {"__scheme__": "https", "__metrics_path__": "/x/metrics"}}]'
    assert parse_groups("t", content) == [Found("https://a:1/x/metrics", {})]


# http_sd


def answering(*answers: Scrape) -> Callable[[Target], object]:
    queue = list(answers)

    async def fetch(target: Target) -> Scrape:
        assert target.url == "http://sd:80/targets"
        return queue.pop(0)

    return fetch


def test_http_sd_keeps_its_list_while_the_service_fails_and_obeys_an_empty_one() -> None:
    good = Scrape(0.0, 0.1, b'[{"targets": ["a:8000"]}]')
    answers = (
        good,
        Scrape(1.0, 0.1, None, "http_error", "HTTP 500 from /targets"),
        Scrape(2.0, 0.1, b"<html>"),
        Scrape(3.0, 0.1, b"[]"),
    )
    discovery, log = watch(HttpSource("http://sd:80/targets"), fetch=answering(*answers))
    kept = []
    for _ in answers:
        asyncio.run(discovery.refresh())
        kept.append(addresses(discovery))
    assert kept == [["a:8000"], ["a:8000"], ["a:8000"], []]
    assert [event for event, _ in said(log)] == ["discovery_failed", "discovery_failed", "discovery_recovered"]
    assert said(log)[0][1] == "http://sd:80/targets: http_error: HTTP 500 from /targets"


# DNS


def resolving(*answers: list[str] | Exception) -> Callable[[str, str, int], object]:
    queue = list(answers)

    async def resolve(name: str, kind: str, port: int) -> list[str]:
        answer = queue.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return [f"{host}:{port}" for host in answer]

    return resolve


def test_failing_dns_keeps_the_last_list_and_a_name_without_records_empties_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(discovery_module, "ASK_AGAIN_S", 0.0)
    again = socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")
    discovery, log = watch(
        DnsSource(("vllm.svc",), "A", 8000), resolve=resolving(["10.0.0.2", "10.0.0.1"], again, TimeoutError(), [], [])
    )
    kept = []
    for _ in range(4):
        asyncio.run(discovery.refresh())
        kept.append(addresses(discovery))
    both = ["10.0.0.1:8000", "10.0.0.2:8000"]
    assert kept == [both, both, both, []]
    assert said(log)[0][1] == "dns A vllm.svc: Temporary failure in name resolution"
    assert "no answer within" in said(log)[1][1]


def test_dns_that_flaps_costs_no_target_its_past(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(discovery_module, "ASK_AGAIN_S", 0.0)
    again = socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")
    both = ["10.0.0.1", "10.0.0.2"]
    flaps = [both, [], both, again, [], both, [], again, both]
    discovery, _ = watch(DnsSource(("vllm.svc",), "A", 8000), resolve=resolving(*flaps))
    changes = [asyncio.run(discovery.refresh()) for _ in range(6)]
    assert changes == [True, False, False, False, False, False]
    assert addresses(discovery) == ["10.0.0.1:8000", "10.0.0.2:8000"]


def test_one_dead_name_does_not_cost_the_others() -> None:
    answers = {"good": ["10.0.0.1:8000"], "bad": []}

    async def resolve(name: str, kind: str, port: int) -> list[str]:
        if name == "bad":
            raise socket.gaierror(socket.EAI_FAIL, "Non-recoverable failure in name resolution")
        return answers[name]

    discovery, log = watch(DnsSource(("bad", "good"), "A"), resolve=resolve)
    asyncio.run(discovery.refresh())
    assert addresses(discovery) == ["10.0.0.1:8000"]
    assert "dns A bad: Non-recoverable" in said(log)[0][1]


def test_localhost_resolves_without_any_server() -> None:
    assert asyncio.run(resolve_name("localhost", "A", 8000)) == ["127.0.0.1:8000"]


def test_changes_are_announced_while_it_runs(tmp_path: Path) -> None:
    file = tmp_path / "t.json"
    file.write_text('[{"targets": ["a:8000"]}]')

    async def story() -> list[str]:
        discovery, _ = watch(FileSource((str(file),), refresh=0.001))
        await discovery.refresh()
        seen: asyncio.Queue[list[str]] = asyncio.Queue()

        async def changed() -> None:
            seen.put_nowait(addresses(discovery))

        task = asyncio.create_task(discovery.run(changed))
        file.write_text('[{"targets": ["b:8000"]}]')
        async with asyncio.timeout(10):
            now = await seen.get()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        return now

    assert fed_time.run(story()) == ["b:8000"]
