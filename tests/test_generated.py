"""Generated files are committed and fresh."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


@pytest.mark.parametrize("generator", ["tools/reference.py"])
def test_a_generated_document_is_fresh(generator: str) -> None:
    run = subprocess.run(
        [sys.executable, generator, "--check"],
        cwd=ROOT,
        env={"PYTHONPATH": str(ROOT / "exporter")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr
