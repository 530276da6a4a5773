"""Play days of the public traces (``make traces``); print the table of docs/simulator.md. Fails where a fact does."""

import sys

from tests.traces.cases import DAYS, OURS, present
from tests.traces.harness import HEADER, PUBLIC, row, run
from tests.traces.test_traces import check


def main() -> int:
    cases, failed = present((*OURS, *DAYS)), 0
    if len(cases) == len(OURS):
        print(f"no public traces in {PUBLIC}: set PUBLIC_TRACES to their folder", file=sys.stderr)
    print(HEADER)
    for case in cases:
        outcome = run(case)
        print(row(case, outcome), flush=True)
        try:
            check(case, outcome)
        except AssertionError as error:
            print(f"{case.name}, {case.load}: {error}", file=sys.stderr)
            failed = 1
    return failed


if __name__ == "__main__":
    sys.exit(main())
