"""What servers complained of last, in their own words: for a person who looks at one engine.

Input: errors of logs. Output: the newest of each target. Invariant: so many a target and no more; what may be a secret
or a piece of a request (long quotes, tokens, a password in an address) is left out.
"""

import re
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass

from vllm_vitals.logs.events import EngineError, ErrorKind

KEPT = 20  # of each target
LONGEST_QUOTE = 24  # a longer one may be what a client sent
_LEFT_OUT = "[...]"
_QUOTED = re.compile(rf"""(['"])(?:(?!\1).){{{LONGEST_QUOTE},}}(?:\1|$)""")
_SECRET = re.compile(r"(?i)\b(bearer|basic)\s+\S+|\b(?:sk|hf|ghp|xox[a-z])[-_][\w-]{6,}|(?<=://)[^/@\s]+@")
_KEYED = re.compile(r"(?i)\b(api[-_]?key|token|password|secret|authorization)(['\"]?\s*[=:]\s*)\S+")


@dataclass(frozen=True, slots=True)
class Complaint:
    """One error of a server's log: when it was said, or read where it tells no time (epoch s)."""

    at: float
    kind: ErrorKind
    text: str


class Complaints:
    """The newest errors by target."""

    def __init__(self) -> None:
        self._by_target: dict[str, deque[Complaint]] = {}

    def take(self, target: str, event: EngineError, read_at: float) -> None:
        """Take in an error. A source without a target has nobody to show it."""
        if target:
            at = read_at if event.at is None else min(event.at, read_at)
            kept = self._by_target.setdefault(target, deque(maxlen=KEPT))
            kept.append(Complaint(at, event.kind, without_secrets(event.text)))

    def all(self) -> Mapping[str, tuple[Complaint, ...]]:
        """Return them, the oldest of each target first."""
        return {target: tuple(kept) for target, kept in self._by_target.items()}


def without_secrets(text: str) -> str:
    """Return an error's words without what may be a secret or a piece of a request."""
    text = _KEYED.sub(rf"\1\2{_LEFT_OUT}", text)
    return _QUOTED.sub(_LEFT_OUT, _SECRET.sub(_LEFT_OUT, text))
