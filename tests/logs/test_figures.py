from vllm_vitals.logs.response_figures import NOTHING, ROWS_A_LOOK, FigureCache, figures_of
from vllm_vitals.logs.window import CAPACITY, ResponseWindow

NOW = 1_790_000_000.0


def window(rows: int, output: int = 100, at: float = NOW) -> ResponseWindow:
    one = ResponseWindow()
    for _ in range(rows):
        one.add(at, 0.02, output, False, None, None)
    return one


def test_a_look_computes_a_bounded_number_of_rows_and_gets_round_to_every_series() -> None:
    series = {number: (window(CAPACITY),) for number in range(40)}
    cache, looks = FigureCache(), 0
    while True:
        looks += 1
        found = cache.look(series, NOW, 600.0)
        for one, *_ in series.values():  # a busy log: everything changes between two looks
            one.add(NOW, 0.02, 100, False, None, None)
        if NOTHING not in found.values():
            break
    assert looks == 40 * CAPACITY // ROWS_A_LOOK
    assert {one.recent for one in found.values()} == {CAPACITY}


def test_figures_change_with_new_rows_and_with_rows_that_grow_old() -> None:
    one = window(30)
    cache = FigureCache()
    assert cache.look({"a": (one,)}, NOW, 600.0)["a"] == figures_of(one.since(NOW - 600.0))
    for _ in range(30):
        one.add(NOW + 300, 0.04, 200, True, None, None)
    both = cache.look({"a": (one,)}, NOW + 300, 600.0)["a"]
    assert (both.recent, both.output_mean.value, both.truncated.value) == (60, 150.0, 0.5)
    late = cache.look({"a": (one,)}, NOW + 601, 600.0)["a"]
    assert (late.recent, late.output_mean.value) == (30, 200.0)
    assert cache.look({"a": (one,)}, NOW + 901, 600.0)["a"].recent == 0
    assert cache.look({}, NOW + 901, 600.0) == {}


def test_what_has_not_changed_is_not_computed_again() -> None:
    quiet, cache = {number: (window(CAPACITY),) for number in range(16)}, FigureCache()
    for _ in range(16 * CAPACITY // ROWS_A_LOOK):
        cache.look(quiet, NOW, 600.0)
    late = {"late": (window(30),), **quiet}
    found = cache.look(late, NOW + 1, 600.0)
    assert found["late"].recent == 30
    assert {one.recent for key, one in found.items() if key != "late"} == {CAPACITY}
