"""What runs the daemon on a host without containers: the systemd unit, and completion in a shell."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.programs import missing

ROOT = Path(__file__).parents[2]
UNIT = ROOT / "deploy" / "systemd" / "vllm-vitals.service"


def analyzed(*words: str | Path) -> str:
    program = shutil.which("systemd-analyze") or missing("systemd-analyze is not here: apt-get install systemd")
    done = subprocess.run([program, *map(str, words)], capture_output=True, text=True, check=False)
    return done.stdout + done.stderr


def test_systemd_understands_the_unit(tmp_path: Path) -> None:
    here = tmp_path / UNIT.name
    here.write_text(UNIT.read_text().replace("/usr/local/bin/vllm-vitals", "/bin/true"))
    assert analyzed("verify", here) == ""
    here.write_text(here.read_text().replace("ProtectHome=yes", "ProtectHouse=yes"))
    assert "ProtectHouse" in analyzed("verify", here)


def test_the_unit_exposes_little() -> None:
    found = re.search(r"exposure level for \S+: (\d+\.\d)", analyzed("security", "--offline=yes", UNIT))
    assert found is not None
    assert float(found[1]) < 2.5


def test_the_unit_runs_commands_that_there_are() -> None:
    from tests.edges.test_help import EVERY

    known = {path for path, _ in EVERY}
    for line in re.findall(r"^Exec\w+=/usr/local/bin/vllm-vitals (.+)$", UNIT.read_text(), re.MULTILINE):
        assert any(tuple(line.split()[: len(path)]) == path for path in known if path), line


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_shell_completes_commands_and_options(shell: str) -> None:
    def complete(typed: str, last: str) -> str:
        words = typed.split() + ([] if last else [""])
        asked = {"COMP_WORDS": typed, "COMP_CWORD": last if shell == "fish" else str(len(words) - 1)}
        env = {**os.environ, **asked, "_VLLM_VITALS_COMPLETE": f"{shell}_complete"}
        command = [sys.executable, "-m", "vllm_vitals"]
        return subprocess.run(command, env=env, capture_output=True, text=True, check=True).stdout

    assert "doctor" in complete("vllm-vitals doc", "doc")
    assert "--prometheus" in complete("vllm-vitals doctor --prom", "--prom")
