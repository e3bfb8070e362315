"""Preview of a change in place: its steps, and the moves of each.

Here: steps and their numbers as plain data. Not here: how they are found (`contract.transition`),
the process that carries them out.
"""

from typing import Any

from triton_backend.contract.plan import Plan
from triton_backend.contract.transition.memory import GpuPeak, transition
from triton_backend.contract.transition.steps import steps
from triton_backend.runtimes.stage_tensors import complete_tensors


def preview(in_force: Plan, plan: Plan, *, at_once: bool = False) -> list[dict[str, Any]]:
    """The steps of a change, in order; with `at_once` it has one.

    Returns:
        per step `plan_id`, `fullest` (the GPU with the least memory left, None where none is known)
        and what `Transition.to_dict` has.

    Raises:
        InputError: GPUs cannot hold old and new together, not even step by step.
    """
    found: list[dict[str, Any]] = []
    before = complete_tensors(in_force)
    for following in steps(before, complete_tensors(plan, before), at_once=at_once):
        change = transition(before, following)
        known = [gpu for gpu in change.gpus if gpu.memory_gib is not None]
        fullest = max(known, key=_filled, default=None)
        found.append(
            {
                "plan_id": following.plan_id,
                "fullest": None if fullest is None else fullest.to_dict(),
                **change.to_dict(),
            }
        )
        before = following
    return found


def _filled(gpu: GpuPeak) -> float:
    return gpu.during_gib / (gpu.memory_gib or float("inf"))
