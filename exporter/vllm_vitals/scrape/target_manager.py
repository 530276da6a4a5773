"""Who is watched now: the config's targets and those that its sources name, as far as they are this shard's.

Inputs: a `Config`, a `Shard`, what discovery finds. Output: targets, each name once. Invariant: no target is watched
under two names or by two shards, what cannot be watched is said once, and a reload keeps what a source found before.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator
from dataclasses import replace

from vllm_vitals.config.loader import Config
from vllm_vitals.config.schema import RESERVED_LABELS
from vllm_vitals.config.watched import Sourced
from vllm_vitals.core.snapshot import Role
from vllm_vitals.log import Logger
from vllm_vitals.scrape.discovery import Discovery, Fetch, Resolve, Source
from vllm_vitals.scrape.shards import Shard
from vllm_vitals.scrape.target import Target, parse_address
from vllm_vitals.scrape.target_groups import Found

_MEANT_FOR_PROMETHEUS = frozenset({"job", "instance"})
_MAX_SAID = 10


class TargetManager:
    """Follows the config in force and its sources. ``changed`` is awaited when a source has news."""

    def __init__(self, fetch: Fetch, log: Logger, shard: Shard, resolve: Resolve | None = None) -> None:
        self._fetch, self._log, self._shard, self._resolve = fetch, log, shard, resolve
        self._following: dict[Source, tuple[Discovery, asyncio.Task[None]]] = {}
        self._said: list[str] = []

    async def follow(self, config: Config, changed: Callable[[], Awaitable[None]]) -> None:
        """Follow this config's sources, new ones after a first look; sources that stay keep what they found."""
        wanted = {sourced.source for sourced in config.discovery}
        gone = [self._following.pop(source)[1] for source in set(self._following) - wanted]
        for task in gone:
            task.cancel()
        await asyncio.gather(*gone, return_exceptions=True)
        new = {source: self._discover(source) for source in wanted - set(self._following)}
        await asyncio.gather(*(discovery.refresh() for discovery in new.values()))
        for source, discovery in new.items():
            self._following[source] = (discovery, asyncio.create_task(discovery.run(changed), name="discover"))

    def targets(self, config: Config) -> tuple[Target, ...]:
        """Everyone to watch now: the config's own first, then what its sources found, in their order."""
        problems: list[str] = []
        chosen: dict[str, Target] = {}
        for target in (*config.targets, *self._found(config.discovery, problems)):
            if self._shard.owns(target.name):
                chosen.setdefault(target.name, target)
        if len(chosen) > config.limits.targets:
            problems.append(f"{len(chosen)} targets are more than limits.targets allows: the rest is left out")
        self._say(problems)
        return tuple(chosen.values())[: config.limits.targets]

    def _discover(self, source: Source) -> Discovery:
        return Discovery(source, self._fetch, self._log, self._resolve)

    def _found(self, sources: Iterable[Sourced], problems: list[str]) -> Iterator[Target]:
        for sourced in sources:
            following = self._following.get(sourced.source)
            for found in following[0].found if following is not None else ():
                try:
                    yield watched(sourced.like, found, problems)
                except ValueError as error:
                    # what stands before the @ may be a password
                    problems.append(f"{found.address.rpartition('@')[2][:60]!r}: {error}")

    def _say(self, problems: list[str]) -> None:
        if problems and problems != self._said:
            shown = problems[:_MAX_SAID]
            self._log.warning("targets_left_out", count=len(problems), why=shown)
        self._said = problems


def watched(like: Target, found: Found, problems: list[str]) -> Target:
    """Return a found target, watched as its source's entry wants; its own labels win. Raises ValueError in one line.

    ``name`` (or ``target``), ``model_name``, ``role`` and ``service_class`` are ours; every other label is an identity
    label, but for those that would hide one that vllm-vitals sets: ``problems`` tells of these.
    """
    address, labels = parse_address(found.address), dict(found.labels)
    named = labels.pop("target", ""), labels.pop("name", "")
    role, service_class = labels.pop("role", ""), labels.pop("service_class", "") or like.service_class
    model_name = labels.pop("model_name", "") or like.model_name
    if role and role not in set(Role):
        raise ValueError(f"role: expected one of {', '.join(Role)}, got {role[:60]}")
    if service_class not in ("interactive", "batch"):
        raise ValueError(f"service_class: expected interactive or batch, got {service_class[:60]}")
    for label in sorted(RESERVED_LABELS & set(labels)):
        del labels[label]
        if label not in _MEANT_FOR_PROMETHEUS:
            problems.append(f"{address.name}: the label {label} would hide one that vllm-vitals sets itself")
    who = like.credentials
    if address.username and not (who.bearer_token_file or who.username):
        who = replace(who, username=address.username, password=address.password)
    return replace(
        like,
        name=(named[1] or named[0] or address.name)[:256],
        url=address.url,
        model_name=model_name,
        role=Role(role) if role else like.role,
        service_class=service_class,
        credentials=who,
        labels={**like.labels, **labels},
    )
