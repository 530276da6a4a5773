"""The status page: what on-call reads at night, in a real browser too."""

import asyncio
import html
import re
import subprocess
from math import isfinite
from pathlib import Path

import orjson
import pytest

from tests.edges.servers import RECORDINGS, http, says, serving
from tests.programs import PATIENCE_S, find
from vllm_vitals.core.render import TargetRenderer, join
from vllm_vitals.core.snapshot import EngineKey, EngineSnapshot, Reading, Scrape, TargetSnapshot
from vllm_vitals.core.states import State
from vllm_vitals.core.target_evaluator import TargetEvaluator
from vllm_vitals.recordings import recording
from vllm_vitals.serve import page, views, vitals, web

ALL = page.Asked()
CRITICAL = (0xC4, 0x18, 0x2C)


def drawn(snapshots: list[TargetSnapshot], now: float, asked: page.Asked = ALL) -> str:
    return web.templates().get_template("status.html").render(page=page.build(snapshots, now, asked=asked), version="0")


def judged(name: str, target: str, scrape: int = -1) -> TargetSnapshot:
    judge = TargetEvaluator(target)
    return [judge.observe(each) for each in recording.read(RECORDINGS / name / "metrics.jsonl.gz")][scrape]


def spiral() -> TargetSnapshot:
    return judged("spiral_chunked", "chat-1", 75)


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
    judge = TargetEvaluator("gone")
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
    assert len(page.build(fleet([State.SATURATED] * 3000), 130.0).cards) == page.FEW
    many = page.build(fleet([State.STALLED] * 3000), 130.0)
    assert (len(many.cards), len(many.rows), many.left_out) == (
        page.MAX_CARDS,
        page.MAX_ROWS,
        3000 - page.MAX_CARDS - page.MAX_ROWS,
    )
    assert "and 940 more" in drawn(fleet([State.STALLED] * 3000), 130.0)


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
        assert vitals._vital(engine, "x", "ttft_p99_seconds", "s").text == text


def test_a_fold_is_open_in_the_page_s_address_so_that_the_refresh_keeps_it() -> None:
    sick = spiral()
    (engine,), other = sick.engines, TargetSnapshot("t", True, 1.0, 0.1, engines=(unknowing("t"),))
    key, told = page.fold(engine.key), engine.unknown[0]
    closed = drawn([sick, other], sick.at)
    assert told not in closed
    assert 'content="5; url=./"' in closed
    assert f'href="?open={key}#{key}" aria-expanded="false"' in closed
    opened = drawn([sick, other], sick.at, page.Asked(unfolded=(key, "gone1234")))
    assert told in opened
    assert "why not" not in opened
    assert f'content="5; url=?open={key}"' in opened
    assert 'aria-expanded="true">' in opened
    both = page.build([sick, other], sick.at, asked=page.Asked("chat-1", (key,)))
    assert (both.refresh, both.cards[0].toggle) == (f"?target=chat-1&open={key}", f"?target=chat-1#{key}")


def unknowing(name: str) -> EngineSnapshot:
    return EngineSnapshot(EngineKey(name, "m", "0"), State.STALLED, 1.0, 1.0, unknown=("why not",))


def test_what_advice_says_to_watch_is_on_the_page_and_the_knob_is_what_the_text_begins_with() -> None:
    judge = TargetEvaluator("gone")
    for at in (10.0, 15.0, 20.0):
        snapshot = judge.observe(Scrape(at, 0.1, None, "refused", "10.0.0.1:8000 refuses connections"))
    text = drawn([snapshot], 25.0)
    assert "target_up" not in text
    assert "only where the address is right" in text[text.index('class="knob">restart') :]


def test_numbers_look_alike_wherever_they_stand() -> None:
    assert views.quantity(5336.2, "/s") == "5336 /s"
    assert vitals._capacity(1048576.0) == "of 1048576 tokens"


def test_an_empty_page_and_every_state_can_be_drawn() -> None:
    assert "No target has been tried yet" in drawn([], 1.0)
    text = drawn(fleet(list(State)), 130.0)
    for state in State:
        assert state.spec.headline in text or state.spec.label in text


def test_a_browser_refreshes_the_page_with_its_open_fold(tmp_path: Path) -> None:
    browser, sick = find("chromium", "google-chrome"), spiral()
    key, seen = page.fold(sick.engines[0].key), list[str]()
    again = asyncio.Event()

    async def reply(request: bytes, writer: asyncio.StreamWriter) -> None:
        path = request.split()[1].decode()
        if path.startswith("/?"):
            seen.append(path)
            again.set() if len(seen) > 1 else None
        asked = page.Asked(unfolded=[path.removeprefix("/?open=")])
        writer.write(http(drawn([sick], sick.at, asked).encode(), Content_Type="text/html; charset=utf-8"))
        await writer.drain()

    async def run() -> None:
        async with serving(reply) as url:
            process = await asyncio.create_subprocess_exec(
                browser, "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path}/profile",
                "--virtual-time-budget=20000", "--dump-dom", f"{url}/?open={key}#{key}",
                stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.DEVNULL,
            )  # fmt: skip
            try:
                await asyncio.wait_for(again.wait(), PATIENCE_S)
            finally:
                process.kill()
                await process.wait()

    asyncio.run(run())
    assert set(seen) == {f"/?open={key}"}


# a frame, because a browser's window is never as narrow as a phone
MEASURE = """<iframe style="border: 0; height: 900px; width: {width}px" srcdoc="{page}"></iframe>
<script>onload = () => {{
  const all = what => [...frames[0].document.querySelectorAll(what)];
  const rows = all("tbody tr").map(row => row.getBoundingClientRect().height);
  const broken = all("th, td").filter(cell => cell.clientHeight > 80).length;
  document.title = [frames[0].document.documentElement.scrollWidth, Math.max(...rows), broken].join(" ");
}}</script>"""


@pytest.mark.parametrize("width", [320, 390, 768, 1280])
def test_the_table_can_be_read_at_every_width(tmp_path: Path, width: int) -> None:
    browser = find("chromium", "google-chrome")
    calm = [judged("truncation_mix", f"chat-frankfurt-{number}.internal.example:8000") for number in range(9)]
    file = tmp_path / "page.html"
    text = drawn(calm, calm[0].at).replace('http-equiv="refresh"', "")
    file.write_text("<title></title>" + MEASURE.format(width=width, page=html.escape(text)))
    done = subprocess.run(
        [
            browser, "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path}/profile",
            f"--window-size={width},900", "--dump-dom", file.as_uri(),
        ],
        check=True, capture_output=True, text=True, timeout=PATIENCE_S,
    )  # fmt: skip
    wide, tallest, broken = map(float, done.stdout.partition("<title>")[2].partition("<")[0].split())
    assert wide <= width
    assert tallest < 160
    assert broken == 0


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
            await asyncio.to_thread(
                subprocess.run, [*command, url], check=True, capture_output=True, timeout=PATIENCE_S
            )

    asyncio.run(run())
    pixels = image.imread(file)
    seen = {tuple(round(float(c) * 255) for c in pixels[y, x][:3]) for y in range(0, 900, 4) for x in range(0, 1280, 2)}
    assert CRITICAL in seen
    assert len(seen) > 20


def test_what_keeps_us_from_looking_stands_on_top() -> None:
    shown = page.build(fleet([State.HEALTHY]), 100.0, impaired={"file_descriptors": "no file descriptor left"})
    text = web.templates().get_template("status.html").render(page=shown, version="0")
    assert "vllm-vitals itself is impaired: no file descriptor left." in text
    assert "impaired:" not in drawn(fleet([State.HEALTHY]), 100.0)


def test_what_cannot_be_seen_is_written_out_and_not_sent() -> None:
    name = "a\x1b[31mb\u202ec\u2066d\x07e\u200bf\x85"
    engine = EngineSnapshot(EngineKey(name, name, name), State.HEALTHY, 40.0, 100.0)
    text = drawn([TargetSnapshot(name, False, 100.0, 0.1, 100.0, "protocol", name, engines=(engine,))], 100.0)
    assert not [ch for ch in text if not ch.isprintable() and ch != "\n"]
    assert r"a\x1b[31mb\u202ec\u2066d\x07e\u200bf\x85" in text


def test_a_row_that_cannot_be_drawn_costs_no_other_row(monkeypatch: pytest.MonkeyPatch) -> None:
    real = page.vitals

    def broken(engine: EngineSnapshot) -> list[vitals.Vital]:
        if engine.key.target == "t1" and engine.at is not None:
            raise OverflowError("cannot convert float infinity to integer")
        return real(engine)

    monkeypatch.setattr(page, "vitals", broken)
    text = drawn(fleet([State.THRASHING, State.DEATH_SPIRAL, State.HEALTHY]), 100.0)
    assert text.count("the numbers of this engine cannot be shown (OverflowError)") == 1
    assert all(f"t{n}" in text for n in range(3))


def test_the_json_of_a_target_that_cannot_be_told_costs_no_other_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(views, "target", lambda *_: 1 // 0)
    told = views.target_or_fault(fleet([State.HEALTHY])[0], 100.0)
    assert told["target"] == "t0"
    assert "(ZeroDivisionError)" in told["detail"]


ABSURD = ("1.7976931348623157e308", "5e-324", "NaN", "-Inf")


@pytest.mark.parametrize("number", ABSURD)
def test_no_number_in_any_family_breaks_judge_metrics_json_or_page(number: str) -> None:
    good = [scrape for scrape in recording.read(RECORDINGS / "spiral_chunked" / "metrics.jsonl.gz") if scrape.body]
    names = sorted({line.split(b"{")[0] for line in good[0].body.split(b"\n") if line.startswith(b"vllm:")})  # type: ignore[union-attr]
    for name in names:
        judge, renderer = TargetEvaluator("t"), TargetRenderer()
        series = re.compile(rb"(?m)^(%b[{ ].*) \S+$" % re.escape(name))
        for scrape in good[10:31:10]:
            assert scrape.body is not None
            body = series.sub(lambda line: line[1] + b" " + number.encode(), scrape.body)
            seen = judge.observe(Scrape(scrape.at, 0.1, body))
        for engine in seen.engines:
            values = [r.value for r in engine.readings.values() if r.value is not None]
            assert all(map(isfinite, values)), name
        join([renderer.render(seen)])
        orjson.dumps(views.target(seen, seen.at))
        text = drawn([seen], seen.at)
        assert "cannot be shown" not in text, name
