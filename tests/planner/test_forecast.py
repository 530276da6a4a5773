"""Growth against weekdays and noise, the date when engines stop sufficing, and what the past would have foretold."""

from dataclasses import replace
from random import Random

import pytest

from bench import forecast as bench
from vllm_vitals.planner.review import words
from vllm_vitals.planner.review.forecast import Forecast, busiest, forecast
from vllm_vitals.planner.review.growth import growth
from vllm_vitals.planner.review.money import Capacity, Money
from vllm_vitals.planner.review.trend import trend

DAY, END = 86_400.0, 1_790_000_000 // 86_400 * 86_400.0
RUNS = 60  # `python -m bench.forecast` takes 2,000


def days(seed: int, rate: float, noise: float = 0.05, together: float = 0.0) -> list[tuple[float, float]]:
    """Four weeks up to `END`: weekends at 60 %, growth a week, noise whose neighbours are ``together`` (AR(1))."""
    values = list(bench.days(Random(seed), rate, noise, together))
    return [(END - (len(values) - 1 - day) * DAY, value) for day, value in enumerate(values)]


def verdicts(rate: float, together: float = 0.0, runs: int = RUNS) -> dict[str, float]:
    """The share of runs with each verdict."""
    found: dict[str, float] = {}
    for seed in range(runs):
        said = trend("Demand", "requests/s", days(seed, rate, together=together), None).verdict
        found[said] = found.get(said, 0.0) + 1 / runs
    return found


def test_three_per_cent_a_week_are_found_in_four_weeks_with_weekends() -> None:
    assert verdicts(0.03)["grows"] >= 0.8


@pytest.mark.parametrize("together", [0.0, 0.6])
def test_no_growth_is_rarely_taken_for_growth(together: float) -> None:
    said = verdicts(0.0, together)
    assert said.get("grows", 0.0) + said.get("falls", 0.0) <= 0.1


def test_the_interval_holds_the_truth() -> None:
    held = 0
    for seed in range(RUNS):
        found = trend("Demand", "requests/s", days(seed, 0.03, together=0.3), None)
        held += found.weekly_low <= 0.03 <= found.weekly_high
    assert held >= 0.85 * RUNS


def test_noise_that_hides_growth_is_the_verdict_and_says_how_much_more_is_needed() -> None:
    found = trend("Demand", "requests/s", days(1, 0.0, noise=0.3), None)
    assert found.verdict == "no verdict"
    assert found.more_weeks >= 4
    assert "more weeks of history would show it" in words.verdict(found)
    assert words.reached(replace(found, limit=9.0)) == "not known"


def test_thirteen_days_cannot_tell_weekdays_from_growth() -> None:
    assert trend("Demand", "requests/s", days(1, 0.03)[-13:], 2.0).verdict == "too few days"
    assert trend("Demand", "requests/s", days(1, 0.03, noise=0.0)[-14:], 2.0).verdict == "grows"


def test_missing_days_are_no_days_without_demand() -> None:
    exact = days(1, 0.03, noise=0.0)
    found = growth({round((at - END) / DAY): value for at, value in exact if (at - END) / DAY not in (-3, -4, -11)})
    assert found is not None
    assert found.low <= found.rate <= found.high
    left = trend("Demand", "requests/s", [each for n, each in enumerate(exact) if n not in (16, 23, 24)], None)
    assert left.weekly == pytest.approx(0.03, abs=1e-6)


def test_days_at_nothing_are_compared_as_shares_of_the_mean() -> None:
    idle = [(at, 0.0 if n % 7 >= 5 else 10 + n / 7) for n, (at, _) in enumerate(days(1, 0.0))]
    found = trend("Running", "requests", idle, 20.0)
    assert found.verdict == "grows"
    assert found.fitted.at(END) == pytest.approx(10 + 25 / 7, rel=0.05)
    assert trend("Running", "requests", [(at, 0.0) for at, _ in idle], 20.0).verdict == "level"
    flat = trend("KV usage", "share", [(at, 1.0) for at, _ in idle], 1.0)
    assert (flat.verdict, flat.reached) == ("level", None)


def test_the_date_is_where_the_busiest_weekday_meets_the_limit() -> None:
    found = trend("Running", "requests", days(1, 0.03, noise=0.0), 1.5)
    weeks = (found.reached - END) / DAY / 7
    assert 1.03 ** (27 / 7 + weeks) == pytest.approx(1.5, rel=1e-3)  # the level of weekdays, grown from the first day
    assert found.earliest <= found.reached <= found.latest


def hours(rate: float, weeks: int = 4) -> list[tuple[float, float]]:
    """Requests/s by the hour: days that peak at 14:00, weekends at 60 %, growth a week."""
    found = []
    for hour in range(weeks * 168):
        at = END - (weeks * 168 - 1 - hour) * 3600
        weekday, clock = int((at - 1800) // DAY + 3) % 7, int((at - 1800) % DAY // 3600)
        shape = (0.4 + 0.6 * (1 - abs(clock - 14) / 14)) * (0.6 if weekday >= 5 else 1.0)
        found.append((at, 2 * shape * (1 + rate) ** ((at - END) / DAY / 7)))
    return found


def bill(engines: float = 2.0) -> Money:
    carries = Capacity(1.2, None, 300.0, 900.0, False, "by the simulated server", 1.1, 1.3)
    nothing = dict.fromkeys(Money.__dataclass_fields__)
    return Money(**nothing | {"engines": engines, "engines_for_peak": 2, "capacity": carries})


def told(rate: float) -> Forecast:
    found = forecast(hours(rate), END, 2.0, bill())
    assert found is not None
    return found


def test_engines_are_given_the_date_until_which_they_carry_the_peak() -> None:
    found = told(0.03)
    assert [each.engines for each in found.suffices] == [2, 3, 4]
    for each in found.suffices:
        weeks = (each.until - END) / DAY / 7
        assert 2.0 * 1.03**weeks == pytest.approx(each.engines * 1.2, rel=0.01)
        assert each.earliest < each.until < each.latest  # what one engine carries has an interval too
    assert words.until(found.suffices[0].until, found.suffices[0].earliest, None).endswith("latest beyond a year)")


def test_without_growth_there_is_no_date() -> None:
    assert told(0.0).suffices == ()
    assert told(0.0).trend.verdict == "level"


def test_the_profile_names_the_hours_of_each_weekday() -> None:
    found = told(0.0)
    assert [each.name for each in found.weekdays][::6] == ["Monday", "Sunday"]
    assert {(each.busiest_hour, each.quietest_hour) for each in found.weekdays} == {(14, 0)}
    assert found.weekdays[6].busiest == pytest.approx(0.6 * found.weekdays[0].busiest)
    assert found.hours[0][14] == pytest.approx(2.0)


def test_the_last_week_is_foretold_better_than_by_the_week_before() -> None:
    tested = told(0.05).backtest
    assert tested.days == 7
    assert tested.error < 0.01 < tested.naive
    assert forecast(hours(0.05, weeks=2), END, 2.0, bill()).backtest is None


def test_a_day_of_which_hours_are_missing_has_no_busiest_hour() -> None:
    some = [each for each in hours(0.0) if not END - 3 * DAY < each[0] <= END - 2.5 * DAY]
    assert len(busiest(some, END)) == 27
    assert forecast(some[:10], END, 2.0, bill()) is None
