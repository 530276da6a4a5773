"""Some worlds of the truth gate: nothing, an engine that does not move, ten engines' week. `make gate` asks in all."""

from tests.dashboards import gate
from tests.programs import find


def test_the_dashboards_tell_the_truth_in_these_worlds() -> None:
    find("prometheus"), find("promtool")
    asked = {(world, what): faults for world, what, faults in gate.worlds(whole=False)}
    assert {at: faults for at, faults in asked.items() if faults} == {}
    assert len(asked) >= 10
    [wide] = {world for world, _ in asked if "20 models" in world and "5 min" in world}
    assert (wide, "legends keep their numbers, at most 12 lines") in asked
    assert ("10 engines, 7 d", "no spell is lost") in asked
