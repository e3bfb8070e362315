"""Files of the project that commands read and write: plans, profiles, runs.

Complaints name the file and field at fault.
"""

import re
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from flows.cli.console import note
from flows.clock import now_utc
from flows.files import read_yaml, write_plan
from flows.workspace import Workspace, find_plan, is_plan_file, workspace
from triton_backend.contract.cluster import Cluster
from triton_backend.contract.errors import InputError
from triton_backend.contract.plan import Plan
from triton_backend.contract.workload import Workload
from warehouse import plans, runs
from warehouse.db import open_warehouse

_MODEL = re.compile(r"(?:workload )?model '([^']+)'")


def the_plan(argument: str | None, option: str | None, warehouse: Path) -> Plan:
    """The plan that a command line names, as its argument or by `--plan`.

    Raises:
        InputError: it names none or two, or the plan is not there.
    """
    return find_plan(workspace(warehouse), plan_text(argument, option))


def plan_text(argument: str | None, option: str | None) -> str:
    """The argument that names the plan on a command line.

    Raises:
        InputError: nothing does, or both do.
    """
    if argument is not None and option is not None:
        raise InputError("--plan", f"{option!r}, but PLAN is {argument!r}; name one plan")
    text = argument if option is None else option
    if not text:  # a script's variable may be empty, and every id begins with nothing
        raise InputError("PLAN", "name a plan.json, the id of a stored plan, or its beginning")
    return text


def plan_file(work: Workspace, text: str) -> Path:
    """A file of the plan named: the one named, or one written for a stored plan.

    Raises:
        InputError: no such plan.
    """
    if is_plan_file(text):
        return Path(text)
    plan = find_plan(work, text)
    path = work.state.reports / f"plan-{plan.plan_id}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    write_plan(path, plan)
    return path


def require(warehouse: Path) -> Path:
    """The same path, where a warehouse is.

    Raises:
        InputError: none is there.
    """
    if not warehouse.exists():
        raise InputError(str(warehouse), "no such warehouse")
    return warehouse


@contextmanager
def naming(cluster: Path, workload: Path) -> Generator[None]:
    """Complaints about a cluster or a workload also name its file.

    Raises:
        InputError: whatever is raised inside.
    """
    try:
        yield
    except InputError as error:
        if error.where.startswith(("workload", "model ", "application ")):
            raise InputError(str(workload), str(error)) from error
        if error.where.startswith(("cluster", "gpu_classes", "nodes")):
            raise InputError(str(cluster), str(error)) from error
        raise


def check_known(
    work: Workspace, files: tuple[Path, Path], contents: tuple[Cluster, Workload]
) -> None:
    """Check that the warehouse knows all models and classes of (cluster, workload).

    Raises:
        InputError: one is not; named with the file and field that name it.
    """
    from flows.planning.stored_plans import load_profiles

    cluster, workload = contents
    try:
        profiles, _ = load_profiles(work, cluster, workload)
    except InputError as error:
        raise _placed(error, files[1], workload) from error
    measured = {gpu_class for profile in profiles.values() for gpu_class in profile.classes}
    for gpu_class in cluster.gpu_classes:
        if cluster.gpus(gpu_class.name) and gpu_class.name not in measured:
            raise InputError(
                f"{files[0]}, gpu_classes.{gpu_class.name}",
                f"no model of {files[1]} was profiled on it; of the cluster's classes,"
                f" {', '.join(sorted(measured))} were",
            )


def _placed(error: InputError, file: Path, workload: Workload) -> InputError:
    """The same complaint with the field of the workload that names the model."""
    about = _MODEL.fullmatch(error.where)
    steps = [step.name for step in workload.steps]
    if about is not None and about[1] in steps:
        where = f"{file}, steps[{steps.index(about[1])}].name"
        return InputError(where, f"{error}; `poolpipe steps` prepares it, `profile` measures it")
    if about is None:
        return error
    names = [model.get("name") for model in read_yaml(file).get("models") or ()]
    for model in workload.models:  # of several by one name the file has one entry
        listed = model.name if model.name in names else model.size_of
        if model.name == about[1] and listed in names:
            field = ".name" if listed == model.name else ""
            return InputError(f"{file}, models[{names.index(listed)}]{field}", str(error))
    places = [
        f"{file}, {application.name!r}, {module.name}"
        for application in workload.applications
        for module in application.modules
        if module.model == about[1]
    ]
    known = f"; steps of the file: {', '.join(steps)}" if steps else ""
    return InputError(places[0], f"{error}{known}") if places else error


def keep_run(
    warehouse: Path, kind: str, plan: Plan, documents: tuple[Mapping[str, Any], Mapping[str, Any]]
) -> str | None:
    """Keep (options, result) of a finished run, and its plan, where there is a warehouse.

    One that is in use or cannot be written does not spoil the run: a note says so.

    Returns:
        the run's id; None where it was not kept.
    """
    if not warehouse.exists():
        return None
    try:
        with open_warehouse(warehouse) as store, store.transaction():
            plans.add_plan(store, plan, now_utc())
            return runs.add_run(store, kind, plan.plan_id, documents, now_utc())
    except InputError as error:
        note(f"not stored: {error}")
    except OSError as error:
        note(f"not stored: {error.filename}: {error.strerror}")
    return None
