import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from structlog.testing import CapturingLogger

from vllm_vitals.config import loader
from vllm_vitals.config.errors import ConfigError
from vllm_vitals.config.loader import Config
from vllm_vitals.core.snapshot import Role, Scrape
from vllm_vitals.scrape.shards import WHOLE, Shard
from vllm_vitals.scrape.target import Credentials, Target
from vllm_vitals.scrape.target_groups import Found
from vllm_vitals.scrape.target_manager import TargetManager, watched


def built(**document: Any) -> Config:
    return loader.build("test", document)


def found_by(*answers: list[str]) -> Callable[[str, str, int], object]:
    queue = list(answers)

    async def resolve(name: str, kind: str, port: int) -> list[str]:
        return queue.pop(0) if len(queue) > 1 else queue[0]

    return resolve


async def unasked(target: Target) -> Scrape:
    raise AssertionError(target)


async def names(config: Config, resolve: object, shard: Shard = WHOLE, log: object = None) -> list[str]:
    roster = TargetManager(unasked, log or CapturingLogger(), shard, resolve)  # type: ignore[arg-type]
    await roster.follow(config, _ignore)
    chosen = [target.name for target in roster.targets(config)]
    await roster.follow(built(), _ignore)
    return chosen


async def _ignore() -> None:
    pass


DNS = {"discovery": [{"dns_sd": {"names": ["vllm"], "type": "A"}}]}


def test_found_targets_join_the_configured_ones_and_a_name_is_watched_once() -> None:
    both = built(targets=["a:8000"], **DNS)
    assert asyncio.run(names(both, found_by(["a:8000", "b:8000", "b:8000"]))) == ["a:8000", "b:8000"]


def test_shards_together_watch_everyone_once() -> None:
    fleet = [f"h{n}:8000" for n in range(40)]
    parts = [asyncio.run(names(built(**DNS), found_by(fleet), Shard(i, 3))) for i in (1, 2, 3)]
    assert sorted(name for part in parts for name in part) == sorted(fleet)
    assert all(parts)


def test_more_than_the_limit_is_cut_and_said_once() -> None:
    log = CapturingLogger()
    small = built(limits={"targets": 2}, **DNS)
    assert asyncio.run(names(small, found_by(["a", "b", "c"]), log=log)) == ["a:8000", "b:8000"]
    assert [call.args for call in log.calls] == [("targets_left_out",)]
    assert "limits.targets" in log.calls[0].kwargs["why"][0]


def test_an_address_that_is_none_is_left_out_and_named() -> None:
    log = CapturingLogger()
    assert asyncio.run(names(built(**DNS), found_by(["ftp://x", "b:8000"]), log=log)) == ["b:8000"]
    assert log.calls[0].kwargs["why"] == ["'ftp://x': expected http or https, got ftp"]


def test_a_reload_keeps_what_an_unchanged_source_found() -> None:
    async def story() -> list[list[str]]:
        first, second = built(**DNS), built(targets=["z:1"], **DNS)
        roster = TargetManager(unasked, CapturingLogger(), WHOLE, found_by(["a:8000"], []))  # type: ignore[arg-type]
        seen = []
        for now in (first, second):
            await roster.follow(now, _ignore)
            seen.append([target.name for target in roster.targets(now)])
        await roster.follow(built(), _ignore)
        return seen

    assert asyncio.run(story()) == [["a:8000"], ["z:1", "a:8000"]]


def test_labels_of_a_group_say_name_model_role_and_identity() -> None:
    problems: list[str] = []
    labels = {
        "name": "chat-1", "model_name": "m", "role": "decode", "service_class": "batch", "cluster": "x", "job": "vllm",
        "instance": "i", "engine": "7",
    }  # fmt: skip
    like = Target("", "", labels={"cluster": "default", "namespace": "n"}, interval=10.0)
    target = watched(like, Found("h:1", labels), problems)
    assert (target.name, target.url, target.interval) == ("chat-1", "http://h:1/metrics", 10.0)
    assert (target.model_name, target.role, target.service_class) == ("m", Role.DECODE, "batch")
    assert target.labels == {"cluster": "x", "namespace": "n"}
    assert problems == ["h:1: the label engine would hide one that vllm-vitals sets itself"]


@pytest.mark.parametrize("labels", [{"role": "boss"}, {"service_class": "vip"}])
def test_a_role_or_class_that_there_is_not_is_refused(labels: dict[str, str]) -> None:
    with pytest.raises(ValueError, match="expected"):
        watched(Target("", ""), Found("h:1", labels), [])


def test_credentials_in_a_found_address_never_replace_the_configured_ones() -> None:
    own = Target("", "", credentials=Credentials(bearer_token_file="/t"))
    assert watched(own, Found("http://u:p@h:1"), []).credentials == own.credentials
    assert watched(Target("", ""), Found("http://u:p@h:1"), []).credentials.username == "u"
    assert "p@" not in watched(own, Found("http://u:p@h:1"), []).url


@pytest.mark.parametrize(
    ("document", "why"),
    [
        ({"discovery": [{}]}, "discovery[0].dns_sd: give exactly one of file_sd, http_sd, kubernetes_sd and dns_sd"),
        ({"discovery": [{"file_sd": {"files": []}}]}, "discovery[0].file_sd.files: "),
        ({"discovery": [{"http_sd": {"url": "ftp://x"}}]}, "discovery[0].http_sd.url: "),
        ({"discovery": [{"http_sd": {"url": "http://u:S3CRET@x/"}}]}, "discovery[0].http_sd.url: "),
        ({"discovery": [{"dns_sd": {"names": ["a"], "type": "MX"}}]}, "discovery[0].dns_sd.type: expected 'A'"),
        ({"discovery": [{"dns_sd": {"names": ["a"]}, "file_sd": {"files": ["b"]}}]}, "give exactly one"),
        ({"discovery": [{"dns_sd": {"names": ["a"], "refresh": "5s"}}]}, "refresh: unknown key"),
        ({"canary": {"interval": "5s", "deadline": "9s"}}, "canary.deadline: deadline is longer than interval"),
        ({"flight_recorder": {}}, "flight_recorder.directory: is needed"),
        ({"flight_recorder": {"directory": "x", "max_size": 5}}, "flight_recorder.max_size: 5 is no size: write 5B"),
    ],
)
def test_every_wrong_key_has_its_line(document: dict[str, Any], why: str) -> None:
    with pytest.raises(ConfigError) as caught:
        built(**document)
    assert why in str(caught.value)
    assert "S3CRET" not in str(caught.value)
    assert "\n" not in str(caught.value)
