"""Questions to the servers of an installation.

Input: a base URL, which may hold user and password, and a path. Output: the document, and the server's clock.
Invariant: each answer is bounded in bytes and time; an error is one line without credentials.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import Any

import orjson
import requests

from vllm_vitals.scrape.target import shown

MAX_BYTES = 64 * 1024 * 1024
TIMEOUT_S = 10.0


class UnansweredError(Exception):
    """The server gave no usable answer. ``status`` is that of HTTP, 0 where there was none."""

    def __init__(self, text: str, status: int = 0) -> None:
        super().__init__(text)
        self.status = status


@dataclass(frozen=True, slots=True)
class Answer:
    """The body, and the server's clock (epoch s) where it says it."""

    body: bytes
    clock: float | None

    def json(self) -> Any:
        """Return the document. Raises `UnansweredError`."""
        try:
            return orjson.loads(self.body)
        except orjson.JSONDecodeError:
            raise UnansweredError("answered something else than JSON") from None


class Server:
    """One server, asked by one thread."""

    def __init__(self, url: str, ca_file: str = "") -> None:
        self._base = (url if "://" in url else f"http://{url}").rstrip("/")
        self.name = shown(self._base)
        self._session = requests.Session()
        self._session.trust_env = False  # a proxy of the environment must not get the question
        if ca_file:
            self._session.verify = ca_file

    def get(self, path: str, **query: str) -> Answer:
        """Ask. Raises `UnansweredError`."""
        return self._send("GET", path, params=query)

    def post(self, path: str, document: Any) -> Answer:
        """Send a JSON document. Raises `UnansweredError`."""
        headers = {"Content-Type": "application/json"}
        return self._send("POST", path, data=orjson.dumps(document), headers=headers)

    def _send(self, method: str, path: str, **more: Any) -> Answer:
        try:
            with self._session.request(method, self._base + path, timeout=TIMEOUT_S, stream=True, **more) as response:
                body = response.raw.read(MAX_BYTES + 1, decode_content=True)
                status, headers = response.status_code, response.headers
        except (requests.RequestException, OSError) as error:
            raise UnansweredError(_why(error)) from None
        if status >= 300:
            raise UnansweredError(f"answers {status} to {path}", status)
        if len(body) > MAX_BYTES:
            raise UnansweredError(f"answers more than {MAX_BYTES >> 20} MiB to {path}")
        return Answer(body, _clock(headers))


def _clock(headers: Mapping[str, str]) -> float | None:
    try:
        return parsedate_to_datetime(headers["Date"]).timestamp()
    except (KeyError, ValueError):
        return None


def _why(error: Exception) -> str:
    if isinstance(error, requests.Timeout):
        return f"does not answer within {TIMEOUT_S:g} s"
    if isinstance(error, requests.exceptions.SSLError):
        return "TLS failed: is its certificate signed by the CA of --ca-file?"
    if isinstance(error, requests.exceptions.InvalidURL | requests.exceptions.InvalidSchema):
        return "is no address such as http://prometheus:9090"
    text = str(error)
    if "Name or service not known" in text or "NameResolution" in text:
        return "its name has no address"
    return "refuses the connection" if "refused" in text else "the connection broke"
