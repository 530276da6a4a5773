"""The past from raw series: what a real Prometheus kept of recordings, judged as the daemon judged them."""

import gzip
import html
import json
import subprocess
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from tests.planner import backfill, month, prometheus
from tests.programs import PATIENCE_S, find
from tests.typed import typed
from vllm_vitals.core.dialect import normalise
from vllm_vitals.core.states import State
from vllm_vitals.core.target_evaluator import TargetEvaluator
from vllm_vitals.core.thresholds import Thresholds
from vllm_vitals.planner.incident import postmortem
from vllm_vitals.planner.incident.beside import MAX_QUERIES, Beside
from vllm_vitals.planner.incident.episodes import Episodes, Incident
from vllm_vitals.planner.incident.past import Past, judge
from vllm_vitals.planner.incident.rule_margin import Margin, margins
from vllm_vitals.prometheus.bodies import Pages
from vllm_vitals.prometheus.now import judged_now
from vllm_vitals.prometheus.promapi import PromApi, PromError, Series, access
from vllm_vitals.prometheus.raw import Kept, Reader, Server, servers
from vllm_vitals.recordings import recording

DATA = Path(__file__).parent.parent / "data"
FOLDERS = {path.name: path for kind in ("recordings", "measured") for path in sorted((DATA / kind).iterdir())}
INTERVALS = (5, 15, 30)
CASES = [(name, every) for name in FOLDERS for every in INTERVALS]
HARMFUL = {state.value for state in State if state.spec.incident}
BARE = "no-up:8000"
POD = "10.1.2.3:8000"


def path(name: str) -> Path:
    return FOLDERS[name] / "metrics.jsonl.gz"


def instance(name: str, every: int) -> str:
    return f"{name}:{every}"


def times(name: str) -> tuple[float, float]:
    scrapes = list(recording.read(path(name)))
    return scrapes[0].at, scrapes[-1].at


OURS = 'namespace="serving",pod="chat-7d9f-x2",container="vllm"'
# What a cluster keeps beside the pod: labels, the value before 120 s and the value from then on (a slope: per second).
BESIDE = {
    'kube_pod_info{namespace="serving",pod="chat-7d9f-x2",node="gpu-3",pod_ip="10.1.2.3"}': (1, 1),
    'DCGM_FI_DEV_XID_ERRORS{Hostname="gpu-3",gpu="1"}': (0, 79),
    'DCGM_FI_DEV_XID_ERRORS{Hostname="gpu-4",gpu="7"}': (0, 79),
    'DCGM_FI_DEV_CLOCK_THROTTLE_REASONS{Hostname="gpu-3",gpu="0"}': (4, 4 + 0x40),
    'DCGM_FI_DEV_SM_CLOCK{Hostname="gpu-3",gpu="0"}': (1980, 1200),
    'DCGM_FI_DEV_FB_USED{Hostname="gpu-3",gpu="0"}': (70000, 70100),
    f"kube_pod_container_status_restarts_total{{{OURS}}}": (2, 3),
    f'kube_pod_container_status_last_terminated_reason{{{OURS},reason="OOMKilled"}}': (0, 1),
    f"kube_pod_container_status_restarts_total{{{OURS.replace('x2', 'y9')}}}": (0, 9),
    'kube_deployment_status_observed_generation{namespace="serving",deployment="chat"}': (5, 6),
    'kube_deployment_status_observed_generation{namespace="serving",deployment="chats"}': (1, 2),
    'kube_node_status_condition{node="gpu-3",condition="MemoryPressure",status="true"}': (0, 1),
    'node_vmstat_oom_kill{instance="gpu-3:9100"}': (0, 1),
    'node_memory_MemTotal_bytes{instance="gpu-3:9100"}': (1e12, 1e12),
    'node_memory_MemAvailable_bytes{instance="gpu-3:9100"}': (5e11, 1e10),
    'envoy_cluster_upstream_rq_xx{envoy_response_code_class="5"}': ("rate", 3.0),
}  # fmt: skip


def beside_the_pod(start: float) -> Iterator[str]:
    for labels, (before, later) in BESIDE.items():
        for at in range(-660, 300, 15):
            value = max(0.0, at - 120) * later if before == "rate" else before if at < 120 else later
            yield f"{labels} {value} {start + at:.3f}"


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    find("prometheus"), find("promtool")
    data = tmp_path_factory.mktemp("raw")
    samples = [backfill.lines(instance(*case), backfill.thinned(path(case[0]), case[1])) for case in CASES]
    samples.append(backfill.lines(BARE, backfill.thinned(path("restart_under_load"), 5), about=False))
    samples.append(backfill.lines(POD, backfill.thinned(path("spiral_chunked"), 15)))
    samples.append(beside_the_pod(times("spiral_chunked")[0]))
    prometheus.blocks((line for each in samples for line in each), data, span="2400h")
    with prometheus.serving(data) as address:
        yield address


@pytest.mark.parametrize(("name", "every"), CASES)
def test_the_past_is_judged_as_it_was_live(url: str, name: str, every: int) -> None:
    ask, (start, end) = PromApi(access(url)), times(name)
    (server,) = servers(ask, start, end, f'instance="{instance(name, every)}"')
    past = judge(ask, server, [(start - 1, end + 1)], Thresholds())
    assert not past.error

    scrapes = list(backfill.thinned(path(name), every))
    assert past.kept.scrapes == len(scrapes)
    limits = Thresholds().at_interval(past.kept.interval)
    live, evaluator = Episodes(), TargetEvaluator(server.name, limits, may_start=True)
    for scrape in scrapes:
        live.add(evaluator.observe(scrape))
    assert past.episodes.runs == live.runs
    assert [(i.key, i.start, i.end, i.state, i.worst.evidence, i.worst.advice) for i in past.episodes.incidents] == [
        (i.key, i.start, i.end, i.state, i.worst.evidence, i.worst.advice) for i in live.incidents
    ]


def test_a_fleet_is_judged_as_it_is_at_a_moment_and_who_has_gone_is_said(url: str) -> None:
    start, end = times("spiral_chunked")
    wanted = "|".join(instance(name, 15) for name in ("spiral_chunked", "truncation_mix"))
    found = servers(PromApi(access(url)), start, end, f'instance=~"{wanted}"')
    asks, told = [PromApi(access(url)) for _ in range(2)], list[int]()
    snapshots, problems = judged_now(
        asks, found, end - 60, 900.0, Thresholds(), lambda done, of, what: told.append(done)
    )
    assert [(s.target, s.engines[0].state) for s in snapshots] == [(instance("spiral_chunked", 15), State.DEATH_SPIRAL)]
    assert len(problems) == 1
    assert "it is not scraped any more" in problems[0]
    assert told == [1, 2]


@pytest.mark.parametrize("name", FOLDERS)
def test_incidents_are_those_that_a_correct_monitor_sees(url: str, name: str) -> None:
    expect = json.loads((FOLDERS[name] / "expect.json").read_text())
    start, end = times(name)
    done = typed(
        "incident", "--prometheus", url, "--since", f"{end - start + 600:.0f}s", "--until", end + 1, "--target",
        instance(name, 5), "--every-scrape", "--format", "json",
    )  # fmt: skip
    found = json.loads(done.stdout)["incidents"]
    assert not {each["state"] for each in found} & set(expect["never"])
    if expect.get("critical") in HARMFUL:
        engines = [each for each in found if each["engine"] == expect["engine"]]
        seen = [c["at"] for each in engines for c in each["changes"] if c["state"] == expect["critical"]]
        assert expect["onset"] <= seen[0] - start <= expect["onset"] + expect["detect_within"] + 5
    allowed = {state for rule in expect["rules"] for state in rule["states"]}
    if not allowed & HARMFUL and "critical" not in expect:
        assert not found


def test_days_of_a_calm_fleet_list_what_was_planted_and_nothing_else(tmp_path: Path) -> None:
    find("prometheus"), find("promtool")
    end, days = 1_790_000_000.0, 0.75
    planted = month.planted(3, end - days * 86400, days)
    prometheus.blocks(month.lines(3, end - days * 86400, days, planted), tmp_path, span="2400h")
    with prometheus.serving(tmp_path) as address:
        done = typed("incident", "--prometheus", address, "--since", "18h", "--until", end, "--format", "json")
    found = json.loads(done.stdout)["incidents"]
    assert sorted((each["target"], each["state"]) for each in found) == sorted(
        (month.name(each.engine), each.state) for each in planted
    )
    onset = {each["state"]: each["start"] for each in found}
    assert all(-month.EVERY_S <= onset[each.state] - each.at <= 240 for each in planted)


def test_what_is_not_near_anything_odd_need_not_be_read(url: str) -> None:
    period = ("--since", "3d", "--until", max(times(name)[1] for name in FOLDERS) + 60, "--target", ".*:15")
    near, every = (
        json.loads(typed("incident", "--prometheus", url, *period, *more, "--format", "json").stdout)
        for more in ((), ("--every-scrape",))
    )
    told = [
        [(i["target"], i["engine"], i["state"], i["start"], i["end"]) for i in d["incidents"]] for d in (near, every)
    ]
    assert told[0] == told[1] != []
    assert near["judged"] < near["servers"] == every["judged"]
    assert "--every-scrape" in near["not_known"][-1]


def test_a_post_mortem_says_what_happened_what_proves_it_and_what_to_do(url: str, tmp_path: Path) -> None:
    start, _ = times("spiral_chunked")
    asked = ("incident", "--prometheus", url, "--at", start + 150, "--target", instance("spiral_chunked", 5))
    text = typed(*asked).stdout
    for part in ("# 1 incident", "## Death spiral: spiral_chunked:5 tiny engine 0", "finished requests preempted twice",
                 "### What users felt", "time to first token, p99", "arrivals", "at once: gateway_concurrency down",
                 "A state that may page held from", "start-up logs"):  # fmt: skip
        assert part in text
    page = tmp_path / "incident.html"
    assert typed(*asked, "--format", "html", "-o", page).exit_code == 0
    assert "<h3>What led to it</h3>" in page.read_text()
    assert "<script" not in page.read_text()


def test_what_else_the_prometheus_holds_of_the_same_minutes_is_named_beside_and_never_as_a_cause(url: str) -> None:
    start, _ = times("spiral_chunked")
    asked = ("incident", "--prometheus", url, "--at", start + 150, "--target", POD)
    document = json.loads(typed(*asked, "--format", "json").stdout)
    (incident,) = document["incidents"]
    assert {(each["source"], each["text"], each["tie"]) for each in incident["beside"]} == {
        ("GPU", "GPU 1: Xid 79 (GPU has fallen off the bus)", "the same node"),
        ("GPU", "GPU 0: its clock fell from 1980 to 1200 MHz", "the same node"),
        ("Kubernetes", "container vllm was restarted", "the same pod"),
        ("Kubernetes", "container vllm ended by OOMKilled", "the same pod"),
        ("Kubernetes", "deployment chat: a change was rolled out (generation 5 to 6)", "its deployment"),
        ("Kubernetes", "its node reports MemoryPressure", "the same node"),
        ("node", "the kernel killed 1 process for want of memory", "the same node"),
        ("node", "the machine had 1.0 % of its memory left", "the same node"),
        *((each["source"], each["text"], each["tie"]) for each in incident["beside"]
          if "throttled: hardware thermal" in each["text"] or "errors of Envoy: 0 /s before" in each["text"]),
    }  # fmt: skip
    assert len(incident["beside"]) == 10
    assert all(each["at"] == start + 120 for each in incident["beside"] if each["source"] == "Kubernetes")
    assert not [line for line in document["not_known"] if line.startswith(("GPUs", "Kubernetes", "node", "gateways"))]
    text = typed(*asked).stdout
    assert "that they led to it is not proven" in text
    assert "| GPU | GPU 1: Xid 79" in text
    bare = json.loads(typed(*asked[:-1], instance("spiral_chunked", 15), "--format", "json").stdout)
    assert {each["source"] for each in bare["incidents"][0]["beside"]} == {"gateway"}
    assert "GPUs: no DCGM series that a label (pod, node, host) ties to the server" in bare["not_known"]


def test_beside_an_incident_queries_are_bounded_and_a_refusal_is_said() -> None:
    class Counting(Scripted):
        def samples(self, selector: str, end: float, seconds: int) -> list[Series]:
            assert seconds <= 600 + 3600 + 60
            return super().samples(selector, end, seconds)

        def range(self, query: str, start: float, end: float, step: float) -> list[Series]:
            self.asked.append(0)
            return []

    place = {"instance": "10.0.0.1:8000", "namespace": "n", "pod": "a-b-c", "node": "gpu-3"}
    server, ask = Server(tuple(sorted(place.items()))), Counting(most=100_000)
    assert Beside(ask).look(server, 1000.0, 1e6) == []
    assert 0 < len(ask.asked) <= MAX_QUERIES
    refusing = Beside(Counting(most=0))
    assert refusing.look(server, 1000.0, 2000.0) == []
    assert "could not be read to its end" in refusing.lacking[0]


@pytest.mark.parametrize(
    ("name", "state"), [("spiral_chunked", State.DEATH_SPIRAL), ("overcommit_thrash", State.THRASHING)]
)
def test_a_threshold_that_is_said_to_keep_a_state_away_does_so(name: str, state: State) -> None:
    def judged(limits: Thresholds) -> list[Incident]:
        episodes, judge = Episodes(), TargetEvaluator("t", limits)
        for scrape in recording.read(path(name)):
            episodes.add(judge.observe(scrape))
        return [each for each in episodes.incidents if each.state is state]

    def beyond(margin: Margin) -> float:
        return min(1.0, margin.value + 0.001) if "ratio" in margin.threshold else margin.value * 1.001

    (incident,) = judged(Thresholds())
    found = margins(incident, Thresholds())
    assert found
    assert all(margin.factor is not None and margin.factor >= 1 for margin in found)
    for raised in (*([margin] for margin in found if margin.enough), found):
        assert not judged(replace(Thresholds(), **{margin.threshold: beyond(margin) for margin in raised})), raised


def test_a_bundle_replays_and_names_no_server_and_no_model(url: str, tmp_path: Path) -> None:
    start, _ = times("spiral_chunked")
    asked = ("incident", "--prometheus", url, "--at", start + 150, "--target", instance("spiral_chunked", 5))
    done = typed(*asked, "--bundle", tmp_path / "b.zip", "--around", "10m")
    assert done.exit_code == 0
    assert "Was this right?" in done.stdout
    assert "spiral_recompute_tax 0.4" in done.stdout
    assert "scrapes of 1 server, without names" in done.stderr
    with zipfile.ZipFile(tmp_path / "b.zip") as file:
        assert sorted(file.namelist()) == ["README.txt", "incident.json", "server-1.jsonl.gz"]
        file.extract("server-1.jsonl.gz", tmp_path)
        document = file.read("incident.json").decode()
    with gzip.open(tmp_path / "server-1.jsonl.gz", "rt") as lines:
        scrapes = lines.read()
    for name in (instance("spiral_chunked", 5), "tiny", url):
        assert name not in document
        assert name not in scrapes
    replayed = json.loads(typed("check", "--replay", tmp_path / "server-1.jsonl.gz", "--json").stdout)
    assert replayed["verdict"]["state"] == json.loads(document)["incidents"][0]["state"] == "death_spiral"
    assert typed(*asked, "--bundle", tmp_path / "b.zip", "--around", "10m").exit_code == 2


def test_a_moment_without_incident_has_its_states(url: str) -> None:
    start, _ = times("saturated_no_preemption")
    done = typed(
        "incident", "--prometheus", url, "--at", start + 150, "--target", instance("saturated_no_preemption", 5)
    )
    assert done.exit_code == 0
    assert "# No incident" in done.stdout
    assert "| saturated\\_no\\_preemption:5" in done.stdout or "| saturated_no_preemption:5" in done.stdout
    assert "| saturated |" in done.stdout


def test_without_up_an_outage_is_a_gap_and_that_is_said(url: str) -> None:
    start, _ = times("restart_under_load")
    done = typed("incident", "--prometheus", url, "--at", start + 60, "--target", BARE)
    assert "up is not kept: a failed scrape looks like none" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "give either --at TIME or --since PERIOD"),
        (("--at", "03:07", "--since", "1d"), "give either --at TIME or --since PERIOD"),
        (("--at", "03:07", "--every-scrape"), "--until and --every-scrape are for --since"),
        (("--at", "soon"), "expected a time such as"),
        (("--at", "2100-01-01"), "lies in the future"),
    ],
)
def test_a_wrong_command_line_is_one_line(arguments: tuple[str, ...], said: str) -> None:
    done = typed("incident", "--prometheus", "http://127.0.0.1:9", *arguments)
    assert done.exit_code == 2
    assert said in done.stderr.splitlines()[0]


def test_a_prometheus_without_vllm_says_so(url: str) -> None:
    done = typed("incident", "--prometheus", url, "--since", "1h", "--model", "other")
    assert done.exit_code == 2
    assert "no vLLM series" in done.stderr
    assert "Traceback" not in done.stderr


# ---------------------------------------------------------------- pages


def test_a_page_holds_what_was_scraped_and_no_label_of_prometheus() -> None:
    labels = {"instance": "a:1", "job": "vllm", "model_name": 'say "x"\\', "engine": "0"}
    series = [
        Series({**labels, "__name__": "vllm:num_requests_running"}, [[10.0, "3"], [20.0004, "4"]]),
        Series({**labels, "__name__": "vllm:num_requests_waiting"}, [[10.0, "0"]]),
        Series({**labels, "__name__": "vllm:time_to_first_token_seconds_count"}, [[10.0, "7"]]),
    ]
    pages = Pages(["instance", "job"]).build(series)
    assert list(pages) == [10.0, 20.0]
    assert b"instance" not in pages[10.0]
    (engine,) = normalise(pages[10.0]).engines.items()
    assert engine[0] == ('say "x"\\', "0")
    assert (engine[1].running, engine[1].waiting) == (3, 0)
    assert normalise(pages[20.0]).engines['say "x"\\', "0"].waiting is None


class Scripted:
    """An API that refuses what is longer than ``most`` seconds."""

    def __init__(self, most: int) -> None:
        self.most, self.asked = most, list[int]()

    def samples(self, selector: str, end: float, seconds: int) -> list[Series]:
        self.asked.append(seconds)
        if seconds > self.most:
            raise PromError("query processing would load too many samples", too_much=True)
        at = [float(t) for t in range(0, 1200, 10) if end - seconds < t <= end]
        labels = {"__name__": "vllm:num_requests_running", "instance": "a", "model_name": "m"}
        return [Series(labels, [[t, "1"] for t in at])]

    def series(self, match: str, start: float, end: float) -> list[Mapping[str, str]]:
        return (
            [{"__name__": "vllm:num_requests_running", "instance": "a", "model_name": "m"}] if "up" not in match else []
        )


def test_what_is_too_much_for_the_api_is_read_in_halves_and_every_scrape_once() -> None:
    ask = Scripted(most=100)
    times = [scrape.at for scrape in Reader(ask, Server((("instance", "a"),))).scrapes(0.0, 1000.0)]
    assert times == [float(t) for t in range(10, 1001, 10)]
    assert min(ask.asked) <= 100


def test_an_api_that_refuses_everything_is_an_error_of_that_server() -> None:
    past = judge(Scripted(most=0), Server((("instance", "a"),)), [(0.0, 1000.0)], Thresholds())
    assert "too many samples" in past.error


def test_a_post_mortem_fits_a_phone(tmp_path: Path) -> None:
    episodes, judge_of = Episodes(), TargetEvaluator("gpu-17.frankfurt.internal.example.com:8000")
    for scrape in recording.read(path("spiral_chunked")):
        episodes.add(judge_of.observe(scrape))
    past = Past(Server((("instance", "gpu-17.frankfurt.internal.example.com:8000"),)), Kept(5.0, scrapes=100), episodes)
    text = postmortem.html(postmortem.document([past], episodes.incidents, 0.0, scrape.at, "a source", scrape.at))
    # a frame, because a browser's window is never as narrow as a phone
    frame = f'<iframe style="border: 0; width: 390px; height: 800px" srcdoc="{html.escape(text)}"></iframe>'
    script = "<script>onload = () => document.title = frames[0].document.documentElement.scrollWidth</script>"
    (tmp_path / "page.html").write_text(f"<title></title>{frame}{script}")
    command = [
        find("chromium", "google-chrome"), "--headless", "--no-sandbox", "--disable-gpu",
        f"--user-data-dir={tmp_path}/profile", "--dump-dom", (tmp_path / "page.html").as_uri(),
    ]  # fmt: skip
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=PATIENCE_S)
    assert int(done.stdout.partition("<title>")[2].partition("<")[0]) <= 390
