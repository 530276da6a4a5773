"""Who is watched: a target's address, name, and what it takes to read it.

Input: an address as a person writes it. Output: a frozen `Target`. Invariant: ``name`` and every other field that is
shown holds no credentials; those live only in ``url``'s caller-invisible ``Credentials``.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import SplitResult, unquote, urlsplit

from vllm_vitals.core.snapshot import Role
from vllm_vitals.core.thresholds import Thresholds

DEFAULT_VLLM_PORT = 8000


@dataclass(frozen=True, slots=True)
class Credentials:
    """How to prove who we are. Files are read at each scrape, so that rotated secrets need no restart."""

    bearer_token_file: str = ""
    username: str = ""
    password: str = field(default="", repr=False)
    password_file: str = ""


@dataclass(frozen=True, slots=True)
class Tls:
    """Whom to trust and which certificate to show."""

    ca_file: str = ""
    cert_file: str = ""
    key_file: str = ""
    server_name: str = ""
    insecure_skip_verify: bool = False


@dataclass(frozen=True, slots=True)
class CanaryPlan:
    """How often a tiny request is sent (s), how long it may take (s), and what it asks of which model.

    ``first``: also before the server has finished a request of its own. A one-token first request killed a real CPU
    server, twice of two; so it is left to users who ask for it.
    """

    interval: float = 60.0
    deadline: float = 20.0
    task: str = "auto"
    model: str = ""
    first: bool = False


@dataclass(frozen=True, slots=True)
class Target:
    """One vLLM server's base URL and how it is watched. ``url`` ends in /metrics; times are in seconds."""

    name: str
    url: str = field(repr=False)
    interval: float = 5.0
    timeout: float = 4.0
    model_name: str = ""
    role: Role | None = None
    service_class: str = "interactive"
    credentials: Credentials = Credentials()
    tls: Tls = Tls()
    headers: Mapping[str, str] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)
    settings: Mapping[str, str] = field(default_factory=dict)
    thresholds: Thresholds = field(default_factory=Thresholds)
    canary: CanaryPlan | None = None


@dataclass(frozen=True, slots=True)
class Address:
    """What an address says: where to read, what to call it, and the credentials that were inside it.

    ``note`` tells a person what was left out of it, if anything was.
    """

    url: str
    name: str
    username: str = ""
    password: str = field(default="", repr=False)
    note: str = ""


def parse_address(text: str) -> Address:
    """Understand ``http://host:8000``, ``host:8000``, ``host``, each with or without ``/metrics`` or a path before it.

    ``/v1`` and all below it is the API's, as clients are given it: the metrics stand beside it.

    Raises ValueError with one line that holds no credentials.
    """
    text = text.strip()
    if not text or any(ch.isspace() or not ch.isprintable() for ch in text):
        raise ValueError("expected an address such as http://localhost:8000")
    if "$" in text.partition("?")[0]:
        raise ValueError("a variable in the address is not filled in: write the address itself")
    with_scheme = text if "://" in text else f"http://{text}"
    try:
        parts = urlsplit(with_scheme)
        port = parts.port
    except ValueError:
        raise ValueError("the port of the address is not a number from 1 to 65535") from None
    if parts.scheme not in ("http", "https"):
        raise ValueError(f"expected http or https, got {parts.scheme}")
    if not parts.hostname or port == 0:
        raise ValueError("the address has no host, or port 0")
    if port is None:
        port = DEFAULT_VLLM_PORT if "://" not in text else {"http": 80, "https": 443}[parts.scheme]
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    path = parts.path.rstrip("/")
    api = not path.endswith("/metrics") and "/v1/" in f"{path}/"
    base = f"{path}/".partition("/v1/")[0] if api else path.removesuffix("/metrics")
    query = f"?{parts.query}" if parts.query else ""
    return Address(
        url=f"{parts.scheme}://{host}:{port}{base}/metrics{query}",
        name=f"{host}:{port}{base}",
        username=unquote(parts.username or ""),
        password=unquote(parts.password or ""),
        note=f"read at {host}:{port}{base}/metrics: vLLM has it beside /v1, not below" if api else "",
    )


def joined(host: str, port: int | None) -> str:
    """Host and port as they stand in an address: IPv6 in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def shown(url: str) -> str:
    """Return a URL that may be shown: scheme, host, port and path, without user, query or control characters."""
    try:
        parts = urlsplit(url)
        netloc = parts.netloc.rpartition("@")[2]
    except ValueError:
        return "an address that cannot be read"
    text = SplitResult(parts.scheme, netloc, parts.path, "", "").geturl()
    return "".join(ch for ch in text if ch.isprintable() and ch not in "<>\"'")[:200]
