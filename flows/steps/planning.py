"""A plan made from the warehouse's profiles, stored there, and made ready to be served."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from flows.clock import now_utc
from flows.device_class import DeviceClass
from flows.files import read_device_classes
from flows.planning import PlanOptions, make_plan
from flows.planning.decode import plan_identity
from flows.planning.robust import make_robust_plan
from flows.planning.verify import verify_plan
from flows.release.running import read_state
from flows.steps.boundaries import as_measured
from flows.steps.prepare import build_stages, read_split
from flows.steps.workspace import Workspace
from triton_backend.core.cluster import Cluster
from triton_backend.core.errors import InputError, InvariantError
from triton_backend.core.plan import ModelPlan, Pipeline, Plan
from triton_backend.core.profiles import ModelProfile
from triton_backend.core.workload import Workload
from warehouse.plans import add_plan, read_plan
from warehouse.profiles import read_profiles


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """A stored plan, and what was left out or odd about its profiles."""

    plan: Plan
    warnings: tuple[str, ...]


def load_profiles(
    work: Workspace, cluster: Cluster, workload: Workload
) -> tuple[dict[str, ModelProfile], list[str]]:
    """Profiles of the workload's models on the cluster's classes, boundaries as measured.

    Raises:
        InputError: a model is not in the warehouse or was not profiled on any of the classes.
    """
    names = [model.name for model in workload.models]
    classes = [gpu_class.name for gpu_class in cluster.gpu_classes]
    with work.open(read_only=True) as warehouse:
        profiles, warnings = read_profiles(warehouse, names, classes)
        for name in names:
            profiles[name], more = as_measured(work, warehouse, profiles[name])
            warnings += more
        return profiles, warnings


def plan_step(
    work: Workspace,
    cluster: Cluster,
    workload: Workload,
    options: PlanOptions,
    *,
    robust: bool = False,
) -> Planned:
    """Plan, verify against the profiles, and store; `robust` chooses margins by simulation.

    Raises:
        InputError: the inputs do not fit, or no plan can meet an SLO.
        InvariantError: the plan's own numbers do not follow from the profiles.
    """
    profiles, warnings = load_profiles(work, cluster, workload)
    make = make_robust_plan if robust else make_plan
    plan = make(profiles, cluster, workload, options)
    differences = verify_plan(plan, profiles)
    if differences:
        raise InvariantError(f"plan {plan.plan_id} does not verify: {differences[0]}")
    store_plan(work, plan)
    return Planned(plan=plan, warnings=tuple(warnings))


def store_plan(work: Workspace, plan: Plan) -> None:
    """Store a plan under its id."""
    with work.open() as warehouse:
        add_plan(warehouse, plan, now_utc())


def attach_artifacts(work: Workspace, plan: Plan, classes: Mapping[str, DeviceClass]) -> Plan:
    """The same plan with every stage built for its CPU class and named; stored under its new id.

    Raises:
        InputError: a model was never split here, or a class has no runtime.
    """
    models = tuple(_with_artifacts(work, model, classes) for model in plan.models)
    plan = replace(plan, models=models)
    plan = replace(plan, plan_id=plan_identity(plan))
    store_plan(work, plan)
    return plan


def _with_artifacts(
    work: Workspace, model: ModelPlan, classes: Mapping[str, DeviceClass]
) -> ModelPlan:
    split = read_split(work, model.name)

    def built(pipeline: Pipeline) -> Pipeline:
        stages = tuple(
            replace(
                stage,
                artifact=build_stages(work, split, [stage.blocks], classes[stage.gpu_class])[
                    stage.blocks
                ].key,
            )
            for stage in pipeline.stages
        )
        return replace(pipeline, stages=stages)

    return replace(model, pipelines=tuple(built(pipeline) for pipeline in model.pipelines))


def find_plan(work: Workspace, plan_id: str) -> Plan:
    """A stored plan by its id or the beginning of it.

    Raises:
        InputError: none or several fit.
    """
    with work.open(read_only=True) as warehouse:
        return read_plan(warehouse, plan_id)


def served_plan_id(work: Workspace) -> str | None:
    """The plan in force on the system served from this project; None where nothing is served."""
    try:
        return str(read_state(work.state.serve).control("status")["plan_id"])
    except InputError:
        return None


def attach_devices(work: Workspace, plan: Plan, cluster: Path) -> Plan:
    """`attach_artifacts` with the runtimes a cluster.yaml states; a plan without any is emulated.

    Raises:
        InputError: as `attach_artifacts`, or some of the plan's classes state no runtime.
    """
    devices = read_device_classes(cluster)
    if not devices:
        return plan
    used = {s.gpu_class for m in plan.models for p in m.pipelines for s in p.stages}
    if used - devices.keys():
        missing = ", ".join(sorted(used - devices.keys()))
        raise InputError(str(cluster), f"{missing}: no `runtime`, while other classes state one")
    return attach_artifacts(work, plan, devices)
