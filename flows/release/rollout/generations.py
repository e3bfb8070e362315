"""Plans of the generations that a serve folder keeps: in force, before it, never served."""

import json
from collections.abc import Iterator
from pathlib import Path

from flows.release.server.running import read_state
from triton_backend.contract.plan import Plan
from triton_backend.serve_folder.repository import rendered_generations

NEVER_SERVED_NAME = "never-served"  # in the folder of a generation whose change was undone


def plan_in_force(folder: Path) -> Plan:
    """The plan that the system served from a folder carries out, with its artifacts.

    Raises:
        InputError: nothing is being served there.
        ServerError: it does not answer.
    """
    status = read_state(folder).control("status")
    return plan_of_generation(folder, int(status["generation"]))


def plan_served_before(folder: Path, plan_id: str) -> Plan | None:
    """The newest plan of this id before the one in force, with the artifacts that it had then.

    Of the same id as that in force it is one of other artifacts. None where none is kept.

    Raises:
        InputError: nothing is being served there.
        ServerError: it does not answer.
    """
    generation = int(read_state(folder).control("status")["generation"])
    in_force = plan_of_generation(folder, generation)
    before = (one for one in _served_before(folder, generation) if one.plan_id == plan_id)
    return next((one for one in before if not is_same_plan(one, in_force)), None)


def _served_before(folder: Path, in_force: int) -> Iterator[Plan]:
    """Plans that were in force before a generation, the newest first, as far as they are kept."""
    for generation in reversed(rendered_generations(folder)):
        place = folder / "generations" / str(generation)
        begun = (place / "plan.json").exists() and not (place / NEVER_SERVED_NAME).exists()
        if generation < in_force and begun:
            yield plan_of_generation(folder, generation)


def note_never_served(folder: Path, generation: int) -> None:
    """Mark a generation whose change was undone, which is no plan to go back to."""
    place = folder / "generations" / str(generation)
    if place.is_dir():  # else the change failed before it was written
        (place / NEVER_SERVED_NAME).touch()


def plan_of_generation(folder: Path, generation: int) -> Plan:
    """The plan of a generation, as it was written into the serve folder."""
    path = folder / "generations" / str(generation) / "plan.json"
    return Plan.from_dict(json.loads(path.read_text()))


def is_same_plan(one: Plan, other: Plan) -> bool:
    """True if two plans decide the same and carry it out with the same artifacts."""
    return (one.plan_id, _artifacts(one)) == (other.plan_id, _artifacts(other))


def _artifacts(plan: Plan) -> list[str | None]:
    return [s.artifact for m in plan.models for p in m.pipelines for s in p.stages]
