"""What a browser may be made to do: nothing, by pages that are not ours.

Input: requests. Output: a middleware that refuses. Invariant: a page of another site can neither change anything here
(its Origin and Sec-Fetch-Site say so) nor read it under a name of its own that it lets point to us (DNS rebinding:
only names that are known to be ours are answered).
"""

from collections.abc import Awaitable, Callable, Collection
from ipaddress import ip_address
from urllib.parse import urlsplit

from aiohttp import web
from aiohttp.typedefs import Middleware

from vllm_vitals.serve.access import OPEN

READS = frozenset({"GET", "HEAD"})
# What a form or a page can send anywhere without asking first are text/plain, urlencoded and multipart.
RECORDS = frozenset({
    "application/json", "application/x-ndjson", "application/ndjson", "application/jsonl", "application/x-jsonlines",
    "application/stream+json", "application/json-seq",
})  # fmt: skip
# Names that nobody can own on the internet: the machine's, a cluster's.
OUR_SUFFIXES = (".localhost", ".local", ".internal", ".svc", ".svc.cluster.local")
ANY = "*"


def host_of(text: str) -> str:
    """Return the host of ``Host``, without its port and brackets, in lower case; "" where it cannot be read."""
    try:
        return (urlsplit(f"//{text}").hostname or "").rstrip(".")
    except ValueError:
        return ""


def is_ours(host: str, allowed: Collection[str]) -> bool:
    """Return whether a host name is accepted: an address, a name without a dot, one of a cluster, or an allowed one."""
    if ANY in allowed or host in allowed or "." not in host or host.endswith(OUR_SUFFIXES):
        return True
    try:
        ip_address(host)
    except ValueError:
        return False
    return True


def is_foreign(request: web.Request) -> bool:
    """Return whether a page of another site made a browser send this."""
    if request.headers.get("Sec-Fetch-Site", "none") not in ("none", "same-origin"):
        return True
    origin = request.headers.get("Origin")
    if origin is None:
        return False
    try:
        return urlsplit(origin).netloc.lower() != request.headers.get("Host", "").lower() or origin == "null"
    except ValueError:
        return True


def refusal(request: web.Request, allowed: Collection[str]) -> web.Response | None:
    """Return why a request is not answered, or None."""
    if request.path in OPEN:
        return None
    host = host_of(request.headers.get("Host", ""))
    if not is_ours(host, allowed):
        why = f"this is not answered under the name {host!a}: run with --web.allowed-hosts={host} if it is its name"
        return web.Response(status=403, text=f"{why}\n")
    if request.method in READS:
        return None
    if is_foreign(request):
        return web.Response(status=403, text="a page of another site may change nothing here\n")
    if request.can_read_body and request.content_type not in RECORDS:
        why = f"expected Content-Type: application/x-ndjson or application/json, got {request.content_type[:60]!a}"
        return web.Response(status=415, text=f"{why}\n", headers={"Connection": "close"})
    return None


def middleware(allowed: Callable[[], Collection[str]]) -> Middleware:
    """Return the aiohttp middleware that refuses. ``allowed`` returns further host names."""

    @web.middleware
    async def gate(
        request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        refused = refusal(request, allowed())
        return await handler(request) if refused is None else refused

    return gate
