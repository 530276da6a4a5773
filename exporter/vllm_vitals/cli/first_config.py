"""A first config file: what servers answered, as YAML with comments for the person who goes on from it.

Input: what was seen of servers and of logs. Output: text. Invariant: the loader accepts it, no answer of a server can
break out of its value or comment, and what is only a proposal is a comment.
"""

import ipaddress
import re
from collections import Counter
from collections.abc import Sequence
from typing import Any
from urllib.parse import urlsplit

import yaml

from vllm_vitals.cli.options import Access
from vllm_vitals.cli.probe import Log, Seen
from vllm_vitals.config import loader
from vllm_vitals.config.errors import ConfigError

_PLAIN = re.compile(r"[A-Za-z/][A-Za-z0-9_./:-]*[A-Za-z0-9_/-]")
_NOT_IN_A_NAME = re.compile(r"[^a-z0-9.]+")
_SHOWN = ("max_model_len", "max_num_seqs", "max_num_batched_tokens", "gpu_memory_utilization", "kv_cache_dtype")
_HEAD = """\
# What vllm-vitals watches, written by `vllm-vitals config init`. Change what you like.
#   check it:   vllm-vitals config check {file}
#   run it:     vllm-vitals run --config {file}
#   every key:  config.example.yaml; alerts: docs/alerts.md; logs: docs/logs.md

listen: "127.0.0.1:9840"   # the status page and /metrics; "0.0.0.0:9840" lets a Prometheus elsewhere in
interval: 5s

targets:
"""
_REST = """
# One tiny request a minute finds hangs that metrics cannot show.
# canary: {interval: 1m, deadline: 20s}

# Raw scrapes from before and after trouble, for a post-mortem; and what a restart of the daemon should remember.
# flight_recorder: {directory: /var/lib/vllm-vitals/flight, max_size: 1GiB}
# state_file: /var/lib/vllm-vitals/state.json

# Who is paged, and when: docs/alerts.md
# alerts: {receivers: {}}
"""
_NO_LOG = """
# A server's own log says its settings, and why and at which cap responses end. vLLM writes them with
# --enable-log-requests --enable-log-outputs.
# logs: {sources: [{name: vllm, target: NAME, paths: [/var/log/vllm/*.log]}]}
"""


def text(servers: Sequence[Seen], logs: Sequence[Log], access: Access, file: str) -> str:
    """Return the config. ``logs`` belong to the servers in their order; ``file`` is what the comments call it."""
    called = names(servers)
    parts = [_HEAD.format(file=comment(file)), *(_target(*pair, access) for pair in zip(servers, called, strict=True))]
    parts.append(_sources(logs, called, servers) if logs else _NO_LOG)
    return "".join((*parts, _REST))


def names(servers: Sequence[Seen]) -> list[str]:
    """Return how each target is called: after its host, else after its model; empty where host:port must do."""
    hosts = [_host(server) for server in servers]
    once = Counter(hosts)
    bases = [
        host if host and once[host] == 1 else _slug(server.models[0]) if len(server.models) == 1 else ""
        for host, server in zip(hosts, servers, strict=True)
    ]
    often, used, out = Counter(bases), Counter[str](), []
    for base in bases:
        used[base] += 1
        out.append(f"{base}-{used[base]}" if base and often[base] > 1 else base)
    taken = Counter(out)
    return [name if taken[name] == 1 else "" for name in out]


def _host(server: Seen) -> str:
    """Return the first part of the host's name; empty where it has none that tells it from others."""
    host = urlsplit(server.target.url).hostname or ""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return "" if host in ("localhost", "host.docker.internal") else host.partition(".")[0]
    return ""


def _slug(model: str) -> str:
    return _NOT_IN_A_NAME.sub("-", model.rpartition("/")[2].lower()).strip("-.")[:63]


def comment(words: str) -> str:
    """Return words that stay inside one comment."""
    return "".join(ch for ch in " ".join(words.split()) if ch.isprintable())[:200]


def _scalar(value: str) -> str:
    if _PLAIN.fullmatch(value) and yaml.safe_load(value) == value:
        return value
    return yaml.safe_dump(value, default_style='"', allow_unicode=True, width=10_000).strip()


def _target(server: Seen, name: str, access: Access) -> str:
    entry: dict[str, Any] = {"url": server.target.url.removesuffix("/metrics")}
    if name:
        entry["name"] = name
    if len(server.models) == 1 and _is_usable({"model_name": server.models[0]}):
        entry["model_name"] = server.models[0]
    lines = [f"  # {comment(line)}" for line in _facts(server)]
    for index, (key, value) in enumerate(entry.items()):
        note = "   # so that its absence alerts, too" if key == "model_name" else ""
        lines.append(f"  {'-' if index == 0 else ' '} {key}: {_scalar(value)}{note}")
    if access:
        said = yaml.safe_dump(access, sort_keys=False, allow_unicode=True, width=10_000)
        lines += [f"    {line}" for line in said.splitlines()]
    if server.reason == "tls" and "tls" not in access:
        lines.append("    # tls: {ca_file: /etc/ssl/internal-ca.pem}")
    if server.reason == "unauthorized" and not access.keys() & {"bearer_token_file", "basic_auth"}:
        lines.append("    # bearer_token_file: /run/secrets/vllm-token")
    if not server.reason:
        lines.append("    # service_class: batch   # can wait: pages only where its work stands still")
    return "\n".join(lines) + "\n"


def _facts(server: Seen) -> list[str]:
    if server.reason:
        return [f"no metrics yet: {server.detail or server.reason}"]
    what = f"vLLM {server.version}" if server.version else "vLLM"
    engines = f"{server.engines} engines" if server.engines != 1 else "1 engine"
    known = [f"{name} {server.settings[name]}" for name in _SHOWN if name in server.settings]
    facts = [", ".join([what, engines, *known])]
    if len(server.models) > 1:
        facts.append(f"models: {', '.join(server.models)}")
    return facts + (["plain http was refused: it speaks TLS"] if server.found_tls else [])


def _sources(logs: Sequence[Log], called: Sequence[str], servers: Sequence[Seen]) -> str:
    lines = ["", "logs:", "  # where each file was read up to, so that a restart counts nothing twice",
             "  # checkpoint: /var/lib/vllm-vitals/logs.json", "  sources:"]  # fmt: skip
    for index, log in enumerate(logs):
        target = called[index] or servers[index].target.name
        files = f"{log.files} file{'s' if log.files != 1 else ''}"
        lines.append(
            f"    # {comment(log.problem or f'{files}; {log.understood} of {log.lines} lines are understood')}"
        )
        lines.append(f"    - name: {_scalar(called[index] or f'log-{index + 1}')}")
        lines += [f"      target: {_scalar(target)}", f"      paths: [{_scalar(log.path)}]"]
    return "\n".join(lines) + "\n"


def _is_usable(keys: dict[str, str]) -> bool:
    """Return whether a config may hold a server's own words under these keys."""
    try:
        loader.build("", {"targets": [{"url": "localhost:8000", **keys}]})
    except ConfigError:
        return False
    return True
