"""The HTTP client that scrapes: what it asks for, and which connections it keeps.

Input: whether connections are kept between scrapes. Output: an `aiohttp.ClientSession`. Invariant: connections that are
kept never use up the file descriptors.
"""

import resource

import aiohttp

from vllm_vitals import __version__

KEPT_FOR_OTHERS = 40  # file descriptors for files, logs and the like
MANY = 1_000_000
# vLLM's own route answers plain text only; asking for it keeps proxies and old versions from answering OpenMetrics,
# whose writer turns vLLM's colons into underscores. Identity: vLLM never compresses, and we need not inflate.
_HEADERS = {
    "Accept": "text/plain;version=0.0.4;q=1,*/*;q=0.1",
    "Accept-Encoding": "identity",
    "User-Agent": f"vllm-vitals/{__version__}",
}


def connections_for_scrapes() -> int:
    """Return how many connections may be kept open between scrapes under the limit of open files."""
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return MANY if files < 0 else max(0, (files - KEPT_FOR_OTHERS) // 2)


def new_session(*, keep: bool) -> aiohttp.ClientSession:
    """Return a session without limits and deadlines of its own: every deadline is ours, one total per scrape."""
    connector = (
        aiohttp.TCPConnector(limit=0, ttl_dns_cache=30, keepalive_timeout=60)
        if keep
        else aiohttp.TCPConnector(limit=0, ttl_dns_cache=30, force_close=True)
    )
    return aiohttp.ClientSession(
        connector=connector,
        headers=_HEADERS,
        timeout=aiohttp.ClientTimeout(),
        cookie_jar=aiohttp.DummyCookieJar(),
        max_line_size=16 * 1024,
        auto_decompress=False,
    )
