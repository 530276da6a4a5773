"""The text format's traps, and the reference parser as an oracle."""

import contextlib
import math
import re

import pytest
from hypothesis import event, example, given, settings
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from vllm_vitals.core.exposition import ExpositionError, parse, split
from vllm_vitals.core.incremental import apply_delta
from vllm_vitals.core.snapshot import SCRAPE_ERRORS

Read = dict[tuple[str, frozenset[tuple[str, str]]], float]


def read(text: str | bytes, wanted: frozenset[str] | None = None) -> Read:
    body = text.encode() if isinstance(text, str) else text
    exposition = parse(body, wanted)
    keys = [(one.name, frozenset(one.labels.items())) for one in exposition.series]
    return dict(zip(keys, exposition.values, strict=True))


def key(name: str, **labels: str) -> tuple[str, frozenset[tuple[str, str]]]:
    return name, frozenset(labels.items())


def refused(text: str | bytes, wanted: frozenset[str] | None = None, **limits: int) -> ExpositionError:
    with pytest.raises(ExpositionError) as caught:
        parse(text.encode() if isinstance(text, str) else text, wanted, **limits)
    error = caught.value
    assert error.reason in SCRAPE_ERRORS
    assert len(error.detail) < 250
    assert error.detail.isprintable()
    return error


@pytest.mark.parametrize(
    ("line", "value"),
    [
        ("m 5", 5.0),
        ("m 5.0\r", 5.0),
        ("m\t5", 5.0),
        ("m  \t 5  ", 5.0),
        ("  m 5", 5.0),
        ("m{} 5", 5.0),
        ("m {} 5", 5.0),
        ("m 3.5924803584e+010", 3.5924803584e10),
        ("m 1.7959e+09", 1.7959e9),
        ("m 03.0", 3.0),
        ("m -1.0", -1.0),
        ("m +Inf", math.inf),
        ("m -Inf", -math.inf),
        ("m infinity", math.inf),
        ("m 5 1795961029545", 5.0),
        ("m 5 1795961029.545", 5.0),
        ('m 5 # {trace_id="a"} 0.67 1795961029.5', 5.0),
        ('m 5 1795961029.5 # {trace_id="a"} 0.67', 5.0),
    ],
)
def test_one_line_gives_its_value_whatever_follows_it(line: str, value: float) -> None:
    assert read(line + "\n") == {key("m"): value}


def test_nan_is_read_as_nan() -> None:
    assert math.isnan(read("m NaN\n")[key("m")])


@pytest.mark.parametrize("number", ["1_000", "١٢", "５", "0x10", "", "five", "5 1_000", "5 6 7", "5 x"])
def test_what_is_no_number_of_the_format_is_malformed(number: str) -> None:
    error = refused(f"# TYPE m gauge\nm {number}\n")
    assert error.reason == "malformed"
    assert "line 2" in error.detail


@pytest.mark.parametrize(
    ("written", "value"),
    [
        ("a}b", "a}b"),
        ("a,b", "a,b"),
        ("a{b", "a{b"),
        ("a=b", "a=b"),
        (r"a\"b", 'a"b'),
        (r"a\\b", r"a\b"),
        (r"a\nb", "a\nb"),
        (r"a\\nb", r"a\nb"),
        (r"a\tb", r"a\tb"),
        (r"\\", "\\"),
        ("a # b", "a # b"),
        ("a\u2028b\u2029c\u0085d\x0be\x0cf\x1cg", "a\u2028b\u2029c\u0085d\x0be\x0cf\x1cg"),
        ("", ""),
        ("模型", "模型"),
        ("# HELP x", "# HELP x"),
    ],
)
def test_label_values_keep_every_character(written: str, value: str) -> None:
    assert read(f'# TYPE m gauge\nm{{a="{written}",b="c"}} 5\n') == {key("m", a=value, b="c"): 5.0}


@pytest.mark.parametrize("labels", ['_a="1"', ' _a = "1" ', '_a="1",', '\t_a="1" , ', ',_a="1"', '"_a"="1"'])
def test_labels_may_be_spaced_and_begin_with_an_underscore(labels: str) -> None:
    assert read(f"m{{{labels}}} 5\n") == {key("m", _a="1"): 5.0}


BROKEN = ['a="1', "a=1", '="1"', '1a="1"', 'a="1"b="2"', 'a="1",,b="2"', 'a="1",a="2"', 'a="\\"']


@pytest.mark.parametrize("labels", BROKEN)
def test_broken_labels_are_malformed_in_a_wanted_name_and_skipped_in_another(labels: str) -> None:
    text = f"# TYPE m gauge\nm{{{labels}}} 5\n# TYPE n gauge\nn 6\n"
    assert refused(text).reason == "malformed"
    assert read(text, frozenset({"n"})) == {key("n"): 6.0}


@pytest.mark.parametrize("line", ["m", "m-5", "m[5]", 'm"a" 5', "m, 5", "mé 5"])
def test_a_name_without_its_value_is_malformed(line: str) -> None:
    assert "line 3" in refused(f"n 1\nn2 2\n{line}\n").detail
    assert read(f"n 1\nn2 2\n{line}\n", frozenset({"n"})).get(key("n")) == 1.0


def test_openmetrics_is_read_with_its_end_mark() -> None:
    text = '# HELP vllm:a A.\n# TYPE vllm:a counter\nvllm:a_total{e="0"} 5.0\nvllm:a_created{e="0"} 1.79e+09\n# EOF\n'
    assert read(text)[key("vllm:a_total", e="0")] == 5.0


def test_comments_blank_lines_and_carriage_returns_are_no_series() -> None:
    assert read("# HELP m M.\r\n# TYPE m gauge\r\n\r\n# a remark\r\nm 1\r\n\r\n") == {key("m"): 1.0}


def test_the_help_of_a_family_is_never_read_as_a_sample() -> None:
    assert read("# HELP m 5\n# TYPE m gauge\nm 1\n# HELP n 7\n# TYPE n gauge\n") == {key("m"): 1.0}


@pytest.mark.parametrize("body", ["", "\n", "  \n \n"])
def test_nothing_is_empty(body: str) -> None:
    assert refused(body).reason == "empty"


@pytest.mark.parametrize(
    "body",
    [
        "<!DOCTYPE html>\n<html><body>m 5\n</body></html>\n",
        "<html>",
        '{"detail":"Not Found"}',
        '{"detail": "Not Found"}\n',
        "Not Found",
        "Unauthorized\n",
        "upstream connect error\n",
    ],
)
def test_pages_and_json_are_not_metrics(body: str) -> None:
    assert refused(body, frozenset({"m"})).reason == "not_metrics"


def test_a_page_in_another_encoding_is_not_utf8() -> None:
    assert refused(b'# TYPE m gauge\nm{a="caf\xe9"} 5\n').reason == "encoding"
    assert refused(b"\x1f\x8b\x08\x00garbage\xff\n").reason == "encoding"


HISTOGRAM = (
    "# HELP a A.\n# TYPE a gauge\na 1\n# HELP h H.\n# TYPE h histogram\n"
    'h_bucket{e="0",le="1.0"} 1\nh_bucket{e="0",le="+Inf"} 2\nh_count{e="0"} 2\nh_sum{e="0"} 3\n'
    'h_bucket{e="1",le="1.0"} 1\nh_bucket{e="1",le="+Inf"} 2\nh_count{e="1"} 2\nh_sum{e="1"} 3\n'
)


@pytest.mark.parametrize("wanted", [None, frozenset({"h_bucket", "h_count", "h_sum"}), frozenset({"a"})])
def test_every_cut_inside_a_histogram_is_truncated(wanted: frozenset[str] | None) -> None:
    # The end of a series, of a family, and of a head (a family may have no series yet) show nothing.
    unseen = {HISTOGRAM.index(next_up) for next_up in ("a 1", "# HELP h", 'h_bucket{e="0"', 'h_bucket{e="1"')}
    for size in range(8, len(HISTOGRAM)):
        if size in unseen:
            read(HISTOGRAM[:size], wanted)
        else:
            assert refused(HISTOGRAM[:size], wanted).reason == "truncated", HISTOGRAM[:size]
    assert len(read(HISTOGRAM)) == 9


def test_a_histogram_that_ends_with_its_buckets_is_whole() -> None:
    """The order of the Rust frontend and of prometheus_client in multiprocess mode."""
    assert len(read('# TYPE h histogram\nh_sum 3\nh_count 2\nh_bucket{le="1"} 1\nh_bucket{le="+Inf"} 2\n')) == 4
    assert len(read('# TYPE h histogram\nh_sum 3\nh_bucket{le="1"} 1\nh_bucket{le="+Inf"} 2\nh_count 2\n')) == 4


def test_a_summary_without_its_sum_is_truncated() -> None:
    assert refused("# TYPE s summary\ns_count 2\n").reason == "truncated"
    assert len(read("# TYPE s summary\ns_count 2\ns_sum 3\n")) == 2


def test_a_series_twice_is_refused_only_where_it_contradicts_itself() -> None:
    assert read('m{a="1",b="2"} 5\nm{b="2",a="1"} 5\n') == {key("m", a="1", b="2"): 5.0}
    assert math.isnan(read("m NaN\nm NaN\n")[key("m")])
    error = refused('# TYPE m gauge\nm{a="1",b="2"} 5\nm{b="2",a="1"} 6\n')
    assert error.reason == "duplicate"
    assert "line 3" in error.detail
    assert 'm{b="2",a="1"}' in error.detail
    assert read("m 5\nm 6\nn 1\n", frozenset({"n"})).get(key("n")) == 1.0


def test_more_lines_than_allowed_are_refused_before_they_are_read() -> None:
    body = "".join(f'm{{i="{i}"}} 1\n' for i in range(101))
    assert refused(body, max_series=100).reason == "too_many_series"
    assert len(read(body)) == 101
    assert refused(b"m 1\n" * 200_001).reason == "too_many_series"


def test_a_hostile_line_is_shown_short_and_harmless() -> None:
    error = refused("m{" + "\x1b[31m" * 1000 + "} 1\n")
    assert error.reason == "malformed"


@pytest.mark.parametrize("labels", ['a="' + "\\" * 50_001, '"' * 50_001, 'a="b",' * 20_000 + "c}"])
def test_a_long_broken_line_is_refused_without_going_back_over_it(labels: str) -> None:
    assert refused("m{" + labels + " 1\n").reason == "malformed"


def test_many_blank_lines_are_no_burden() -> None:
    assert read("m 1\n" + "\n" * 90_000) == {key("m"): 1.0}


WANTED = frozenset({"vllm:m", "m_total", "h_bucket", "h_sum", "h_count"})
NAMES = st.sampled_from(["m", "vllm:m", "_m", "m_total", "m_created", "n"])
LABEL_NAMES = st.sampled_from(["a", "b", "_c", "le", "engine"])
LABEL_VALUES = st.text(st.sampled_from(list('ab},{="\\\n #\u2028\u0085é\t')), max_size=6)
NUMBERS = st.one_of(
    st.floats().map(repr),
    st.integers(-(10**20), 10**20).map(str),
    st.sampled_from(["+Inf", "-Inf", "NaN", "1e+010", "03.0", "5e-324", ".5", "5."]),
)
SPACE = st.sampled_from([" ", "  ", "\t", " \t "])


@st.composite
def lines(draw: st.DrawFn) -> str:
    name = draw(NAMES)
    labels = draw(st.dictionaries(LABEL_NAMES, LABEL_VALUES, max_size=3))
    escaped = [
        f'{k}="' + v.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"' for k, v in labels.items()
    ]
    block = "{" + ",".join(escaped) + "}" if labels or draw(st.booleans()) else ""
    stamp = draw(st.sampled_from(["", "", "", " 1795961029545"]))
    return name + block + draw(SPACE) + draw(NUMBERS) + stamp


BODIES = st.lists(
    st.one_of(lines(), lines(), lines(), st.sampled_from(["", "# HELP m M \\n m 5", "# TYPE m gauge", "# x", " "])),
    min_size=1, max_size=12,
).map(lambda parts: "\n".join(parts) + "\n")  # fmt: skip


def reference(text: str) -> dict[tuple[str, frozenset[tuple[str, str]]], list[float]]:
    found: dict[tuple[str, frozenset[tuple[str, str]]], list[float]] = {}
    # The reference strips what Python calls white space, which is more than the format does: spare it the difference.
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            found.setdefault((sample.name, frozenset(sample.labels.items())), []).append(float(sample.value))
    return found


def reason_of(text: str, wanted: frozenset[str] | None = WANTED) -> str:
    try:
        parse(text.encode(), wanted)
    except ExpositionError as error:
        return error.reason
    return ""


def alike(one: float, other: float) -> bool:
    return one == other or (math.isnan(one) and math.isnan(other))


@given(BODIES)
@settings(max_examples=400, deadline=None)
@example('m{a="\u2028"} 1\n')
def test_every_body_reads_as_the_reference_parser_reads_it(text: str) -> None:
    expected = reference(text)
    contradicts = any(not alike(values[0], value) for values in expected.values() for value in values)
    reason = reason_of(text, None)
    if reason:
        assert reason in ("duplicate", "empty", "not_metrics", "truncated")
        assert reason != "duplicate" or contradicts
        assert reason != "empty" or not text.strip()
        assert reason != "not_metrics" or not expected
        assert reason != "truncated" or re.search(r"# HELP[^\n]*\n\s*$", text)
        return
    found = read(text)
    assert not contradicts
    assert found.keys() == expected.keys()
    assert all(alike(found[k], expected[k][0]) for k in found)


START = HISTOGRAM + '# HELP m_total M.\n# TYPE m_total counter\nm_total{a="é"} 7\n# TYPE n counter\nn_total 1\n'
EDITS = st.tuples(st.integers(0, 400), st.integers(0, 3), st.text(st.sampled_from('0129_.e+\n {}"#mh\ré'), max_size=3))
VALUES = st.tuples(st.integers(0, 400), NUMBERS)


def edited(text: str, step: str | tuple[int, str] | tuple[int, int, str]) -> str:
    """Another body, one with some characters changed, or one with another value on one line."""
    if isinstance(step, str):
        return HISTOGRAM + step
    if len(step) == 3:
        at, gone, put = step
        at %= len(text)
        return text[:at] + put + text[at + gone :]
    rows = text.split("\n")
    row = step[0] % len(rows)
    if not rows[row].startswith("#") and " " in rows[row]:
        rows[row] = rows[row].rsplit(" ", 1)[0] + " " + step[1]
    return "\n".join(rows)


@given(st.lists(st.one_of(BODIES, EDITS, VALUES, VALUES), min_size=2, max_size=8))
@settings(max_examples=400, deadline=None)
def test_following_a_body_reads_exactly_what_learning_it_would(
    steps: list[str | tuple[int, str] | tuple[int, int, str]],
) -> None:
    skeleton, text = parse(START.encode(), WANTED).skeleton, START
    for step in steps:
        text = edited(text, step)
        if reason_of(text):
            with contextlib.suppress(ExpositionError):
                assert apply_delta(skeleton, split(text.encode())) is None
            skeleton, text = parse(START.encode(), WANTED).skeleton, START
            continue
        learnt = parse(text.encode(), WANTED)
        before = list(skeleton.values)
        changed = apply_delta(skeleton, split(text.encode()))
        if changed is not None:
            assert repr(skeleton.values) == repr(learnt.values)
            same = [slot for slot in range(len(before)) if slot not in changed]
            assert all(alike(before[slot], skeleton.values[slot]) for slot in same)
        event("followed" if changed else "same" if changed is not None else "learnt anew")
        skeleton = learnt.skeleton if changed is None else skeleton


LOOSE = "# HELP n N.\n# TYPE n counter\nn_total 1\n# HELP z Z.\n# TYPE z gauge\nz 1\n"


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('h_sum{e="0"} 3', 'h_sum{e="0"} 1_0'),
        ('h_sum{e="0"} 3', 'h_sum{e="0"} ٣'),
        ('h_sum{e="0"} 3', "7"),
        ('h_sum{e="0"} 3', 'h_sum{e="2"} 3'),
        ('h_sum{e="0"} 3', 'h_sum{e="0"} 3 1795961029545'),
        ('h_sum{e="0"} 3', 'h_sum{e="0"} 3\n'),
        ('h_sum{e="0"} 3', 'h_sum{e="0"} 3\nh_sum{e="2"} 4'),
        ("# TYPE h histogram", "# TYPE k histogram"),
        ("n_total 1", "m_total 1"),
        ("n_total 1", "n_total 1\nm_total 1"),
        ("n_total 1", 'n_total{a="\udcff"} 1'),
        ("# TYPE n counter", "# TYPE k counter"),
        ("# HELP z Z.", "# HELP z Y."),
        ("z 1\n", "z 2"),
    ],
)
def test_a_body_built_otherwise_is_not_followed(old: str, new: str) -> None:
    body = (HISTOGRAM + LOOSE).encode()
    assert apply_delta(parse(body, WANTED).skeleton, split(body)) == []
    other = body.decode().replace(old, new, 1).encode(errors="surrogateescape")
    with contextlib.suppress(ExpositionError):
        assert apply_delta(parse(body, WANTED).skeleton, split(other)) is None


def test_blocks_that_agree_after_another_opening_are_not_followed() -> None:
    one = b"# HELP a A\na 1\n# HELP b gauge\nb 1\n"
    other = one.replace(b"# HELP b", b"# TYPE b")
    assert split(one).texts == split(other).texts
    assert apply_delta(parse(one).skeleton, split(other)) is None


def test_unwanted_families_may_grow_without_being_learnt_again() -> None:
    body = (HISTOGRAM + LOOSE).encode()
    grown = body.replace(b"n_total 1", b'n_total 3\nn_total{code="5xx"} 1')
    assert apply_delta(parse(body, WANTED).skeleton, split(grown)) == []


def test_a_line_of_megabytes_that_nobody_reads_is_passed_over() -> None:
    """One label of vllm:model_config_info was 7 MB in an issue."""
    huge = '# TYPE config gauge\nconfig{cfg="' + "x" * 7_000_000 + '"} 1\n'
    assert read("# TYPE m gauge\nm 1\n" + huge, frozenset({"m"})) == {key("m"): 1.0}
    error = refused(huge, frozenset({"config"}))
    assert error.reason == "too_large"
    assert len(error.detail) < 250
