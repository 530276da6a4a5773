"""Programs that tests drive: where they are. A test without its program skips with a reason, and fails in CI."""

import os
import shutil
from pathlib import Path

import pytest

# Bounds on what hangs, never on what is slow: for a condition to come true, and for a program to end.
DEADLINE_S, PATIENCE_S = 300.0, 1800.0
ROOT = Path(__file__).parent.parent
PACKAGES = {"promtool": "prometheus", "amtool": "prometheus-alertmanager", "vmalert": "victoria-metrics"}
# what tools/modern-prometheus.sh unpacks: current releases beside the system's
UNPACKED = (ROOT / ".tools/prometheus/usr/bin", ROOT / ".tools/prometheus/usr/libexec/docker/cli-plugins")


def find(*names: str) -> str:
    """Path of the first of these programs that is installed."""
    installed = (shutil.which(name) for name in names)
    wanted = PACKAGES.get(names[0], names[0])
    return next(filter(None, installed), None) or missing(f"{names[0]} is not here: apt-get install {wanted}")


def current(name: str) -> str | None:
    """Path of the unpacked current release, where there is one."""
    return next((str(folder / name) for folder in UNPACKED if (folder / name).exists()), None)


def versions(name: str) -> list[str]:
    """The installed program, and the current release where it is unpacked. CI has both."""
    newest = current(name)
    if newest is None and os.environ.get("CI"):
        missing(f"no current {name}: make tools unpacks it below .tools")
    return [find(name), *([newest] if newest else [])]


def missing(reason: str) -> str:
    """Skip, or fail in CI, where `make tools` ought to have provided everything."""
    if os.environ.get("CI"):
        pytest.fail(reason)
    pytest.skip(reason)
