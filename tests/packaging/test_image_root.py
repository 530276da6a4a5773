"""What the container image takes of its base image: each thing with what it leads to, and nothing that is not found."""

import os
import shutil
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

import pytest

from tests.programs import missing

TOOL = Path(__file__).parents[2] / "tools" / "image_root.py"


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    spec = spec_from_file_location("image_root", TOOL)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_program_comes_with_its_libraries_and_their_loader(tool: ModuleType) -> None:
    found = tool.libraries([Path(sys.executable).resolve()])
    assert any(each.name.startswith("libc.so") for each in found)
    assert any(each.name.startswith("ld-linux") for each in found)
    assert all(each.exists() for each in found)


def test_a_library_that_is_not_found_ends_the_build_and_is_named(
    tool: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "ldd").write_text("#!/bin/sh\necho '  libgone.so.6 => not found'\n")
    (tmp_path / "ldd").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    with pytest.raises(SystemExit, match=r"not found: libgone\.so\.6"):
        tool.libraries([Path("/bin/sh")])


def test_a_link_comes_with_what_it_leads_to_and_nothing_comes_twice(tool: ModuleType, tmp_path: Path) -> None:
    here, root = tmp_path / "here", tmp_path / "root"
    (here / "real").mkdir(parents=True)
    (here / "real" / "lib.so.1.0").write_text("x")
    (here / "real" / "lib.so.1").symlink_to("lib.so.1.0")
    (here / "merged").symlink_to("real")
    copied = [str(each) for each in tool.copy(here / "merged" / "lib.so.1", root)]
    assert copied == [f"{here}/real/lib.so.1", f"{here}/real/lib.so.1.0"]
    below = root / str(here)[1:] / "real"
    assert (below / "lib.so.1").readlink() == Path("lib.so.1.0")
    assert (below / "lib.so.1").read_text() == "x"
    assert list(tool.copy(here / "merged" / "lib.so.1", root)) == []
    assert list(tool.copy(here / "gone", root)) == []


def test_the_records_are_of_the_packages_that_something_came_from(tool: ModuleType, tmp_path: Path) -> None:
    if shutil.which("dpkg") is None:
        missing("dpkg is not here: this system is not Debian's")
    tool.records([Path("/usr/bin/dash"), Path("/nowhere/at/all")], tmp_path)
    status = (tmp_path / "var/lib/dpkg/status").read_text()
    assert "Package: dash\n" in status
    assert "Package: dpkg\n" not in status
    assert (tmp_path / "usr/share/doc/dash/copyright").exists()
