"""Every process that collects the suite finds the same tests: workers that disagree run none of them.

An id may come from nothing that differs between two of them: the time, a hash seed, a random number, a folder.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.programs import PATIENCE_S, ROOT

# pytest, on a clock that is so many seconds ahead
COLLECT = """
import sys, time
ahead, real, real_ns = int(sys.argv.pop(1)), time.time, time.time_ns
time.time, time.time_ns = lambda: real() + ahead, lambda: real_ns() + ahead * 10**9
import pytest
sys.exit(pytest.main())
"""


def collecting(seed: str, ahead: int, home: Path) -> list[str]:
    home.mkdir()
    options = ["--collect-only", "-q", "-p", "no:cacheprovider", "-p", "no:xdist"]
    own = {"PYTHONHASHSEED": seed, "TMPDIR": str(home), "HOME": str(home)}
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    command = [sys.executable, "-c", COLLECT, str(ahead), *options]
    done = subprocess.run(
        command, cwd=ROOT, env=inherited | own, stdout=subprocess.PIPE, text=True, timeout=PATIENCE_S, check=True
    )
    return [line for line in done.stdout.splitlines() if "::" in line]


def test_ids_are_the_same_at_another_time_under_another_hash_seed_in_another_place(
    request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """Against what this very process collected: the whole suite, or those files of it that were asked for."""
    here = [item.nodeid for item in request.session.items]
    asked, other = set(here), collecting("2", 1_000_003, tmp_path / "other")
    assert len(other) > 3000
    assert sorted(asked.intersection(other)) == sorted(here)
