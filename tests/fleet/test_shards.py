import subprocess
import sys
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vllm_vitals.scrape.shards import Shard, owner, parse_shard

names = st.text(min_size=1, max_size=60)
counts = st.integers(1, 40)


@given(names, counts)
def test_each_target_belongs_to_exactly_one_shard(name: str, count: int) -> None:
    assert sum(Shard(index, count).owns(name) for index in range(1, count + 1)) == 1


@given(names, counts)
def test_adding_a_shard_moves_a_target_to_the_new_shard_or_nowhere(name: str, count: int) -> None:
    assert owner(name, count + 1) in (owner(name, count), count + 1)


def test_adding_a_shard_moves_about_its_share_and_shards_are_even() -> None:
    targets = [f"10.0.{i // 256}.{i % 256}:8000" for i in range(5_000)]
    moved = sum(owner(name, 5) != owner(name, 4) for name in targets) / len(targets)
    assert moved == pytest.approx(1 / 5, abs=0.03)
    held = Counter(owner(name, 5) for name in targets)
    assert set(held) == {1, 2, 3, 4, 5}
    assert all(n == pytest.approx(1_000, rel=0.12) for n in held.values())


def test_another_process_gives_the_same_owners() -> None:
    code = "from vllm_vitals.scrape.shards import owner; print([owner(f'vllm-{i}:8000', 7) for i in range(50)])"
    said = [
        subprocess.run([sys.executable, "-c", code], env={"PYTHONHASHSEED": seed, "PYTHONPATH": "exporter"}, check=True,
                       capture_output=True, text=True).stdout
        for seed in ("1", "2")
    ]  # fmt: skip
    assert said[0] == said[1] == f"{[owner(f'vllm-{i}:8000', 7) for i in range(50)]}\n"


def test_a_shard_is_written_as_index_of_count() -> None:
    assert parse_shard("2/5") == Shard(2, 5)
    assert Shard().owns("anything")


@pytest.mark.parametrize("text", ["", "0/5", "6/5", "2", "2/", "a/b", "-1/5", "1/0", "2/5000", "1.0/5", "٢/٥"])
def test_anything_else_is_refused_in_one_line(text: str) -> None:
    with pytest.raises(ValueError, match=r'expected a shard such as "2/5"') as caught:
        parse_shard(text)
    assert "\n" not in str(caught.value)
