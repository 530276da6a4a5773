"""What one page may ask of us: each bound met exactly, and by one more."""

from dataclasses import replace

import pytest

from vllm_vitals.core.dialect import ExpositionError, normalise
from vllm_vitals.core.exposition import burden, parse
from vllm_vitals.core.fold_series import RATIO, Member
from vllm_vitals.core.render import TargetRenderer
from vllm_vitals.core.sample import TargetSample
from vllm_vitals.core.sample_line import shown
from vllm_vitals.core.series_block import escape, plain
from vllm_vitals.core.snapshot import TargetSnapshot

ENGINE = (
    'vllm:num_requests_running{engine="0",model_name="m"} 3\nvllm:num_requests_waiting{engine="0",model_name="m"} 0\n'
    'vllm:generation_tokens_total{engine="0",model_name="m"} 50\n'
)


def normal(rows: str) -> TargetSample:
    return normalise((ENGINE + rows).encode())


def refused(body: str, wanted: frozenset[str] | None = None, **limits: int) -> str:
    with pytest.raises(ExpositionError) as caught:
        parse(body.encode(), wanted, **limits)
    return str(caught.value)


# the text


def test_lines_are_counted_before_they_are_read() -> None:
    assert len(parse(b'm{i="1"} 1\nm{i="2"} 1\n', max_series=2).values) == 2
    assert refused('m{i="1"} 1\nm{i="2"} 1\n\n', max_series=2) == "too_many_series: 3 lines, more than the limit of 2"
    assert "100001 lines" in refused("m 1\n" * 100_001)


@pytest.mark.parametrize("head", ["# HELP m{0} M.\n# TYPE m{0} gauge\n", "# TYPE m{0} gauge\n"])
def test_five_thousand_families_are_read(head: str) -> None:
    body = "".join(head.format(number) for number in range(5000))
    assert len(parse(body.encode()).families) == 5000
    assert "5001 families" in refused(body + head.format("x"))
    assert "5001 families" in refused(body + head.format("x"), frozenset())


def test_a_line_of_a_quarter_of_a_mebibyte_is_read() -> None:
    line = 'm{{a="{}"}} 1'
    fits = 262_144 - len(line.format(""))
    assert len(parse((line.format("x" * fits) + "\n").encode()).values) == 1
    assert "262145 characters" in refused(line.format("x" * (fits + 1)) + "\n")
    apart = "# TYPE m gauge\n" + line.format("x" * 300_000) + "\n# TYPE n gauge\nn 1\n"
    unread = parse(apart.encode(), frozenset({"n"}))
    assert unread.values == [1.0]


def test_sixty_thousand_series_of_engines_are_kept() -> None:
    body = "".join(f'm{{i="{number}"}} 1\n' for number in range(60_001))
    assert "60000 series" in refused(body, frozenset({"m"}))


@pytest.mark.parametrize(("length", "said"), [(120, "x" * 120), (121, "x" * 117 + "...")])
def test_a_piece_of_a_page_is_shown_short(length: int, said: str) -> None:
    assert shown("x" * length) == f"'{said}'"
    assert shown("a\tb\x1b") == "'a?b?'"


def test_what_makes_a_body_large_is_said_for_who_has_to_find_it() -> None:
    assert burden(b"m 1\n" * 2000) == "2,000 lines, none of them huge"
    assert burden(b"m 1\n" + b"x" * 65_535 + b"\n") == "2 lines, none of them huge"
    short, long = b"a{" + b"x" * 65_534 + b"\n", b"b{" + b"x" * 70_000 + b"\n"
    assert burden(short + long) == burden(long + short) == "one line has 70,002 bytes: b"
    assert burden(short) == "one line has 65,536 bytes: a"
    assert burden(b"-" * 70_000) == f"one line has 70,000 bytes: '{'-' * 117}...'"


def test_a_cut_is_told_with_where_it_is() -> None:
    assert refused("m 1\nm 2\nn") == "truncated: the body stops inside line 3, after 9 bytes"
    assert refused("m 1\n# HELP n N\n").endswith("before line 3")


# families and engines


def test_a_thousand_unknown_families_are_named_and_each_shortly() -> None:
    names = [f"vllm:new_{number}_seconds" for number in range(1001)]
    assert len(normal("".join(f"{name} 1\n" for name in names)).unknown_families) == 1000
    (name,) = normal("vllm:" + "x" * 200 + " 1\n").unknown_families
    assert len(name) == 128


@pytest.mark.parametrize(("count", "fits"), [(1024, True), (1025, False)])
def test_a_page_may_have_1024_engines(count: int, fits: bool) -> None:
    body = "".join(f'vllm:num_requests_running{{engine="{n}",model_name="m"}} 1\n' for n in range(count)).encode()
    if fits:
        assert len(normalise(body).engines) == count
    else:
        with pytest.raises(ExpositionError, match="1025 engines, more than the limit of 1024"):
            normalise(body)


def test_labels_unknown_to_us_make_64_engines_of_a_page() -> None:
    rows = [line.replace('model_name="m"', 'model_name="m",zone="{0}"') for line in ENGINE.splitlines()]
    body = "".join(f"{row.replace('{0}', str(n))}\n" for row in rows for n in range(64))
    assert len(normalise(body.encode()).engines) == 64


def test_sixteen_start_times_of_a_page_are_known() -> None:
    process = "".join(f'process_start_time_seconds{{stage="{n}"}} {1000 + n}\n' for n in range(20))
    created = "".join(f'vllm:generation_tokens_created{{engine="{n}",model_name="m"}} {900 + n}\n' for n in range(20))
    others = "".join(ENGINE.replace('engine="0"', f'engine="{n}"') for n in range(1, 20))
    identity = normal(others + process + created).identity
    assert identity.process_starts == tuple(range(1000, 1016))
    assert identity.created == tuple(range(900, 916))


@pytest.mark.parametrize(("bounds", "read"), [(2, True), (256, True), (257, False), (1, False)])
def test_a_histogram_has_from_2_to_256_buckets(bounds: int, read: bool) -> None:
    edges = [*map(str, range(1, bounds)), "+Inf"]
    row = 'vllm:e2e_request_latency_seconds_{}{{engine="0",model_name="m"{}}} 5\n'
    rows = "".join(row.format("bucket", f',le="{edge}"') for edge in edges) + row.format("sum", "")
    found = normal(rows + row.format("count", "") + ENGINE[:0] + "vllm:num_preemptions_total 1\n")
    assert ("e2e_latency_seconds" in found.engines["m", "0"].histograms) is read


@pytest.mark.parametrize(
    ("said", "usage"),
    [(-0.01, 0.0), (-0.0101, None), (1.01, 1.0), (1.0101, None), (0.5, 0.5)],
)
def test_a_ratio_a_hundredth_outside_its_range_is_rounding(said: float, usage: float | None) -> None:
    members = [Member({}, "", 0)]
    assert RATIO.apply([said], RATIO.arrange(members)) == (usage, int(usage is None))


def test_finish_reasons_are_sixteen_and_their_names_short() -> None:
    row = 'vllm:request_success_total{{engine="0",finished_reason="{0}",model_name="m"}} {1}\n'
    found = normal("".join(row.format(f"r{number:02}", 1) for number in range(20))).engines["m", "0"].responses
    assert found == {**{f"r{number:02}": 1.0 for number in range(16)}, "other": 4.0}
    assert normal(row.format("x" * 90, 2)).engines["m", "0"].responses == {"x" * 64: 2.0}


@pytest.mark.parametrize(
    ("size", "capacity"), [("16", 1600.0), ("0", None), ("-16", None), ("1e18", None), ("NaN", None), ("x", None)]
)
def test_a_block_size_that_cannot_be_says_nothing_of_the_capacity(size: str, capacity: float | None) -> None:
    config = f'vllm:cache_config_info{{block_size="{size}",num_gpu_blocks="100",engine="0"}} 1\n'
    assert normal(config).engines["m", "0"].kv_capacity_tokens == capacity


# our own page


@pytest.mark.parametrize(("value", "text"), [(5.0, "5"), (-5.0, "-5"), (0.5, "0.5"), (999_999_999_999_999.0, "9" * 15),
                                             (1e15, "1000000000000000.0"), (-999_999_999_999_999.0, "-" + "9" * 15),
                                             (-1e15, "-1000000000000000.0")])  # fmt: skip
def test_a_whole_number_below_a_million_billion_is_written_without_a_point(value: float, text: str) -> None:
    assert repr(plain(value)) == text


def test_a_label_of_ours_has_256_characters_at_most() -> None:
    assert escape("m" * 256) == "m" * 256
    cut = escape("m" * 257)
    assert len(cut) == 256
    assert cut.startswith("m" * 247 + "~")


def test_a_hundred_settings_stand_on_our_page_where_they_are_numbers() -> None:
    blank = TargetSnapshot("t", True, 1.0, 0.123_456_78, last_scrape_at=5.123_456)
    many = replace(blank, settings={f"s{number}": str(number) for number in range(120)})
    families = TargetRenderer().render(many)
    assert families["server_setting"].count(b"\n") == 100
    odd = replace(blank, settings={"a": "1_000", "b": "\u0663", "c": "auto", "d": "0.5"})
    assert TargetRenderer().render(odd)["server_setting"] == b'vllm_vitals_server_setting{target="t",name="d"} 0.5\n'
    assert families["scrape_duration_seconds"].endswith(b" 0.123457\n")
    assert families["last_scrape_timestamp_seconds"].endswith(b" 5.123\n")


def test_32_adapters_of_each_kind_are_named() -> None:
    many = ",".join(f"a{number}" for number in range(50))
    labels = f'max_lora="4",running_lora_adapters="{many}",waiting_lora_adapters="{many}"'
    block = f"# TYPE vllm:lora_requests_info gauge\nvllm:lora_requests_info{{{labels}}} 1.8e9\n"
    lora = normal(f"# TYPE y gauge\n{block}# TYPE z gauge\nz 1\n").lora
    assert lora is not None
    assert (lora.running, len(lora.running_names), lora.waiting, len(lora.waiting_names)) == (50, 32, 50, 32)
