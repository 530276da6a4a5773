"""The cases: our own traces, and the public ones where present; an hour each for tests, a day for `make traces`."""

from tests.traces.harness import LONG, OWN, PUBLIC, Case

_CONV, _CODE = PUBLIC / "azure2023_conv.csv.gz", PUBLIC / "azure2023_code.csv.gz"
_MOONCAKE = PUBLIC / "mooncake_conversation.jsonl.gz"

# Ten minutes of our own again and again.
OURS = (
    Case("comfortable", OWN / "azure.csv.gz", 1.0, 0.5),
    Case("tight", OWN / "azure.csv.gz", 6.0, 0.5),
    Case("overloaded", OWN / "azure.csv.gz", 12.0, 0.5),
    Case("comfortable", OWN / "mooncake.jsonl", 1.0, 0.5, LONG),
    Case("overloaded", OWN / "mooncake.jsonl", 40.0, 0.5, LONG),
)
HOURS = (
    Case("comfortable", _CONV, 1.0, 1.0),
    Case("tight", _CONV, 2.0, 1.0),
    Case("overloaded", _CONV, 3.0, 1.0),
    Case("overloaded", _CONV, 4.0, 1.0),
    Case("comfortable", _CODE, 0.25, 1.0),
    Case("tight", _CODE, 1.0, 1.0),
    Case("overloaded", _CODE, 6.0, 1.0),
    Case("comfortable", _MOONCAKE, 0.1, 1.0, LONG),
    Case("tight", _MOONCAKE, 0.3, 1.0, LONG),
    Case("overloaded", _MOONCAKE, 0.7, 1.0, LONG),
)
DAYS = (
    Case("comfortable", _CONV, 1.0, 24.0),
    Case("tight", _CONV, 2.0, 24.0),
    Case("overloaded", _CONV, 3.0, 4.0),
    Case("comfortable", _CODE, 0.25, 24.0),
    Case("tight", _CODE, 1.0, 24.0),
    Case("overloaded", _CODE, 6.0, 4.0),
    Case("comfortable", _MOONCAKE, 0.1, 24.0, LONG),
    Case("tight", _MOONCAKE, 0.3, 24.0, LONG),
    Case("overloaded", _MOONCAKE, 0.7, 4.0, LONG),
)


def present(cases: tuple[Case, ...]) -> list[Case]:
    """Return those whose file is here."""
    return [case for case in cases if case.path.exists()]
