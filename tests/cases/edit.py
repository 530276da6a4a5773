"""Real bodies of /metrics, edited: the same text as vLLM wrote it, with other values, names or labels.

`Server` takes one real body as its form and fills it with counters that move as a test says; the functions below edit
whole recordings. `judge` shows the result to a `TargetEvaluator`, as the daemon would.
"""

import gzip
import json
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from vllm_vitals.core.snapshot import EngineSnapshot, Role, Scrape, TargetSnapshot
from vllm_vitals.core.states import State
from vllm_vitals.core.target_evaluator import TargetEvaluator

DATA = Path(__file__).parent.parent / "data"
Edit = Callable[[str], str]

# Our word for a quantity -> the spellings of its releases, the newest first.
_NAMES = {
    "running": ("num_requests_running",),
    "waiting": ("num_requests_waiting",),
    "kv_usage": ("kv_cache_usage_perc", "gpu_cache_usage_perc"),
    "generated": ("generation_tokens_total",),
    "prompts": ("prompt_tokens_total",),
    "preempted": ("num_preemptions_total",),
    "steps": ("iteration_tokens_total_count",),
    "refused": ("admission_rejections_total",),
    "looked_up": ("prefix_cache_queries_total", "gpu_prefix_cache_queries_total"),
    "found": ("prefix_cache_hits_total", "gpu_prefix_cache_hits_total"),
    "gap": ("inter_token_latency_seconds", "time_per_output_token_seconds"),
    "tpot": ("request_time_per_output_token_seconds",),
    "ttft": ("time_to_first_token_seconds",),
    "prompt_length": ("request_prompt_tokens",),
    "output_length": ("request_generation_tokens",),
    "evictions": ("request_num_preemptions",),
}
_GAUGES = ("running", "waiting", "kv_usage")
_LINE = re.compile(r"^([a-zA-Z_:][\w:]*)(\{.*\})? (\S+)$")


def recording(path: str) -> list[tuple[float, str]]:
    """The good scrapes of a recording under tests/data: time and body."""
    with gzip.open(DATA / path / "metrics.jsonl.gz", "rt") as file:
        lines = [json.loads(line) for line in file]
    return [(line["t"], line["text"]) for line in lines if line["status"] == 200]


def judge(scrapes: Iterable[tuple[float, str]], judging: TargetEvaluator | None = None) -> list[TargetSnapshot]:
    """What a judge says to each body."""
    judging = judging or TargetEvaluator("vllm:8000")
    return [judging.observe(Scrape(at, 0.01, text.encode())) for at, text in scrapes]


def states(told: Iterable[TargetSnapshot], engine: str = "0") -> list[State]:
    """One engine's states."""
    return [one.state for snapshot in told for one in snapshot.engines if one.key.engine == engine]


def prefixed(prefix: str) -> Edit:
    """Ray's or KServe's names for vLLM's."""
    return lambda text: text.replace("vllm:", prefix)


def without(*families: str) -> Edit:
    """A server that does not have these families."""
    names = tuple(f"vllm:{family}" for family in families)
    return lambda text: "\n".join(
        line for line in text.split("\n") if not line.removeprefix("# HELP ").removeprefix("# TYPE ").startswith(names)
    )


def without_zeros(text: str) -> str:
    """Ray's agent and the Rust frontend: no counter before its first increase, no histogram before its first value."""
    rows = [(line, *line.rpartition(" ")[::2]) for line in text.split("\n")]
    idle = {_of_histogram(series) for _, series, value in rows if "_count{" in series and float(value) == 0}
    return "\n".join(
        line
        for line, series, value in rows
        if line.startswith("#") or not line or not (
            (series.partition("{")[0].endswith("_total") and float(value) == 0) or _of_histogram(series) in idle
        )
    )  # fmt: skip


def _of_histogram(series: str) -> str:
    """The histogram that a bucket, sum or count belongs to."""
    return re.sub(r"_(bucket|sum|count)\{", "{", re.sub(r'le="[^"]*",?', "", series))


def gauge(name: str, value: str) -> Edit:
    """Another value for every series of one name."""
    return lambda text: re.sub(rf"^({re.escape(name)}(?:\{{.*\}})?) \S+$", rf"\1 {value}", text, flags=re.M)


def ranks(texts: Iterable[str]) -> str:
    """One body with an engine for each of the given ones, family by family as vLLM lists them."""
    first, *others = texts
    added: dict[str, list[str]] = {}
    for number, text in enumerate(others, start=1):
        for line in text.split("\n"):
            if 'engine="0"' in line:
                added.setdefault(line.split("{")[0], []).append(line.replace('engine="0"', f'engine="{number}"'))
    out, previous = list[str](), ""
    for line in [*first.split("\n"), "# end"]:
        name = line.split("{")[0]
        if name != previous and previous in added:
            out += added.pop(previous)
        out.append(line)
        previous = name
    return "\n".join(out[:-1])


def processes(text: str, shares: int) -> str:
    """The gauges and counters of several API server processes: a gauge on one pid and 0 on the others."""
    out = []
    for line in text.split("\n"):
        match = _LINE.match(line)
        if match is None or not match[1].startswith("vllm:") or not match[2] or match[1].endswith("_info"):
            out.append(line)
            continue
        name, labels, value = match.groups()
        for share in range(shares):
            own = value if share == 0 else "0.0"
            out.append(f'{name}{labels[:-1]},pid="{100 + share}"}} {own}')
    return "\n".join(out)


class Server:
    """A vLLM server whose body has the form of a real one. ``step`` moves its clock and counters, and is judged."""

    def __init__(
        self, form: str = "recordings/same_load_reserved", *edits: Edit, role: Role | None = None, judged: bool = True
    ) -> None:
        (self.at, text) = recording(form)[5]
        self.edits, self.judged = list(edits), judged
        self.judging = TargetEvaluator("vllm:8000", role=role)
        self.told: list[TargetSnapshot] = []
        self._lines = text.split("\n")
        self._place: dict[str, list[int]] = {}
        self._value: dict[int, float] = {}
        for number, line in enumerate(self._lines):
            if (match := _LINE.match(line)) and match[1].startswith("vllm:"):
                self._place.setdefault(match[1].removeprefix("vllm:"), []).append(number)
                self._value[number] = float(match[3])
        self.restart()

    @property
    def engine(self) -> EngineSnapshot:
        """The verdict on its (worst) engine after the last step."""
        return self.told[-1].engines[0]

    @property
    def says(self) -> str:
        """All that a person is told about it, as one text."""
        engine = self.engine
        return "\n".join([*(item.text for item in engine.evidence), *engine.unknown])

    @property
    def text(self) -> str:
        """The body that it shows now."""
        lines = list(self._lines)
        for number, value in self._value.items():
            lines[number] = lines[number].rsplit(" ", 1)[0] + " " + repr(value)
        text = "\n".join(lines)
        for edit in self.edits:
            text = edit(text)
        return text

    def restart(self) -> None:
        """A new process: every counter at 0, created now."""
        for name, places in self._place.items():
            kept = name.endswith(("_info", "engine_sleep_state"))
            for number in [] if kept else places:
                self._value[number] = self.at if name.endswith("_created") else 0.0

    def sleep(self, asleep: bool) -> None:
        """/sleep or /wake_up."""
        for number in self._place["engine_sleep_state"]:
            awake = 'sleep_state="awake"' in self._lines[number]
            off = 'sleep_state="weights_offloaded"' in self._lines[number]
            self._value[number] = float(awake != asleep if awake else off and asleep)

    def step(
        self,
        seconds: float = 5.0,
        *,
        started: float = 0.0,
        finished: float = 0.0,
        cut: float = 0.0,
        twice: float = 0.0,
        gap: float | None = None,
        tpot: float = 0.03,
        ttft: float = 0.2,
        lengths: tuple[float, float] = (500.0, 200.0),
        deferred: float = 0.0,
        **each: float,
    ) -> State:
        """So many seconds later. ``each`` sets gauges and adds to counters; ``finished`` requests of ``lengths``."""
        self.at += seconds
        for word, amount in each.items():
            for number in self._named(word):
                self._value[number] = amount if word in _GAUGES else self._value[number] + amount
        self._add("prompt_tokens_by_source_total", each.get("prompts", 0.0), 'source="local_compute"')
        self._set("num_requests_waiting_by_reason", deferred, 'reason="deferred"')
        self._set("num_requests_waiting_by_reason", each.get("waiting", 0.0) - deferred, 'reason="capacity"')
        self._add("request_success_total", finished - cut, 'finished_reason="stop"')
        self._add("request_success_total", cut, 'finished_reason="length"')
        for word, value, times in (
            ("prompt_length", lengths[0], finished),
            ("output_length", lengths[1], finished),
            ("tpot", tpot, finished),
            ("ttft", ttft, started),
            ("evictions", 2.0, twice),
            ("evictions", 0.0, finished - twice),
            ("gap", gap or tpot, each.get("generated", 0.0)),
        ):
            self._observe(word, value, times)
        if self.judged:
            self.told += judge([(self.at, self.text)], self.judging)
        return self.engine.state if self.told else State.UNKNOWN

    def run(self, seconds: float, every: float = 5.0, **each: Any) -> list[State]:
        """Repeat one kind of step; amounts are those of one step."""
        return [self.step(every, **each) for _ in range(round(seconds / every))]

    def healthy(self, seconds: float = 120.0, every: float = 5.0) -> list[State]:
        """A calm spell: 8 running, 240 tokens/s, one finish a second, KV at 40 %."""
        return self.run(
            seconds, every, generated=240.0 * every, prompts=500.0 * every, started=every, finished=every,
            steps=30.0 * every, running=8.0, waiting=0.0, kv_usage=0.4,
        )  # fmt: skip

    def miss(self, reason: str, times: int = 1, every: float = 5.0) -> State:
        """Scrapes that fail."""
        for _ in range(times):
            self.at += every
            self.told.append(self.judging.observe(Scrape(self.at, 1.0, None, reason, "why")))
        return self.engine.state

    def _named(self, word: str) -> list[int]:
        for name in _NAMES[word]:
            if name in self._place:
                return self._place[name]
        return []

    def _add(self, name: str, amount: float, label: str) -> None:
        for number in self._place.get(name, []):
            if label in self._lines[number]:
                self._value[number] += amount

    def _set(self, name: str, value: float, label: str) -> None:
        for number in self._place.get(name, []):
            if label in self._lines[number]:
                self._value[number] = value

    def _observe(self, word: str, value: float, times: float) -> None:
        if not times:
            return
        for name in _NAMES[word]:
            if f"{name}_count" not in self._place:
                continue
            for number in self._place[f"{name}_bucket"]:
                bound = re.search(r'le="([^"]+)"', self._lines[number])
                if bound and value <= float(bound[1]):
                    self._value[number] += times
            self._value[self._place[f"{name}_count"][0]] += times
            self._value[self._place[f"{name}_sum"][0]] += value * times
            return
