"""The same ways into a server for every command, pipes in both directions, and one config file for every reader."""

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.edges.servers import RECORDINGS, bodies, http, plays, serving
from tests.edges.test_cli import ROOT
from tests.typed import typed
from vllm_vitals.cli.options import configured
from vllm_vitals.config import loader, section
from vllm_vitals.config.errors import ConfigError
from vllm_vitals.planner.options import review_section
from vllm_vitals.scrape.target import parse_address

SPIRAL = RECORDINGS / "spiral_chunked" / "metrics.jsonl.gz"
SLO = """
    - name: first token
      indicator: ttft
      threshold: "2500ms"
      share: 0.99
      models: "chat-.+"
      output_tokens: {mean: 300, p99: 900}
"""
WHOLE = f"""
listen: "127.0.0.1:0"
targets:
  - {{url: h, bearer_token_file: token, tls: {{ca_file: ca.pem}}}}
thresholds: {{hold: 45s}}
flight_recorder: {{directory: flight}}
logs:
  sources: [{{name: gw, paths: ["logs/*.jsonl"]}}]
  checkpoint: state.json
  limits: {{window: 10m, max_series: 200}}
review:
  gpu_hour_price: 2.5
  slos: {SLO}
alerts:
  evaluation_interval: 30s
  limits: {{queue_for: 15m, truncated_ratio: 0.17}}
  slos: {SLO}
"""


def piped(*arguments: str, given: bytes = b"") -> "subprocess.CompletedProcess[bytes]":
    """Run the program with its standard streams as pipes."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "exporter")}
    command = [sys.executable, "-m", "vllm_vitals", *arguments]
    return subprocess.run(command, input=given, capture_output=True, env=environment, timeout=120, check=False)


def recorded(*arguments: str) -> tuple["subprocess.CompletedProcess[bytes]", list[bytes]]:
    """Record a server to a pipe; how that ended, and what the server heard. ``URL`` stands for its address."""
    heard: list[bytes] = []
    replies = plays(iter(bodies()))

    async def reply(request: bytes, writer: asyncio.StreamWriter) -> None:
        heard.append(request)
        if b"secret" in request or b"dTpzZWNyZXQ=" in request or b"X-Team: a" in request:
            await replies(request, writer)
        else:
            writer.write(http(b"", "401 Unauthorized"))

    async def run() -> "subprocess.CompletedProcess[bytes]":
        async with serving(reply) as url:
            given = [each.replace("URL", url) for each in ("record", *arguments)]
            return await asyncio.to_thread(piped, *given, "-o", "-", "--for", "200ms", "--interval", "50ms")

    return asyncio.run(run()), heard


@pytest.mark.parametrize(
    ("options", "sent"),
    [
        (["--bearer-token-file", "token"], b"Authorization: Bearer secret\r\n"),
        (["--user", "u", "--password-file", "token"], b"Authorization: Basic dTpzZWNyZXQ=\r\n"),
        (["--header", "X-Team: a"], b"X-Team: a\r\n"),
    ],
)
def test_a_protected_server_is_recorded_into_a_pipe_and_replayed_from_one(
    options: list[str], sent: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("token").write_text("secret\n")
    done, heard = recorded("URL", *options)
    assert done.returncode == 0, done.stderr
    assert sent in heard[0]
    assert b"standard output: " in done.stderr
    assert b"secret" not in done.stderr
    judged = piped("check", "--replay", "-", "--json", given=done.stdout)
    assert b'"recording":"-"' in judged.stdout
    assert judged.stderr == b""


def test_without_a_way_in_the_options_that_exist_are_named() -> None:
    done, _ = recorded("URL")
    assert done.returncode == 2
    assert done.stdout.count(b"\n") == 0 or b"401" not in done.stdout
    assert b"--bearer-token-file or --user" in done.stderr


def test_record_takes_a_target_of_the_config_by_name_and_its_secrets_stand_beside_the_file(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("secret\n")
    file = tmp_path / "c.yaml"
    heard: list[bytes] = []
    replies = plays(iter(bodies()))

    async def reply(request: bytes, writer: asyncio.StreamWriter) -> None:
        heard.append(request)
        await replies(request, writer)

    async def run() -> "subprocess.CompletedProcess[bytes]":
        async with serving(reply) as url:
            file.write_text(f"targets: [{{url: '{url}', name: chat, bearer_token_file: token}}, other]\n")
            look = ("--for", "100ms", "--interval", "50ms")
            return await asyncio.to_thread(piped, "record", "chat", "--config", str(file), "-o", "-", *look)

    done = asyncio.run(run())
    assert done.returncode == 0, done.stderr
    assert b"Authorization: Bearer secret" in heard[0]
    which = piped("record", "--config", str(file), "-o", "-")
    assert b"which server? give its URL or name: one of chat, other:8000" in which.stderr


@pytest.mark.parametrize("packed", [True, False])
def test_a_recording_is_read_from_a_pipe_packed_or_not(packed: bool) -> None:
    import gzip

    content = SPIRAL.read_bytes() if packed else gzip.decompress(SPIRAL.read_bytes())
    done = piped("check", "--replay", "-", given=content)
    assert done.returncode == 2
    assert b"DEATH SPIRAL" in done.stdout
    cut = piped("check", "--replay", "-", given=content[: len(content) // 2])
    assert cut.stderr.startswith(b"vllm-vitals: standard input: ")
    assert b"read up to there" in cut.stderr


@pytest.mark.parametrize(
    ("text", "url"),
    [
        ("http://h:8000/v1", "http://h:8000/metrics"),
        ("http://h:8000/v1/", "http://h:8000/metrics"),
        ("h:8000/v1/chat/completions", "http://h:8000/metrics"),
        ("https://h/llm/v1/models", "https://h:443/llm/metrics"),
        ("http://h:8000/v1/metrics", "http://h:8000/v1/metrics"),
        ("http://h:8000/v12", "http://h:8000/v12/metrics"),
    ],
)
def test_the_address_that_clients_are_given_leads_to_the_metrics_beside_it(text: str, url: str) -> None:
    address = parse_address(text)
    assert address.url == url
    assert bool(address.note) is ("/v1" not in url and "/v12" not in url)


def test_what_was_left_out_of_an_address_is_said_once() -> None:
    done = typed("record", "127.0.0.1:1/v1", "-o", "/dev/null", "--force", "--for", "10ms", "--interval", "1ms")
    assert done.stderr.splitlines()[0] == (
        "vllm-vitals: targets[0].url: read at 127.0.0.1:1/metrics: vLLM has it beside /v1, not below"
    )
    assert done.stderr.count("/v1") == 1


def test_a_url_that_the_config_has_already_is_that_target(tmp_path: Path) -> None:
    file = tmp_path / "c.yaml"
    file.write_text("targets: [{url: 'http://h:8000', name: chat, bearer_token_file: /t}, b]\n")
    found = configured(file, ("h", "http://h:8000/metrics", "new", "new:8000/v1"), {})
    assert [(target.name, target.credentials.bearer_token_file) for target in found.targets] == [
        ("chat", "/t"), ("b:8000", ""), ("new:8000", ""),
    ]  # fmt: skip
    told = {"basic_auth": {"username": "u", "password_file": "/p"}, "headers": {"X-Team": "a"}}
    chat = configured(file, ("h",), {}, told).targets[0]
    assert (chat.name, chat.credentials.bearer_token_file, chat.credentials.username) == ("chat", "", "u")
    assert chat.headers == {"X-Team": "a"}


# ---------------------------------------------------------------- one file


def test_every_reader_takes_its_section_of_one_file(tmp_path: Path) -> None:
    file = tmp_path / "all.yaml"
    file.write_text(WHOLE)
    assert loader.load(file).logs.limits.window_s == 600
    assert section.logs(file).limits.max_series == 200
    alerts = section.alerts(file)
    assert (alerts.thresholds.hold, alerts.evaluation_seconds, alerts.limits.queue_for) == (45, 30, 900)
    assert list(alerts.slos) == review_section(file).slos
    for command in (
        ("config", "check", file),
        ("check", "--replay", SPIRAL, "--config", file),
        ("logs", RECORDINGS / "spiral_chunked" / "vllm.log.gz", "--config", file),
        ("rules", "build", "--config", file, "-o", tmp_path / "rules"),
        ("dashboards", "build", "--config", file, "-o", tmp_path / "dashboards"),
        ("kubernetes", "build", "--config", file, "-o", tmp_path / "kubernetes"),
        ("kubernetes", "build", "--alerts", file, "-o", tmp_path / "more"),
    ):
        done = typed(*command)
        assert done.exit_code == (2 if command[0] == "check" else 0), (command, done.output)
    assert ">= 0.17" in (tmp_path / "rules" / "alerts.yml").read_text()
    assert ">= 0.17" in (tmp_path / "kubernetes" / "rules.yml").read_text()


def test_relative_paths_begin_at_the_folder_of_the_file(tmp_path: Path) -> None:
    file = tmp_path / "all.yaml"
    file.write_text(WHOLE)
    found = loader.load(file)
    (target,) = found.targets
    assert (target.credentials.bearer_token_file, target.tls.ca_file) == (
        str(tmp_path / "token"), str(tmp_path / "ca.pem"),
    )  # fmt: skip
    assert found.flight is not None
    assert found.flight.directory == str(tmp_path / "flight")
    assert found.logs.sources[0].paths == [str(tmp_path / "logs/*.jsonl")]
    assert found.logs.checkpoint == tmp_path / "state.json"


def test_all_that_is_wrong_in_any_section_is_said_at_once(tmp_path: Path) -> None:
    file = tmp_path / "c.yaml"
    file.write_text("""
listen: 9840
team: serving
thresholds: {hold: 45}
targets:
  - {url: a, timeout: 9s}
  - {url: a, interval: 1, bearer_token_file: t, basic_auth: {username: u, password_file: p}, thresholds: {holds: 1s}}
  - a
  - "http://${VLLM}"
  - {url: b, timeout: 1m}
discovery: [{dns_sd: {names: [a], type: B}}]
logs: {limits: {window_s: 5}}
review: {slos: [{name: a, indicator: ttft, seconds: 5, share: 0.9}]}
alerts: {limits: {queue_for: 1}}
""")
    done = typed("config", "check", file)
    assert done.exit_code == 2
    keys = [line.removeprefix(f"vllm-vitals: {file}: ").partition(": ")[0] for line in done.stderr.splitlines()]
    assert sorted(keys) == sorted([
        "team", "targets[3]", "listen", "thresholds.hold", "targets[1].interval", "targets[1].basic_auth",
        "targets[1].thresholds.holds", "discovery[0].dns_sd.type", "logs.limits.window_s", "review.slos[0].seconds",
        "alerts.limits.queue_for", 'targets[0] and targets[2] are both called "a:8000"',
    ])  # fmt: skip
    file.write_text(file.read_text().replace("hold: 45", "hold: 45s"))
    said = typed("config", "check", file).stderr
    assert "targets[0].timeout: 9 s is longer than the interval of 5 s" in said
    assert "targets[4].timeout: 60 s is longer than the interval of 5 s" in said


def test_srv_records_need_their_package_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "c.yaml"
    file.write_text("discovery: [{dns_sd: {names: [_vllm._tcp.example]}}]\n")
    monkeypatch.setattr(loader, "find_spec", lambda name: None)
    for command in (("config", "check", file), ("run", "--config", file)):
        done = typed(*command)
        assert done.exit_code == 2
        assert done.stderr == (
            f"vllm-vitals: {file}: discovery[0].dns_sd: SRV records need dnspython: pip install 'vllm-vitals[dns]', "
            "or use type: A\n"
        )
    assert loader.load(file).discovery  # what another machine runs can be built here


def test_a_value_that_is_wrong_costs_no_false_accusation() -> None:
    with pytest.raises(ConfigError) as raised:
        loader.build("c", {"interval": 5, "targets": [{"url": "a", "timeout": "30s"}]})
    assert str(raised.value) == "c: interval: 5 is no duration: write 5s"
