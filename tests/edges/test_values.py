"""Durations and sizes mean what Prometheus and people mean by them, and come back as they were written."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic_core import PydanticCustomError

from tests.programs import versions
from tests.rules.tools import run
from vllm_vitals.config.durations import MAX_DURATION_S, DurationError, duration_text, parse_duration
from vllm_vitals.config.values import parse_size

DURATIONS = [
    ("0", 0.0), ("0s", 0.0), ("1ms", 0.001), ("500ms", 0.5), ("5s", 5.0), ("90s", 90.0), ("1m30s", 90.0),
    ("15m", 900.0),
    ("1h30m", 5400.0), ("2h", 7200.0), ("7d", 604_800.0), ("1w", 604_800.0), ("1w2d", 777_600.0), ("1y", 31_536_000.0),
    ("1d1h1m1s1ms", 90_061.001), ("007s", 7.0),
]  # fmt: skip
NONE = [
    "",
    "5",
    "600",
    "-5s",
    "1.5h",
    "s",
    "30s1m",
    "1s1s",
    "5S",
    "5 s",
    " 5s",
    "1M",
    "1:30",
    "1h30",
    "5sec",
    "1e3s",
    "٥s",
]


@pytest.mark.parametrize(("text", "seconds"), DURATIONS)
def test_durations_are_prometheus_own(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("text", NONE)
def test_nothing_else_is_a_duration(text: str) -> None:
    with pytest.raises(DurationError, match="is no duration: write "):
        parse_duration(text)


def test_prometheus_itself_takes_what_we_take_and_refuses_what_we_refuse(tmp_path: Path) -> None:
    for tool in versions("promtool"):
        for text in [text for text, _ in DURATIONS] + [text for text in NONE if text]:
            path = tmp_path / "rules.yml"
            rule = f'{{alert: A, expr: "up", for: "{text}"}}'
            path.write_text(f"groups: [{{name: g, rules: [{rule}]}}]\n", encoding="utf-8")
            taken = run(tool, "check", "rules", str(path)).returncode == 0
            assert taken is (text not in NONE), (tool, text)


@given(st.integers(min_value=0, max_value=int(MAX_DURATION_S * 1000)))
def test_a_duration_comes_back_as_it_was_written(milliseconds: int) -> None:
    seconds = milliseconds / 1000
    assert parse_duration(duration_text(seconds)) == seconds


@given(st.one_of(st.text(max_size=30), st.integers(), st.floats(), st.none(), st.booleans(), st.lists(st.integers())))
def test_whatever_is_refused_has_a_mend_that_is_taken(value: object) -> None:
    for parse in (parse_duration, parse_size):
        try:
            parse(value)
        except (DurationError, PydanticCustomError) as error:
            mend = str(error).rpartition(": write ")[2]
            if " " not in mend and "longer than" not in str(error):
                parse(mend)


@pytest.mark.parametrize(("value", "mend"), [
    (600, "600s"), ("45", "45s"), (0.5, "500ms"), ("1.5h", "1h30m"), ("10 minutes", "10m"), ("5 Min", "5m"),
    ("30s1m", "1m30s"), ("2 weeks", "14d"), ("1 hr 5 sec", "1h5s"),
])  # fmt: skip
def test_the_mend_is_what_was_meant(value: object, mend: str) -> None:
    with pytest.raises(DurationError, match=f"is no duration: write {mend}$"):
        parse_duration(value)


@pytest.mark.parametrize(("text", "size"), [("1B", 1), ("384KiB", 393_216), ("16MiB", 16_777_216), ("1GiB", 2**30)])
def test_sizes(text: str, size: int) -> None:
    assert parse_size(text) == size
