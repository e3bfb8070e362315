"""The newest profiles held against the plan in force: is it older than its data?"""

from pathlib import Path

from flows.planning.verify.profiled import profiled_ratios
from flows.release.rollout.generations import plan_in_force
from flows.release.server.running import ServerError
from flows.workspace import Workspace
from triton_backend.contract.errors import InputError
from triton_backend.contract.plan import Plan
from triton_backend.serve_folder.newest_profiles import write_ratios
from warehouse.profiles import read_profiles


def note_newest_profiles(work: Workspace, folder: Path) -> None:
    """Note them in the serve folder; nothing where no system runs or its models are not known."""
    try:
        plan = plan_in_force(folder)
        write_ratios(folder, plan.plan_id, newest_ratios(work, plan))
    except (InputError, ServerError, OSError, ValueError):
        return


def newest_ratios(work: Workspace, plan: Plan) -> dict[str, float]:
    """Latencies of the newest profiles, over those in a plan, by pool (`profiled_ratios`).

    Raises:
        InputError: a model is not in the warehouse, or was not profiled.
    """
    classes = [one.name for one in plan.cluster.gpu_classes]
    with work.open(read_only=True) as warehouse:
        profiles, _ = read_profiles(warehouse, [model.name for model in plan.models], classes)
    return profiled_ratios(plan, profiles)
