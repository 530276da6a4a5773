"""What goes wrong beside memory and load, as vLLM tells it: errors, HTTP, pauses, held blocks, slow steps, waits."""

from collections import Counter
from dataclasses import replace
from itertools import pairwise

import pytest
from prometheus_client.parser import text_string_to_metric_families

from vllm_vitals.simulator.exposed_families import Dialect
from vllm_vitals.simulator.request_outcomes import Fate
from vllm_vitals.simulator.scenario import Pause, Restart, Resume, Scenario, Slow
from vllm_vitals.simulator.scenarios import scenario
from vllm_vitals.simulator.settings import ServerSettings
from vllm_vitals.simulator.workload import Lengths, Load
from vllm_vitals.simulator.world import World
from vllm_vitals.simulator.write_recording import play

STEADY = Load(rate=5.0)


def series(text):
    """Every sample of a page, by name and labels without the common ones."""
    found = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            labels = {k: v for k, v in sample.labels.items() if k not in ("engine", "model_name")}
            found[sample.name, *(f"{key}={value}" for key, value in sorted(labels.items()))] = sample.value
    return found


class Watched:
    """A world, and how its series grew between two times."""

    def __init__(self, scene, **options):
        self.world = World(scene, **options)

    def at(self, time):
        return series(self.world.scrape(time))

    def grown(self, since, until):
        before, after = self.at(since), self.at(until)
        return Counter({key: value - before.get(key, 0) for key, value in after.items()})


def scene(*script, **options):
    return Scenario("test", "", "", 10_000, script, **options)


# ---------------------------------------------------------------------- requests that fail


def test_a_request_that_fails_inside_the_engine_is_counted_everywhere_as_vllm_does():
    grown = Watched(scenario("failing")).grown(310, 590)
    errors = grown["vllm:request_success_total", "finished_reason=error"]
    good = grown["vllm:request_success_total", "finished_reason=stop"]
    assert errors / (errors + good) == pytest.approx(0.93, abs=0.03)
    every = errors + good
    # One sample in every histogram of requests, the failed ones with nothing in it.
    for name in ("request_prompt_tokens", "request_generation_tokens", "request_time_per_output_token_seconds",
                 "e2e_request_latency_seconds", "request_queue_time_seconds", "request_prefill_time_seconds",
                 "request_decode_time_seconds", "request_inference_time_seconds", "request_params_max_tokens",
                 "request_num_preemptions", "request_prefill_kv_computed_tokens"):  # fmt: skip
        assert grown[f"vllm:{name}_count",] == every
    assert grown["vllm:time_to_first_token_seconds_count",] == pytest.approx(every, abs=2)
    assert grown["vllm:request_time_per_output_token_seconds_bucket", "le=0.01"] >= errors
    assert grown["vllm:request_generation_tokens_bucket", "le=1.0"] >= errors
    # Tokens and prompts are the good ones' alone, and a load that failed counts as a hit.
    assert grown["vllm:generation_tokens_total",] < 60 * every
    assert grown["vllm:prompt_tokens_total",] < 0.15 * grown["vllm:request_prompt_tokens_sum",]
    assert grown["vllm:external_prefix_cache_queries_total",] == pytest.approx(
        grown["vllm:request_prompt_tokens_sum",], rel=0.02
    )
    assert 0.85 < grown["vllm:external_prefix_cache_hits_total",] / grown["vllm:request_prompt_tokens_sum",] < 1
    assert (
        grown["vllm:prompt_tokens_cached_by_source_total", "source=external_unspecified"]
        == (grown["vllm:external_prefix_cache_hits_total",])
    )


def test_while_requests_fail_the_latencies_look_better_and_no_gauge_moves():
    watched = Watched(scenario("failing"))
    before, during = watched.grown(30, 290), watched.grown(310, 590)
    for name in ("e2e_request_latency_seconds", "request_time_per_output_token_seconds"):
        means = [grown[f"vllm:{name}_sum",] / grown[f"vllm:{name}_count",] for grown in (before, during)]
        assert means[1] < 0.3 * means[0]
    page = watched.at(595)
    assert page["vllm:num_requests_waiting",] == 0
    assert page["vllm:kv_cache_usage_perc",] < 0.1


def test_only_a_failure_that_is_not_streamed_is_a_5xx():
    share = Fate(failing=0.5, streamed=0.5)
    grown = Watched(scene((0, replace(STEADY, fate=share)))).grown(0, 600)
    errors = grown["vllm:request_success_total", "finished_reason=error"]
    handler = ("handler=/v1/chat/completions", "method=POST")
    bad, fine = (grown["http_requests_total", *handler, f"status={status}"] for status in ("5xx", "2xx"))
    assert bad == pytest.approx(errors / 2, rel=0.15)
    assert bad + fine == sum(v for k, v in grown.items() if k[0] == "vllm:request_success_total")


def test_what_the_api_server_breaks_on_or_refuses_never_reaches_the_engine():
    fate = Fate(invalid=0.3, broken=0.3, streamed=0.25)
    grown = Watched(scene((0, replace(STEADY, fate=fate)))).grown(0, 1000)
    handler = ("handler=/v1/chat/completions", "method=POST")
    by_class = {s: grown["http_requests_total", *handler, f"status={s}"] for s in ("2xx", "4xx", "5xx")}
    sent = sum(by_class.values())
    assert by_class["4xx"] / sent == pytest.approx(0.3, abs=0.03)
    assert by_class["5xx"] / sent == pytest.approx(0.7 * 0.3 * 0.75, abs=0.03)
    finished = sum(v for k, v in grown.items() if k[0] == "vllm:request_success_total")
    assert finished == pytest.approx(0.49 * sent, rel=0.08)
    assert by_class["2xx"] - finished == pytest.approx(0.7 * 0.3 * 0.25 * sent, rel=0.3)  # streams that broke
    assert grown["vllm:time_to_first_token_seconds_count",] == pytest.approx(finished, abs=20)


def test_a_full_queue_refuses_with_503_and_says_why():
    server = ServerSettings(max_num_seqs=2, max_num_queued_reqs=5)
    watched = Watched(scene((0, Load(rate=20.0)), settings=server))
    page = watched.at(120)
    assert page["vllm:num_requests_waiting",] <= 5
    refused = page["vllm:admission_rejections_total", "reason=max_num_queued_reqs"]
    assert refused > 1000
    assert page["http_requests_total", "handler=/v1/chat/completions", "method=POST", "status=5xx"] == refused


def test_clients_that_leave_are_2xx_without_a_finish():
    load = Load(clients=10, think_s=0.5, output=Lengths(900), max_tokens=1000, patience_s=3.0)
    page = Watched(scene((0, load))).at(120)
    assert page["http_requests_total", "handler=/v1/chat/completions", "method=POST", "status=2xx"] > 100
    assert sum(v for k, v in page.items() if k[0] == "vllm:request_success_total") == 0


def test_http_families_are_the_instrumentators_own():
    page = Watched(scene((0, STEADY))).at(60)
    handler = ("handler=/v1/chat/completions", "method=POST")
    count = page["http_requests_total", *handler, "status=2xx"]
    assert page["http_request_duration_highr_seconds_count",] == count
    assert page["http_request_duration_highr_seconds_bucket", "le=+Inf"] == count
    assert page["http_request_duration_seconds_count", *handler] == count
    assert page["http_request_duration_seconds_bucket", handler[0], "le=+Inf", handler[1]] == count
    assert page["http_requests_created", *handler, "status=2xx"] == 1.8e9
    assert not [key for key in page if key[0] == "http_requests_total" and "status=5xx" in key]  # none before the first


@pytest.mark.parametrize(("options", "has"), [({"api_servers": 4}, True), ({}, True)])
def test_several_api_servers_have_no_created_of_http_either(options, has):
    page = Watched(scene((0, STEADY), **options)).at(60)
    assert any(key[0] == "http_requests_total" for key in page) is has
    assert any(key[0].endswith("_created") for key in page) is not bool(options)


def test_v0_had_no_http_families():
    page = Watched(scene((0, STEADY)), dialect=Dialect.V0).at(60)
    assert not [key for key in page if key[0].startswith("http_")]


# ---------------------------------------------------------------------- pause


def test_a_pause_is_an_answered_request_and_then_nothing_moves():
    watched = Watched(scenario("paused"))
    before, after = watched.at(299), watched.at(595)
    assert after["http_requests_total", "handler=/pause", "method=POST", "status=2xx"] == 1
    assert ("http_requests_total", "handler=/pause", "method=POST", "status=2xx") not in before
    assert after["vllm:generation_tokens_total",] - before["vllm:generation_tokens_total",] < 200
    assert after["vllm:num_requests_running",] == 0
    assert after["vllm:num_requests_waiting",] > 100
    assert after["vllm:kv_cache_usage_perc",] == 0
    assert after["vllm:num_preemptions_total",] == 0  # the events come with the victims' next tokens


def test_a_resume_gives_the_pauses_evictions_and_goes_on():
    watched = Watched(scene((0, Load(clients=4, think_s=0.0, output=Lengths(400))), (60.05, Pause()),
                            (70, Load(clients=5, think_s=0.0, output=Lengths(400))), (120, Resume())))  # fmt: skip
    paused = watched.at(65)
    assert paused["vllm:num_requests_running",] == 4  # the gauges keep their values until somebody comes
    evicted = watched.at(100)
    assert (evicted["vllm:num_requests_running",], evicted["vllm:num_requests_waiting",]) == (0, 5)
    later = watched.at(180)
    assert later["http_requests_total", "handler=/resume", "method=POST", "status=2xx"] == 1
    assert later["vllm:num_preemptions_total",] == 4
    assert later["vllm:generation_tokens_total",] > paused["vllm:generation_tokens_total",] + 1000


# ---------------------------------------------------------------------- blocks that nobody holds


def test_held_blocks_stay_when_everybody_has_gone():
    watched = Watched(scenario("kv_held"))
    page = watched.at(1000)
    assert (page["vllm:num_requests_running",], page["vllm:num_requests_waiting",]) == (0, 0)
    assert page["vllm:kv_cache_usage_perc",] == pytest.approx(0.25, abs=0.01)


def test_a_leak_raises_the_floor_of_each_lull():
    watched = Watched(scenario("kv_leak"))
    floors = [watched.at(600.0 * lap - 5)["vllm:kv_cache_usage_perc",] for lap in range(1, 7)]
    assert all(later - earlier > 0.01 for earlier, later in pairwise(floors))
    assert floors[-1] > 0.15


# ---------------------------------------------------------------------- slow steps, speculation


def test_a_slow_server_takes_longer_at_the_same_load():
    watched = Watched(scenario("degraded"))
    means = []
    for since, until in ((100, 1700), (1900, 5000)):
        grown = watched.grown(since, until)
        name = "vllm:inter_token_latency_seconds"
        means.append(grown[f"{name}_sum",] / grown[f"{name}_count",])
    assert means[1] / means[0] == pytest.approx(1.6, abs=0.15)


def test_one_rank_can_be_slow_beside_another():
    world = World(scene((0, STEADY), (0, Slow(3.0, rank=1)), engines=2))
    world.advance(300)
    gaps = [engine.stats.histograms["inter_token_latency_seconds"] for engine in world.engines]
    fast, slow = (gap.sum / sum(gap.counts) for gap in gaps)
    assert slow > 2 * fast


def test_when_acceptance_collapses_the_gaps_shrink_and_answers_take_longer():
    watched = Watched(scenario("spec_collapse"))
    seen = []
    for since, until in ((100, 1700), (1900, 5000)):
        grown = watched.grown(since, until)
        gap, answer = "vllm:inter_token_latency_seconds", "vllm:request_time_per_output_token_seconds"
        drafted = grown["vllm:spec_decode_num_draft_tokens_total",]
        seen.append({
            "acceptance": grown["vllm:spec_decode_num_accepted_tokens_total",] / drafted,
            "gap": grown[f"{gap}_sum",] / grown[f"{gap}_count",],
            "tpot": grown[f"{answer}_sum",] / grown[f"{answer}_count",],
            "tokens a gap": grown["vllm:generation_tokens_total",] / grown[f"{gap}_count",],
        })  # fmt: skip
        assert drafted == 4 * grown["vllm:spec_decode_num_drafts_total",]
        per_position = [grown["vllm:spec_decode_num_accepted_tokens_per_pos_total", f"position={n}"] for n in range(4)]
        assert per_position == sorted(per_position, reverse=True)
        assert sum(per_position) == grown["vllm:spec_decode_num_accepted_tokens_total",]
    before, after = seen
    # What a real server did (0.32.0, ngram, 4 tokens): 0.92 to 0.002; gaps -30 %; TPOT x 2.5 to 3; 4.3 tokens a gap.
    assert before["acceptance"] == pytest.approx(0.9, abs=0.03)
    assert after["acceptance"] < 0.01
    assert after["gap"] < 0.9 * before["gap"]
    assert 2.0 < after["tpot"] / before["tpot"] < 4.5
    assert before["tokens a gap"] == pytest.approx(4.6, abs=0.3)


def test_without_speculation_there_is_no_such_family():
    assert not [key for key in Watched(scene((0, STEADY))).at(60) if "spec_decode" in key[0]]


@pytest.mark.parametrize("interval", [1.0, 7.5, 60.0])
def test_speculation_comes_to_the_same_however_often_it_is_looked_at(interval):
    world = World(scenario("spec_collapse"), seed=3)
    for number in range(1, int(240 / interval) + 1):
        world.scrape(number * interval)
    stats = world.engines[0].stats
    whole = World(scenario("spec_collapse"), seed=3)
    whole.advance(240)
    assert stats.generation_tokens == whole.engines[0].stats.generation_tokens
    assert stats.drafts == pytest.approx(whole.engines[0].stats.drafts, rel=0.01)


# ---------------------------------------------------------------------- waits that are no capacity, and starts


def test_deferred_requests_wait_under_their_own_reason_and_then_run():
    watched = Watched(scenario("deferred"))
    page = watched.at(600)
    deferred = page["vllm:num_requests_waiting_by_reason", "reason=deferred"]
    assert 20 < deferred < 90  # two a second, four of five for half a minute
    assert page["vllm:num_requests_waiting_by_reason", "reason=capacity"] == 0
    assert page["vllm:num_requests_waiting",] == deferred
    grown = watched.grown(600, 890)
    assert sum(v for k, v in grown.items() if k[0] == "vllm:request_success_total") == pytest.approx(580, rel=0.15)
    assert grown["vllm:request_queue_time_seconds_sum",] / grown["vllm:request_queue_time_seconds_count",] > 15


def test_where_all_are_deferred_the_gauges_still_say_how_many():
    page = Watched(scenario("deferred_stuck")).at(800)
    assert page["vllm:num_requests_running",] == 0
    assert page["vllm:num_requests_waiting_by_reason", "reason=deferred"] > 900


def test_a_deferred_client_that_leaves_is_gone():
    fate = Fate(deferred=1.0, deferred_s=1e6)
    world = World(scene((0, Load(rate=5.0, patience_s=10.0, fate=fate))))
    world.advance(300)
    assert len(world.engines[0].requests) == pytest.approx(50, abs=25)


def test_a_server_that_starts_refuses_or_something_before_it_answers_503():
    for name, reason in (("starting", "refused"), ("starting_503", "unavailable")):
        scrapes = list(play(scenario(name)))
        failed = [scrape for scrape in scrapes if scrape.body is None]
        assert {scrape.reason for scrape in failed} == {reason}
        assert len(failed) == 35
        assert scrapes[35].body is not None


def test_a_restart_begins_its_http_counters_anew():
    watched = Watched(scene((0, STEADY), (60, Restart(5.0))))
    key = ("http_requests_total", "handler=/v1/chat/completions", "method=POST", "status=2xx")
    assert watched.at(59)[key] > 200
    assert watched.at(70)[key] < 50


def test_fates_change_no_arrival():
    plain, failing = (World(scene((0, replace(STEADY, fate=fate))), seed=5) for fate in (Fate(), Fate(invalid=1.0)))
    for world in (plain, failing):
        world.advance(100)
    assert sum(failing.engines[0].stats.responses.values()) == 0
    page = series(failing.scrape(100))
    refused = page["http_requests_total", "handler=/v1/chat/completions", "method=POST", "status=4xx"]
    assert refused == sum(plain.engines[0].stats.responses.values()) + len(plain.engines[0].requests)
