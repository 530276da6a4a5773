"""The three formats say the same, and the page stands alone."""

import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from itertools import pairwise
from types import SimpleNamespace
from xml.etree import ElementTree

import pytest

from tests.planner.conftest import Week
from vllm_vitals.config.alerts import Limits
from vllm_vitals.core.snapshot import Reading
from vllm_vitals.planner.review import findings, render_html, render_json, render_text, slo_report, words
from vllm_vitals.planner.review.charts import album
from vllm_vitals.planner.review.charts.style import Chart, ChartsMissingError
from vllm_vitals.planner.review.report import Review
from vllm_vitals.planner.review.trend import trend
from vllm_vitals.planner.telemetry.telemetry import EngineId, Telemetry


class Page(HTMLParser):
    """Tags, addresses and figures of a page; complains about what is left open."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.links: list[str] = []
        self.ids: list[str] = []
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.links += [v or "" for k, v in attrs if k in ("href", "src", "xlink:href")]
        self.ids += [v or "" for k, v in attrs if k == "id"]
        if tag not in ("meta", "br", "link", "use", "path", "rect", "circle", "stop"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag in self.open:
            while self.open.pop() != tag:
                pass


@pytest.fixture(scope="module")
def page(the_week: Week) -> str:
    return render_html.html(the_week.review, album.draw(the_week.telemetry, the_week.review))


def test_the_page_stands_alone(page: str) -> None:
    parsed = Page()
    parsed.feed(page)
    assert parsed.open == []
    assert "script" not in parsed.tags
    assert "link" not in parsed.tags
    assert all(link.startswith("#") for link in parsed.links)
    assert re.findall(r"url\((?!#)", page) == []
    assert "@import" not in page


def test_every_chart_has_a_sentence_and_every_axis_a_unit(the_week: Week, page: str) -> None:
    charts = album.draw(the_week.telemetry, the_week.review)
    assert {topic for each in charts.values() for topic in (c.topic for c in each)} == {
        "traffic", "incidents", "latency", "knee", "lengths", "trend",
    }  # fmt: skip
    assert page.count("<figure>") == sum(len(each) for each in charts.values()) == 12
    for each in charts.values():
        for chart in each:
            assert len(chart.sentence) > 40
            assert chart.sentence.endswith(".")
            assert "nan" not in chart.sentence
            root = ElementTree.fromstring(chart.svg.replace("xlink:href", "href"))
            text = " ".join(root.itertext())
            assert re.search(r"requests|seconds|tokens|%|events/s|UTC|time", text)


def test_ids_in_one_picture_never_cut_another(page: str) -> None:
    defined: dict[str, set[str]] = {}
    for body in re.findall(r'<clipPath id="([^"]+)">(.*?)</clipPath>', page, re.DOTALL):
        defined.setdefault(body[0], set()).add(" ".join(body[1].split()))
    assert defined
    assert all(len(bodies) == 1 for bodies in defined.values())


def test_json_holds_every_number_and_is_stable(the_week: Week) -> None:
    document = json.loads(render_json.render(the_week.review))
    assert document["schema"] == 1
    chat = next(m for m in document["models"] if m["model_name"] == "chat")
    own = next(m for m in the_week.review.models if m.model_name == "chat")
    assert chat["verdict"] == "act"
    assert chat["traffic"]["requests"] == own.traffic.requests
    assert chat["tails"]["ttft_seconds"]["p99"]["lower"] == own.tails["ttft_seconds"].p99.lower
    assert chat["incidents"][0]["worst"] == "death_spiral"
    assert chat["incidents"][0]["engine"]["target"] == "chat-0:8000"
    assert b"Infinity" not in render_json.render(the_week.review)
    assert b"NaN" not in render_json.render(the_week.review)


def test_markdown_and_html_show_the_same_figures(the_week: Week, page: str) -> None:
    text = render_text.markdown(the_week.review)
    for model in the_week.review.models:
        for shown in (
            words.number(model.traffic.requests),
            words.share(model.headroom.kv.max),
            words.reading(model.tails["tpot_seconds"].p99),
            words.money(model.money.cost_per_million_generated, "USD"),
            model.shape.max_tokens.arithmetic,
        ):
            assert shown in text
            assert shown in page
    assert "nan" not in re.sub(r"[a-z]*nan[a-z]+|[a-z]+nan", "", text)


def test_the_first_page_says_what_the_fleet_costs_and_lacks(the_week: Week, page: str) -> None:
    first = page.partition('<section class="model"')[0]
    for model in the_week.review.models:
        bill, tightest = model.money, model.tightest
        assert words.money(bill.cost_per_million_generated, "USD") in first
        assert words.money(bill.knee_cost_per_million_generated, "USD") in first
        assert f"{words.number(bill.engines)} / {words.number(bill.engines_needed)}" in first
        assert words.room(bill.headroom_requests_per_hour, "requests/h") in first
        assert bill.lost_gpu_hours
        assert f"{words.number(bill.lost_gpu_hours[0])} – {words.number(bill.lost_gpu_hours[2])}" in first
        assert tightest
        assert words.reading(tightest.budget_left, "share") in first
        assert all((p.budget_left.lower or 0) >= (tightest.budget_left.lower or 0) for p in model.promises)


def test_what_is_less_than_nothing_is_said_in_words() -> None:
    assert words.room(-201.0, "requests/h") == f"short by 201{words.SPACE}requests/h"
    assert words.room(201.0, "requests/h") == f"201{words.SPACE}requests/h"
    assert words.room(None) == words.NOT_KNOWN
    assert words.gone(Reading(-0.032)) == f"none (it is 3.2{words.SPACE}% wider there)"
    assert words.gone(Reading(0.7)) == f"70{words.SPACE}%"
    assert words.reading(Reading(None, -43.0, -12.0), "share") == f"-4,300{words.SPACE}% to -1,200{words.SPACE}%"


def test_limits_that_alerts_have_too_are_the_same() -> None:
    alerts = Limits()
    assert alerts.truncated_ratio == findings.TRUNCATED_ACT
    assert alerts.assumption_factor == slo_report.ASSUMPTION_FACTOR


def test_tables_of_markdown_are_whole(the_week: Week) -> None:
    """Every row of a table has as many cells as its head."""
    rows = render_text.markdown(the_week.review).splitlines()
    for head, rule in pairwise(rows):
        if re.fullmatch(r"\|(-+\|)+", rule):
            assert head.count("|") == rule.count("|")
    width = 0
    for line in rows:
        if re.fullmatch(r"\|(-+\|)+", line):
            width = line.count("|")
        elif line.startswith("| ") and width:
            assert len(re.findall(r"(?<!\\)\|", line)) == width, line
        elif not line.startswith("|"):
            width = 0


def test_foreign_names_cannot_break_a_page(the_week: Week) -> None:
    evil = '<script>alert(1)</script>|`"&$^$'
    telemetry = the_week.telemetry
    series = {EngineId(evil, f"a$^${e.target}", e.engine): s for e, s in telemetry.of("code").items()}
    renamed = Telemetry(telemetry.grid, telemetry.states, telemetry.slow, series)
    from vllm_vitals.config.review import ReviewSettings
    from vllm_vitals.planner.review.report import build

    review = build(renamed, ReviewSettings(), evil, 0.0)
    page = render_html.html(review, album.draw(renamed, review))
    assert "<script>" not in page
    text = render_text.markdown(review)
    assert "<script>" not in text.replace("\\<script\\>", "")
    assert "\\|\\`" in text


def test_a_chart_that_cannot_be_drawn_costs_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> Chart:
        raise OverflowError("1e308 x 10")

    def missing(*_: object) -> Chart:
        raise ChartsMissingError("no matplotlib")

    for part in (album.timeline, album.states, album.tails, album.lengths, album.trend):
        monkeypatch.setattr(part, "draw", lambda *_: Chart("load", "Drawn", "<svg/>", "Fine."))
    monkeypatch.setattr(album.knee, "draw", broken)
    review = SimpleNamespace(models=[SimpleNamespace(model_name="m")])
    charts = album.draw(None, review)["m"]  # type: ignore[arg-type]
    assert [chart.title for chart in charts].count("Drawn") == 5
    (lost,) = (chart for chart in charts if chart.title != "Drawn")
    assert (lost.topic, lost.svg) == ("knee", "")
    assert "OverflowError" in lost.sentence
    monkeypatch.setattr(album.knee, "draw", missing)
    with pytest.raises(ChartsMissingError):
        album.draw(None, review)  # type: ignore[arg-type]


def test_a_review_of_nothing_is_still_a_page() -> None:
    empty = Review(0.0, 1.0, "test", 0.0, 1, 1, "USD", (), ())
    assert "Capacity review" in render_html.html(empty, {})
    assert render_text.markdown(empty)
    assert json.loads(render_json.render(empty))["models"] == []


@pytest.mark.parametrize(
    ("reading", "shown"),
    [
        (Reading(0.2, 0.1, 0.25), "200 ms (100 ms – 250 ms)"),
        (Reading(None, 0.0, 0.01), "up to 10 ms"),
        (Reading(None, 2.5, float("inf")), "above 2.5 s"),
        (Reading(None, why="no request finished"), "not known"),
        (Reading(90.0), "90 s"),
    ],
)
def test_a_reading_always_shows_its_bounds(reading: Reading, shown: str) -> None:
    assert words.reading(reading).replace(words.SPACE, " ") == shown


@pytest.mark.parametrize(
    ("value", "shown"),
    [(None, "not known"), (0.0, "0 %"), (0.9997, "99.97 %"), (1.0, "100 %"), (0.0123, "1.2 %"), (-3.56, "-356 %")],
)
def test_shares(value: float | None, shown: str) -> None:
    assert words.share(value).replace(words.SPACE, " ") == shown


@pytest.mark.parametrize(
    ("days", "limit", "said"),
    [
        ([1.0] * 13, 1000.0, "not known"),
        ([1.01**n for n in range(14)], 1e9, "not within a year at this rate"),
        ([1.01**-n for n in range(14)], 10.0, "no growth"),
        ([1.0, 1.0001] * 7, 10.0, "no growth"),
        ([1.0, 3.0, 2.0, 1.0, 3.0, 3.0, 1.0, 2.0, 3.0] * 2, 10.0, "not known"),
        ([2.0**n for n in range(14)], None, "limit not known"),
        ([2.0**n for n in range(14)], 1.5 * 2.0**17, "1970-01-19 (earliest 1970-01-19, latest 1970-01-19)"),
    ],
)
def test_a_trend_gives_a_date_only_where_there_is_one(
    the_week: Week, days: list[float], limit: float | None, said: str
) -> None:
    found = trend("Running", "requests", [(86_400.0 * (day + 1), value) for day, value in enumerate(days)], limit)
    assert words.reached(found) == said
    model = replace(the_week.review.models[0], trends=[found])
    row = next(
        line
        for line in render_text.markdown(replace(the_week.review, models=(model,))).splitlines()
        if line.startswith("| Running (requests)")
    )
    assert row.endswith(f"| {said} |")


def test_tokens_say_whether_prompts_are_among_them(the_week: Week, page: str) -> None:
    """The knee counts prompts, the engines' table does not: both once said tokens/s."""
    for text in (page, render_text.markdown(the_week.review)):
        assert "tokens/s with prompts" in text
        assert re.search(r"(?<!generated )tokens/s(?! with prompts)( \||</th>)", text) is None


@pytest.mark.parametrize(
    ("text", "said"),
    [("spiral_chunked", "spiral_chunked"), ("_a_", r"\_a\_"), ("a*b|c", r"a\*b\|c"), ("a\nb", "a b")],
)
def test_only_what_markdown_would_take_for_a_sign_is_escaped(text: str, said: str) -> None:
    assert render_text.escape(text) == said
