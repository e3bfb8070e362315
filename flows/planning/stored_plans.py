"""A plan made from the warehouse's profiles, stored there, and made ready to be served."""

from dataclasses import dataclass
from pathlib import Path

from flows.files import read_given_inputs
from flows.input_shapes import read_shapes
from flows.planning import PlanOptions, make_plan
from flows.planning.inputs import unlike_weights
from flows.planning.promises.attainment import with_attainment
from flows.planning.robust import make_robust_plan
from flows.planning.verify.numbers import verify_plan
from flows.planning.watch import Watch
from flows.preparation.profiling.boundaries import as_measured
from flows.workspace import Workspace, store_plan
from triton_backend.contract.cluster import Cluster
from triton_backend.contract.errors import InputError, InvariantError
from triton_backend.contract.plan import Plan
from triton_backend.contract.profiles import InterferenceModel, ModelProfile
from triton_backend.contract.workload import Workload, lines_of
from warehouse.profiles import find_model, read_interference, read_profiles


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
    names = [line.name for line in lines_of(workload)]
    classes = [gpu_class.name for gpu_class in cluster.gpu_classes]
    with work.open(read_only=True) as warehouse:
        profiles, warnings = read_profiles(warehouse, names, classes)
        for name in names:
            profiles[name], more = as_measured(work, warehouse, profiles[name])
            warnings += more
        return profiles, warnings


def check_given_shapes(work: Workspace, path: Path) -> None:
    """Hold the `input_shapes` of a workload.yaml against the models as they were split.

    Raises:
        InputError: a model is not in the warehouse, has no such input, or was split for another
            size; named with the file.
    """
    given = {name: inputs.shapes for name, inputs in read_given_inputs(path).items()}
    for name, texts in given.items():
        if not texts:
            continue
        where = f"{path}, model {name!r}"
        with work.open(read_only=True) as warehouse:
            try:
                inputs = find_model(warehouse, name).inputs
            except InputError as error:
                raise InputError(where, error.reason) from error
        known = {spec.name: spec.shape[1:] for spec in inputs}
        for tensor, sizes in read_shapes(texts, f"{where}, input_shapes").items():
            if tensor not in known:
                raise InputError(where, f"has no input {tensor!r}; its inputs: {', '.join(known)}")
            if tuple(known[tensor]) != sizes:
                split = "x".join(map(str, known[tensor]))
                asked = "x".join(map(str, sizes))
                reason = f"was split for {tensor}={split}, not {asked}; split it again"
                raise InputError(where, reason)


def load_interference(work: Workspace) -> dict[str, InterferenceModel]:
    """How parts of a GPU slow each other down, by class, where that was fitted or imported."""
    with work.open(read_only=True) as warehouse:
        return read_interference(warehouse)


def plan_step(
    work: Workspace,
    cluster: Cluster,
    workload: Workload,
    options: PlanOptions,
    *,
    robust: bool = False,
    watch: Watch | None = None,
) -> Planned:
    """Plan, verify against the profiles, simulate, and store; `robust` chooses margins so, too.

    Raises:
        InputError: the inputs do not fit, no plan can meet an SLO, or it could not be stored.
        InvariantError: the plan's own numbers do not follow from the profiles.
    """
    profiles, warnings = load_profiles(work, cluster, workload)
    warnings = (*warnings, *unlike_weights(workload, options.objective))
    known = load_interference(work)
    with work.open():  # a plan that could not be stored is not looked for
        pass
    if watch is not None:
        watch.begin()
    if robust:
        plan = make_robust_plan(profiles, cluster, workload, options, interference=known)
    else:
        plan = make_plan(profiles, cluster, workload, options, watch, interference=known)
    differences = verify_plan(plan, profiles)
    if differences:
        raise InvariantError(f"plan {plan.plan_id} does not verify: {differences[0]}")
    plan = with_attainment(plan)
    store_plan(work, plan)
    return Planned(plan=plan, warnings=warnings)
