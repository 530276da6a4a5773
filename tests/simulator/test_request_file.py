"""Files of requests: public shapes as they are, our own columns, and every way in which a row can be bad."""

import gzip
import json
from itertools import islice
from pathlib import Path

import pytest

from tests.traces.harness import PUBLIC
from vllm_vitals.simulator.file_traffic import FileTraffic, Selection, select
from vllm_vitals.simulator.request_file import MOST_BAD_ROWS, MOST_UNORDERED, RequestFile, RequestFileError
from vllm_vitals.simulator.settings import ServerSettings

DATA = Path(__file__).parents[1] / "data" / "requests"
HEADER = "arrival,prompt_tokens,output_tokens\n"


def read(path, said=None, **options):
    return list(RequestFile(path, (said if said is not None else []).append, **options).rows())


def written(folder, text, name="trace.csv"):
    path = folder / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


# ---------------------------------------------------------------------- shapes


def test_azures_csv_is_read_as_it_is():
    said = []
    rows = read(DATA / "azure.csv.gz", said)
    text = gzip.decompress((DATA / "azure.csv.gz").read_bytes()).decode().splitlines()
    assert len(rows) == len(text) - 1
    assert text[1].endswith(f",{rows[0].prompt},{rows[0].output}")
    assert rows[-1].arrival - rows[0].arrival == pytest.approx(600, abs=5)
    assert said == []


def test_mooncakes_json_lines_are_read_as_they_are():
    rows = read(DATA / "mooncake.jsonl")
    first = json.loads((DATA / "mooncake.jsonl").read_text().splitlines()[0])
    assert rows[0].arrival == first["timestamp"] / 1000
    assert (rows[0].prompt, rows[0].output) == (first["input_length"], first["output_length"])
    assert rows[0].prefix == tuple(first["hash_ids"])


def test_our_own_columns_say_more():
    rows = read(DATA / "own.csv")
    assert {row.finish_reason for row in rows} == {None, "error", "length"}
    assert {row.stream for row in rows} == {True, False}
    assert {row.max_tokens for row in rows} == {None, 256}
    assert {row.prefix for row in rows} == {(), ("system-a", "system-b")}


@pytest.mark.parametrize(
    ("name", "count", "prompt", "output"),
    [
        ("azure2023_conv.csv.gz", 19_366, 1154.7, 211.1),
        ("azure2023_code.csv.gz", 8_819, 2047.8, 27.9),
        ("mooncake_conversation.jsonl.gz", 12_031, 12_035.1, 342.6),
    ],
)
def test_the_public_traces_are_read_whole(name, count, prompt, output):
    if not (PUBLIC / name).exists():
        pytest.skip("the public traces are not here")
    said = []
    rows = read(PUBLIC / name, said)
    assert (len(rows), said) == (count, [])
    assert sum(row.prompt for row in rows) / count == pytest.approx(prompt, abs=0.1)
    assert sum(row.output for row in rows) / count == pytest.approx(output, abs=0.1)


def test_arrivals_are_numbers_or_dates_with_or_without_a_zone(tmp_path):
    text = HEADER + "2026-03-02 09:00:00.5000000,1,1\n2026-03-02T10:00:01+01:00,1,1\n"
    first, second = read(written(tmp_path, text))
    assert second.arrival - first.arrival == 0.5
    assert [row.arrival for row in read(written(tmp_path, HEADER + "1.5,1,1\n2e1,1,1\n"))] == [1.5, 20.0]


def test_rows_out_of_order_are_sorted(tmp_path):
    assert [row.arrival for row in read(written(tmp_path, HEADER + "3,1,1\n1,1,1\n2,1,1\n"))] == [1.0, 2.0, 3.0]


def test_a_file_is_read_no_further_than_it_is_sent(tmp_path):
    path = written(tmp_path, HEADER + "0,1,1\n" * (3 * MOST_UNORDERED) + "nonsense\n")
    said = []
    assert len(list(islice(RequestFile(path, said.append).rows(), MOST_UNORDERED))) == MOST_UNORDERED
    assert said == []


# ---------------------------------------------------------------------- what is bad


@pytest.mark.parametrize(
    ("row", "why"),
    [
        ("1,x,1", "prompt_tokens is 'x': write a whole number from 1 to 10000000"),
        ("1,0,1", "prompt_tokens is '0': write a whole number from 1 to 10000000"),
        ("1,1e9,1", "prompt_tokens is '1e9': write a whole number from 1 to 10000000"),
        ("1,,1", "prompt_tokens/ContextTokens/input_length is missing: give the number of tokens"),
        ("1,1,", "output_tokens/GeneratedTokens/output_length is missing: give the number of tokens"),
        ("1,1,1.5", "output_tokens is '1.5': write a whole number from 1 to 10000000"),
        ("noon,1,1", "arrival is 'noon': write a number, or a date and time as in 2023-11-16 18:17:03.98"),
        ("nan,1,1", "arrival is 'nan': write a number, or a date and time as in 2023-11-16 18:17:03.98"),
        (",1,1", "arrival is missing: write a number, or a date and time as in 2023-11-16 18:17:03.98"),
        ("1,1", "2 fields where the header names 3: write one of each"),
        ("1,1,1,1", "4 fields where the header names 3: write one of each"),
        ('"1,1,1', "1 fields where the header names 3: write one of each"),
    ],
)
def test_a_bad_row_is_left_out_and_named_with_its_line_and_the_mend(tmp_path, row, why):
    path, said = written(tmp_path, f"{HEADER}0,5,6\n{row}\n9,7,8\n"), []
    assert [(each.prompt, each.output) for each in read(path, said)] == [(5, 6), (7, 8)]
    assert said == [f"{path}:3: {why}"]


@pytest.mark.parametrize(
    ("row", "why"),
    [
        ("{", "not JSON: write one object a line"),
        ("[1]", "not a JSON object: write one object a line"),
        ('{"timestamp": true, "input_length": 5, "output_length": 6}', "timestamp is True: write a number, or"),
        ('{"timestamp": 1, "input_length": true, "output_length": 6}', "input_length is True: write a whole"),
        ('{"timestamp": 1, "input_length": [5], "output_length": 6}', "input_length is [5]: write a whole"),
        (
            '{"timestamp": 1, "input_length": 600, "output_length": 6, "hash_ids": [1, 2, 3]}',
            "hash_ids names 3 blocks of 512 tokens, and a prompt of 600 tokens has 2: "
            "give the blocks' size with --prefix-block-tokens",
        ),
        (
            '{"timestamp": 1, "input_length": 600, "output_length": 6, "hash_ids": [1.5]}',
            "hash_ids is no list of block names: write [1, 2, 3], or 1 2 3 in CSV",
        ),
        (
            '{"timestamp": 1, "input_length": 5, "output_length": 6, "finish_reason": "tired"}',
            "finish_reason is 'tired': write one of stop, length, error, or nothing",
        ),
        (
            '{"timestamp": 1, "input_length": 5, "output_length": 6, "stream": "maybe"}',
            "stream is 'maybe': write one of true, 1, false, 0, or nothing",
        ),
    ],
)
def test_a_bad_object_is_left_out_and_named(tmp_path, row, why):
    good = '{"timestamp": 0, "input_length": 5, "output_length": 6}'
    path, said = written(tmp_path, f"{good}\n{row}\n{good}\n", "trace.jsonl"), []
    assert len(read(path, said)) == 2
    assert len(said) == 1
    assert said[0].startswith(f"{path}:2: {why}")


def test_a_row_that_comes_far_too_late_is_left_out(tmp_path):
    path, said = written(tmp_path, HEADER + "5,1,1\n" * (MOST_UNORDERED + 1) + "4,1,1\n"), []
    assert len(read(path, said)) == MOST_UNORDERED + 1
    (line,) = said
    assert line == f"{path}:{MOST_UNORDERED + 3}: arrived 1 s before line 2: sort the file by arrival"


def test_bad_rows_are_bounded(tmp_path):
    path, said = written(tmp_path, HEADER + "0,1,1\n" + "x,1,1\n" * (MOST_BAD_ROWS + 1)), []
    with pytest.raises(RequestFileError, match=r"trace.csv:103: .*\(100 rows before it were bad too: mend the file\)"):
        read(path, said)
    assert len(said) == MOST_BAD_ROWS


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", "it is empty"),
        (b"\n\n", "it is empty"),
        (HEADER.encode(), "no requests in it"),
        (b"a,b,c\n1,2,3\n", "the first line names no column arrival/TIMESTAMP/timestamp, prompt_tokens/"),
        (b"\x1f\x8b" + b"\0" * 40, ""),
        (gzip.compress(HEADER.encode() + b"1,1,1\n" * 9999)[:60], "Compressed file ended"),
        (b"x" * 2_000_000, ":1: the line is longer than 1048576 bytes"),
        (b"\xff\xfe\x00\x01\n", "the first line names no column"),
    ],
    ids=["empty", "blank", "header", "names", "no gzip", "cut gzip", "long", "binary"],
)
def test_a_file_that_holds_no_requests_is_one_line(tmp_path, content, why):
    path = written(tmp_path, content)
    with pytest.raises(RequestFileError) as raised:
        read(path)
    (line,) = str(raised.value).splitlines()
    assert line.startswith(str(path))
    assert why in line


def test_a_file_that_is_not_there_is_one_line(tmp_path):
    with pytest.raises(RequestFileError, match=r"none\.csv: No such file or directory"):
        read(tmp_path / "none.csv")


# ---------------------------------------------------------------------- what is sent


@pytest.fixture
def ten(tmp_path):
    """Ten requests, one a second from an epoch on; the nth has n + 1 prompt tokens."""
    return written(tmp_path, HEADER + "".join(f"{1.7e9 + n:.1f},{n + 1},1\n" for n in range(10)))


def sent(path, seed=0, count=1000, said=None, **selection):
    file = RequestFile(path, (said if said is not None else []).append)
    return [(round(at, 6), row.prompt) for at, row in islice(select(file, Selection(**selection), seed), count)]


def test_the_first_request_comes_at_zero_and_speed_up_shortens_the_gaps(ten):
    assert sent(ten)[:3] == [(0.0, 1), (1.0, 2), (2.0, 3)]
    assert sent(ten, speed_up=4.0)[-1] == (9 / 4, 10)


def test_a_window_is_counted_in_the_files_own_time(ten):
    assert sent(ten, begin=3.0, end=6.0) == [(0.0, 4), (1.0, 5), (2.0, 6)]
    assert sent(ten, begin=3.0, end=6.0, speed_up=2.0) == [(0.0, 4), (0.5, 5), (1.0, 6)]


def test_a_loop_begins_again_a_mean_gap_after_the_last_or_at_the_windows_end(ten):
    assert sent(ten, loop=True, count=12)[9:] == [(9.0, 10), (10.0, 1), (11.0, 2)]
    assert sent(ten, loop=True, begin=8.5, end=9.5, count=3) == [(0.5, 10), (1.5, 10), (2.5, 10)]


def test_a_loop_over_one_request_comes_to_an_end_each_second(tmp_path):
    one = written(tmp_path, HEADER + "7,1,1\n")
    assert sent(one, loop=True, count=3) == [(0.0, 1), (1.0, 1), (2.0, 1)]


def test_a_sample_is_a_share_and_the_seed_chooses_it():
    everything = sent(DATA / "azure.csv.gz", count=10**6)
    half, again, other = (sent(DATA / "azure.csv.gz", seed, 10**6, sample=0.5) for seed in (1, 1, 2))
    assert half == again
    assert half != other
    assert set(half) <= set(everything)
    assert len(half) == pytest.approx(len(everything) / 2, rel=0.1)


def test_a_window_without_requests_is_refused(ten):
    with pytest.raises(RequestFileError, match="no request in that window"):
        sent(ten, begin=60.0, loop=True)


def test_a_bad_row_is_named_once_however_often_the_file_is_sent(tmp_path):
    path, said = written(tmp_path, HEADER + "0,1,1\nx,1,1\n1,1,1\n"), []
    assert len(sent(path, loop=True, count=3 * MOST_BAD_ROWS, said=said)) == 3 * MOST_BAD_ROWS
    assert len(said) == 1


def requests(path, settings=None):
    traffic = FileTraffic(settings or ServerSettings(), 0, select(RequestFile(path, print), Selection(), 0), 512)
    found = []
    while traffic.next_at < float("inf"):
        found.append(traffic.take())
    return found


def test_a_row_becomes_a_request_with_its_lengths_its_head_and_its_end(tmp_path):
    head = "arrival,prompt_tokens,output_tokens,max_tokens,finish_reason,stream,prefix_blocks\n"
    first, second, third = requests(
        written(tmp_path, f"{head}0,1100,40,64,,true,a b c\n1,10,64,64,,false,\n2,10,64,,error,,\n")
    )
    assert (first.prompt, first.output, first.max_tokens, first.reason) == (1100, 40, 64, "stop")
    assert (first.stream, first.prefix, first.prefix_tokens) == (True, ("a", "b", "c"), 1100)
    assert (second.reason, second.stream, second.prefix) == ("length", False, ())
    assert third.reason == "error"


def test_an_answer_that_the_server_has_no_room_or_leave_for_is_cut(tmp_path):
    path = written(tmp_path, HEADER + "0,8000,500\n1,100,500\n")
    long, short = requests(path, ServerSettings(default_max_tokens=300))
    assert (long.output, long.reason) == (192, "length")
    assert (short.output, short.max_tokens, short.reason) == (300, 300, "length")


def test_a_file_that_breaks_off_later_ends_the_traffic_and_says_why(tmp_path):
    rows = "".join(f"{n},1,1\n" for n in range(MOST_UNORDERED + 5))
    path = written(tmp_path, HEADER + rows + "x,1,1\n" * (MOST_BAD_ROWS + 1))
    traffic = FileTraffic(ServerSettings(), 0, select(RequestFile(path, lambda _: None), Selection(), 0), 512)
    while traffic.next_at < float("inf"):
        traffic.take()
    assert "mend the file" in traffic.failed
