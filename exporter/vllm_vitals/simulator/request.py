"""One request as the scheduler sees it: lengths given beforehand, progress filled in as it runs.

Input: who asks for how much. Output: the same record with its times, from which every latency metric is taken.
Invariant: ``output`` is the number of tokens it will really produce; ``max_tokens`` is only what the client asked for.
"""

from dataclasses import dataclass
from typing import Literal

FinishReason = Literal["stop", "length", "abort", "error", "repetition"]
PrefixBlock = int | str  # the name of a block of a prompt, and of all that stands before it


@dataclass(slots=True, eq=False)
class Request:
    """A request. Times are seconds on the simulation's clock, lengths are tokens, ``blocks`` are KV blocks held.

    ``prefix`` names the blocks of ``prefix_block`` tokens that the prompt's first ``prefix_tokens`` tokens consist of
    (the last may be shorter); a name stands for a block and all before it, so that requests with equal names share a
    prompt head. The first ``chain`` of them are held in the prefix cache, ``shared`` KV blocks. ``cached`` is the
    prompt tokens found in the prefix cache at the first admission, -1 before it. ``saved`` is the tokens whose KV host
    memory holds. ``patience`` is how long the client waits before it hangs up. ``refused`` is the HTTP status with
    which the API server ends it before the engine hears of it, 0 where it does not. ``deferred_s`` is how long it first
    waits for what is no capacity. ``handler`` is the route that it came by.
    """

    id: int
    arrival: float
    prompt: int
    output: int
    max_tokens: int
    reason: FinishReason = "stop"
    prefix: tuple[PrefixBlock, ...] = ()
    prefix_tokens: int = 0
    prefix_block: int = 0
    patience: float | None = None
    client: int = -1
    stream: bool = False
    refused: int = 0
    deferred_s: float = 0.0
    handler: str = "/v1/chat/completions"

    generated: int = 0
    computed: int = 0
    blocks: int = 0
    chain: int = 0
    shared: int = 0
    cached: int = -1
    saved: int = 0
    preemptions: int = 0
    uncounted: int = 0
    decoding: bool = False
    was_decoding: bool = False
    base: int = 0
    ends_at: int = 0
    scheduled_at: float = -1.0
    first_token_at: float = -1.0
    last_token_at: float = -1.0
    finished_at: float = -1.0

    @property
    def tokens(self) -> int:
        """What must be computed to get the next token: the prompt and what was generated before a preemption."""
        return self.prompt + self.generated
