"""Prometheus' own tools: where they are, and running them. A test skips without them, and fails without them in CI."""

import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
RULES = ROOT / "alerts" / "out"
MODERN = ROOT / ".tools" / "prometheus" / "usr" / "bin"


def find(name: str) -> str:
    """Path of a tool, or skip with a reason; in CI a missing tool fails."""
    path = shutil.which(name)
    if path is None:
        reason = f"{name} is not installed: apt-get install prometheus prometheus-alertmanager"
        if os.environ.get("CI"):
            pytest.fail(reason)
        pytest.skip(reason)
    return path


def versions(name: str) -> list[str]:
    """The installed tool, and the current one unpacked by tools/modern-prometheus.sh where it is there."""
    modern = MODERN / name
    return [find(name), *([str(modern)] if modern.exists() else [])]


def run(*command: str) -> subprocess.CompletedProcess[str]:
    """A tool's exit code and output."""
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=600)


def promtool_test(document: Mapping[str, Any], folder: Path, name: str, tool: str = "") -> str:
    """Run one promtool test file; "" when it passes, else what it says."""
    path = folder / f"{name}.yml"
    path.write_text(yaml.dump(document, Dumper=getattr(yaml, "CSafeDumper", yaml.SafeDumper), width=10**9))
    done = run(tool or find("promtool"), "test", "rules", str(path))
    return "" if done.returncode == 0 else done.stdout + done.stderr
