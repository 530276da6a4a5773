"""Fill a folder with the root file system of the container image: what our Python needs of the base image, no more.

``python image_root.py FOLDER VENV`` runs in the Dockerfile's build stage, by the base image's own Python. Into FOLDER
go the interpreter, its standard library with bytecode (the root is read-only later), the shared libraries that these
and VENV load, certificates, time zones, a shell with what docker-compose.yml uses in it, and the records and licences
of the Debian packages that all this is from, so that scanners find them. Nothing is stripped or patched. A library that
is not found ends the build and is named.
"""

import compileall
import re
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterable
from pathlib import Path

PROGRAMS = ("sh", "cksum", "cut")
FILES = ("/etc/ssl/certs/ca-certificates.crt", "/etc/os-release", "/etc/passwd", "/etc/group", "/etc/nsswitch.conf",
         "/etc/ld.so.cache", "/usr/share/zoneinfo")  # fmt: skip
# Of the standard library: tests, what draws windows or installs packages, and what links C programs.
LEFT_OUT = shutil.ignore_patterns(
    "test", "tests", "idlelib", "tkinter", "turtledemo", "turtle.py", "_tkinter*", "_test*", "ensurepip", "lib2to3",
    "pydoc_data", "site-packages", "config-*", "__pycache__", "*.a",
)  # fmt: skip
MERGED = ("bin", "lib", "lib64", "sbin")  # links into /usr


def main(root: Path, venv: Path) -> None:
    """Fill ``root``."""
    for name in MERGED:
        if Path("/", name).is_symlink():
            (root / "usr" / name).mkdir(parents=True, exist_ok=True)
            (root / name).symlink_to(f"usr/{name}")
    stdlib = Path(sysconfig.get_path("stdlib"))
    shutil.copytree(stdlib, root / stdlib.relative_to("/"), symlinks=True, ignore=LEFT_OUT)
    programs = [Path(found) for name in PROGRAMS if (found := shutil.which(name))]
    python = [Path(sys._base_executable), Path(sys._base_executable).resolve()]  # type: ignore[attr-defined]
    python += [each for each in python[0].parent.glob("python*") if re.fullmatch(r"python[\d.]*", each.name)]
    elf = [*python, *programs, *(root / stdlib.relative_to("/")).rglob("*.so*"), *venv.rglob("*.so*")]
    copied = {
        source for each in (*python, *programs, *libraries(elf), *map(Path, FILES)) for source in copy(each, root)
    }
    compileall.compile_dir(root / stdlib.relative_to("/"), stripdir=root, prependdir="/", quiet=1)
    records(copied, root)
    (root / "tmp").mkdir(mode=0o1777)
    (root / "tmp").chmod(0o1777)


def libraries(elf: Iterable[Path]) -> set[Path]:
    """Return the shared libraries that these load, and their loader."""
    done = subprocess.run(["ldd", *map(str, elf)], capture_output=True, text=True, check=False)
    if missing := sorted(set(re.findall(r"(\S+) => not found", done.stdout))):
        raise SystemExit(f"image_root: not found: {', '.join(missing)}")
    return {Path(found) for found in re.findall(r"(?:=> |^\s+)(/\S+) \(0x", done.stdout, re.MULTILINE)}


def copy(source: Path, root: Path) -> Iterable[Path]:
    """Copy a file, folder or link with what it leads to, to the same place below ``root``; yield what was copied."""
    source = source.parent.resolve() / source.name
    place = root / source.relative_to("/")
    if place.exists() or place.is_symlink() or not source.exists():
        return
    place.parent.mkdir(parents=True, exist_ok=True)
    yield source
    if source.is_symlink():
        place.symlink_to(source.readlink())
        yield from copy(source.parent / source.readlink(), root)
    elif source.is_dir():
        shutil.copytree(source, place, symlinks=True)
    else:
        shutil.copy2(source, place)


def records(copied: Iterable[Path], root: Path) -> None:
    """Write dpkg's record of each Debian package that something was copied from, and copy its licence."""
    status = Path("/var/lib/dpkg/status")
    if not status.exists():
        return
    asked = sorted({name for each in copied for name in (str(each), str(each).removeprefix("/usr"))})
    done = subprocess.run(["dpkg", "-S", *asked], capture_output=True, text=True, check=False)
    names = {name.partition(":")[0] for line in done.stdout.splitlines() for name in line.split(": ")[0].split(", ")}
    names |= {"ca-certificates"} & set(re.findall(r"^Package: (.+)$", status.read_text(), re.MULTILINE))
    kept = [
        each for each in status.read_text().split("\n\n") if each.partition("\n")[0].removeprefix("Package: ") in names
    ]
    (root / "var/lib/dpkg").mkdir(parents=True)
    (root / "var/lib/dpkg/status").write_text("\n\n".join(kept) + "\n")
    for name in names:
        for _ in copy(Path("/usr/share/doc", name, "copyright"), root):
            pass


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
