"""docker-compose.yml, .env, the Dockerfile and what they mount, read as data: pins, hardening, order, files."""

import json
import re
import subprocess
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.programs import current, missing
from vllm_vitals.config import loader
from vllm_vitals.config.section import alerts
from vllm_vitals.dashboards import links
from vllm_vitals.rules.model import dump
from vllm_vitals.rules.routing import document
from vllm_vitals.scrape.discovery import DnsSource
from vllm_vitals.simulator.scenarios import SCENARIOS

ROOT = Path(__file__).parents[2]
COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text(encoding="utf-8"))
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
ENV = dict(
    line.split("=", 1)
    for line in (ROOT / ".env").read_text(encoding="utf-8").splitlines()
    if line and not line.startswith("#")
)
# Paths that a service may write, each a named volume or a bounded tmpfs.
WRITABLE = {"/prometheus", "/alertmanager", "/var/lib/grafana", "/logs"}

service = pytest.mark.parametrize("name", SERVICES)


def filled(text: str) -> str:
    """Compose's interpolation with .env's values and nothing from the shell."""
    inner = re.compile(r"\$\{(\w+)(:[-+?])?([^${}]*)\}")
    while found := inner.search(text):
        name, operator, word = found[1], found[2], found[3]
        value = ENV.get(name, "")
        chosen = {":-": value or word, ":+": word if value else "", ":?": value, None: value}[operator]
        text = text[: found.start()] + chosen + text[found.end() :]
    return text


@service
def test_every_image_is_pinned_in_one_place(name: str) -> None:
    image = filled(SERVICES[name]["image"])
    if "build" in SERVICES[name]:
        assert filled(SERVICES[name]["build"]["args"]["PYTHON_IMAGE"]) == ENV["PYTHON_IMAGE"]
        return
    assert re.fullmatch(r"[\w./-]+:v?\d+\.\d+\.\d+[\w.-]*(@sha256:[0-9a-f]{64})?", image), image
    assert image in ENV.values()


def test_the_digests_are_of_the_same_images() -> None:
    by_digest = dict(re.findall(r"^(\w+)=(.*)$", (ROOT / "deploy" / "digests.env").read_text(), re.MULTILINE))
    assert {name: image.partition("@")[0] for name, image in by_digest.items()} == {
        name: value for name, value in ENV.items() if name.endswith("_IMAGE")
    }
    assert all(re.fullmatch(r"[^@]+@sha256:[0-9a-f]{64}", image) for image in by_digest.values())
    chosen = compose("--env-file", ".env", "--env-file", "deploy/digests.env", "config", "--images").split()
    assert set(chosen) == {"vllm-vitals:local", *by_digest.values()} - {by_digest["PYTHON_IMAGE"]}
    release = (ROOT / ".github" / "workflows" / "release.yml").read_text()
    assert "deploy/digests.env" in release
    assert "build-args: PYTHON_IMAGE=" in release


@service
def test_every_service_is_hardened(name: str) -> None:
    service = SERVICES[name]
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert "no-new-privileges:true" in service["security_opt"]
    assert service["user"].split(":")[0] not in ("0", "root")
    assert all("size=" in mount for mount in service["tmpfs"])
    assert not service.get("privileged")
    assert service["logging"]["options"]["max-size"]
    assert {"network_mode", "pid", "ipc", "devices"}.isdisjoint(service)


@service
def test_every_service_has_limits_and_a_health_check(name: str) -> None:
    service = SERVICES[name]
    limits = service["deploy"]["resources"]["limits"]
    assert set(limits) == {"cpus", "memory", "pids"}
    check = service["healthcheck"]
    assert check["test"][0] == "CMD"
    assert int(check["timeout"].rstrip("s")) <= int(check["interval"].rstrip("s"))


@service
def test_ports_are_published_on_loopback_alone(name: str) -> None:
    for port in SERVICES[name].get("ports", []):
        assert port.startswith("127.0.0.1:")


@service
def test_what_is_mounted_exists_and_cannot_be_changed(name: str) -> None:
    for mount in SERVICES[name].get("volumes", []):
        source, target, *mode = filled(mount).split(":")
        if source.startswith("."):
            assert (ROOT / source).exists(), f"{source} does not exist"
            assert mode == ["ro"], f"{source} is mounted writable"
        else:
            assert source in COMPOSE["volumes"]
            assert mode == ["ro"] or target in WRITABLE


@service
def test_services_wait_until_what_they_need_is_healthy(name: str) -> None:
    for other, how in SERVICES[name].get("depends_on", {}).items():
        assert other in SERVICES
        assert how["condition"] == "service_healthy"
        assert how.get("required", True) or SERVICES[other].get("profiles")


FLEET = {"fleet-chat", "fleet-code", "fleet-long"}


def test_only_simulated_servers_have_a_profile_and_no_secret_is_written_here() -> None:
    profiles = {name: [filled(each) for each in service.get("profiles", ())] for name, service in SERVICES.items()}
    assert {name for name, named in profiles.items() if named} == {"simulator", *FLEET}
    assert profiles["simulator"] == [ENV["COMPOSE_PROFILES"]] == ["simulated"]
    assert all(profiles[name] == ["fleet"] for name in FLEET)
    text = (ROOT / "docker-compose.yml").read_text(encoding="utf-8") + (ROOT / ".env").read_text(encoding="utf-8")
    assert not re.search(r"(?i)(password|token|secret)\s*[:=]\s*\S", text)
    assert "latest" not in text


def test_grafana_finds_its_data_source_and_dashboards_and_lets_nobody_edit() -> None:
    provisioning = ROOT / "deploy" / "grafana" / "provisioning"
    [source] = yaml.safe_load((provisioning / "datasources" / "prometheus.yml").read_text())["datasources"]
    assert (source["type"], source["uid"], source["editable"]) == ("prometheus", "prometheus", False)
    [alerting] = yaml.safe_load((provisioning / "datasources" / "alertmanager.yml").read_text())["datasources"]
    assert (alerting["type"], alerting["name"], alerting["editable"]) == ("alertmanager", links.ALERTMANAGER, False)
    assert alerting["url"].removeprefix("http://").partition(":")[0] in SERVICES
    [provider] = yaml.safe_load((provisioning / "dashboards" / "vllm-vitals.yml").read_text())["providers"]
    assert provider["allowUiUpdates"] is False
    assert provider["disableDeletion"] is True
    mounts = {mount.split(":")[1]: mount.split(":")[0] for mount in SERVICES["grafana"]["volumes"]}
    mounted = ROOT / mounts[provider["options"]["path"]]
    assert {path.stem for path in mounted.glob("*.json")} == set(links.TITLES)
    home = Path(SERVICES["grafana"]["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"])
    assert (mounted / home.name).exists()
    assert SERVICES["grafana"]["environment"]["GF_AUTH_ANONYMOUS_ORG_ROLE"] == "Viewer"


def test_alertmanagers_config_is_what_the_alert_code_makes_for_the_inbox() -> None:
    folder = ROOT / "deploy" / "alertmanager"
    made = dump(document(alerts(folder / "alerts.yml")))
    assert (folder / "alertmanager.yml").read_text(encoding="utf-8") == made
    hooks = re.findall(r"url: http://inbox:9841/(\w+)", made)
    assert sorted(hooks) == ["pager", "tickets", "watchdog"]


def test_prometheus_scrapes_the_exporter_under_the_job_that_alerts_know() -> None:
    config = yaml.safe_load((ROOT / "deploy" / "prometheus" / "prometheus.yml").read_text())
    job = next(job for job in config["scrape_configs"] if job["job_name"] == "vllm-vitals")
    assert job["static_configs"] == [{"targets": ["exporter:9840"]}]
    for key in ("body_size_limit", "sample_limit", "label_limit", "label_value_length_limit"):
        assert job[key]
    assert alerts(ROOT / "deploy" / "alertmanager" / "alerts.yml").exporter_job == "vllm-vitals"
    mounted = {mount.split(":")[1] for mount in SERVICES["prometheus"]["volumes"]}
    assert any(path.startswith("/etc/prometheus/rules/") for path in mounted)


def test_the_image_is_what_the_daemon_needs_and_runs_as_nobody_in_particular() -> None:
    text = (ROOT / "Dockerfile").read_text(encoding="utf-8")
    build, run = text.split("FROM scratch\n")
    assert "FROM ${PYTHON_IMAGE} AS build" in build
    assert re.search(rf"ARG PYTHON_IMAGE={re.escape(ENV['PYTHON_IMAGE'])}\n", build)
    assert re.search(r"^USER \d{4,}:\d{4,}$", run, re.MULTILINE)
    assert "RUN" not in run
    for instruction in ("HEALTHCHECK ", "STOPSIGNAL SIGTERM", "ENTRYPOINT "):
        assert f"\n{instruction}" in run
    labels = re.findall(r"org\.opencontainers\.image\.(\w+)=", run)
    assert {"title", "description", "licenses", "source", "url", "version", "revision", "created"} <= set(labels)
    assert SERVICES["exporter"]["user"] == re.search(r"^USER (.+)$", run, re.MULTILINE)[1]  # type: ignore[index]
    copied = set(re.findall(r"^COPY (?!--from)(.+) \S+$", build, re.MULTILINE))
    ignored = (ROOT / ".dockerignore").read_text(encoding="utf-8")
    for path in " ".join(copied).split():
        assert (ROOT / path).exists()
        assert f"!{path}\n" in ignored
    # which platform it is built for changes nothing here, so that buildx builds it for each
    assert not re.search(r"amd64|arm64|x86_64|aarch64", re.sub(r"^#.*$", "", text, flags=re.MULTILINE))


def test_what_a_container_is_begun_with_is_in_the_image() -> None:
    spec = spec_from_file_location("image_root", ROOT / "tools" / "image_root.py")
    assert spec is not None
    assert spec.loader is not None
    image_root = module_from_spec(spec)
    spec.loader.exec_module(image_root)
    used = {"sh"}
    for service in SERVICES.values():
        if service["image"] == "vllm-vitals:local":
            for script in service.get("entrypoint", [])[2:3]:
                used |= set(re.findall(r"(?:\$\(|\| )([a-z]+) ", script))
    assert used == set(image_root.PROGRAMS)
    assert set(image_root.FILES) >= {"/etc/ssl/certs/ca-certificates.crt", "/etc/passwd", "/etc/ld.so.cache"}


def compose(*arguments: str, **env: str) -> str:
    """Docker Compose's own reading of the file."""
    command = [current("docker-compose") or missing("no docker-compose: make tools unpacks it below .tools")]
    plain = {"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": "/nonexistent"}
    done = subprocess.run(
        [*command, *arguments], cwd=ROOT, env=plain | env, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "warning" not in done.stderr.lower()
    return done.stdout


TARGETS = {"VLLM_TARGETS": "http://gpu-1:8000 http://gpu-2:8000"}
STACK = set(SERVICES) - {"simulator", *FLEET}
# what the shell says -> the servers that are simulated, the config that is mounted, and where logs are read
WAYS: list[tuple[dict[str, str], set[str], str, str]] = [
    ({}, {"simulator"}, "simulated.yml", "logs"),
    ({"COMPOSE_PROFILES": "fleet"}, FLEET, "fleet.yml", "logs"),
    (TARGETS, set(), "simulated-of-targets.yml", "logs"),
    ({"COMPOSE_PROFILES": "real", **TARGETS}, set(), "real-of-targets.yml", "logs"),
    ({"COMPOSE_PROFILES": "logs", "VLLM_LOGS": "/srv/log", **TARGETS}, set(), "logs-of-targets.yml", "/srv/log"),
    ({"VLLM_CONFIG": "./mine.yml"}, set(), "mine.yml", "logs"),
]
ways = pytest.mark.parametrize(("env", "simulated", "config", "logs"), WAYS)


def podman(folder: Path, **env: str) -> dict[str, Any]:
    """podman-compose's reading of the file. It asks for podman's version first, and for no more of it."""
    command = Path(sys.executable).with_name("podman-compose")
    if not command.exists():
        missing("no podman-compose: pip install podman-compose")
    (folder / "podman").write_text("#!/bin/sh\necho podman version 5.4.0\n")
    (folder / "podman").chmod(0o755)
    plain = {"PATH": f"{folder}:/usr/bin:/bin", "HOME": "/nonexistent"}
    done = subprocess.run([command, "config"], cwd=ROOT, env=plain | env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    read: dict[str, Any] = yaml.safe_load(done.stdout)
    return read


@ways
def test_each_profile_starts_its_servers_and_mounts_its_config(
    env: dict[str, str], simulated: set[str], config: str, logs: str
) -> None:
    read = json.loads(compose("config", "--format", "json", **env))["services"]
    assert set(read) == STACK | simulated
    exporter = read["exporter"]
    assert exporter["command"][5:] == env.get("VLLM_TARGETS", "").split()
    assert [Path(each["source"]).name for each in exporter["volumes"]] == [config, Path(logs).name]
    if config != "mine.yml":
        assert loader.load(ROOT / "deploy" / "exporter" / config)
    assert sum(read[name]["deploy"].get("replicas", 1) for name in simulated) == {1: 1, 3: 10}.get(len(simulated), 0)


@pytest.mark.parametrize(("env", "simulated", "config", "logs"), [WAYS[0], WAYS[1], WAYS[4]])
def test_podman_compose_reads_the_same(
    env: dict[str, str], simulated: set[str], config: str, logs: str, tmp_path: Path
) -> None:
    read = podman(tmp_path, **env)["services"]
    assert set(read) == STACK | simulated
    mounts = [mount if isinstance(mount, str) else mount["source"] for mount in read["exporter"]["volumes"]]
    assert f"/{config}" in mounts[0]
    assert mounts[1].split(":")[0] == logs
    for name in simulated & FLEET:
        assert read[name]["deploy"]["replicas"] == SERVICES[name]["deploy"]["replicas"]


def test_the_fleet_is_three_models_whose_replicas_differ() -> None:
    config = loader.load(ROOT / "deploy" / "exporter" / "fleet.yml")
    source = config.discovery[0].source
    assert isinstance(source, DnsSource)
    assert set(source.names) == FLEET
    commands = [SERVICES[name]["command"] for name in sorted(FLEET)]
    assert len({re.search(r"model_name=(\S+)", command)[1] for command in commands}) == 3  # type: ignore[index]
    for command in commands:
        scenario = re.search(r"--scenario (\S+)", command)
        assert scenario is not None
        assert scenario[1] in {known.name for known in SCENARIOS}
    script = SERVICES["fleet-chat"]["entrypoint"][2].replace("$$", "$").replace("exec vllm-vitals", "echo")
    said = subprocess.run(
        ["sh", "-c", script, "simulate", "--port", "8000"], capture_output=True, text=True, check=True
    ).stdout
    assert re.fullmatch(r"simulate --seed \d{1,4} --skip \d{1,3}s --port 8000\n", said)
