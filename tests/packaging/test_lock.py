"""requirements/*.txt: every package has a hash, and satisfies what pyproject.toml asks for."""

import re
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from tests.programs import find

ROOT = Path(__file__).parents[2]
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())
FILES = sorted((ROOT / "requirements").glob("*.txt"))


def entries(path: Path) -> list[str]:
    """Return the logical lines: one package with its hashes each."""
    text = path.read_text().replace("\\\n", " ")
    return [line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")]


def versions(path: Path) -> dict[str, set[Version]]:
    found: dict[str, set[Version]] = {}
    for line in entries(path):
        requirement = Requirement(line.split(" --hash")[0])
        found.setdefault(canonicalize_name(requirement.name), set()).add(Version(str(requirement.specifier)[2:]))
    return found


def wanted(name: str) -> list[str]:
    project = PROJECT["project"]
    extras = project["optional-dependencies"]
    return {
        "build": list(PROJECT["build-system"]["requires"]),
        "runtime": [*project["dependencies"], *extras["dns"]],
        "develop": [
            *project["dependencies"], *(line for extra in extras.values() for line in extra),
            *PROJECT["dependency-groups"]["test"], *PROJECT["build-system"]["requires"],
        ],
    }[name]  # fmt: skip


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_every_package_is_one_version_by_hash_from_whatever_index(path: Path) -> None:
    for line in entries(path):
        assert re.match(r"[a-z0-9.-]+==\S+ +(; .+? )?--hash=sha256:[0-9a-f]{64}", line), line[:80]
        assert "://" not in line


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_the_versions_are_those_that_pyproject_asks_for(path: Path) -> None:
    locked = versions(path)
    for text in wanted(path.stem):
        requirement = Requirement(text)
        found = locked.get(canonicalize_name(requirement.name), set())
        assert found, f"{requirement.name} is not in {path.name}: make lock"
        assert all(version in requirement.specifier for version in found), f"{text}: {found}: make lock"


def test_what_is_tested_is_what_the_image_has() -> None:
    tested = versions(ROOT / "requirements" / "develop.txt")
    for path in FILES:
        assert {name: tested.get(name) for name in versions(path)} == versions(path)


def test_an_entry_without_a_hash_or_of_another_version_is_found(tmp_path: Path) -> None:
    spoilt = tmp_path / "runtime.txt"
    spoilt.write_text("aiohttp==3.9.0\n")
    with pytest.raises(AssertionError, match="aiohttp"):
        test_every_package_is_one_version_by_hash_from_whatever_index(spoilt)
    with pytest.raises(AssertionError, match="make lock"):
        test_the_versions_are_those_that_pyproject_asks_for(spoilt)


def test_the_image_and_make_install_by_hash_alone() -> None:
    for name in ("Dockerfile", "tools/venv.sh"):
        text = (ROOT / name).read_text()
        for line in re.findall(r"(?:pip\b|pip\[@\]\}\").* install .*|\$\{pip\[@\]\}\" .*", text):
            if not line.endswith("disable-pip-version-check)"):
                assert "--require-hashes" in line or "--no-index" in line, line


def test_hadolint_finds_nothing_in_the_dockerfile() -> None:
    done = subprocess.run([find("hadolint"), str(ROOT / "Dockerfile")], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "")
