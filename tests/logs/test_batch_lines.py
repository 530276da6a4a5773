import json
import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vllm_vitals.logs.batch_lines import MAX_CONTAINERS, Entry, Lines, TooManyError
from vllm_vitals.logs.decode import LineDecoder
from vllm_vitals.logs.framer import TOO_LONG
from vllm_vitals.logs.schema import shipped

SCHEMAS = shipped()
GOOD = b'{"id":"a","usage":{"completion_tokens":5}}'


def lines(body: bytes, max_line: int = 1 << 20, most: int = 1000) -> list[Entry]:
    found = Lines(body, max_line, most)
    for _ in found.find():
        pass
    return list(found)


def results(body: bytes) -> list[str | None]:
    decoder = LineDecoder(SCHEMAS)
    return [decoder.decode(line, 1.79e9).result for line in lines(body)]


POISONS = {
    "300 levels": b'{"a":' * 300 + b"1" + b"}" * 300,
    "5,000 levels": b'{"a":' * 5000 + b"1" + b"}" * 5000,
    "5,000 lists": b"[" * 5000 + b"]" * 5000,
    "a number of 5,000 digits": b'{"a":' + b"9" * 5000 + b"}",
    "no JSON": b"{'a': 1}",
    "no JSON with commas in strings": b'{a: "x],", "b": [1, "}"]}',
    "NaN": b'{"id":"a","usage":{"completion_tokens":NaN}}',
    "half a surrogate": b'{"a":"\\ud800"}',
    "broken UTF-8": b'{"a":"\xff"}',
    "a raw control character": b'{"a":"\x01"}',
    "nothing": b"null",
}


@pytest.mark.parametrize("at", [0, 1, 3])
@pytest.mark.parametrize("poison", POISONS)
def test_one_poisonous_record_costs_one_record(poison: str, at: int) -> None:
    elements = [GOOD, GOOD, GOOD]
    elements.insert(at, POISONS[poison])
    if at == 0 and poison.startswith("no JSON"):
        return  # what begins so is taken for text, line by line
    found = results(b"[" + b",".join(elements) + b"]")
    assert len(found) == 4
    assert found.count("response") == 3
    assert results(b"\n".join(elements)).count("response") == 3


def test_a_torn_array_gives_what_is_whole_of_it() -> None:
    assert results(b"[" + GOOD + b"," + GOOD + b"," + GOOD[:20]) == ["response", "response", "malformed"]
    assert results(b"[" + GOOD + b" " + GOOD + b"]").count("response") == 1


def test_text_that_begins_with_a_bracket_is_text() -> None:
    stats = b"INFO 09-21 10:00:00 [model.py:1] Using max model len 5"
    assert results(b"[pod/vllm-0/vllm] " + stats + b"\n[Stage-0] " + stats) == ["setting", "setting"]
    assert results(b"[{weird] " + stats + b"\n" + GOOD)[1] == "response"
    assert results(b"[" + GOOD + b"]\n[" + GOOD + b"]\n" + GOOD).count("response") == 3
    assert results(b'["' + stats + b'","' + stats + b'"]') == ["setting", "setting"]


def test_an_element_longer_than_a_line_may_be_is_too_long() -> None:
    for long in (b'{"a":"' + b"x" * 5000 + b'"}', b"[" + b'"x",' * 2000 + b"1]", b'{"a":[' + b"1," * 700 + b"1]}"):
        assert lines(b"[" + long + b",{}," + long + b', {"b":1}]', max_line=1000) == [TOO_LONG, {}, TOO_LONG, {"b": 1}]
    many = b",".join(b'{"n":%d}' % number for number in range(900))
    assert lines(b"[" + many + b"]", max_line=100) == [{"n": number} for number in range(900)]


@pytest.mark.parametrize(
    "body", [b"{}\n" * 1002, b"[" + b"{}," * 1001 + b"{}]", b"[null," + b"1," * 1001 + b"1]", b"\n" * 1002]
)
def test_a_batch_of_too_many_lines_is_refused(body: bytes) -> None:
    with pytest.raises(TooManyError, match="more than 1000 lines"):
        lines(body)


@pytest.mark.parametrize(
    "body", [b"[" + b"{}," * MAX_CONTAINERS + b"{}]", b"[" * 8_000_000, b'{"a":' + b"[]," * MAX_CONTAINERS]
)
def test_a_batch_of_too_many_objects_is_refused_before_one_is_made(body: bytes) -> None:
    with pytest.raises(TooManyError, match="objects and arrays"):
        next(Lines(body, 1 << 20, 100_000).find())


@pytest.mark.parametrize(
    "body",
    [
        b"[" + b",".join([b'{"message":"x","usage":{"completion_tokens":3}}'] * 20_000) + b"]",
        b"[" + b",".join([b"{}"] * 8_000) + b"]",
        b"[" + '{"emoji":"\U0001f600"},'.encode() * 8_000 + b"{}]",
        b'{"message":"x","usage":{"completion_tokens":3}}\n' * 8_000,
    ],
    ids=["records", "empty records", "letters of four bytes", "lines"],
)
def test_a_batch_is_never_unfolded_whole(body: bytes) -> None:
    tracemalloc.start()
    try:
        found = Lines(body, 16 * 1024, 100_000)
        for _ in found.find():
            pass
        count = sum(1 for _ in found)
        most = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert count >= 8_000
    assert most < len(body) + 16 * count + 500_000


values = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-9, 9), st.text(max_size=5)),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=3), inner, max_size=3)),
    max_leaves=8,
)


@settings(deadline=None)
@given(st.lists(values, min_size=1, max_size=6), st.sampled_from([None, 1]))
def test_an_array_has_as_many_lines_as_elements(elements: list[object], indent: int | None) -> None:
    if not isinstance(elements[0], dict | list | str):
        return
    found = lines(json.dumps(elements, indent=indent).encode())
    assert len(found) == len(elements)
    assert [one for one in found if isinstance(one, dict)] == [one for one in elements if isinstance(one, dict)]


@settings(deadline=None)
@given(st.binary(max_size=60).map(lambda rest: b"[{" + rest))
def test_any_body_comes_to_an_end(body: bytes) -> None:
    lines(body)
    lines(b'[{"a":1},' + body)
