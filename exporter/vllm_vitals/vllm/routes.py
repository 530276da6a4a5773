"""The HTTP routes of vLLM that say something about its engines, and how its page counts their answers.

Sources: vllm/entrypoints/*/api_router.py of 0.32, rust/src/server/src/routes.rs; prometheus-fastapi-instrumentator's
``http_requests_total{handler,method,status}``, which the Rust frontend writes under the same name and labels. A stream
that fails after its first byte is a 2xx. Invariant: `counted` gives a closed set of keys, whatever the labels hold.
"""

from collections.abc import Mapping
from typing import NamedTuple

HTTP_REQUESTS = "http_requests"

# Requests that the engine works on.
INFERENCE = frozenset({
    "/v1/completions", "/v1/chat/completions", "/v1/chat/completions/batch", "/v1/responses", "/v1/messages",
    "/v1/embeddings", "/v2/embed", "/cohere/v2/embed", "/v1/audio/transcriptions", "/v1/audio/translations",
    "/v1/score", "/score", "/v1/rerank", "/v2/rerank", "/rerank", "/pooling", "/classify", "/generative_scoring",
    "/inference/v1/generate", "/generate", "/invocations",
})  # fmt: skip
# What an operator does to the engine.
PAUSE, RESUME, RESET_PREFIX_CACHE = "/pause", "/resume", "/reset_prefix_cache"
CONTROL = frozenset({PAUSE, RESUME, RESET_PREFIX_CACHE, "/sleep", "/wake_up", "/abort_requests"})

_ROUTES = sorted(INFERENCE | CONTROL, key=len, reverse=True)
_CLASSES = frozenset({"2xx", "3xx", "4xx", "5xx"})


class HttpKey(NamedTuple):
    """Which answers are counted together: the route without a root path, the method, the status class ("2xx")."""

    handler: str
    method: str
    status: str


def counted(labels: Mapping[str, str]) -> HttpKey | None:
    """Find the key of one series of ``http_requests_total``, None where it says nothing about an engine.

    The status is a class where statuses are grouped (vLLM's way), or a code.
    """
    method, status = labels.get("method", ""), labels.get("status", "")[:1] + "xx"
    handler = labels.get("handler", "").rstrip("/")
    if method != "POST" or status not in _CLASSES:
        return None
    route = next((route for route in _ROUTES if handler.endswith(route)), "")
    return HttpKey(route, method, status) if route else None
