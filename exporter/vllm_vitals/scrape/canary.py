"""The canary: one tiny request of the model's own task at a time, for hangs that metrics cannot show.

Inputs: a target with a plan, its newest snapshot. Output: `Canary` results, told to the target's judge. Invariant: at
most one request per target is in flight, none goes to a target that sleeps or does not answer, and each asks for one
token.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import orjson

from vllm_vitals.core.snapshot import Canary, Role, TargetSnapshot
from vllm_vitals.core.states import State
from vllm_vitals.scrape.target import CanaryPlan, Target

Task = Literal["completions", "chat", "embeddings"]
# Asks a path beside /metrics; status and body. Raises TimeoutError at the deadline (s), CanaryError where none came.
Post = Callable[[Target, str, Mapping[str, Any], float], Awaitable[tuple[int, bytes]]]
# Ordinary words: what a server is asked to hold and to continue should look like anybody's request.
PROMPT = "This is a short check that the server still answers; please reply with a single word:"

_PATHS: Mapping[Task, str] = {
    "completions": "v1/completions",
    "chat": "v1/chat/completions",
    "embeddings": "v1/embeddings",
}
MAX_TOKENS = 10_000  # more than any server makes of the prompt
_NOT_THIS_TASK = frozenset({400, 404, 405, 422, 501})  # vLLM's ways to say that a model does not do that


class CanaryError(Exception):
    """A canary could not be asked. The text is one line."""


@dataclass(frozen=True, slots=True)
class Asked:
    """One canary and what to ask the next time."""

    result: Canary
    next_task: Task


def payload(task: Task, model: str) -> dict[str, Any]:
    """Return the smallest request of a task: one short input, one token out."""
    if task == "embeddings":
        return {"model": model, "input": PROMPT}
    one_token = {"model": model, "max_tokens": 1, "temperature": 0}
    if task == "chat":
        return {**one_token, "messages": [{"role": "user", "content": PROMPT}]}
    return {**one_token, "prompt": PROMPT}


def first_task(plan: CanaryPlan, role: Role | None) -> Task:
    """Return what to begin with; `auto` begins with completions, or embeddings at a pooling engine."""
    for task in _PATHS:
        if plan.task == task:
            return task
    return "embeddings" if role is Role.POOLING else "completions"


def other_task(plan: CanaryPlan, task: Task) -> Task:
    """Return what to try after the server said that its model does not do ``task``."""
    order = list(_PATHS)
    return order[(order.index(task) + 1) % len(order)] if plan.task == "auto" else task


def model_of(plan: CanaryPlan, snapshot: TargetSnapshot | None) -> str | None:
    """Return the model to request; None where no request should be sent now."""
    if snapshot is None or not snapshot.up or any(engine.state is State.ASLEEP for engine in snapshot.engines):
        return None
    served = any(engine.sample is not None and engine.sample.completions for engine in snapshot.engines)
    if not served and not plan.first:
        return None
    return plan.model or next((e.key.model_name for e in snapshot.engines if e.key.model_name), None)


async def ask(target: Target, plan: CanaryPlan, task: Task, model: str, post: Post, now: Callable[[], float]) -> Asked:
    """Send one canary and wait for its end."""
    sent_at = now()
    try:
        status, body = await post(target, _PATHS[task], payload(task, model), plan.deadline)
    except TimeoutError:
        why = f"no answer from /{_PATHS[task]} within {plan.deadline:g} s"
        return Asked(Canary(sent_at, plan.deadline, "timeout", why), task)
    except CanaryError as error:
        return Asked(Canary(sent_at, now() - sent_at, "error", str(error)), task)
    took = now() - sent_at
    if status == 200:
        return Asked(Canary(sent_at, took, "ok", "", *_size(body)), task)
    then = other_task(plan, task) if status in _NOT_THIS_TASK else task
    return Asked(Canary(sent_at, took, "error", f"HTTP {status} from /{_PATHS[task]}"), then)


def _size(body: bytes) -> tuple[float | None, float | None]:
    """Prompt and output tokens by the answer's ``usage``; None where it does not say."""
    try:
        usage = orjson.loads(body)["usage"]
        prompt, output = usage.get("prompt_tokens"), usage.get("completion_tokens", 0)
    except (orjson.JSONDecodeError, KeyError, TypeError, AttributeError):
        return None, None
    known = (
        isinstance(prompt, int) and isinstance(output, int) and 0 <= prompt < MAX_TOKENS and 0 <= output < MAX_TOKENS
    )
    return (float(prompt), float(output)) if known else (None, None)


async def run(
    target: Target,
    plan: CanaryPlan,
    post: Post,
    now: Callable[[], float],
    look: Callable[[], TargetSnapshot | None],
    tell: Callable[[Canary], None],
    first_wait: float,
) -> None:
    """Send canaries at the plan's pace until cancelled."""
    loop, task = asyncio.get_running_loop(), first_task(plan, target.role)
    due = loop.time() + first_wait
    while True:
        await asyncio.sleep(due - loop.time())
        due = max(due + plan.interval, loop.time())
        model = model_of(plan, look())
        if model is not None:
            asked = await ask(target, plan, task, model, post, now)
            task = asked.next_task
            tell(asked.result)
