"""Sends the requests of a file to a simulated server: all or a sample, a window of it, faster, again and again.

Input: a `RequestFile` and what of it is wanted. Output: requests at simulated times from 0 on. Invariant: whatever the
file's length, one request is in memory at a time beside those that the server has; the same seed sends the same.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from math import inf
from random import Random

from vllm_vitals.simulator.request import FinishReason, Request
from vllm_vitals.simulator.request_file import RequestFile, RequestFileError, RequestRow
from vllm_vitals.simulator.settings import ServerSettings
from vllm_vitals.simulator.workload import Load

_SHORTEST_LAP_S = 1.0


@dataclass(frozen=True, slots=True)
class Selection:
    """What of a file is sent. ``begin`` and ``end`` are seconds after its first request, before ``speed_up``.

    ``sample`` is the share of the requests that is sent; ``loop`` begins again at the window's end, for ever.
    """

    speed_up: float = 1.0
    loop: bool = False
    sample: float = 1.0
    begin: float = 0.0
    end: float = inf


def select(file: RequestFile, selection: Selection, seed: int) -> Iterator[tuple[float, RequestRow]]:
    """Yield simulated seconds and the request that arrives then, ascending.

    Raises `RequestFileError` for a file, or a window of it, without requests.
    """
    random = Random(seed)  # noqa: S311 - a simulation
    shift = 0.0
    while True:
        first: float | None = None
        inside, last, whole = 0, 0.0, True
        for row in file.rows():
            first = row.arrival if first is None else first
            at = row.arrival - first - selection.begin
            if at < 0:
                continue
            if at + selection.begin >= selection.end:
                whole = False
                break
            inside, last = inside + 1, at
            if selection.sample >= 1 or random.random() < selection.sample:
                yield shift + at / selection.speed_up, row
        if not inside:
            raise RequestFileError(f"{file.path}: no request in that window: it begins where the file has ended")
        if not selection.loop:
            return
        # A lap of the whole file ends one mean gap after its last request.
        lap = last + last / max(1, inside - 1) if whole else selection.end - selection.begin
        shift += max(lap, _SHORTEST_LAP_S) / selection.speed_up


class FileTraffic:
    """Takes the place of `workload.Traffic`: the file decides when and how much, the script's loads how clients behave.

    Of a `Load` it takes ``fate``, ``patience_s`` and ``hot_share``. ``sent`` requests were taken so far; ``failed``
    says why the file ended early, if it did. Raises `RequestFileError` where it begins so.
    """

    def __init__(
        self,
        settings: ServerSettings,
        seed: int,
        rows: Iterator[tuple[float, RequestRow]],
        prefix_block: int,
    ) -> None:
        self.settings = settings
        self._load = Load()
        self.sent = 0
        self.failed = ""
        self._rows = rows
        self._prefix_block = prefix_block
        self._random = Random(seed + 2)  # noqa: S311 - a simulation
        self._next = next(rows, None)

    @property
    def load(self) -> Load:
        """How clients behave now; what it says of amounts means nothing here."""
        return self._load

    @property
    def next_at(self) -> float:
        """When the next request comes, in simulated seconds; inf when none is left."""
        return self._next[0] if self._next is not None else inf

    def switch(self, load: Load, now: float) -> None:
        """Let clients behave like this from now on."""
        self._load = load

    def answered(self, request: Request, now: float) -> None:
        """Nobody waits for an answer before asking again: the file has the times."""

    def take(self) -> Request:
        """Return the request that comes at `next_at`."""
        if self._next is None:
            raise ValueError("no request is due")
        at, row = self._next
        try:
            self._next = next(self._rows, None)
        except RequestFileError as error:
            self._next, self.failed = None, str(error)
        self.sent += 1
        request = self._request(at, row)
        self._load.fate.mark(request, self._random)
        if row.stream is not None:
            request.stream = row.stream
        if row.finish_reason == "error":
            request.reason, request.refused = "error", 0
        return request

    def _request(self, at: float, row: RequestRow) -> Request:
        settings = self.settings
        room = max(1, settings.max_model_len - row.prompt)
        cap = min(each for each in (row.max_tokens, settings.default_max_tokens, room) if each is not None)
        reason: FinishReason = "length" if row.output > cap or row.output == row.max_tokens else "stop"
        if row.finish_reason in ("stop", "length") and row.output <= cap:
            reason = row.finish_reason
        return Request(
            id=self.sent,
            arrival=at,
            prompt=row.prompt,
            output=min(row.output, cap),
            max_tokens=cap,
            reason=reason,
            prefix=row.prefix,
            prefix_tokens=min(row.prompt, len(row.prefix) * self._prefix_block),
            prefix_block=self._prefix_block,
            patience=self._load.patience_s,
        )
