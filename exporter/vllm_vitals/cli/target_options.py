"""Whom a command looks at: URLs, a config file, this machine, lists of targets; and how to get into a Prometheus.

Input: a command line. Output: targets, each once. Invariant: an option means what the key of the same name means in the
config file.
"""

import asyncio
import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from vllm_vitals.cli.options import Access, configured, say_notes
from vllm_vitals.clock import Clock
from vllm_vitals.core.thresholds import Thresholds
from vllm_vitals.log import QUIET
from vllm_vitals.scrape.fetch import Fetcher
from vllm_vitals.scrape.target import Credentials, Target, parse_address

if TYPE_CHECKING:
    from vllm_vitals.config.loader import Config
    from vllm_vitals.prometheus.promapi import Access as PromAccess

MAX_TEXT = 256
INTERVAL_S, TIMEOUT_S = 5.0, 4.5  # as a config file that says nothing of them


def targets(
    urls: tuple[str, ...], file: Path | None, access: Access, auto: bool, listed: tuple[str, ...], modes: str
) -> tuple[Target, ...]:
    """Return everyone to look at. Raises a usage error that names the ``modes`` where there is nobody."""
    if auto:
        found = asyncio.run(_nearby())
        if not found:
            raise click.ClickException("nothing that listens on this machine answers with vLLM's metrics: give a URL")
        urls += tuple(found)
    if file is None and not (listed or access) and (plain := plainly(urls)):
        return plain
    if listed and file is not None:
        raise click.UsageError("give either --file-sd or --config: a config file has discovery of its own")
    sources = {"discovery": [{"file_sd": {"files": list(listed)}, **access}]} if listed else {}
    config = configured(file, urls, sources, access if urls or not listed else {})
    say_notes(config)
    everyone = asyncio.run(_discovered(config)) if config.discovery else config.targets
    if not everyone and listed:
        raise click.ClickException(f"{', '.join(listed)}: no target in it; expected target groups as file_sd has them")
    if not everyone:
        raise click.UsageError(f"nothing to check: {modes}")
    return everyone


def plainly(urls: tuple[str, ...]) -> tuple[Target, ...]:
    """Return what the config's loader makes of URLs alone, without loading it: it takes longer than all the rest.

    Nothing where something is to be said of them: then the loader has the words.
    """
    found: dict[str, Target] = {}
    for url in urls:
        try:
            where = parse_address(url)
        except ValueError:
            return ()
        if where.note or "$" in url or len(url) > MAX_TEXT:
            return ()
        found.setdefault(
            where.url,
            Target(
                where.name,
                where.url,
                INTERVAL_S,
                TIMEOUT_S,
                credentials=Credentials(username=where.username, password=where.password),
                thresholds=Thresholds().at_interval(INTERVAL_S),
            ),
        )
    return tuple(found.values()) if len({target.name for target in found.values()}) == len(found) else ()


def pods(namespace: str, limits: Thresholds, folder: Path) -> tuple[list[Target], list[str]]:
    """Return the vLLM servers of a Kubernetes namespace, and which pods cannot serve. ``folder`` takes inline secrets.

    Raises `kubeconfig.ClusterError` in one line.
    """
    from vllm_vitals.scrape import kubeconfig
    from vllm_vitals.scrape.pods import vllm_servers

    cluster = kubeconfig.find(os.environ, folder)

    async def listed() -> tuple[list[Target], list[str]]:
        async with Fetcher(Clock().now) as fetcher:
            return await vllm_servers(cluster, namespace, fetcher.fetch)

    found, problems = asyncio.run(listed())
    return [replace(target, thresholds=limits) for target in found], problems


async def _nearby() -> list[str]:
    from vllm_vitals.scrape import local_servers

    async with Fetcher(Clock().now) as fetcher:
        return await local_servers.vllm_servers(fetcher.fetch, local_servers.listening())


async def _discovered(config: "Config") -> tuple[Target, ...]:
    """Return the config's targets and those that its sources list now."""
    from vllm_vitals.config.loader import Config
    from vllm_vitals.scrape.shards import Shard
    from vllm_vitals.scrape.target_manager import TargetManager

    async def nothing() -> None:
        pass

    async with Fetcher(Clock().now) as fetcher:
        manager = TargetManager(fetcher.fetch, QUIET, Shard(1, 1))
        await manager.follow(config, nothing)
        found = manager.targets(config)
        await manager.follow(Config("", 0, ()), nothing)  # none any more: ends what follows them
        return found


def prometheus(url: str, access: Access) -> "PromAccess":
    """Return how to get into a Prometheus, from the options that get into a vLLM server."""
    from vllm_vitals.prometheus import promapi

    auth, tls = access.get("basic_auth") or {}, access.get("tls") or {}
    return promapi.access(
        url, auth.get("username", ""), auth.get("password_file", ""), access.get("bearer_token_file", ""),
        tls.get("ca_file", ""), access.get("headers"),
    )  # fmt: skip
