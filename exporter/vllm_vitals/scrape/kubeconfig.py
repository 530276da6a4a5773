"""How to get into a Kubernetes cluster: from inside a pod, or by a kubeconfig as kubectl reads it.

Input: the environment, files. Output: a `Cluster`. Invariant: what stands inline in a kubeconfig (certificates, a
token) lives in a folder of our own, readable by us alone, as long as the caller keeps it; errors are one line and hold
no secret.
"""

import base64
import binascii
import os
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import orjson

from vllm_vitals.config import strict_yaml
from vllm_vitals.config.schema import SERVICE_ACCOUNT
from vllm_vitals.scrape.target import Credentials, Tls, joined

MAX_BYTES = 4 * 1024 * 1024
PLUGIN_S = 30.0


class ClusterError(Exception):
    """No way into a cluster. The text is one line that says what is missing."""


@dataclass(frozen=True, slots=True)
class Cluster:
    """The API server's address, how to prove who we are, and whether pods can be reached at their own addresses."""

    url: str
    credentials: Credentials
    tls: Tls
    inside: bool
    who: str


def find(environment: Mapping[str, str], folder: Path, in_pod: Path = Path(SERVICE_ACCOUNT)) -> Cluster:
    """Return the cluster that a kubeconfig names, else the one that this pod is in. ``folder`` takes inline secrets.

    Raises `ClusterError`.
    """
    named = [Path(part) for part in environment.get("KUBECONFIG", "").split(os.pathsep) if part]
    usual = Path(environment.get("HOME", "/")) / ".kube" / "config"
    if not named and not usual.exists():
        host, port = environment.get("KUBERNETES_SERVICE_HOST", ""), environment.get("KUBERNETES_SERVICE_PORT", "")
        if host and (in_pod / "token").exists():
            tls = Tls(ca_file=str(in_pod / "ca.crt"))
            who = Credentials(bearer_token_file=str(in_pod / "token"))
            return Cluster(
                f"https://{joined(host, int(port) if port.isdecimal() else 443)}",
                who,
                tls,
                True,
                "this pod's service account",
            )
        raise ClusterError(
            f"no cluster: there is no kubeconfig ($KUBECONFIG or {usual}), and this is no pod with a token"
        )
    return _Kubeconfig([path for path in named if path.exists()] or named[:1] or [usual], folder).cluster(environment)


class _Kubeconfig:
    """One or more files, of which the first that names something wins."""

    def __init__(self, files: list[Path], folder: Path) -> None:
        self._name, self._folder, self._made = str(files[0]), folder, 0
        self._entries: dict[tuple[str, str], tuple[dict[str, Any], Path]] = {}
        self._context = ""
        for file in files:
            plain = _document(file)
            self._context = self._context or str(plain.get("current-context") or "")
            for kind in ("cluster", "context", "user"):
                for entry in _list(plain.get(f"{kind}s")):
                    inner = entry.get(kind)
                    if isinstance(inner, dict):
                        self._entries.setdefault((kind, str(entry.get("name"))), (inner, file.parent))

    def cluster(self, environment: Mapping[str, str]) -> Cluster:
        """Return the cluster of the current context."""
        if not self._context:
            raise ClusterError(f"{self._name}: no current-context: choose one with `kubectl config use-context NAME`")
        context, _ = self._entry("context", self._context)
        cluster, place = self._entry("cluster", str(context.get("cluster")))
        url = str(cluster.get("server") or "").rstrip("/")
        if urlsplit(url).scheme not in ("http", "https"):
            raise ClusterError(
                f"{self._name}: the cluster {context.get('cluster')} has no server with http:// or https://"
            )
        if cluster.get("proxy-url"):
            raise ClusterError(f"{self._name}: proxy-url is not understood: run `kubectl proxy` and point server there")
        user, user_place = self._entry("user", str(context["user"])) if context.get("user") else ({}, place)
        who = user | (self._plugin(user["exec"], user_place, environment) if isinstance(user.get("exec"), dict) else {})
        if isinstance(user.get("auth-provider"), dict):
            raise ClusterError(f"{self._name}: auth-provider is gone from kubectl too: use its exec plugin")
        tls = Tls(
            ca_file=self._file(cluster, "certificate-authority", place),
            cert_file=self._file(who, "client-certificate", user_place),
            key_file=self._file(who, "client-key", user_place),
            server_name=str(cluster.get("tls-server-name") or ""),
            insecure_skip_verify=cluster.get("insecure-skip-tls-verify") is True,
        )
        token_file = str(user_place / str(who["tokenFile"])) if who.get("tokenFile") else ""
        if who.get("token"):
            token_file = self._kept(str(who["token"]).encode())
        name, password = (str(who.get(key) or "") for key in ("username", "password"))
        credentials = Credentials(token_file) if token_file else Credentials(username=name, password=password)
        return Cluster(url, credentials, tls, False, f"the context {self._context} of {self._name}")

    def _entry(self, kind: str, name: str) -> tuple[dict[str, Any], Path]:
        if (kind, name) not in self._entries:
            raise ClusterError(f"{self._name}: there is no {kind} called {name[:80]}")
        return self._entries[kind, name]

    def _file(self, entry: Mapping[str, Any], key: str, place: Path) -> str:
        """Return the file that holds what stands under a key; made here where it stands inline."""
        inline = entry.get(f"{key}-data")
        if not inline:
            return str(place / str(entry[key])) if entry.get(key) else ""
        try:
            return self._kept(base64.b64decode(str(inline), validate=False))
        except binascii.Error:
            raise ClusterError(f"{self._name}: {key}-data is not base64") from None

    def _kept(self, content: bytes) -> str:
        """Write a secret where only we can read it."""
        self._made += 1
        path = self._folder / f"{self._made}"
        path.touch(mode=0o600)
        path.write_bytes(content)
        return str(path)

    def _plugin(self, command: Mapping[str, Any], place: Path, environment: Mapping[str, str]) -> dict[str, Any]:
        """Ask a credential plugin as kubectl does (client.authentication.k8s.io): EKS, GKE and AKS have one each."""
        program = str(command.get("command") or "")
        info = {
            "apiVersion": str(command.get("apiVersion") or "client.authentication.k8s.io/v1"),
            "kind": "ExecCredential",
            "spec": {"interactive": False},
        }
        more = {str(each.get("name")): str(each.get("value")) for each in _list(command.get("env"))}
        asked = [str(place / program) if os.sep in program else program, *map(str, command.get("args") or ())]
        try:
            done = subprocess.run(  # noqa: S603 - the user's own kubeconfig names it
                asked, env={**environment, **more, "KUBERNETES_EXEC_INFO": orjson.dumps(info).decode()},
                stdin=subprocess.DEVNULL, capture_output=True, timeout=PLUGIN_S, check=True,
            )  # fmt: skip
            status = orjson.loads(done.stdout[:MAX_BYTES])["status"]
            names = ("token", "token"), ("clientCertificateData", "cert"), ("clientKeyData", "key")
            found = {ours: str(status[theirs]).encode() for theirs, ours in names if status.get(theirs)}
        except subprocess.TimeoutExpired:
            raise ClusterError(f"{self._name}: {program} gave no credentials within {PLUGIN_S:g} s") from None
        except subprocess.CalledProcessError as error:
            raise ClusterError(
                f"{self._name}: {program} gave no credentials (exit code {error.returncode}): run it to see why"
            ) from None
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            why = error.strerror if isinstance(error, OSError) else "its answer is no ExecCredential"
            raise ClusterError(f"{self._name}: {program}: {why}") from None
        entry: dict[str, Any] = {"token": found["token"].decode()} if "token" in found else {}
        pairs = (("cert", "client-certificate"), ("key", "client-key"))
        return entry | {key: self._kept(found[part]) for part, key in pairs if part in found}


def _list(value: object) -> list[dict[str, Any]]:
    return [each for each in value if isinstance(each, dict)] if isinstance(value, list) else []


def _document(file: Path) -> dict[str, Any]:
    try:
        return strict_yaml.read(file, MAX_BYTES)
    except strict_yaml.YamlError as error:
        raise ClusterError(f"{error}: expected a kubeconfig") from None
