"""What a script does to one engine, as calls of it.

Input: an action and an engine. Output: the engine, changed. Invariant: what concerns the server or its clients is
`world`'s affair and is refused here.
"""

from vllm_vitals.simulator.engine import Engine
from vllm_vitals.simulator.scenario import Accept, Action, Freeze, HoldKv, LeakKv, Sleep, Slow


def act_on(engine: Engine, rank: int, action: Action) -> None:
    """Do to the engine of this rank what the action says. Raises TypeError for one that no engine knows."""
    match action:
        case Sleep():
            engine.stats.sleep_level = action.level
        case Freeze():
            engine.freeze()
        case Slow():
            if action.rank in (None, rank):
                engine.slow(action.factor)
        case HoldKv():
            engine.hold(action.share)
        case LeakKv():
            engine.leak(action.blocks)
        case Accept():
            engine.accept(action.chance)
        case _:
            raise TypeError(f"{type(action).__name__} is nothing that an engine does")
