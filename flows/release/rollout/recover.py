"""A running system brought back to one plan after a rollout was cut off at whatever step.

The scheduler's own state decides: until its swap the old plan is in force, after it the new one.
What belongs to another generation is unloaded and removed. Doing it twice changes nothing.
"""

import contextlib
import json
import time
from pathlib import Path
from typing import Any

from flows.clock import Stopwatch
from flows.names import RESERVED_PREFIX
from flows.release.render.repository import (
    node_generation,
    remove_model,
    render_control,
    render_front,
)
from flows.release.rollout.hosts import OtherHosts
from flows.release.server.running import ServerError, ServerState, note_plan, read_state
from triton_backend.contract.plan import Plan

# A gateway that was killed is loaded again within seconds; meanwhile nobody knows what is served.
GATEWAY_SECONDS = 60.0
POLL_SECONDS = 0.1


def recover(folder: Path) -> str:
    """Undo or finish what an interrupted rollout left; returns the id of the plan in force.

    Raises:
        InputError: nothing is being served from `folder`.
        ServerError: the system does not answer for a minute.
    """
    state = read_state(folder)
    status = _status(state)
    if status["state"] != "serving" or status["prepared"]:
        prepared = status["prepared"] or {}
        state.control("abort", plan_id=prepared.get("plan_id", ""))
        status = state.control("status")
    generation = int(status["generation"])
    plan_path = folder / "generations" / str(generation) / "plan.json"
    plan = Plan.from_dict(json.loads(plan_path.read_text()))
    for entry in sorted((folder / "repository").iterdir()):
        if _left_over(entry.name, generation, {model.name for model in plan.models}):
            with contextlib.suppress(ServerError):  # it may never have been loaded
                state.unload(entry.name)
            remove_model(folder, entry.name)
    OtherHosts.of(state).tidy(plan, generation)
    render_control(folder, generation)
    for model in plan.models:
        render_front(folder, model, generation)
    note_plan(folder, plan.plan_id, generation)
    return plan.plan_id


def _left_over(name: str, generation: int, served: set[str]) -> bool:
    """Whether a model of the repository belongs to a plan that is not in force."""
    of_node = node_generation(name)
    if of_node is not None:
        return of_node != generation
    return not name.startswith(RESERVED_PREFIX) and name not in served


def _status(state: ServerState) -> dict[str, Any]:
    """What the gateway says, waiting for one that is being loaded again."""
    watch = Stopwatch()
    while True:
        try:
            return state.control("status")
        except ServerError:
            if watch.seconds() > GATEWAY_SECONDS:
                raise
        time.sleep(POLL_SECONDS)
