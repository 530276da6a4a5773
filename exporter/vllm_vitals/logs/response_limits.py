"""What a response proves. Inputs: one event and the server's limits. Outputs: which cap cut it, and what was wasted.

Invariant: a cap is named only where the numbers prove it; otherwise it is "unknown". Sources: vLLM
``entrypoints/openai`` (a request without max_tokens gets the smallest of the server's default and what the prompt
leaves of the context; the default also bounds a larger request), vllm#47963 and vllm#24184 (finish reasons that lie).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from vllm_vitals.logs.events import Cap, RequestFinished

# A closing tag or two may follow the last counted reasoning token.
REASONING_SLACK = 2


@dataclass(frozen=True, slots=True)
class ServerLimits:
    """What bounds an output on the server side, in tokens, where known."""

    max_model_len: int | None = None
    default_max_tokens: int | None = None


def limits_of(settings: Mapping[str, Any]) -> ServerLimits:
    """Find the limits among a server's settings."""
    length, default = settings.get("max_model_len"), settings.get("default_max_tokens")
    return ServerLimits(
        length if isinstance(length, int) and length > 0 else None,
        default if isinstance(default, int) and default > 0 else None,
    )


def reached_max_tokens(event: RequestFinished) -> bool:
    """Say whether the output is as long as the request allowed, whatever the finish reason says."""
    return bool(event.max_tokens and event.completion_tokens and event.completion_tokens >= event.max_tokens)


def at_cap(event: RequestFinished) -> bool:
    """Say whether the response was cut: it says so, or its length does."""
    return event.finish_reason == "length" or reached_max_tokens(event)


def disagrees(event: RequestFinished) -> bool:
    """Say whether it is as long as allowed, and yet the finish reason names another end."""
    return reached_max_tokens(event) and event.finish_reason not in ("length", None)


def cap_of(event: RequestFinished, server: ServerLimits) -> Cap | None:
    """Name the cap that cut a response; None where none did."""
    if not at_cap(event):
        return None
    if event.cap_is_effective and event.max_tokens is not None:
        return _effective_cap(event, event.max_tokens, server)
    if reached_max_tokens(event):
        return "request"
    length = event.completion_tokens
    if length is not None and server.default_max_tokens is not None and length >= server.default_max_tokens:
        return "server_default"
    if _fills_context(event.prompt_tokens, length, server):
        return "context_window"
    return "unknown"


def _effective_cap(event: RequestFinished, cap: int, server: ServerLimits) -> Cap:
    if cap == server.default_max_tokens:
        return "server_default"
    if event.prompt_tokens is not None:
        return "context_window" if _fills_context(event.prompt_tokens, cap, server) else "request"
    if server.default_max_tokens is not None:
        return "request"
    # Without the prompt's length a large cap may be the request's, or what its prompt left of the context.
    return "request" if server.max_model_len is not None and cap * 2 <= server.max_model_len else "unknown"


def _fills_context(prompt: int | None, output: int | None, server: ServerLimits) -> bool:
    return None not in (prompt, output, server.max_model_len) and prompt + output >= server.max_model_len  # type: ignore[operator]


def reasoning_truncated(event: RequestFinished) -> bool:
    """Say whether it was cut inside its thinking: the client paid for tokens and got no answer."""
    if not at_cap(event):
        return False
    if event.reasoning_only:
        return True
    reasoning, length = event.reasoning_tokens, event.completion_tokens
    if not reasoning:
        return False
    return event.returned_tokens == 0 or (length is not None and reasoning >= length - REASONING_SLACK)


def unreturned(event: RequestFinished) -> int:
    """Count the tokens that were generated and then cut away before the client saw them."""
    if event.completion_tokens is None or event.returned_tokens is None:
        return 0
    return max(0, event.completion_tokens - event.returned_tokens)
