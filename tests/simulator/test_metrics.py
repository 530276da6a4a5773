import gzip
import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from vllm_vitals.core.dialect import normalise
from vllm_vitals.simulator.engine import Engine
from vllm_vitals.simulator.exposed_families import Dialect
from vllm_vitals.simulator.exposition import Exposition
from vllm_vitals.simulator.request import Request
from vllm_vitals.simulator.settings import ServerSettings
from vllm_vitals.simulator.stats import Histogram
from vllm_vitals.simulator.steptime import StepTime

DATA = Path(__file__).parent.parent / "data"
TINY = ServerSettings(model_name="tiny", block_size=128, num_gpu_blocks=64, max_num_seqs=48, max_model_len=2048)


def recorded(folder, which=-1):
    with gzip.open(DATA / folder / "metrics.jsonl.gz") as lines:
        return json.loads(list(lines)[which])["text"]


def vllm_lines(text):
    """Every vLLM line without its number; ``_created`` stamps and the order of a histogram's lines are beside it."""
    lines = [line for line in text.splitlines() if "vllm:" in line]
    return {re.sub(r" [^ ]+$", "", line) if not line.startswith("#") else line for line in lines}


def render(dialect=Dialect.V0_32, engines=1, settings=TINY, api_servers=1, steps=1):
    stats = [Engine(settings, StepTime()).stats for _ in range(engines)]
    for each in stats:
        each.steps = steps
    return Exposition(settings, engines, dialect, 1.8e9, api_servers).render(stats)


def without_cache_config(lines):
    return {line for line in lines if not line.startswith("vllm:cache_config_info{")}


def test_every_name_label_bucket_and_help_is_that_of_a_real_vllm_0_32():
    ours, theirs = (
        without_cache_config(vllm_lines(text)) for text in (render(), recorded("recordings/spiral_chunked"))
    )
    assert ours == theirs


def test_two_ranks_behind_several_api_servers_look_like_the_real_ones():
    for which, steps in ((0, 0), (-1, 9)):  # gauges are not there before the first step
        real = vllm_lines(recorded("recordings/dp2_pressure", which))
        ours = vllm_lines(render(engines=2, api_servers=2, steps=steps))
        assert without_cache_config(ours) == without_cache_config(real)
    assert not [
        line for line in render(engines=2, api_servers=2).splitlines() if "_created" in line or "process_" in line
    ]


def test_the_0_11_dialect_has_the_names_of_a_real_vllm_0_11():
    real = without_cache_config(vllm_lines(recorded("versions/0.11.2")))
    ours = without_cache_config(vllm_lines(render(Dialect.V0_11)))
    assert {line for line in ours if not line.startswith("#")} == {line for line in real if not line.startswith("#")}


def test_the_cache_config_has_the_labels_of_a_real_vllm_0_32():
    ours, theirs = (
        set(
            re.findall(
                r'(\w+)="', next(line for line in text.splitlines() if line.startswith("vllm:cache_config_info{"))
            )
        )
        for text in (render(), recorded("recordings/spiral_chunked"))
    )
    assert ours == theirs


def test_v0_names_have_no_engine_label_and_per_token_latency_under_its_old_name():
    text = render(Dialect.V0)
    assert 'engine="' not in text
    assert "vllm:gpu_cache_usage_perc" in text
    assert "vllm:time_per_output_token_seconds_bucket" in text
    assert "_created" not in text


def test_several_api_servers_of_0_11_show_one_current_gauge_per_pid():
    stats = Engine(TINY, StepTime()).stats
    stats.running, stats.kv_usage, stats.steps = 7, 0.5, 1
    text = Exposition(TINY, 1, Dialect.V0_11, 1.8e9, api_servers=4).render([stats])
    running = re.findall(r'vllm:num_requests_running\{.*pid="(\d+)"\} (\S+)', text)
    assert [float(value) for _, value in running] == [7, 0, 0, 0]
    assert len({pid for pid, _ in running}) == 4


@pytest.mark.parametrize("dialect", list(Dialect))
def test_prometheus_own_parser_reads_every_dialect_and_no_series_comes_twice(dialect):
    text = render(dialect, engines=1 if dialect is Dialect.V0 else 2)
    samples = [
        (sample.name, tuple(sorted(sample.labels.items())))
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    ]
    assert len(samples) == len(set(samples))
    names = re.findall(r"# TYPE (\S+)", text)
    assert len(names) == len(set(names))


@pytest.mark.parametrize("dialect", list(Dialect))
def test_the_daemon_reads_the_same_numbers_whatever_the_dialect(dialect):
    engine = Engine(TINY, StepTime())
    for number in range(5):
        engine.add(Request(number, 0.0, 100, 50, 50, "length"))
    while engine.advance(100.0):
        pass
    body = Exposition(TINY, 1, dialect, 1.8e9).render([engine.stats])
    (sample,) = normalise(body.encode()).engines.values()
    assert sample.generation_tokens == 250
    assert sample.prompt_tokens == 500
    assert sample.completions == 5
    assert sample.kv_usage == 0
    assert sample.histograms["inter_token_latency_seconds"].count == 245
    assert sample.kv_capacity_tokens == pytest.approx(8192, rel=0.02)


def test_a_requests_latencies_add_up():
    engine = Engine(TINY, StepTime(base=0.01, prefill=0, decode=0, context=0))
    engine.add(Request(1, 0.0, 100, 11, 11, "length"))
    while engine.advance(100.0):
        pass
    sums = {name: histogram.sum for name, histogram in engine.stats.histograms.items()}
    assert sums["ttft_seconds"] == pytest.approx(0.01)
    assert sums["tpot_seconds"] == pytest.approx(0.01)
    assert sums["e2e_latency_seconds"] == pytest.approx(0.11)
    assert sums["decode_time_seconds"] == pytest.approx(0.10)
    assert sums["prefill_time_seconds"] + sums["queue_time_seconds"] == pytest.approx(0.01)
    assert sums["iteration_tokens"] == 111


def test_one_output_token_leaves_a_tpot_of_zero_as_in_vllm():
    engine = Engine(TINY, StepTime())
    engine.add(Request(1, 0.0, 100, 1, 1, "length"))
    while engine.advance(100.0):
        pass
    assert engine.stats.histograms["tpot_seconds"].counts[0] == 1


def test_a_ramp_of_observations_lands_where_single_ones_would():
    ramp, single = Histogram((0.01, 0.02, 0.05)), Histogram((0.01, 0.02, 0.05))
    ramp.observe_ramp(0.008, 0.0007, 40, 3)
    for step in range(40):
        single.observe(0.008 + 0.0007 * step, 3)
    assert ramp.counts == single.counts
    assert ramp.sum == pytest.approx(single.sum)


def test_blocks_are_summed_over_ranks_while_capacity_is_one_ranks():
    text = render(engines=2, settings=replace(TINY, num_gpu_blocks=32), api_servers=2)
    assert text.count('num_gpu_blocks="64"') == 2
    assert text.count('kv_cache_size_tokens="4096"') == 2
