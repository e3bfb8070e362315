"""A running system brought back to one plan after a rollout was cut off at whatever step.

The scheduler's own state decides: until its swap the old plan is in force, after it the new one.
What belongs to another generation is unloaded and removed. Doing it twice changes nothing.
"""

import contextlib
import json
import re
from pathlib import Path

from flows.release.admin import ServerError, note_plan, read_state
from flows.release.render import remove_model, render_control, render_front
from triton_backend.core.plan import Plan

_NODE_MODEL = re.compile(r"poolpipe_node_.+_g(\d+)")


def recover(folder: Path) -> str:
    """Undo or finish what an interrupted rollout left; returns the id of the plan in force.

    Raises:
        InputError: nothing is being served from `folder`.
        ServerError: the system does not answer.
    """
    state = read_state(folder)
    status = state.control("status")
    if status["state"] != "serving" or status["prepared"]:
        prepared = status["prepared"] or {}
        state.control("abort", plan_id=prepared.get("plan_id", ""))
        status = state.control("status")
    generation = int(status["generation"])
    plan_path = folder / "generations" / str(generation) / "plan.json"
    plan = Plan.from_dict(json.loads(plan_path.read_text()))
    for entry in sorted((folder / "repository").iterdir()):
        node = _NODE_MODEL.fullmatch(entry.name)
        if node and int(node[1]) != generation:
            with contextlib.suppress(ServerError):  # it may never have been loaded
                state.unload(entry.name)
            remove_model(folder, entry.name)
    render_control(folder, generation)
    for model in plan.models:
        render_front(folder, model, generation)
    note_plan(folder, plan.plan_id, generation)
    return plan.plan_id
