"""A pause that a restart ends while the new server has answered nothing yet, and an order that nobody saw."""

import re

from tests.cases.edit import Server
from vllm_vitals.core.snapshot import EngineSnapshot
from vllm_vitals.core.states import State


class Orders:
    """The HTTP counters of the page: so many calls of each route, none where a new server has answered nothing."""

    def __init__(self) -> None:
        self.calls: dict[str, int] = {}

    def __call__(self, text: str) -> str:
        rows = [f'http_requests_total{{handler="{h}",method="POST",status="2xx"}} {n}' for h, n in self.calls.items()]
        bare = re.sub(r"^(# \w+ )?http_requests_total.*\n?", "", text, flags=re.M)
        return bare + ("\n".join(["# TYPE http_requests_total counter", *rows, ""]) if rows else "")


FROZEN = {"running": 8.0, "waiting": 3.0, "kv_usage": 0.4}


def paused() -> tuple[Server, Orders]:
    orders = Orders()
    orders.calls["/v1/completions"] = 1
    server = Server("recordings/same_load_reserved", orders)
    server.healthy(60)
    orders.calls["/pause"] = 1
    assert server.run(100, **FROZEN)[-1] is State.PAUSED
    return server, orders


def test_a_restart_ends_a_pause_before_the_new_server_has_answered_anything() -> None:
    server, orders = paused()
    server.miss("refused", 6)
    orders.calls.clear()
    server.restart()
    assert State.PAUSED not in server.run(30, running=0.0, waiting=0.0)[1:]
    assert server.healthy(60)[-1] is State.HEALTHY


def test_a_page_that_drops_its_http_counters_ends_no_pause_and_a_token_does() -> None:
    server, orders = paused()
    orders.calls.clear()
    assert server.run(60, **FROZEN)[-1] is State.PAUSED
    assert server.healthy(60)[-1] is State.HEALTHY


def test_a_freeze_after_pause_and_resume_within_one_interval_says_what_nobody_saw() -> None:
    server, orders = paused()
    orders.calls |= {"/pause": 2, "/resume": 1}
    server.run(100, **FROZEN)
    engine: EngineSnapshot = server.engine
    assert engine.state is State.STALLED
    assert any("GET /is_paused tells" in note for note in engine.unknown)
