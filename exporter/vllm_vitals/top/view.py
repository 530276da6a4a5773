"""What a person has chosen to see, and what each key changes.

Input: keys by name (see `keys`). Output: a `View`, and the entries in its order. Invariant: pure; every key that is not
known does nothing; the chosen engine stays chosen when the order changes.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from vllm_vitals.top.memory import SIGNS, Entry, Key, value

MAX_FILTER = 80
_NAMED = {
    b"\x1b[A": "up", b"\x1b[B": "down", b"\x1b[C": "right", b"\x1b[D": "left", b"\x1bOA": "up", b"\x1bOB": "down",
    b"\x1b[5~": "page up", b"\x1b[6~": "page down", b"\x1b[H": "home", b"\x1b[F": "end", b"\x1b[1~": "home",
    b"\x1b[4~": "end", b"\r": "enter", b"\n": "enter", b"\x1b": "escape", b"\x7f": "backspace", b"\x08": "backspace",
}  # fmt: skip


def keys(data: bytes) -> Iterator[str]:
    """Yield what was pressed: names of keys, else single characters."""
    while data:
        lengths = (4, 3) if data[:2] in (b"\x1b[", b"\x1bO") else (1,)
        size = next((n for n in lengths if data[:n] in _NAMED), 0)
        if size:
            yield _NAMED[data[:size]]
        elif data[:1] == b"\x1b":  # a sequence that we do not know
            size = next((n + 1 for n in range(2, len(data)) if 0x40 <= data[n] <= 0x7E), len(data))
        else:
            size = 1 if data[0] < 0x80 else max(1, len(data[:4].decode(errors="ignore")[:1].encode()))
            yield data[:size].decode(errors="replace")
        data = data[size:]


def _number(found: float | None) -> float:
    return float("-inf") if found is None else found


def _waiting(entry: Entry) -> float:
    return _number((entry.engine.get("values") or {}).get("requests_waiting"))


SEEK_S = {"[": -30.0, "]": 30.0, "{": -300.0, "}": 300.0}
SORTS: dict[str, Callable[[Entry], object]] = {
    "state": lambda e: (e.state.severity == "ok", e.state.rank),
    "waiting": lambda e: -_waiting(e),
    "KV usage": lambda e: -_number(value(e.engine, SIGNS[4])),
    "preemptions": lambda e: -_number(value(e.engine, SIGNS[0])),
    "TPOT": lambda e: -_number(value(e.engine, SIGNS[1])),
    "name": lambda e: e.key,
}


@dataclass(slots=True)
class View:
    """The choices of one person. ``one``: a single engine is shown; ``typing``: keys go to the filter."""

    sort: str = "state"
    filter: str = ""
    typing: bool = False
    paused: bool = False
    one: bool = False
    help: bool = False
    chosen: Key | None = None
    scroll: int = 0
    done: bool = False
    page: int = 10
    seek: float = 0.0  # seconds that the source is to go on or back
    save: bool = False  # the source is to begin or end a recording of the chosen engine's server
    note: str = ""  # what came of the last wish

    def ordered(self, entries: Iterable[Entry]) -> list[Entry]:
        """Return the entries that the filter leaves, in order."""
        words = self.filter.lower().split()
        kept = [e for e in entries if all(word in f"{' '.join(e.key)} {e.state.spec.label}".lower() for word in words)]
        return sorted(kept, key=lambda e: (SORTS[self.sort](e), e.key))

    def index(self, shown: Sequence[Entry]) -> int:
        """Return where the chosen engine stands; the first where it is gone."""
        return next((i for i, entry in enumerate(shown) if entry.key == self.chosen), 0)

    def press(self, key: str, shown: Sequence[Entry]) -> None:
        """Do what a key says. ``shown`` are the entries in order."""
        self.note = ""
        if key == "\x03":
            self.done = True
        elif self.typing:
            self._type(key)
        elif key in ("up", "down", "k", "j", "page up", "page down", "home", "end"):
            self._move(key, shown)
        else:
            self._choose(key, shown)

    def _type(self, key: str) -> None:
        if key in ("enter", "escape"):
            self.typing = False
            self.filter = "" if key == "escape" else self.filter
        elif key == "backspace":
            self.filter = self.filter[:-1]
        elif len(key) == 1 and key.isprintable():
            self.filter = (self.filter + key)[:MAX_FILTER]

    def _move(self, key: str, shown: Sequence[Entry]) -> None:
        by = {"up": -1, "k": -1, "down": 1, "j": 1, "page up": -self.page, "page down": self.page}.get(key)
        if self.one:
            self.scroll = max(0, self.scroll + by) if by else 0
        elif shown:
            last = len(shown) - 1
            at = (0 if key == "home" else last) if by is None else min(last, max(0, self.index(shown) + by))
            self.chosen = shown[at].key

    def _choose(self, key: str, shown: Sequence[Entry]) -> None:
        match key:
            case "q":
                self.done = True
            case "enter" | "right" if shown:
                self.chosen, self.one, self.scroll = shown[self.index(shown)].key, True, 0
            case "escape" | "left" | "backspace":
                self.filter = self.filter if self.one or self.help else ""
                self.one = self.help = False
            case "/":
                self.typing, self.one, self.help = True, False, False
            case "s":
                names = list(SORTS)
                self.sort = names[(names.index(self.sort) + 1) % len(names)]
            case "[" | "]" | "{" | "}":
                self.seek += SEEK_S[key]
            case "w" if shown:
                self.chosen, self.save = shown[self.index(shown)].key, True
            case "p" | " ":
                self.paused = not self.paused
            case "?" | "h":
                self.help = not self.help
