"""The wheel holds one package and everything that its commands need, wherever they are called from.

What is installed is the wheel built from this tree, into a virtual environment of its own; its dependencies are lent by
the environment that runs the tests. `make package` proves the same with a package index.
"""

import os
import re
import subprocess
import sys
import sysconfig
import tarfile
import urllib.request
import zipfile
from configparser import ConfigParser
from email import message_from_string
from email.message import Message
from pathlib import Path

import pytest

from vllm_vitals import __version__
from vllm_vitals.cli.main import COMMANDS

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "exporter" / "vllm_vitals"


def run(*command: str | Path, cwd: Path) -> str:
    """Run a program to its end with nothing of this tree on its path; return its standard output."""
    ended = subprocess.run(
        [str(word) for word in command], cwd=cwd, env=clean(), capture_output=True, text=True, check=False, timeout=600
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


def clean() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "VIRTUAL_ENV"))}


@pytest.fixture(scope="module")
def distributions(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the sdist and the wheel that is built from it."""
    folder = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "build", "--no-isolation", "-o", folder, ROOT, cwd=folder)
    return folder


@pytest.fixture(scope="module")
def wheel(distributions: Path) -> Path:
    return next(distributions.glob("*.whl"))


@pytest.fixture(scope="module")
def listed(wheel: Path) -> set[str]:
    """The paths in the wheel."""
    with zipfile.ZipFile(wheel) as archive:
        return set(archive.namelist())


def text(wheel: Path, ending: str) -> str:
    with zipfile.ZipFile(wheel) as archive:
        return archive.read(next(name for name in archive.namelist() if name.endswith(ending))).decode()


@pytest.fixture(scope="module")
def metadata(wheel: Path) -> Message:
    return message_from_string(text(wheel, ".dist-info/METADATA"))


def test_the_wheel_holds_one_package_and_its_metadata(listed: set[str]) -> None:
    assert {name.split("/")[0] for name in listed} == {"vllm_vitals", f"vllm_vitals-{__version__}.dist-info"}


def test_the_wheel_holds_every_file_of_the_package(listed: set[str]) -> None:
    here = {str(path.relative_to(PACKAGE.parent)) for path in PACKAGE.rglob("*") if path.is_file()}
    assert {name for name in here if "__pycache__" not in name} == {name for name in listed if "dist-info" not in name}


def test_it_installs_one_command(wheel: Path) -> None:
    points = ConfigParser()
    points.read_string(text(wheel, "entry_points.txt"))
    assert {section: dict(points[section]) for section in points.sections()} == {
        "console_scripts": {"vllm-vitals": "vllm_vitals.cli.main:main"}
    }


def test_the_version_is_the_package_s_own(metadata: Message) -> None:
    assert metadata["Version"] == __version__
    released = re.findall(r"^## \[(\d[^]]*)\]", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert released[0] == __version__


def test_it_says_where_its_home_documents_and_changes_are(metadata: Message) -> None:
    links = dict(link.split(", ", 1) for link in metadata.get_all("Project-URL", []))
    assert {"Homepage", "Documentation", "Changelog", "Issues", "Source"} <= set(links)
    assert all(link.startswith("https://") for link in links.values())


def test_every_package_that_a_generator_imports_is_in_the_extra_build(metadata: Message) -> None:
    needed = [line for line in metadata.get_all("Requires-Dist", []) if re.search(r"extra == ['\"]build['\"]", line)]
    assert {re.split(r"[^\w-]", line)[0] for line in needed} == {"grafanalib", "promql-parser"}


def test_the_sdist_builds_and_tests_without_the_repository(distributions: Path) -> None:
    with tarfile.open(next(distributions.glob("*.tar.gz"))) as archive:
        names = {name.split("/", 1)[1] for name in archive.getnames() if "/" in name}
    for name in ("pyproject.toml", "LICENSE", "README.md", "CHANGELOG.md", "Makefile", "tests/conftest.py"):
        assert name in names, name
    assert not [name for name in names if name.startswith((".venv", ".tools", ".git/")) or "__pycache__" in name]


class Environment:
    """A new virtual environment in a folder."""

    def __init__(self, home: Path) -> None:
        run(sys.executable, "-m", "venv", "--without-pip", home, cwd=home)
        self.programs = home / "bin"
        where = "import sysconfig; print(sysconfig.get_paths()['purelib'])"
        self.packages = Path(run(self.programs / "python", "-c", where, cwd=home).strip())

    def pip(self, *words: str | Path) -> None:
        pip = (sys.executable, "-m", "pip", "--python", self.programs / "python", "--disable-pip-version-check", "-q")
        run(*pip, *words, cwd=self.programs)

    def entries(self) -> set[str]:
        programs = {f"bin/{path.name}" for path in self.programs.iterdir()}
        return {path.name for path in self.packages.iterdir()} | programs


def test_installing_adds_one_package_and_uninstalling_leaves_nothing(wheel: Path, tmp_path: Path) -> None:
    environment = Environment(tmp_path)
    before = environment.entries()
    environment.pip("install", "--no-deps", "--no-index", wheel)
    gained = environment.entries() - before
    assert gained == {"vllm_vitals", f"vllm_vitals-{__version__}.dist-info", "bin/vllm-vitals"}
    environment.pip("uninstall", "-y", "vllm-vitals")
    assert environment.entries() == before


@pytest.fixture(scope="module")
def site(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The command as installed in an environment of its own, and an empty folder to call it from."""
    environment = Environment(tmp_path_factory.mktemp("venv"))
    environment.pip("install", "--no-deps", "--no-index", wheel)
    lent = sysconfig.get_paths()["purelib"]
    (environment.packages / "lent.pth").write_text(lent + "\n")
    return environment.programs / "vllm-vitals", tmp_path_factory.mktemp("empty")


def test_what_is_installed_is_what_runs(site: tuple[Path, Path]) -> None:
    command, folder = site
    asked = "import vllm_vitals; print(vllm_vitals.__file__)"
    assert run(command.with_name("python"), "-c", asked, cwd=folder).startswith(str(command.parents[1]))
    assert run(command, "--version", cwd=folder).split()[-1] == __version__
    assert "death_spiral" in run(command, "help", "states", cwd=folder)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_can_be_asked_for_help(site: tuple[Path, Path], name: str) -> None:
    command, folder = site
    assert run(command, name, "--help", cwd=folder).startswith(f"Usage: vllm-vitals {name}")


@pytest.mark.parametrize(
    ("generator", "same"), [("rules", "alerts"), ("dashboards", "dashboards"), ("kubernetes", "deploy/kubernetes")]
)
def test_every_generator_writes_the_committed_files_into_any_folder(
    site: tuple[Path, Path], generator: str, same: str
) -> None:
    command, folder = site
    run(command, generator, "build", "-o", generator, cwd=folder)
    written = {path.relative_to(folder / generator): path for path in (folder / generator).rglob("*") if path.is_file()}
    committed = {name for name in written if (ROOT / same / name).exists()}
    assert committed
    if generator != "kubernetes":  # there only one of the files is committed
        assert committed == set(written)
    for name in committed:
        assert written[name].read_bytes() == (ROOT / same / name).read_bytes(), name
    run(command, generator, "check", "-o", generator, cwd=folder)


def test_the_demo_starts_and_serves_its_page(site: tuple[Path, Path]) -> None:
    command, folder = site
    demo = subprocess.Popen(
        [str(command), "demo", "--listen", "127.0.0.1:0"], cwd=folder, env={**clean(), "PYTHONUNBUFFERED": "1"},
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    assert demo.stdout is not None
    try:
        begun = "".join(line for line, _ in zip(demo.stdout, range(2), strict=False))
        address = re.search(r"http://\S+", begun)
        assert address, begun
        with urllib.request.urlopen(address[0], timeout=120) as page:  # the demo's own address
            assert b"vllm-vitals" in page.read()
    finally:
        demo.terminate()
        demo.wait(timeout=120)
        demo.stdout.close()
