"""Why a scrape failed: HTTP statuses and error texts mapped onto the closed set `SCRAPE_ERRORS`.

Input: a status code, or the text of an error as any client or recording spells it. Output: a reason. Invariant: every
input gives exactly one member of `SCRAPE_ERRORS`; what is not understood is ``protocol``, never a guess at ``refused``.
"""

import re

from vllm_vitals.core.snapshot import SCRAPE_ERRORS

_BY_STATUS = {401: "unauthorized", 403: "unauthorized", 404: "not_found", 503: "unavailable"}

# First match wins. Spellings of aiohttp, requests, urllib3, curl, Go and the C library.
_BY_TEXT = (
    ("refused", r"refused|errno 111|winerror 10061"),
    ("dns", r"name or service not known|name resolution|nodename nor servname|no such host|no address associated"
            r"|could not resolve|getaddrinfo|name does not resolve|dns"),
    ("unreachable", r"unreachable|no route to host|host is down"),
    ("timeout", r"time[d ]?-? ?out|deadline"),
    ("tls", r"ssl(?!=)|\btls\b|certificate|handshake"),
    ("unauthorized", r"unauthori[sz]ed|forbidden|\b40[13]\b"),
    ("not_found", r"not found|\b404\b"),
    ("redirect", r"redirect|\b30[1278]\b"),
    ("unavailable", r"\bhttp\b.*\b503\b|\b503\b|service unavailable"),
    ("http_error", r"\bhttp\b.*\b[45]\d\d\b|\b5\d\d\b|internal server error|bad gateway"),
    ("too_large", r"too large|larger than"),
    ("truncated", r"incomplete|truncated|payload is not completed|unexpected eof"),
)  # fmt: skip
_PATTERNS = tuple((reason, re.compile(pattern, re.IGNORECASE)) for reason, pattern in _BY_TEXT)


_WORDS = {
    "refused": "connection refused",
    "dns": "the name has no address",
    "unreachable": "no route to the host",
    "timeout": "no answer in time",
}


def of_status(status: int) -> str:
    """Return the reason for an HTTP status that is not 200."""
    if 300 <= status < 400:
        return "redirect"
    return _BY_STATUS.get(status, "http_error")


def of_text(text: str) -> tuple[str, str]:
    """Reason and one line for an error's text. Our own spelling, ``reason: detail``, is taken at its word."""
    head, _, detail = " ".join(text.split()).partition(": ")
    if head in SCRAPE_ERRORS:
        return head, detail[:300]
    reason = next((reason for reason, pattern in _PATTERNS if pattern.search(text)), "protocol")
    return reason, _WORDS.get(reason, " ".join(text.split())[:200])
