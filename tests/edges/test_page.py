"""The status page: what on-call reads at night, in a real browser too."""

import asyncio
import subprocess
from pathlib import Path

import jinja2

from exporter import page, recording
from exporter.core.snapshot import EngineKey, EngineSnapshot, Reading, Scrape, State, TargetSnapshot
from exporter.core.target import TargetJudge
from tests.edges.servers import RECORDINGS, http, says, serving
from tests.programs import find

CRITICAL = (0xC4, 0x18, 0x2C)


def drawn(snapshots: list[TargetSnapshot], now: float) -> str:
    templates = jinja2.Environment(
        loader=jinja2.PackageLoader("exporter"), autoescape=True, undefined=jinja2.StrictUndefined
    )
    return templates.get_template("status.html").render(page=page.build(snapshots, now), only="", version="0")


def spiral() -> TargetSnapshot:
    judge = TargetJudge("chat-1")
    snapshots = [judge.observe(s) for s in recording.read(RECORDINGS / "spiral_chunked" / "metrics.jsonl.gz")]
    return snapshots[75]


def fleet(states: list[State]) -> list[TargetSnapshot]:
    return [
        TargetSnapshot(
            f"t{i}",
            True,
            100.0,
            0.1,
            100.0,
            engines=(EngineSnapshot(EngineKey(f"t{i}", "m", "0"), state, 40.0, 100.0),),
        )
        for i, state in enumerate(states)
    ]


def test_the_worst_comes_first_with_its_evidence_its_age_and_what_to_do() -> None:
    sick = spiral()
    text = drawn([*fleet([State.HEALTHY]), sick], sick.at + 4)
    story = (
        "death spiral</p>",
        "preemptions per finished request",
        "Now",
        "gateway_concurrency",
        "At the next restart",
        "healthy</p>",
    )
    order = [text.index(part) for part in story]
    assert order == sorted(order)
    assert "last sample 4 s ago" in text


def test_a_target_that_does_not_answer_says_why_and_since_when() -> None:
    judge = TargetJudge("gone")
    for at in (10.0, 15.0, 20.0):
        snapshot = judge.observe(Scrape(at, 0.1, None, "refused", "10.0.0.1:8000 refuses connections"))
    text = drawn([snapshot], 25.0)
    assert "refused: 10.0.0.1:8000 refuses connections" in text
    assert "last sample never" in text
    assert "for <b>5 s</b>" in text


def test_a_thousand_engines_stay_readable_troubles_at_length_and_the_rest_as_rows() -> None:
    states = [State.HEALTHY] * 990 + [State.STALLED] * 10
    built = page.build(fleet(states), 130.0)
    assert [row.state for row in built.cards] == ["stalled"] * 10
    assert len(built.rows) == 990
    many = page.build(fleet([State.SATURATED] * 3000), 130.0)
    assert (len(many.cards), len(many.rows), many.left_out) == (
        page.MAX_CARDS,
        page.MAX_ROWS,
        3000 - page.MAX_CARDS - page.MAX_ROWS,
    )
    assert "and 940 more" in drawn(fleet([State.SATURATED] * 3000), 130.0)


def test_numbers_below_the_first_bucket_and_beyond_the_last_are_said_so() -> None:
    for reading, text in (
        (Reading(None, 0.0, 0.01), "< 10 ms"),
        (Reading(None, 2.5, None), "> 2.5 s"),
        (Reading(0.02, 0.01, 0.025), "20 ms"),
        (Reading(None), "–"),
    ):
        engine = EngineSnapshot(
            EngineKey("t", "m", "0"), State.HEALTHY, 1.0, 1.0, readings={"ttft_p99_seconds": reading}
        )
        assert page._vital(engine, "x", "ttft_p99_seconds", "s").text == text


def test_an_empty_page_and_every_state_can_be_drawn() -> None:
    assert "No target has been tried yet" in drawn([], 1.0)
    text = drawn(fleet(list(State)), 130.0)
    for state in State:
        assert page.HEADLINES[state] in text or page.words(state) in text


def test_a_real_browser_draws_it_with_its_colours(tmp_path: Path) -> None:
    browser = find("chromium", "google-chrome")
    from matplotlib import image

    sick, file = spiral(), tmp_path / "page.png"
    policy = "default-src 'none'; style-src 'unsafe-inline'"
    answer = http(
        drawn([sick], sick.at).encode(), Content_Type="text/html; charset=utf-8", Content_Security_Policy=policy
    )
    command = (
        browser, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars",
        f"--user-data-dir={tmp_path}/profile", f"--screenshot={file}", "--window-size=1280,900",
    )  # fmt: skip

    async def run() -> None:
        async with serving(says(answer)) as url:
            await asyncio.to_thread(subprocess.run, [*command, url], check=True, capture_output=True, timeout=120)

    asyncio.run(run())
    pixels = image.imread(file)
    seen = {tuple(round(float(c) * 255) for c in pixels[y, x][:3]) for y in range(0, 900, 4) for x in range(0, 1280, 2)}
    assert CRITICAL in seen
    assert len(seen) > 20
