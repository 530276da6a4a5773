"""Each check before judgement, as people meet it: one sentence on the page and in `check`, and a metric."""

import io
import re
from collections.abc import Callable

import pytest
from rich.console import Console

from tests.cases.edit import Server
from tests.edges.test_page import drawn
from vllm_vitals.cli.verdict import print_verdict
from vllm_vitals.core.contradictions import CHECKS, WITHHOLDING
from vllm_vitals.core.render import TargetRenderer
from vllm_vitals.core.states import State

FORM = "recordings/same_load_reserved"
Edit = Callable[[str], str]


def labelled(name: str, value: str) -> Edit:
    """Another value for a label of cache_config_info."""
    return lambda text: re.sub(rf'{name}="[^"]*"', f'{name}="{value}"', text)


def http(good: list[float]) -> Edit:
    """The answers of the HTTP server: one more of them is good at every page."""

    def edit(text: str) -> str:
        good[0] += good[1]
        series = 'http_requests_total{handler="/v1/completions",method="POST",status="2xx"}'
        kept = "\n".join(line for line in text.split("\n") if not line.startswith("http_requests_total"))
        return f"{kept}\n{series} {good[0]}\n"

    return edit


def two_servers() -> Server:
    """Two processes answer in turn: each page has the other one's start time."""
    pages = [0]

    def edit(text: str) -> str:
        pages[0] += 1
        started = 1_790_000_000.0 + 90.0 * (pages[0] % 2)
        return re.sub(r"^(\S+_created\S*|process_start_time_seconds) \S+$", rf"\1 {started}", text, flags=re.M)

    server = Server(FORM, edit)
    server.healthy(60)
    return server


def uncounted() -> Server:
    """Ten answers every five seconds, and an engine that shows nothing."""
    server = Server(FORM, http([100.0, 10.0]))
    server.healthy(60)
    server.run(90, running=0.0, waiting=0.0, kv_usage=0.0)
    return server


def unread() -> Server:
    server = Server(FORM, lambda text: text.replace("vllm:estimated_flops", "vllm:other") + "\n" + _twice(text))
    server.healthy(30)
    return server


def _twice(text: str) -> str:
    """A series of the page again, with another value."""
    line = next(line for line in text.split("\n") if line.startswith("vllm:request_params_max_tokens_sum"))
    return line.rpartition(" ")[0] + " 12345678\n"


def split() -> Server:
    def edit(text: str) -> str:
        out = []
        for line in text.split("\n"):
            if line.startswith("vllm:") and 'engine="0"' in line:
                out += [line.replace('engine="0"', f'engine="0",stage="{stage}"') for stage in (0, 1)]
            else:
                out.append(line)
        return "\n".join(out)

    server = Server(FORM, edit)
    server.healthy(60)
    return server


def capacity() -> Server:
    server = Server(FORM, labelled("num_gpu_blocks", "8"), labelled("kv_cache_size_tokens", "1024"))
    server.healthy(120)
    return server


def caching(found: float) -> Callable[[], Server]:
    def made() -> Server:
        server = Server(FORM, labelled("enable_prefix_caching", "False"))
        server.run(60, generated=1_200.0, prompts=2_500.0, started=5.0, finished=5.0, running=8.0, kv_usage=0.4,
                   looked_up=2_500.0, found=found)  # fmt: skip
        return server

    return made


def reasons() -> Server:
    half = r'^(vllm:num_requests_waiting_by_reason\{.*reason="capacity".*\}) \S+$'
    server = Server(FORM, lambda text: re.sub(half, r"\1 3.0", text, flags=re.M))
    server.healthy()
    server.run(
        60, generated=1_200.0, prompts=2_500.0, started=5.0, finished=5.0, running=8.0, waiting=40.0, kv_usage=0.4
    )
    return server


def limit() -> Server:
    server = Server()
    server.judging.learn({"max_num_seqs": "4"})
    server.healthy(60)
    return server


@pytest.mark.parametrize(
    ("check", "server", "sentence"),
    [
        ("several_servers", two_servers, "2 servers answer in turn at this address"),
        ("http_without_engine", uncounted, "inference requests were answered 2xx while the engine counted nothing"),
        ("unread_family", unread, "is left out: line"),
        ("split_labels", split, "labels that vLLM does not have (stage)"),
        ("kv_capacity", capacity, "a KV capacity of 1024 tokens (by its labels) cannot be true"),
        ("prefix_caching", caching(500.0), "enable_prefix_caching=False cannot be true"),
        ("prefix_caching", caching(0.0), "whether it is on is taken as unknown"),
        ("waiting_reasons", reasons, "40 requests wait in all and 3 by reason"),
        ("running_limit", limit, "max_num_seqs 4 cannot be this server's: 8 requests ran at once"),
    ],
)
def test_each_check_is_one_sentence_on_the_page_in_check_and_a_metric(
    check: str, server: Callable[[], Server], sentence: str
) -> None:
    now = server().told[-1]
    assert [sentence in found.text for found in now.contradictions if found.check == check] != []
    assert {found.check for found in now.contradictions} == {check}
    families = TargetRenderer().render(now)
    shown = dict(re.findall(r'check="(\w+)"\} (\d+)', families["contradictions"].decode()))
    assert (shown.keys(), shown[check] != "0") == (CHECKS.keys(), True)
    terminal = io.StringIO()
    print_verdict(Console(file=terminal, width=2_000, color_system=None), [now])
    assert sentence in terminal.getvalue()
    assert sentence in drawn([now], now.at).replace("&#39;", "'")
    assert all((engine.state is State.UNKNOWN) is (check in WITHHOLDING) for engine in now.engines)


def test_every_check_is_tried_above() -> None:
    tried = {mark.args[1][n][0] for mark in _MARKS for n in range(len(mark.args[1]))}
    assert tried == set(CHECKS)


_MARKS = test_each_check_is_one_sentence_on_the_page_in_check_and_a_metric.pytestmark  # type: ignore[attr-defined]


@pytest.mark.parametrize("form", ["recordings/same_load_reserved", "recordings/spiral_chunked", "versions/0.11.2"])
def test_an_honest_page_contradicts_nothing(form: str) -> None:
    server = Server(form)
    server.healthy(180)
    server.run(
        120, generated=1_500.0, prompts=2_500.0, started=5.0, finished=5.0, running=12.0, waiting=6.0, kv_usage=0.9
    )
    assert server.told[-1].contradictions == ()
