"""How our own pages are served, and to whom: the web config file that Prometheus and its exporters use.

Input: that file (YAML). Output: a `WebConfig`. Invariant: what cannot be used is one line that names the key, and never
repeats what may be a password.
"""

import ssl
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError

from vllm_vitals.config import strict_yaml
from vllm_vitals.config.values import Strict
from vllm_vitals.serve.access import READ, WRITE, Access

MAX_BYTES = 1024 * 1024
MIN_TOKEN, MAX_TOKEN = 16, 4096
_HASH = r"^\$2[abxy]\$(0[4-9]|1[0-4])\$[./A-Za-z0-9]{53}$"  # cost 14 takes a second; 31 would take a day


class WebConfigError(Exception):
    """The file cannot be used. The text is one line that names the key and the mend."""


class _Tls(Strict):
    cert_file: str
    key_file: str
    client_ca_file: str = ""
    client_auth_type: Literal["", "NoClientCert", "VerifyClientCertIfGiven", "RequireAndVerifyClientCert"] = ""
    min_version: Literal["TLS12", "TLS13"] = "TLS12"


class _Http(Strict):
    http2: bool = False  # part of the format; we speak HTTP/1.1 either way


class _Roles(Strict):
    read: list[str] = Field(default_factory=list)
    write: list[str] = Field(default_factory=list)


class _File(Strict):
    tls_server_config: _Tls | None = None
    http_server_config: _Http = _Http()
    basic_auth_users: dict[str, Annotated[str, Field(pattern=_HASH)]] = Field(default_factory=dict)
    # ours, beside what the format has
    roles: _Roles | None = None
    push_token_files: dict[str, str] = Field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class WebConfig:
    """How our pages are served: over TLS or not, and to whom (nobody listed means anyone)."""

    tls: ssl.SSLContext | None = None
    access: Access = field(default_factory=Access)


def load(path: Path) -> WebConfig:
    """Read the file and what it names, relative to it. Raises `WebConfigError`."""
    try:
        file = _File.model_validate(strict_yaml.read(path, MAX_BYTES))
    except strict_yaml.YamlError as error:
        raise WebConfigError(str(error)) from None
    except ValidationError as error:
        raise WebConfigError(f"{path}: {_explain(error.errors(include_input=False)[0])}") from None
    tls = file.tls_server_config
    users = {name: hashed.encode() for name, hashed in file.basic_auth_users.items()}
    tokens = {source: _token(path, source, name) for source, name in file.push_token_files.items()}
    access = Access(users, _roles(path, users, file.roles), tokens)
    return WebConfig(None if tls is None else _context(path, tls), access)


def _roles(path: Path, users: Collection[str], roles: _Roles | None) -> Mapping[str, frozenset[str]]:
    """Return what each user may do. Without roles everyone may do everything."""
    if roles is None:
        return {}
    named = {READ: set(roles.read), WRITE: set(roles.write)}
    unknown = sorted(set().union(*named.values()) - set(users))
    if unknown:
        raise WebConfigError(f"{path}: roles: {unknown[0][:60]!a} is none of basic_auth_users")
    left_out = sorted(set(users) - set().union(*named.values()))
    if left_out:
        raise WebConfigError(f"{path}: roles: {left_out[0][:60]!a} has none: name it under read, write or both")
    return {user: frozenset(role for role, members in named.items() if user in members) for user in users}


def _token(path: Path, source: str, name: str) -> bytes:
    """Return a push source's token, from its file beside the web config."""
    where = f"{path}: push_token_files.{source[:60]}"
    try:
        with (path.parent / name).open("rb") as file:
            token = file.read(MAX_TOKEN + 1).strip()
    except OSError as error:
        raise WebConfigError(f"{where}: cannot read {name}: {error.strerror}") from None
    if not MIN_TOKEN <= len(token) <= MAX_TOKEN or not token.isascii() or len(token.split()) != 1:
        raise WebConfigError(f"{where}: {name} must hold one token of {MIN_TOKEN} to {MAX_TOKEN} characters")
    return token


def _explain(problem: Any) -> str:
    """Return one line on the first thing that is wrong; never with what the file says, which may be a password."""
    where = ".".join(map(str, problem["loc"])) or "the file"
    what = problem["msg"].replace("Input should be", "expected").replace("Field required", "is needed")
    if problem["loc"][:1] == ("basic_auth_users",):
        return f"{where}: expected a bcrypt hash of cost 4 to 14, such as htpasswd -nBC 10 makes"
    if problem["type"] == "extra_forbidden":
        return f"{where}: unknown key"
    if problem["loc"][-1:] == ("client_auth_type",):
        return f"{where}: {what} (a certificate that is not verified proves nothing)"
    return f"{where}: {what}"


def _context(path: Path, tls: _Tls) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = {"TLS12": ssl.TLSVersion.TLSv1_2, "TLS13": ssl.TLSVersion.TLSv1_3}[tls.min_version]
    context.verify_mode = {
        "VerifyClientCertIfGiven": ssl.CERT_OPTIONAL,
        "RequireAndVerifyClientCert": ssl.CERT_REQUIRED,
    }.get(tls.client_auth_type, ssl.CERT_NONE)
    if bool(tls.client_ca_file) != (context.verify_mode is not ssl.CERT_NONE):
        raise WebConfigError(
            f"{path}: tls_server_config: client_ca_file goes with a client_auth_type that verifies, and the reverse"
        )
    here = path.parent
    try:
        # a password prompt would hang the daemon: an encrypted key is an error
        context.load_cert_chain(here / tls.cert_file, here / tls.key_file, password="")
    except (OSError, ValueError) as error:
        why = _no_pem(here, "cert_file", tls.cert_file, "CERTIFICATE") or _no_pem(
            here, "key_file", tls.key_file, "PRIVATE KEY"
        )
        files = f": cannot use {tls.cert_file} and {tls.key_file}: {_words(error)}"
        raise WebConfigError(f"{path}: tls_server_config{why or files}") from None
    try:
        if tls.client_ca_file:
            context.load_verify_locations(here / tls.client_ca_file)
    except (OSError, ValueError) as error:
        why = _no_pem(here, "client_ca_file", tls.client_ca_file, "CERTIFICATE")
        file = f".client_ca_file: cannot use {tls.client_ca_file}: {_words(error)}"
        raise WebConfigError(f"{path}: tls_server_config{why or file}") from None
    return context


def _no_pem(here: Path, key: str, file: str, what: str) -> str:
    """Return why a file holds no such PEM block; empty where it does, and the error is another."""
    try:
        with (here / file).open("rb") as handle:
            content = handle.read(MAX_BYTES)
    except OSError as error:
        return f".{key}: cannot use {file}: {error.strerror}"
    return "" if f"{what}-----".encode() in content else f".{key}: {file} holds no {what.lower()} in PEM format"


def _words(error: Exception) -> str:
    reason = getattr(error, "reason", None) or getattr(error, "strerror", None) or str(error)
    return " ".join(str(reason).split())[:200]
