"""The scenarios, as data: what each plays, and the worst state that a correct monitor says while it plays."""

from dataclasses import replace

from vllm_vitals.simulator.request_outcomes import Fate
from vllm_vitals.simulator.scenario import (
    Accept,
    Freeze,
    HangUp,
    HoldKv,
    LeakKv,
    Pause,
    Restart,
    Resume,
    Scenario,
    Sleep,
    Slow,
)
from vllm_vitals.simulator.settings import ServerSettings
from vllm_vitals.simulator.steptime import StepTime
from vllm_vitals.simulator.workload import Lengths, Load

_SERVER = ServerSettings()
# Long prompts in small chunks, and only the next chunk must fit: what a preempt-requeue loop takes (vllm#25538).
_CHUNKED = replace(
    _SERVER, num_gpu_blocks=640, max_num_batched_tokens=128, enable_prefix_caching=False,
    scheduler_reserve_full_isl=False,
)  # fmt: skip
_CALM = Load(rate=2.0)
_BUSY = Load(rate=5.0)
_RUSH = Load(clients=48, think_s=0.2, prompt=Lengths(1300, 0.3), output=Lengths(330, 0.25))
# An 8B model on a small GPU: a prompt of 1,000 tokens takes 80 ms, a decode step 10-25 ms.
_SMALL_GPU = StepTime(base=0.010, prefill=8e-5, decode=1e-4, context=1e-7)

SCENARIOS: tuple[Scenario, ...] = (
    Scenario(
        "healthy", "a calm server: two requests a second, a few per cent of the KV cache", "healthy", 600,
        ((0, _CALM),), then="healthy",
    ),
    Scenario(
        "day", "24 hours at five requests a second", "healthy", 86_400, ((0, Load(rate=5.0)),), then="healthy",
    ),
    Scenario(
        "saturated", "more requests than slots: max_num_seqs 8, the KV cache half empty", "saturated", 600,
        ((0, _CALM), (120, Load(rate=8.0))),
        replace(_SERVER, max_num_seqs=8), then="saturated",
    ),
    Scenario(
        "kv_pressure", "twenty long contexts fill the KV cache to the brim and just fit", "kv_pressure", 600,
        ((0, _CALM), (110, Load()), (120, Load(clients=20, think_s=0.0, prompt=Lengths(1490), output=Lengths(100)))),
        then="kv_pressure",
    ),
    Scenario(
        "preempting", "a full KV cache evicts now and then; almost no request is evicted twice", "preempting", 600,
        ((0, _CALM), (120, Load(clients=72, think_s=2.0, prompt=Lengths(400, 0.3), output=Lengths(300, 0.6)))),
        replace(_SERVER, enable_prefix_caching=False), then="preempting",
    ),
    Scenario(
        "thrashing", "long outputs under overload: admitted requests evict each other, the queue only grows",
        "thrashing", 600,
        ((0, _CALM), (120, Load(rate=8.0, prompt=Lengths(300, 0.5), output=Lengths(700, 0.5)))),
        replace(_SERVER, enable_prefix_caching=False, max_num_seqs=256), then="thrashing",
    ),
    Scenario(
        "death_spiral", "long prompts in small chunks without the full-input reservation: preempt, requeue, preempt",
        "death_spiral", 600,
        ((0, _CALM), (120, _RUSH)), _CHUNKED, _SMALL_GPU, then="death_spiral",
    ),
    Scenario(
        "death_spiral_fenced", "a KV connector keeps a victim's blocks: one failed allocation evicts the whole batch",
        "death_spiral", 600,
        ((0, Load(clients=24, think_s=0.5, prompt=Lengths(400, 0.3), output=Lengths(400, 0.3))),
         (240, Load(clients=150, think_s=0.5, prompt=Lengths(400, 0.3), output=Lengths(400, 0.3)))),
        replace(_SERVER, max_num_seqs=256, enable_prefix_caching=False, fenced_release=True),
        _SMALL_GPU, then="death_spiral",
    ),
    Scenario(
        "stalled", "the engine process hangs in mid-work while the API server still answers", "stalled", 360,
        ((0, Load(rate=4.0)), (180, Freeze())), then="stalled",
    ),
    Scenario(
        "starved", "a flood of very long prompts: every step is full of prefill and decoding crawls", "starved", 900,
        ((0, _CALM), (600, Load(clients=6, think_s=0.0, prompt=Lengths(60_000, 0.2), output=Lengths(150, 0.2)))),
        replace(_SERVER, num_gpu_blocks=65_536, max_model_len=131_072, max_num_batched_tokens=8192),
        then="starved",
    ),
    Scenario(
        "truncation", "a server default of 256 tokens cuts most answers; nothing else is wrong", "healthy", 600,
        ((0, Load(rate=2.0, output=Lengths(400, 0.5), max_tokens=None)),),
        replace(_SERVER, default_max_tokens=256), then="healthy",
    ),
    Scenario(
        "runaway", "a few answers that never end hold all four slots", "saturated", 600,
        ((0, Load(rate=1.0, output=Lengths(80, 0.5))),
         (120, Load(rate=1.0, output=Lengths(1200, 1.5), max_tokens=6000))),
        replace(_SERVER, max_num_seqs=4), then="saturated",
    ),
    Scenario(
        "restart", "the process is killed and comes back after 40 s with its counters at zero", "down", 300,
        ((0, _CALM), (120, Restart(40.0))), then="healthy",
    ),
    Scenario(
        "asleep", "the server is put to sleep while no requests arrive", "asleep", 300,
        ((0, _CALM), (100, Load()), (130, Sleep(1))), then="asleep",
    ),
    Scenario(
        "frozen_gauges", "all clients hang up at once: the gauges keep their last values, nothing is left to do",
        "stalled", 300,
        ((0, _CALM), (100, Load(clients=30, think_s=0.1, output=Lengths(400, 0.4))), (160, HangUp())), then="stalled",
    ),
    Scenario(
        "dp_imbalance", "two ranks, and sticky routing sends nearly all work to the first", "preempting", 600,
        ((0, Load(rate=3.0)),
         (120, Load(clients=76, think_s=2.0, hot_share=0.97, prompt=Lengths(400, 0.3), output=Lengths(300, 0.6)))),
        replace(_SERVER, enable_prefix_caching=False), engines=2, api_servers=2, then="preempting",
    ),
    Scenario(
        "api_servers", "one engine behind four API servers: multiprocess metrics, no _created, no process metrics",
        "healthy", 600, ((0, _CALM),), api_servers=4, then="healthy",
    ),
    Scenario(
        "failing", "a KV connector whose loads fail: most requests end in `error` at once, and every latency improves",
        "failing", 900, ((0, _BUSY), (300, replace(_BUSY, fate=Fate(failing=0.93))), (600, _BUSY)),
        replace(_SERVER, kv_transfer=True), then="healthy",
    ),
    Scenario(
        "http_errors", "the API server fails most requests before they reach the engine: 5xx", "failing", 900,
        ((0, _BUSY), (300, replace(_BUSY, fate=Fate(broken=0.8, streamed=0.2))), (600, _BUSY)), then="healthy",
    ),
    Scenario(
        "client_errors", "half of the requests are refused with 4xx: the clients' own fault", "healthy", 600,
        ((0, replace(_BUSY, fate=Fate(invalid=0.5))),), then="healthy",
    ),
    Scenario(
        "some_errors", "one request of ten ends in `error` beside good ones", "degraded", 1800,
        ((0, _BUSY), (600, replace(_BUSY, fate=Fate(failing=0.1)))),
        replace(_SERVER, kv_transfer=True), then="degraded",
    ),
    Scenario(
        "degraded", "every step takes 1.6 times as long from minute 30 on, at the same load", "degraded", 5400,
        ((0, _BUSY), (1800, Slow(1.6))), then="degraded",
    ),
    Scenario(
        "spec_collapse", "speculative decoding: the acceptance of drafts falls from 0.9 to 0.01", "degraded", 5400,
        ((0, Accept(0.96)), (0, _CALM), (1800, Accept(0.01))),
        replace(_SERVER, num_speculative_tokens=4), StepTime(decode=4e-4), then="degraded",
    ),
    Scenario(
        "kv_held", "the clients leave, and a quarter of the KV cache stays allocated", "kv_held", 1800,
        ((0, _BUSY), (600, HoldKv(0.25)), (620, Load())), then="kv_held",
    ),
    Scenario(
        "kv_leak", "every request leaves one block behind: the floor rises from one lull to the next", "kv_held", 3600,
        ((0, LeakKv(1)),
         *((600.0 * lap + 300.0 * idle, Load() if idle else _CALM) for lap in range(6) for idle in range(2))),
        replace(_SERVER, num_gpu_blocks=16_384), then="kv_held",
    ),
    Scenario(
        "paused", "an operator pauses the server for five minutes with requests inside (POST /pause?mode=keep)",
        "paused", 900, ((0, Load(rate=0.5)), (300, Pause()), (600, Resume())), then="healthy",
    ),
    Scenario(
        "starting", "a server that loads its weights for three minutes: connection refused until then", "starting", 600,
        ((0, Restart(180.0)), (180, _CALM)), then="healthy",
    ),
    Scenario(
        "starting_503", "the same behind an ingress that answers 503 until the server is ready", "starting", 600,
        ((0, Restart(180.0, answers=503)), (180, _CALM)), then="healthy",
    ),
    Scenario(
        "deferred", "most requests wait half a minute for a LoRA slot while the engine has room", "saturated", 900,
        ((0, _CALM), (300, replace(_CALM, fate=Fate(deferred=0.8, deferred_s=30.0)))), then="saturated",
    ),
    Scenario(
        "deferred_stuck", "the KV transfers that all requests wait for never come: nothing runs", "stalled", 900,
        ((0, _CALM), (300, replace(_CALM, fate=Fate(deferred=1.0, deferred_s=1e6)))), then="stalled",
    ),
    Scenario(
        "story", "ten minutes: healthy, KV pressure, evictions, a death spiral, and out after max_num_seqs is lowered",
        "death_spiral", 600,
        ((0, Load(rate=1.0)),
         (70, Load()),
         (80, Load(clients=6, think_s=0.0, prompt=Lengths(1290), output=Lengths(300))),
         (170, Load(clients=8, think_s=0.2, prompt=Lengths(1300, 0.3), output=Lengths(330, 0.25))),
         (250, _RUSH),
         (420, Restart(4.0, replace(_CHUNKED, max_num_seqs=5))),
         (490, Load(rate=0.5, prompt=Lengths(300, 0.3), output=Lengths(150, 0.25)))),
        _CHUNKED,
        _SMALL_GPU, then="healthy",
    ),
)  # fmt: skip


def scenario(name: str) -> Scenario:
    """Return the scenario of that name. Raises `KeyError` with the names there are."""
    for each in SCENARIOS:
        if each.name == name:
            return each
    raise KeyError(f"no scenario {name!r}; there are: {', '.join(each.name for each in SCENARIOS)}")
