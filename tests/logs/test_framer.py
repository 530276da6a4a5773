import tracemalloc

from hypothesis import given, settings
from hypothesis import strategies as st

from vllm_vitals.logs.framer import TOO_LONG, LineFramer, TooLong


def all_lines(data: bytes, cuts: list[int], limit: int) -> list[bytes | TooLong]:
    framer, lines, start = LineFramer(limit), [], 0
    for cut in [*sorted(cuts), len(data)]:
        lines += framer.feed(data[start:cut])
        start = max(start, cut)
    return lines + framer.flush()


@settings(deadline=None)
@given(st.binary(max_size=200).map(lambda raw: raw.replace(b"\x00", b"\n")), st.lists(st.integers(0, 200)))
def test_lines_do_not_depend_on_where_the_chunks_were_cut(data: bytes, cuts: list[int]) -> None:
    cuts = [cut for cut in cuts if cut <= len(data)]
    expected = [TOO_LONG if len(line) > 16 else line for line in data.split(b"\n")]
    if expected[-1] == b"":
        expected.pop()
    assert all_lines(data, cuts, 16) == expected
    assert all_lines(data, list(range(len(data))), 16) == expected


def test_only_a_newline_ends_a_line() -> None:
    text = "a\u2028b\x0cc\x85d\re\u2029f\n".encode()
    assert LineFramer().feed(text) == [text[:-1]]


def test_pending_is_what_a_restart_must_read_again() -> None:
    framer = LineFramer(8)
    assert framer.feed(b"whole\npart") == [b"whole"]
    assert framer.pending == 4
    framer.feed(b"x" * 100)
    assert framer.pending == 104
    assert framer.feed(b"\nok\n") == [TOO_LONG, b"ok"]
    assert framer.pending == 0


def test_a_gigabyte_without_a_newline_is_one_long_line_and_no_memory() -> None:
    framer, block = LineFramer(1 << 20), b"x" * (1 << 20)
    tracemalloc.start()
    for _ in range(1024):
        assert framer.feed(block) == []
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert framer.feed(b"\nnext\n") == [TOO_LONG, b"next"]
    assert peak < 8 << 20
