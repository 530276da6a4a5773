"""The HTTP API of Prometheus and of compatible servers: Thanos, Mimir, Cortex, VictoriaMetrics.

Input: PromQL and times (epoch s). Output: series as the API gives them. Every answer is bounded in bytes and time;
what may pass (429, 5xx, broken connections) is tried again. Invariant: an error is one line that names the address
without credentials, and says whether a smaller query might succeed.
"""

import ssl
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit, urlunsplit

import orjson
import requests

from vllm_vitals.scrape.target import shown

MAX_BODY_BYTES = 128 * 1024 * 1024
_BLOCK = 1 << 20
_AGAIN = frozenset({429, 500, 502, 503, 504})
_TOO_MUCH = (
    "exceeded maximum resolution", "too many", "maximum number of", "timed out", "deadline", "too large", "limit",
)  # fmt: skip


class PromError(Exception):
    """The API did not answer. ``too_much``: a smaller query may succeed. ``fatal``: no query will."""

    def __init__(self, text: str, too_much: bool = False, fatal: bool = False) -> None:
        super().__init__(text)
        self.too_much, self.fatal = too_much, fatal


@dataclass(frozen=True, slots=True)
class Access:
    """Where the API is and how to prove who we are. Secrets live in files, or in the URL's user part."""

    url: str
    username: str = ""
    password: str = field(default="", repr=False)
    bearer_token: str = field(default="", repr=False)
    ca_file: str = ""
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    timeout: float = 60.0


@dataclass(frozen=True, slots=True)
class Series:
    """One series: its labels, and [time, "value"] pairs as the API wrote them."""

    labels: Mapping[str, str]
    points: list[list[Any]]


def access(
    url: str,
    user: str = "",
    password_file: str = "",
    bearer_token_file: str = "",
    ca_file: str = "",
    headers: Mapping[str, str] | None = None,
    timeout: float = 60.0,
) -> Access:
    """Build an `Access` from what a command line says. Raises `PromError` in one line."""
    parts = urlsplit(url if "://" in url else f"http://{url}")
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise PromError("expected an address such as http://prometheus:9090", fatal=True)
    if ca_file:
        _certificates(ca_file)
    base = urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path.rstrip("/"), "", ""))
    return Access(
        base.removesuffix("/api/v1"),
        user or unquote(parts.username or ""),
        _secret(password_file) if password_file else unquote(parts.password or ""),
        _secret(bearer_token_file) if bearer_token_file else "",
        ca_file,
        headers or {},
        timeout,
    )


def _secret(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise PromError(f"{path}: {getattr(error, 'strerror', None) or 'not text'}", fatal=True) from None


def _certificates(path: str) -> None:
    """Check the file's certificates. Raises `PromError` where TLS could trust none of them."""
    try:
        ssl.create_default_context(cafile=path)
    except ssl.SSLError:
        raise PromError(f"{path}: holds no certificate in PEM form", fatal=True) from None
    except OSError as error:
        raise PromError(f"{path}: {error.strerror}", fatal=True) from None


class PromApi:
    """An API client. One session per instance; an instance serves one thread at a time."""

    def __init__(self, how: Access, retries: int = 3, sleep: Callable[[float], None] = time.sleep) -> None:
        self._how, self._retries, self._sleep = how, retries, sleep
        self._session = requests.Session()
        self._session.headers.update({"Accept": "application/json", **how.headers})
        if how.bearer_token:
            self._session.headers["Authorization"] = f"Bearer {how.bearer_token}"
        elif how.username:
            self._session.auth = (how.username, how.password)
        self._session.trust_env = False  # a proxy or netrc in the environment must not get the query
        if how.ca_file:
            self._session.verify = how.ca_file
        self.warnings: set[str] = set()

    def range(self, query: str, start: float, end: float, step: float) -> list[Series]:
        """Return values at start, start + step, ... end."""
        times = {"start": f"{start:.3f}", "end": f"{end:.3f}", "step": f"{step:g}"}
        return _matrix(self._ask("query_range", {"query": query, **times}))

    def samples(self, selector: str, end: float, seconds: int) -> list[Series]:
        """Return the samples that a selector holds, as scraped, at their own times: in the seconds up to ``end``."""
        return _matrix(self._ask("query", {"query": f"{selector}[{seconds}s]", "time": f"{end:.3f}"}))

    def series(self, match: str, start: float, end: float) -> list[Mapping[str, str]]:
        """Label sets that had samples between two times; no sample is read."""
        found = self._ask("series", {"match[]": match, "start": f"{start:.3f}", "end": f"{end:.3f}"})
        return [labels for labels in found if isinstance(labels, dict)] if isinstance(found, list) else []

    def _ask(self, path: str, form: Mapping[str, str]) -> Any:
        url = f"{self._how.url}/api/v1/{path}"
        for attempt in range(self._retries + 1):
            try:
                return self._once(url, form)
            except _PassingError as passing:
                if attempt == self._retries:
                    raise PromError(f"{shown(self._how.url)}: {passing}", too_much=passing.slow) from None
                self._sleep(min(10.0, passing.after or 0.5 * 2**attempt))
        raise AssertionError("unreachable")

    def _once(self, url: str, form: Mapping[str, str]) -> Any:
        where = shown(self._how.url)
        try:
            response = self._session.post(
                url, data=dict(form), timeout=(10.0, self._how.timeout), stream=True, allow_redirects=False
            )
            with response:
                body = _body(response, self._how.timeout)
        except requests.exceptions.SSLError as error:
            raise PromError(f"{where}: TLS: {_short(error)}; give --ca-file", fatal=True) from None
        except requests.exceptions.Timeout:
            raise _PassingError(f"no answer within {self._how.timeout:g} s", slow=True) from None
        except (requests.exceptions.RequestException, OSError) as error:
            raise _PassingError(f"cannot be read: {_reason(error)}") from None
        return self._answer(where, response, body)

    def _answer(self, where: str, response: requests.Response, body: bytes) -> Any:
        status = response.status_code
        if status in (401, 403):
            raise PromError(
                f"{where}: HTTP {status}: give --user with --password-file, or --bearer-token-file", fatal=True
            )
        try:
            answer = orjson.loads(body)
            if not isinstance(answer, dict) or answer.get("status") not in ("success", "error"):
                raise ValueError
        except ValueError:
            if status in _AGAIN:
                raise _PassingError(f"HTTP {status}", after=_retry_after(response)) from None
            raise PromError(
                f"{where}: HTTP {status}, but not the answer of a Prometheus API; is the path right?",
                fatal=status != 200,
            ) from None
        if answer["status"] == "success":
            warnings = answer.get("warnings")
            self.warnings.update(str(text)[:200] for text in (warnings if isinstance(warnings, list) else [])[:20])
            return answer.get("data")
        text = " ".join(str(answer.get("error", "")).split())[:200]
        if any(phrase in text.lower() for phrase in _TOO_MUCH):
            raise PromError(f"{where}: {text}", too_much=True)
        if status in _AGAIN:
            raise _PassingError(f"HTTP {status}: {text}", after=_retry_after(response))
        raise PromError(f"{where}: HTTP {status}: {text}")


class _PassingError(Exception):
    """May pass: ask again, after so many seconds where the server says."""

    def __init__(self, text: str, after: float = 0.0, slow: bool = False) -> None:
        super().__init__(text)
        self.after, self.slow = after, slow


def _body(response: requests.Response, timeout: float) -> bytes:
    """Return the body, bounded in bytes and in time, however slowly the server sends."""
    parts, size, until = [], 0, time.monotonic() + timeout
    for part in response.iter_content(_BLOCK):
        parts.append(part)
        size += len(part)
        if size > MAX_BODY_BYTES:
            raise PromError(f"an answer larger than {MAX_BODY_BYTES >> 20} MiB", too_much=True)
        if time.monotonic() > until:
            raise requests.exceptions.Timeout
    return b"".join(parts)


def _matrix(data: Any) -> list[Series]:
    result = data.get("result") if isinstance(data, dict) else None
    if not isinstance(result, list):
        raise PromError("the answer holds no result; is this a Prometheus API?")
    return [Series(item.get("metric", {}), item["values"]) for item in result if isinstance(item.get("values"), list)]


def _retry_after(response: requests.Response) -> float:
    text = response.headers.get("Retry-After", "")
    return float(text) if text.isascii() and text.isdigit() else 0.0


def _reason(error: Exception) -> str:
    text = str(error)
    for phrase, words in (
        ("refused", "connection refused"), ("resolve", "no such host"), ("Name or service", "no such host"),
        ("reset", "connection reset"), ("aborted", "connection closed"), ("unreachable", "network unreachable"),
    ):  # fmt: skip
        if phrase in text:
            return words
    return type(error).__name__


def _short(error: Exception) -> str:
    return str(error).rsplit("] ", 1)[-1].split(" (_ssl", 1)[0][:100]
