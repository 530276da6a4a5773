"""What the page says after something was done about evictions: still evicting and why, worked, or no effect."""

from collections.abc import Iterable
from pathlib import Path

from vllm_vitals.core.aftermath import Aftermath
from vllm_vitals.core.sample import EngineSample
from vllm_vitals.core.snapshot import Followed
from vllm_vitals.core.target_evaluator import TargetEvaluator
from vllm_vitals.recordings import recording
from vllm_vitals.serve import views

RECOVER = Path(__file__).parent.parent / "data" / "measured" / "degrade_and_recover" / "metrics.jsonl.gz"

# s, running, waiting, finished so far, preemptions so far
Moment = tuple[float, float, float, float, float]
TUNED, OLD = {"max_num_seqs": "36", "num_gpu_blocks": "190"}, {"max_num_seqs": "48", "num_gpu_blocks": "192"}


def seen(moments: Iterable[Moment], changes_at: float | None = None, evicting_until: float = 1e9) -> list[Followed]:
    """Every answer that is not None."""
    after, found = Aftermath(), []
    for at, running, waiting, finished, preemptions in moments:
        sample = EngineSample(
            running=running, waiting=waiting, responses={"stop": finished},
            preemptions=preemptions, generation_tokens=100 * at,
        )  # fmt: skip
        settings = OLD if changes_at is None or at < changes_at else TUNED
        each = after.feed(1000.0 + at, sample, settings, at < evicting_until)
        found += [each] if each is not None else []
    return found


def capped(at: float) -> Moment:
    """40 are inside; from 60 s on one leaves every 2 s and none comes in, evictions end when 6 are left (at 128 s)."""
    gone = max(0.0, (min(at, 128) - 60) / 2)
    return at, 6.0, 34.0 - gone, at / 2, 2 * min(at, 128)


def test_a_cap_shows_in_what_comes_in_and_says_why_it_still_evicts() -> None:
    found = seen(capped(5.0 * k) for k in range(20))
    assert {each.word for each in found} == {"draining"}
    assert found[-1].what == "fewer requests let in"
    assert 1050 <= found[-1].since <= 1070
    assert "still evicting because 16 wait inside (40 were inside): about" in found[-1].text
    assert "or abort them" in found[-1].text


def test_when_it_worked_that_is_said_for_a_while_and_then_no_more() -> None:
    found = seen((capped(5.0 * k) for k in range(200)), evicting_until=130)
    worked = [each for each in found if each.word == "worked"]
    assert worked
    assert "worked: preemptions 0 after" in worked[-1].text
    assert "6 inside" in worked[-1].text
    assert len(worked) < 125  # 10 minutes after the last eviction nothing is left to say


def test_where_as_many_come_as_leave_nothing_was_done() -> None:
    assert seen((5.0 * k, 6.0, 34.0, 2.5 * k, 10.0 * k) for k in range(60)) == []


def test_where_nothing_leaves_nothing_is_claimed() -> None:
    assert seen((5.0 * k, 6.0, 34.0, 0.0, 10.0 * k) for k in range(60)) == []


def test_when_others_come_in_again_it_is_no_cap() -> None:
    def moment(k: int) -> Moment:
        at = 5.0 * k
        inside = 40 - max(0, min(at, 100) - 60) / 2 if at <= 100 else min(40.0, 20 + (at - 100))
        return at, 6.0, inside - 6, at / 2, 2 * at

    assert seen(moment(k) for k in range(60))[-1].since < 1300  # said while it lasted
    late = [each for each in seen(moment(k) for k in range(200)) if each.since > 1100]
    assert late == []


def test_another_setting_is_named_by_the_knob_and_judged() -> None:
    found = seen(((5.0 * k, 6.0, 34.0, 2.5 * k, 10.0 * k) for k in range(60)), changes_at=100.0)
    assert (found[-1].what, found[-1].word) == ("max_num_seqs 48 → 36", "no effect")
    assert "preemptions in 195 s: it did not end them" in found[-1].text
    found = seen(((5.0 * k, 6.0, 34.0, 2.5 * k, 10.0 * min(k, 25)) for k in range(60)), 100.0, 130.0)
    assert (found[-1].word, found[-1].since) == ("worked", 1100.0)
    assert "preemptions 0 after 25 s" in found[-1].text


def test_a_healthy_engine_that_restarts_is_not_followed() -> None:
    assert seen(((5.0 * k, 6.0, 0.0, 2.5 * k, 0.0) for k in range(60)), 100.0, 0.0) == []


def test_the_cap_that_did_not_end_degrade_and_recover_says_why() -> None:
    """A cap of 6 came at about 160 s of a real server; 90 s later it still evicted."""
    judge = TargetEvaluator("t")
    polls = [judge.observe(scrape) for scrape in recording.read(RECOVER)]
    began, found = polls[0].at, [poll.engines[0].followed for poll in polls]
    assert not any(each for each, poll in zip(found, polls, strict=True) if poll.at - began < 160)
    last = found[-1]
    assert last is not None
    assert (last.what, last.word) == ("fewer requests let in", "draining")
    assert "still evicting because 25 wait inside (47 were inside): about" in last.text
    shown = views.engine(polls[-1].engines[0], polls[-1].at)["followed"]
    assert (shown["result"], shown["text"], shown["since"]) == ("draining", last.text, last.since)
    assert views.since(last).endswith(f"UTC (fewer requests let in): {last.text}")
