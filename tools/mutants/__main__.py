"""Mutation testing of the core: which small faults would no test notice?

`make mutants`, or `python tools/mutants [MODULE...] [--sample N] [--seed S] [--minutes M] [--jobs J]`. Output: every
survivor that `survivors.txt` does not list with a reason, and how many were killed; exit code 1 where such there are
or fewer than 95 % are killed. Nothing in the working tree is touched: in a copy of it the tests are imported once, a
child is forked for each mutant, and the mutated code is put into its functions in memory. A mutant meets only the
tests that reach its lines (one traced run finds them), the fast ones first, until one fails. What a module computes at
its import cannot be exchanged later: such mutants are imported anew. Everything is bounded in CPU time, not by the
clock.
"""

import argparse
import os
import random
import shutil
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
sys.path.insert(0, str(HERE))

import forked  # noqa: E402
import mutations  # noqa: E402

CORE = Path("exporter/vllm_vitals/core")
LISTED = HERE / "survivors.txt"
# What judges the core: no other program, no socket, and fast.
TESTS = ("tests/core", "tests/cases", "tests/test_recordings.py", "tests/fleet/test_canary_verdict.py")
WANTED = 0.95


def reasons() -> dict[str, str]:
    """Survivors that are known, by key: blocks of a reason after ``#``, then keys."""
    known, reason = {}, ""
    for line in LISTED.read_text(encoding="utf-8").splitlines() if LISTED.exists() else []:
        if line.startswith("# "):
            reason = line[2:]
        elif line.strip():
            known[line.strip()] = reason
    return known


def chosen(asked: argparse.Namespace) -> list[mutations.Mutant]:
    """The mutants of the modules that were asked for, or a sample of them."""
    core = Path.cwd() / CORE
    files = [path for path in sorted(core.glob("*.py")) if not asked.modules or path.stem in asked.modules]
    unknown = set(asked.modules) - {path.stem for path in files}
    if unknown:
        raise SystemExit(f"mutants: no such module in {CORE}: {', '.join(sorted(unknown))}")
    found = [mutant for path in files for mutant in mutations.mutants(path, f"vllm_vitals.core.{path.stem}")]
    if asked.match:
        found = [mutant for mutant in found if asked.match in mutant.key]
    if asked.sample and asked.sample < len(found):
        found = sorted(random.Random(asked.seed).sample(found, asked.sample), key=lambda mutant: mutant.key)  # noqa: S311
    return found


def main() -> int:
    """Run what was asked for."""
    parser = argparse.ArgumentParser(prog="mutants", description="Which small faults of the core no test notices.")
    parser.add_argument("modules", nargs="*", help="of core/, all by default")
    parser.add_argument("--sample", type=int, default=0, metavar="N", help="so many of them, chosen by --seed")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--minutes", type=float, default=120.0, help="begin no mutant after so long")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--tests", nargs="+", default=TESTS, metavar="PATH")
    parser.add_argument("--match", default="", metavar="TEXT", help="only mutants whose key holds it")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:  # a copy, so that edits meanwhile change nothing, nor do we
        shutil.copytree(ROOT, folder, ignore=shutil.ignore_patterns(".*", "__pycache__"), dirs_exist_ok=True)
        os.chdir(folder)
        sys.path[:0] = [f"{folder}/exporter", folder]
        os.environ["HYPOTHESIS_STORAGE_DIRECTORY"] = f"{folder}/.hypothesis"
        return run(asked)


def run(asked: argparse.Namespace) -> int:
    """Judge the mutants that were asked for and report."""
    until, found = time.monotonic() + asked.minutes * 60, chosen(asked)
    print(f"{len(found)} mutants", flush=True)
    outcomes, passing = forked.judge(found, asked.tests, asked.jobs, until)
    found_wrong = report(found, outcomes, whole=not (asked.modules or asked.sample or asked.match))
    return int(found_wrong or not passing)


def report(found: list[mutations.Mutant], outcomes: dict[str, forked.Outcome], whole: bool) -> bool:
    """Print survivors and counts; whether anything is wrong."""
    known, judged = reasons(), [mutant for mutant in found if mutant.key in outcomes]
    survivors = [mutant.key for mutant in judged if not outcomes[mutant.key].killed]
    surprising = [key for key in survivors if key not in known]
    for key in survivors:
        print(f"survives  {key}" + (f"  ({known[key]})" if key in known else f"  [{outcomes[key].why}]"))
    gone = set(known) - {mutant.key for mutant in found} if whole else set()
    better = [mutant.key for mutant in judged if outcomes[mutant.key].killed and mutant.key in known]
    for key in sorted(gone):
        print(f"listed, but there is no such mutant: {key}")
    for key in better:
        print(f"listed, but killed: {key}")
    killed = len(judged) - len(survivors)
    share = killed / len(judged) if judged else 1.0
    print(
        f"{len(judged)} of {len(found)} mutants tried: {killed} killed ({share:.1%}), {len(survivors)} survive, "
        f"{len(survivors) - len(surprising)} of them listed in {LISTED.relative_to(ROOT)} with a reason"
    )
    return bool(surprising or gone or better) or share < WANTED


if __name__ == "__main__":
    sys.exit(main())
