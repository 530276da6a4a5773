"""Every process that collects the suite finds the same tests: workers that disagree run none of them.

An id may come from nothing that differs between two of them: the time, a hash seed, a random number, a folder.
"""

import os
import subprocess
import sys
from pathlib import Path

from tests.programs import PATIENCE_S, ROOT

# pytest, on a clock that is so many seconds ahead
COLLECT = """
import sys, time
ahead, real, real_ns = int(sys.argv.pop(1)), time.time, time.time_ns
time.time, time.time_ns = lambda: real() + ahead, lambda: real_ns() + ahead * 10**9
import pytest
sys.exit(pytest.main())
"""


def collecting(seed: str, ahead: int, home: Path) -> "subprocess.Popen[str]":
    home.mkdir()
    options = ["--collect-only", "-q", "-p", "no:cacheprovider", "-p", "no:xdist"]
    own = {"PYTHONHASHSEED": seed, "TMPDIR": str(home), "HOME": str(home)}
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    command = [sys.executable, "-c", COLLECT, str(ahead), *options]
    return subprocess.Popen(command, cwd=ROOT, env=inherited | own, stdout=subprocess.PIPE, text=True)


def test_ids_are_the_same_at_another_time_under_another_hash_seed_in_another_place(tmp_path: Path) -> None:
    both = [collecting("1", 0, tmp_path / "a"), collecting("2", 1_000_003, tmp_path / "b")]
    said = [process.communicate(timeout=PATIENCE_S)[0].splitlines() for process in both]
    one, two = ([line for line in lines if "::" in line] for lines in said)
    assert len(one) > 3000
    assert [pair for pair in zip(one, two, strict=True) if pair[0] != pair[1]] == []
