"""Names on the wire: which family a name belongs to, what a family is called, and which era speaks.

Input: the table (`vllm_vitals.vllm.families`). Output: `WIRE` for the parser, `wire` and `served` for whoever writes a
name, `era` for what a page's names tell. Invariant: every name comes from the table.
"""

from dataclasses import dataclass

from vllm_vitals.vllm.cache_config import CACHE_CONFIG, CAPACITY_TOKENS
from vllm_vitals.vllm.families import FAMILIES, HTTP, PROCESS_START, UNREAD, UNREAD_PREFIXES
from vllm_vitals.vllm.family import Family, Wire, release

# Ray adds ray_, KServe kserve_; Ray and one OpenMetrics writer turn the colon into an underscore.
PREFIXES = ("vllm:", "vllm_", "ray_vllm:", "ray_vllm_", "kserve_vllm:", "kserve_vllm_")
PREFIX = PREFIXES[0]

_PARTS = ("bucket", "sum", "count")
MAX_SUFFIXES = 3  # the longest of vLLM's is _total_created
_SUFFIXES = ("_bucket", "_sum", "_count", "_created", "_total")
_BY_FIELD = {family.field: family for family in (*FAMILIES, *UNREAD)}


@dataclass(frozen=True, slots=True)
class Spelling:
    """What a metric name on the wire means. ``rank`` 0 is the preferred spelling of its family."""

    family: Family
    rank: int
    part: str = ""
    in_blocks: bool = False


def _wire() -> dict[str, Spelling]:
    known: dict[str, Spelling] = {}
    for family in FAMILIES:
        for rank, (name, spelt) in enumerate(family.spellings):
            for order, prefix in enumerate(PREFIXES):
                for part in _PARTS if family.is_histogram else ("",):
                    in_blocks = spelt.in_blocks and name != spelt.text
                    whole = prefix + name + (part and "_" + part)
                    known[whole] = Spelling(family, rank * len(PREFIXES) + order, part, in_blocks)
    for family in (PROCESS_START, HTTP):
        known[family.names[0].text] = Spelling(family, 0)
    return known


WIRE = _wire()
CONFIG_NAMES = frozenset(prefix + CACHE_CONFIG for prefix in PREFIXES)
WANTED = CONFIG_NAMES.union(WIRE)


def family(field: str) -> Family:
    """Find the row of a field. Raises KeyError for one that is not in the table."""
    return _BY_FIELD[field]


def wire(field: str, part: str = "") -> tuple[Wire, ...]:
    """List every name of a quantity without prefix, newest first; of a histogram the ``part`` (bucket, sum, count)."""
    return family(field).wire(part)


def served(field: str, version: str) -> tuple[Wire, ...]:
    """List the names, without prefix, under which one release exposes a quantity; none where it does not."""
    row = family(field)
    return tuple(name for name, spelt in zip(row.wire(), row.names, strict=True) if spelt.served(version))


def prefix_of(name: str) -> str:
    """Find the prefix that makes a name vLLM's, or ""."""
    return next((prefix for prefix in PREFIXES if name.startswith(prefix)), "")


def stem(name: str) -> str:
    """Strip a wire name of prefix and suffixes: one word a family, however it is exposed."""
    name = name[len(prefix_of(name)) :]
    for _ in range(MAX_SUFFIXES):
        if name.endswith(_SUFFIXES):
            name = name[: name.rindex("_")]
    return name


def stems(row: Family) -> set[str]:
    """Give the stems of a family's names."""
    return {stem(name.text) for name in row.names}


ENGINE_STEMS = frozenset(word for row in FAMILIES if not row.shared for word in stems(row))
KNOWN_STEMS = frozenset(word for row in (*FAMILIES, *UNREAD) for word in stems(row)) | {CACHE_CONFIG, "cache_config"}


def is_known(name: str) -> bool:
    """Tell whether a stem belongs to a family that some vLLM release exposes."""
    return name in KNOWN_STEMS or name.startswith(UNREAD_PREFIXES)


def _signs() -> dict[str, str]:
    """List what only V1 has, the newest first: a stem, or a label of its own, and the release that brought it."""
    names = [name for row in (*FAMILIES, *UNREAD) for name in row.names]
    old = {stem(name.text) for name in names if name.v0}
    brought = {stem(name.text): name.since for name in names if stem(name.text) not in old}
    brought |= {"label:" + CAPACITY_TOKENS: "0.24", "label:engine": "0.8.3"}
    newest = sorted(brought, key=lambda sign: release(brought[sign]), reverse=True)
    return {sign: f"v1>={brought[sign]}" if brought[sign] else "v1" for sign in newest}


_SIGNS = _signs()
# What only V0 had, and what it had before V1 got it with the families above.
_V0_SIGNS = stems(family("preemptions")).union(
    stem(name.text) for row in (*FAMILIES, *UNREAD) for name in row.names if not name.v1
)


def era(words: frozenset[str], labels: frozenset[str]) -> str:
    """Name the era whose spellings were seen: v0, v1, unknown, or v1>=X where X is the release of the newest one."""
    signs = words | {"label:" + label for label in labels}
    return next((name for sign, name in _SIGNS.items() if sign in signs), "v0" if signs & _V0_SIGNS else "unknown")
