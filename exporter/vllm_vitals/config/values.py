"""What a value in a config file or an option may be, each kind once: duration, size, share, label name, address, ...

Input: plain values, as YAML or a command line has them. Output: numbers in seconds, bytes and shares, parsed addresses.
Invariant: nothing is converted silently, and what is refused is refused in words that say the mend.

A section that Python also builds by hand is a dataclass with ``__pydantic_config__ = SECTION``: its fields are numbers
whose names carry the unit, its keys in the file (the aliases) do not, since there the value does.
"""

import re
from pathlib import Path
from typing import Annotated, Any, NoReturn

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationInfo
from pydantic_core import PydanticCustomError

from vllm_vitals.config.durations import duration_text, parse_duration
from vllm_vitals.config.show import show
from vllm_vitals.scrape.target import Address, parse_address

SECTION = ConfigDict(extra="forbid")


class Strict(BaseModel):
    """The base of every model of a file: frozen, without unknown keys or silent conversions."""

    # built when first used: a command that reads no file does not wait for every section's checks
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, hide_input_in_errors=True, defer_build=True)


# ---------------------------------------------------------------- durations


def _whole(seconds: float) -> int:
    if seconds != int(seconds):
        raise PydanticCustomError("duration", "expected whole seconds, got {got}", {"got": duration_text(seconds)})
    return int(seconds)


Duration = Annotated[float, BeforeValidator(parse_duration), Field(gt=0)]
# Ranges and holds of generated rules: Prometheus evaluates nothing within a second.
WholeSeconds = Annotated[int, BeforeValidator(lambda value: _whole(parse_duration(value))), Field(gt=0)]

# ---------------------------------------------------------------- sizes and numbers

_SIZES = {"B": 1, "KiB": 1024, "MiB": 1024**2, "GiB": 1024**3}


def parse_size(value: object) -> int:
    """Read ``16MiB``; return bytes."""
    match = re.fullmatch(r"([0-9]{1,15})(B|KiB|MiB|GiB)", value) if isinstance(value, str) else None
    if match is None:
        mend = _mended_size(value)
        how = f"write {mend}" if mend else "write one such as 512KiB, 16MiB or 1GiB"
        raise PydanticCustomError("size", "{got} is no size: {how}", {"got": show(value), "how": how})
    return int(match[1]) * _SIZES[match[2]]


def _mended_size(value: object) -> str:
    """Return what was probably meant by something that is no size; empty where that is open."""
    found = re.fullmatch(r"([0-9]{1,15})\s*(?:([kmg])(?:i?b?)?|b|bytes)?", str(value).strip().lower())
    if found is None or isinstance(value, bool):
        return ""
    if found[2]:
        return f"{found[1]}{found[2].upper()}iB"
    number = int(found[1])
    unit = next(unit for unit in reversed(_SIZES) if number % _SIZES[unit] == 0 or unit == "B") if number else "B"
    return f"{number // _SIZES[unit]}{unit}"


def _share(value: float) -> float:
    if not 0 <= value <= 1:
        raise PydanticCustomError(
            "share", "expected a share from 0 to 1 (0.9 for 90 %), got {got}", {"got": f"{value:g}"}
        )
    return value


Size = Annotated[int, BeforeValidator(parse_size), Field(gt=0)]
Share = Annotated[float, Field(strict=True), AfterValidator(_share)]
Positive = Annotated[float, Field(gt=0, strict=True)]

# ---------------------------------------------------------------- texts


def matching(pattern: str, words: str) -> AfterValidator:
    """Accept texts that match the whole of a pattern; whoever reads the refusal is told in words what is."""

    def check(text: str) -> str:
        if not re.fullmatch(pattern, text):
            raise PydanticCustomError("pattern", "expected {words}, got {got}", {"words": words, "got": show(text)})
        return text

    return AfterValidator(check)


def _compiles(pattern: str) -> str:
    try:
        re.compile(pattern)
    except re.error as error:
        raise PydanticCustomError("pattern", "not a regular expression: {why}", {"why": str(error)}) from None
    return pattern


def _below_config(file: str, info: ValidationInfo) -> str:
    """Return a path to open: relative ones begin at the folder of the config file, as in Prometheus' files."""
    base = (info.context or {}).get("folder")
    return str(Path(base) / file) if base is not None and file else file


def _path(value: object, info: ValidationInfo) -> Path:
    if isinstance(value, Path):
        return value
    if not isinstance(value, str) or not value:
        raise PydanticCustomError("path", "expected a path (quote it), got {got}", {"got": show(value)})
    return Path(_below_config(value, info))


def _header(name: str) -> str:
    if not re.fullmatch("[A-Za-z0-9-]{1,64}", name):
        raise PydanticCustomError(
            "header", "expected a header's name such as X-Scope-OrgID, got {got}", {"got": show(name)}
        )
    if name.lower() in ("authorization", "proxy-authorization", "cookie"):
        raise PydanticCustomError("header", "a secret stands in a file: give bearer_token_file or basic_auth")
    return name


Text = Annotated[str, Field(max_length=256)]
LabelName = Annotated[str, matching(r"[a-zA-Z_][a-zA-Z0-9_]{0,63}", "a label name such as cluster")]
ClusterName = Annotated[str, matching(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?", "a name of Kubernetes such as models")]
ClusterLabel = Annotated[
    str, matching(r"([a-z0-9.-]{1,253}/)?[A-Za-z0-9]([-\w.]{0,61}[A-Za-z0-9])?", "a label of Kubernetes such as app")
]
ClusterValue = Annotated[str, matching(r"[A-Za-z0-9]([-\w.]{0,61}[A-Za-z0-9])?", "the value of a label such as vllm")]
Pattern = Annotated[str, Field(max_length=1024), AfterValidator(_compiles)]
PlainPath = Annotated[Path, BeforeValidator(_path)]
FilePath = Annotated[str, Field(max_length=1024), AfterValidator(_below_config)]

HeaderName = Annotated[str, AfterValidator(_header)]
HeaderValue = Annotated[str, matching(r"[\x20-\x7e]{1,512}", "a header's value, in ASCII")]

# ---------------------------------------------------------------- addresses


def _target_address(value: object) -> Address:
    if not isinstance(value, str):
        _refuse_address("expected an address such as http://localhost:8000, got {got}", got=show(value))
    try:
        return parse_address(value)
    except ValueError as error:
        _refuse_address("{why}", why=str(error))


def _service_url(value: object) -> str:
    """Return a URL without credentials, which have keys of their own; whatever is wrong, it is not shown."""
    if not isinstance(value, str) or not re.fullmatch(r"https?://[^\s@]{1,2000}", value):
        _refuse_address("expected http:// or https:// and an address, without user or password")
    return value


def parse_listen(value: object) -> tuple[str, int]:
    """Read ``127.0.0.1:9840``, ``[::]:9840`` or ``:9840`` (all addresses); return host and port."""
    text = str(value)
    host, colon, port = text.rpartition(":")
    if not port.isascii() or not port.isdigit() or int(port[:9]) > 65535 or isinstance(value, bool):
        _refuse_address('expected host:port such as "127.0.0.1:9840", got {got}', got=show(value))
    if not colon:
        how = 'write "127.0.0.1:{port}" to be read from this machine, ":{port}" to be read from everywhere'
        _refuse_address("{got} is a port without a host: " + how, got=text, port=port)
    return host.strip("[]"), int(port)


def _refuse_address(template: str, **said: str) -> NoReturn:
    raise PydanticCustomError("address", template, dict[str, Any](said))


TargetAddress = Annotated[Address, BeforeValidator(_target_address)]
ServiceUrl = Annotated[str, BeforeValidator(_service_url)]
ListenAddress = Annotated[tuple[str, int], BeforeValidator(parse_listen)]
