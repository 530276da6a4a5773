"""Why a scrape gave no body: errors of the HTTP client as one reason of the closed set and one line for a person.

Input: an error. Output: a `FetchError`. Invariant: the text holds no secret, no object dump and no control character;
what is our own limit is `impaired`, never the server's fault.
"""

import errno
import re
import ssl
from urllib.parse import urljoin, urlsplit

import aiohttp
from aiohttp.http_exceptions import HttpProcessingError

from vllm_vitals.impairment import is_ours
from vllm_vitals.scrape import reasons
from vllm_vitals.scrape.target import Target, joined, shown

X509_V_ERR_HOSTNAME_MISMATCH = 62  # openssl/x509_vfy.h
NO_DESCRIPTORS = "vllm-vitals has no file descriptor left for it: raise the limit of open files (ulimit -n)"
_BY_ERRNO = {
    errno.EHOSTUNREACH: "unreachable",
    errno.ENETUNREACH: "unreachable",
    errno.EHOSTDOWN: "unreachable",
    errno.ETIMEDOUT: "timeout",
}


class FetchError(Exception):
    """A scrape that gave no body: a reason of the closed set and one line."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason
        self.detail = " ".join(detail.split())[:300]


def redirect_text(status: int, url: str, location: str) -> str:
    """Say where a redirect that is not followed leads."""
    try:
        # a server may put what it was sent, our secret too, into the path
        where = shown(urlsplit(urljoin(url, location))._replace(path="").geturl())
    except ValueError:
        where = "an address that cannot be read"
    return f"HTTP {status} redirects to {where}: not followed; if that is the server, give its address as the target"


def status_text(status: int, target: Target) -> str:
    """Say what an HTTP status means for whoever has to mend it."""
    path = urlsplit(target.url).path
    mend = {
        401: "give --bearer-token-file or --user, in the config bearer_token_file or basic_auth",
        403: "these credentials may not read metrics",
        404: f"there is no {path} here; is this a vLLM API server?",
        503: "the server is up but not serving; it may be starting or scaling",
    }.get(status, "see the server's own log")
    return f"HTTP {status} from {path}: {mend}"


def classify(error: Exception, started: bool) -> FetchError:
    """Return a transport error as a reason. ``started`` means that part of a body had come."""
    text = words(error)
    cause = error.os_error if isinstance(error, aiohttp.ClientConnectorError) else error
    if is_ours(cause):
        return FetchError("impaired", NO_DESCRIPTORS if cause.errno in (errno.EMFILE, errno.ENFILE) else words(cause))
    if isinstance(error, aiohttp.ClientConnectorDNSError):
        return FetchError("dns", f"the name {error.host} has no address: {words(error.os_error)}")
    if isinstance(error, aiohttp.ClientSSLError | ssl.SSLError):
        return FetchError("tls", _tls_text(error, text))
    if isinstance(error, aiohttp.ClientPayloadError) or (started and isinstance(error, OSError | aiohttp.ClientError)):
        return FetchError("truncated", f"the body ended early: {_cut_short(error)}")
    if isinstance(error, aiohttp.ClientConnectorError):
        cause = error.os_error
        if cause.errno == errno.ECONNREFUSED:
            where = f"{joined(error.host, error.port)} refuses connections"
            return FetchError("refused", f"{where}; vLLM opens its port only once the model is loaded")
        return FetchError(_BY_ERRNO.get(cause.errno or 0) or reasons.of_text(str(cause))[0], words(cause))
    if isinstance(error, aiohttp.ServerDisconnectedError):
        return FetchError("protocol", "the server closed the connection without an answer")
    if isinstance(error, aiohttp.ClientResponseError):
        # the parser's words, without its list of protocols and without its arrow below them
        what = " ".join(error.message.split()).removesuffix(" ^").removeprefix("Bad status line: ")
        what = what.replace("Expected HTTP/, RTSP/ or ICE/:", "it begins with")
        return FetchError("protocol", f"not an HTTP answer: {what}")
    if isinstance(error, OSError):
        return FetchError(_BY_ERRNO.get(error.errno or 0, "protocol"), text)
    return FetchError("protocol", text)


def _tls_text(error: Exception, text: str) -> str:
    """Say what to mend where the fault is our own: the scheme of the address, or whom we trust."""
    cause = error.os_error if isinstance(error, aiohttp.ClientConnectorError) else error
    kind = getattr(cause, "reason", None) or ""
    if kind in ("WRONG_VERSION_NUMBER", "HTTP_REQUEST", "RECORD_LAYER_FAILURE"):
        return "the address says https and the server speaks plain HTTP there: write http://"
    if isinstance(cause, ssl.SSLCertVerificationError):
        other = cause.verify_code == X509_V_ERR_HOSTNAME_MISMATCH
        mend = "use the name that it has, or tls.server_name" if other else "give --ca-file, in the config tls.ca_file"
        return f"its certificate is not trusted: {cause.verify_message}; {mend}"
    return text


def _cut_short(error: Exception) -> str:
    """Say what was missing of a body, from the error below the library's own, whose text is that error's dump."""
    cause = error.__cause__
    said = cause.message if isinstance(cause, HttpProcessingError) else words(error)
    came = re.search(r"received (\d+) of (\d+) bytes", said)
    return f"{came[1]} of {came[2]} bytes came" if came else " ".join(said.split())


def words(error: BaseException) -> str:
    """Return an error in a few words, without the library's object dumps."""
    if isinstance(error, aiohttp.ClientConnectorError):
        error = error.os_error
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return " ".join(str(error).split())[:200] or type(error).__name__
