"""`check --kubernetes`: an API server that lists pods and reaches them, kubeconfigs, and what is said of faults."""

import base64
import itertools
import json
import os
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import pytest

from tests.edges.servers import bodies
from tests.typed import typed
from vllm_vitals.scrape import kubeconfig
from vllm_vitals.scrape.kubeconfig import ClusterError
from vllm_vitals.scrape.pods import _pod

TOKEN = "token-of-a-test"


def pod(name: str, container: dict[str, Any], phase: str = "Running", **status: Any) -> dict[str, Any]:
    return {
        "metadata": {"name": name},
        "spec": {"containers": [container]},
        "status": {"phase": phase, "podIP": "10.0.0.1", **status},
    }


WAITS = {"state": {"waiting": {"reason": "CrashLoopBackOff"}}, "restartCount": 12,
         "lastState": {"terminated": {"reason": "OOMKilled"}}}  # fmt: skip
VLLM = {"image": "vllm/vllm-openai:v0.11", "args": ["--model", "m", "--port=8100"]}
PODS = [
    pod("chat-0", VLLM),
    pod("chat-1", VLLM, containerStatuses=[WAITS]),
    pod("chat-2", VLLM, "Pending", podIP="", conditions=[{"status": "False", "reason": "Unschedulable"}]),
    pod("redis-0", {"image": "redis:7", "ports": [{"name": "redis", "containerPort": 6379}]}),
    pod("own-0", {"image": "registry/own:1", "ports": [{"name": "http", "containerPort": 9000}]}),
    pod("web-0", {"image": "nginx", "ports": [{"name": "http", "containerPort": 80}]}),
]


class Api(BaseHTTPRequestHandler):
    """A part of Kubernetes' API: pods of the namespace ``serving``, and what stands behind pods/proxy."""

    asked: ClassVar[list[str]] = []
    pods: ClassVar[list[dict[str, Any]]] = PODS
    refused: ClassVar[tuple[str, ...]] = ()
    body = itertools.cycle(bodies("saturated_no_preemption")[30:])

    def do_GET(self) -> None:
        self.asked.append(self.path)
        known = self.headers["Authorization"] == f"Bearer {TOKEN}"
        status, content = 404, b"{}"
        if not known:
            status = 401
        elif any(part in self.path for part in self.refused):
            status = 403
        elif self.path.startswith("/api/v1/namespaces/serving/pods?"):
            half = len(self.pods) // 2  # two pages
            rest = "continue=more" in self.path
            items = self.pods[half:] if rest else self.pods[:half]
            meta = {} if rest else {"continue": "more"}
            status, content = 200, json.dumps({"kind": "PodList", "metadata": meta, "items": items}).encode()
        elif self.path.startswith("/api/v1/namespaces/"):
            if self.path.endswith(("/chat-0:8100/proxy/metrics", "/own-0:9000/proxy/metrics")):
                status, content = 200, next(self.body)
            elif self.path.partition("?")[0].endswith("/pods"):
                status, content = 200, b'{"kind":"PodList","metadata":{},"items":[]}'
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def api(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Api)
    monkeypatch.setattr(Api, "asked", [])
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
    url = f"http://127.0.0.1:{server.server_port}"
    monkeypatch.setenv("KUBECONFIG", str(config(tmp_path, url)))
    yield url
    server.shutdown()
    server.server_close()


def config(folder: Path, url: str, user: object = None, **cluster: str) -> Path:
    path = folder / "config"
    path.write_text(
        json.dumps(
            {
                "current-context": "here",
                "contexts": [{"name": "here", "context": {"cluster": "c", "user": "u"}}],
                "clusters": [{"name": "c", "cluster": {"server": url, **cluster}}],
                "users": [{"name": "u", "user": user or {"token": TOKEN}}],
            }
        )
    )
    return path


def test_the_vllm_pods_of_a_namespace_are_judged_and_those_that_do_not_run_are_named(api: str) -> None:
    done = typed("check", "--kubernetes", "serving", "--for", "5s", "--interval", "200ms", "--json")
    answer = json.loads(done.stdout)
    assert sorted(each["target"] for each in answer["targets"]) == ["serving/chat-0:8100", "serving/own-0:9000"]
    assert {engine["state"] for each in answer["targets"] for engine in each["engines"]} == {"saturated"}
    assert answer["problems"] == [
        "pod chat-1: CrashLoopBackOff, 12 restarts, last ended by OOMKilled", "pod chat-2: Pending, Unschedulable",
    ]  # fmt: skip
    asked = " ".join(Api.asked)
    assert "limit=250&continue=more" in asked
    assert "redis" not in asked
    assert TOKEN not in done.output


@pytest.mark.parametrize(
    ("namespace", "changed", "said"),
    [
        ("empty", {}, "namespace empty: no pod in it, by the context here of"),
        ("No_Name", {}, "'No_Name' is no namespace"),
        ("serving", {"refused": ("pods?",)}, "namespace serving: no right to list its pods"),
        ("serving", {"refused": ("proxy",)}, "no right to reach its pods through the API (get pods/proxy)"),
        ("serving", {"pods": PODS[3:4]}, "of 1 pods none answers with vLLM's metrics"),
        ("serving", {"pods": PODS[1:3]}, "none answers with vLLM's metrics; pod chat-1: CrashLoopBackOff"),
        ("serving", {"pods": [{"metadata": 5, "spec": {"containers": [7]}, "status": []}]}, "of 1 pods none answers"),
    ],
)
def test_what_keeps_it_from_servers_is_one_clear_line(
    api: str, monkeypatch: pytest.MonkeyPatch, namespace: str, changed: dict[str, Any], said: str
) -> None:
    for name, value in changed.items():
        monkeypatch.setattr(Api, name, value)
    done = typed("check", "--kubernetes", namespace)
    assert (done.exit_code, done.stdout, done.stderr.count("\n")) == (3, "", 1)
    assert said in done.stderr


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "no cluster: there is no kubeconfig ($KUBECONFIG or"),
        ("/nowhere", "/nowhere: No such file or directory"),
        ("[1", "expected a kubeconfig"),
        ("{}", "no current-context: choose one with `kubectl config use-context NAME`"),
        ("{current-context: x}", "there is no context called x"),
        ("token: wrong", "the cluster does not know us (HTTP 401)"),
        ("server: http://127.0.0.1:1", "the cluster's API refuses connections"),
        ("server: ftp://host", "has no server with http:// or https://"),
        ("ca: !!!", "certificate-authority-data is not base64"),
        ("exec: /no/such/plugin", "/no/such/plugin: No such file"),
        ("exec: false", "false gave no credentials (exit code 1)"),
        ("exec: true", "true: its answer is no ExecCredential"),
    ],
)
def test_a_cluster_that_cannot_be_got_into_is_one_line(
    api: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: str | None, said: str
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    kind, _, value = (content or "").partition(": ")
    if content is None:
        monkeypatch.delenv("KUBECONFIG")
    elif content.startswith("/"):
        monkeypatch.setenv("KUBECONFIG", content)
    elif kind in ("token", "exec"):
        config(tmp_path, api, {"token": value} if kind == "token" else {"exec": {"command": value}})
    elif kind in ("server", "ca"):
        config(tmp_path, value) if kind == "server" else config(tmp_path, api, **{"certificate-authority-data": "a"})
    else:
        (tmp_path / "config").write_text(content)
    done = typed("check", "--kubernetes", "serving")
    assert (done.exit_code, done.stdout, done.stderr.count("\n")) == (3, "", 1)
    assert said in done.stderr
    assert "wrong" not in done.stderr


@pytest.mark.parametrize("more", [("http://a:1",), ("--auto",), ("--prometheus", "http://p"), ("--user", "x")])
def test_other_sources_and_ways_in_beside_it_are_refused(more: tuple[str, ...]) -> None:
    done = typed("check", "--kubernetes", "serving", *more)
    assert done.exit_code == 3
    assert "Try: vllm-vitals check --help" in done.stderr


def test_inline_certificates_and_a_plugin_s_token_are_files_that_only_we_can_read(tmp_path: Path) -> None:
    said = {"status": {"token": TOKEN}}
    script = f"test -n \"$KUBERNETES_EXEC_INFO\" && echo '{json.dumps(said)}'"
    user = {"exec": {"command": "sh", "args": ["-c", script]}}
    data = base64.b64encode(b"-----BEGIN").decode()
    path = config(tmp_path, "https://api:6443/", user, **{"certificate-authority-data": data, "tls-server-name": "n"})
    own = tmp_path / "own"
    own.mkdir(mode=0o700)
    found = kubeconfig.find({**os.environ, "KUBECONFIG": f"/nowhere{os.pathsep}{path}"}, own)
    assert (found.url, found.inside, found.tls.server_name) == ("https://api:6443", False, "n")
    assert Path(found.credentials.bearer_token_file).read_text() == TOKEN
    assert Path(found.tls.ca_file).read_bytes() == b"-----BEGIN"
    assert {file.stat().st_mode & 0o777 for file in own.iterdir()} == {0o600}
    assert TOKEN not in repr(found)


def test_inside_a_pod_its_service_account_is_used_and_pods_are_asked_directly(tmp_path: Path) -> None:
    inside = {"HOME": "/nowhere", "KUBERNETES_SERVICE_HOST": "fd00::1", "KUBERNETES_SERVICE_PORT": "443"}
    with pytest.raises(ClusterError, match="no pod with a token"):
        kubeconfig.find(inside, tmp_path, tmp_path)
    (tmp_path / "token").write_text(TOKEN)
    found = kubeconfig.find(inside, tmp_path, tmp_path)
    assert (found.url, found.inside) == ("https://[fd00::1]:443", True)
    assert found.credentials.bearer_token_file == str(tmp_path / "token")


@pytest.mark.parametrize(
    ("container", "annotation", "meant", "ports"),
    [
        (VLLM, "", True, (8100,)),
        ({"image": "own", "command": ["python", "-m", "vllm.entrypoints.openai.api_server"]}, "", True, (8000,)),
        ({"image": "own", "env": [{"name": "VLLM_USE_V1"}], "ports": [{"containerPort": 81}]}, "", True, (81,)),
        ({"image": "vllm/vllm-openai", "ports": [{"containerPort": 81}]}, "9090", True, (9090,)),
        ({"image": "lmcache/lmstack-router", "args": ["--vllm"], "ports": [{"containerPort": 81}]}, "", False, ()),
        ({"image": "vllm-vitals:1", "ports": [{"containerPort": 9840, "name": "http"}]}, "", False, (9840,)),
        ({"image": "db", "ports": [{"containerPort": 53, "protocol": "UDP", "name": "http"}]}, "", False, ()),
    ],
)
def test_which_ports_of_a_pod_are_tried(
    container: dict[str, Any], annotation: str, meant: bool, ports: tuple[int, ...]
) -> None:
    item = pod("p", container)
    item["metadata"]["annotations"] = {"prometheus.io/port": annotation}
    found = _pod(item)
    assert (found.meant, found.ports) == (meant, ports)
