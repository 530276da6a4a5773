"""Draw the documentation's pictures: `python -m tests.dashboards.pictures [DIR]` (draw.py says what it needs).

A fleet that looks like one: servers and models are named as people name them, and what each does is a recording of a
real server, the simulated story, or, of a week, made up. All that is drawn is computed by the project's own code.
"""

import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import chain
from pathlib import Path

from tests.dashboards import conftest, draw, fleet, history
from tests.dashboards.history import Server
from tests.programs import ROOT
from vllm_vitals.dashboards import links
from vllm_vitals.rules import concurrency, slo

LLAMA, QWEN, MISTRAL, OSS, R1 = (
    "meta-llama/Llama-3.3-70B-Instruct", "Qwen/Qwen3-32B-FP8", "mistralai/Mistral-Small-3.2-24B", "openai/gpt-oss-120b",
    "deepseek-ai/DeepSeek-R1-Distill-70B",
)  # fmt: skip
# Who plays which recording.
ENGINES = (
    ("llama-02", LLAMA, "spiral_chunked"), ("llama-05", LLAMA, "spiral_chunked"),
    ("llama-03", LLAMA, "overcommit_thrash"),
    *((f"llama-{number:02d}", LLAMA, "same_load_reserved") for number in (1, 4, 6, 7)),
    *((f"qwen-{number:02d}", QWEN, "same_load_reserved") for number in range(1, 6)),
    ("qwen-06", QWEN, "restart_under_load"),
    *((f"mistral-{number:02d}", MISTRAL, "preempting_productive") for number in (1, 2)),
    *((f"mistral-{number:02d}", MISTRAL, "saturated_no_preemption") for number in (3, 4, 5)),
    *((f"oss-{number:02d}", OSS, "truncation_mix") for number in (1, 2, 3)),
    ("r1-01", R1, "dp2_pressure"), ("r1-02", R1, "runaway_slot"),
)  # fmt: skip
STORY = ("llama-08", LLAMA)
MINUTES_S = 600
# When the story is at its worst.
BEFORE_ITS_END_S = 170
# Of the requests of each step, those that kept their promise.
KEPT = {LLAMA: 0.91, QWEN: 0.9995, MISTRAL: 0.998, OSS: 0.9991, R1: 0.9997}


def host(name: str) -> str:
    """A server's address."""
    return f"{name}.gpu.example.internal:8000"


@contextmanager
def minutes() -> Iterator[Server]:
    """The fleet's last ten minutes."""
    told = {name: list(history.of_daemon(name)) for name in {recording for _, _, recording in ENGINES}}
    played = (
        line.replace(f'"{recording}:8000"', f'"{host(name)}"').replace(
            f'model_name="{recording}"', f'model_name="{model}"'
        )
        for name, model, recording in ENGINES
        for line in told[recording]
    )
    story = (
        line.replace('"simulator"', f'"{host(STORY[0])}"').replace('"sim-8b"', f'"{STORY[1]}"')
        for line in history.of_story()
    )
    logged = (line.replace("truncation_mix", OSS) for line in history.of_gateway("truncation_mix"))
    said = chain(played, story, logged, _of_the_daemon(), _of_rules())
    with (
        tempfile.TemporaryDirectory() as folder,
        contextmanager(history.serve)(Path(folder), said, ruled=True) as server,
    ):
        yield server


def _of_the_daemon() -> Iterator[str]:
    """A daemon that costs what one of this size does."""
    yield from (line for line in conftest.about_the_daemon() if not line.startswith("process_cpu"))
    who = '{job="vllm-vitals",instance="vitals:9840"}'
    for at in range(history.END - history.SPAN, history.END + 1, history.STEP):
        yield f"process_cpu_seconds_total{who} {0.05 * (at - history.END + history.SPAN):g} {at}\n"
        yield f"vllm_vitals_event_loop_lag_seconds{who} {0.004 + 0.003 * (at // 60 % 3):g} {at}\n"


def _of_rules() -> Iterator[str]:
    """Promises, a cap, and the pages that fire."""
    spiral = f'model_name="{LLAMA}",engine="0",target="'
    for at in range(history.END - history.SPAN, history.END + 1, history.STEP):
        for model, share in KEPT.items():
            spent = (1 - share) / 0.01
            records = {slo.GOOD: 20 * share, slo.TOTAL: 20.0}
            records |= {slo.burn(window): spent for _, *pair, _, _ in slo.WINDOWS for window in pair}
            for record, value in records.items():
                yield f'{record}{{model_name="{model}",slo="first-token"}} {value} {at}\n'
        for name in ("llama-02", "llama-05"):
            yield f'{concurrency.CAP}{{{spiral}{host(name)}"}} 5 {at}\n'
    for name, alert, severity, since in (
        ("llama-02", "VLLMDeathSpiral", "page", 45), ("llama-05", "VLLMDeathSpiral", "page", 45),
        ("llama-03", "VLLMThrashing", "ticket", 90),
    ):  # fmt: skip
        labels = f'alertname="{alert}",severity="{severity}",{spiral}{host(name)}"'
        for at in range(history.END - since, history.END + 1, history.STEP):
            yield f'ALERTS{{{labels},alertstate="firing"}} 1 {at}\n'
            yield f"ALERTS_FOR_STATE{{{labels}}} {history.END - since} {at}\n"


def main() -> int:
    """Write the pictures. Return 2 without a program that draws."""
    if not draw.program():
        print(draw.NOT_DRAWN, file=sys.stderr)
        return 2
    out = Path(sys.argv[1]) if sys.argv[1:] else ROOT / "docs" / "images"
    only = set(sys.argv[2:])
    with minutes() as server:
        for name, uid, theme, values in (
            ("overview", links.OVERVIEW, "dark", {}), ("overview-light", links.OVERVIEW, "light", {}),
            ("engine", links.ENGINE, "dark", {"target": host(STORY[0])}), ("workload", links.WORKLOAD, "dark", {}),
            ("self", links.SELF, "dark", {}),
        ):  # fmt: skip
            if not only or name in only:
                at = replace(server, end=server.end - BEFORE_ITS_END_S) if name == "engine" else server
                draw.draw(at, uid, theme, MINUTES_S, out / f"{name}.png", values)
    if not only or "capacity" in only:
        with tempfile.TemporaryDirectory() as folder, fleet.running(Path(folder), fleet.Shape(24, 7)) as server:
            draw.draw(server, links.CAPACITY, "dark", 7 * 86400, out / "capacity.png")
    for report in out.glob("*.json"):
        report.unlink()
    return 0


if __name__ == "__main__":
    sys.exit(main())
