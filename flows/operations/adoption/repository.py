"""A Triton model repository turned into the project's models, `cluster.yaml` and `workload.yaml`.

Nothing in the repository changes. A model that cannot be split is left beside the plan, with the
reason; of Python models that ensembles call a copy runs as a step. Here: splitting, steps, and the
two files as plain data. Not here: reading configurations (`flows.preparation.triton_repository`),
profiling and planning (`comparison`).
"""

import os
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from flows.operations.adoption.applications import from_ensemble
from flows.preparation.profiling.devices import list_devices, propose_cluster
from flows.preparation.splitting.inputs.sizes import fix_sizes, open_inputs
from flows.preparation.splitting.loading import load_skeleton
from flows.preparation.splitting.split import SplitChoices
from flows.preparation.splitting.stored_split import split_step
from flows.preparation.steps.given import GivenStep, stated_tensor
from flows.preparation.steps.prepare import prepare_steps
from flows.preparation.triton_repository.python_models import stated_step, write_step
from flows.preparation.triton_repository.repository import (
    APPLICATION,
    BESIDE,
    CONFIGURATION,
    MODEL,
    Found,
)
from flows.workspace import Workspace
from triton_backend.contract.errors import InputError
from triton_backend.contract.tensors import TensorSpec
from triton_backend.contract.units import us_to_ms

CPU_CLASS = "cpu"
STEPS_FOLDER = "steps"  # beside workload.yaml
_SHOWN = 3  # reasons in a complaint


@dataclass(frozen=True, slots=True, kw_only=True)
class Objectives:
    """Targets that a repository does not state.

    Attributes:
        slo_us: of every model whose configuration has no default timeout, by name; `*`: of all.
        rate_rps: by name; a model without one is planned for as much as the GPUs carry.
    """

    slo_us: Mapping[str, int]
    rate_rps: Mapping[str, float]

    def slo_of(self, found: Found) -> int:
        """The SLO (µs): as given by name, else Triton's timeout, else that of all."""
        return self.slo_us.get(found.name, found.timeout_us or self.slo_us["*"])


def without_broken_ensembles(found: Sequence[Found]) -> tuple[Found, ...]:
    """The same; ensembles whose tensors do not fit together are left beside, with the reason."""
    after: list[Found] = []
    for each in found:
        reason = ""
        if each.kind == APPLICATION:
            try:
                from_ensemble(each.message, each.name, 1)
            except InputError as error:
                reason = str(error)
            reason = reason or _lacking(each, {one.name: one for one in found})
        after.append(replace(each, kind=BESIDE, reason=reason) if reason else each)
    return tuple(after)


def _lacking(ensemble: Found, known: Mapping[str, Found]) -> str:
    """A tensor of an ensemble's step that its model's configuration lacks; empty without one."""
    for step in ensemble.message.ensemble_scheduling.step:
        model = known[step.model_name].message
        for side, bound, stated in (
            ("input", step.input_map, model.input),
            ("output", step.output_map, model.output),
        ):
            names = [each.name for each in stated]  # none where Triton completes it
            lost = min(set(bound) - set(names), default=None)
            if names and lost is not None:
                have = ", ".join(names)
                return f"its step {step.model_name} has no {side} {lost!r}: {have}"
    return ""


def split_models(
    work: Workspace,
    found: Sequence[Found],
    *,
    blocks: int,
    output: Path,
    report: Callable[[str], None] = lambda _: None,
) -> tuple[Found, ...]:
    """Split every model to plan, and prepare the steps of applications.

    What cannot be is left beside, with the reason.

    Args:
        work: where models are kept.
        found: the models of the repository.
        blocks: of each model.
        output: folder of workload.yaml, which gets the packages of steps.
        report: called with what is being done.

    Raises:
        InputError: a package is there already.
    """
    after: list[Found] = []
    for each in found:
        if each.kind == MODEL and each.file is not None:
            report(f"splitting {each.name}")
            try:
                choices = SplitChoices(input_shapes=_open_shapes(each))
                split_step(work, each.file, each.name, blocks=blocks, choices=choices)
            except InputError as error:
                after.append(replace(each, kind=BESIDE, reason=str(error)))
                continue
        after.append(each)
    asked = {each.name for each in steps_of(after)}
    after = [_prepared(work, one, output, report) if one.name in asked else one for one in after]
    planned = {each.name for each in after if each.kind == MODEL or each.step is not None}
    return tuple(_without_lost_steps(each, planned) for each in after)


def steps_of(found: Sequence[Found]) -> tuple[Found, ...]:
    """The Python models that applications run as steps."""
    called = {
        step.model_name
        for each in found
        if each.kind == APPLICATION
        for step in each.message.ensemble_scheduling.step
    }
    return tuple(each for each in found if each.step is not None and each.name in called)


def _prepared(work: Workspace, found: Found, output: Path, report: Callable[[str], None]) -> Found:
    """A Python model with its step prepared; without one where it does not run as such."""
    assert found.step is not None
    report(f"preparing {found.name}")
    folder = write_step(found.step, found.message, found.name, output / STEPS_FOLDER)
    stated = stated_step(found.message, found.name, STEPS_FOLDER)

    def tensors(side: str) -> tuple[TensorSpec, ...]:
        return tuple(stated_tensor(found.name, name, text) for name, text in stated[side].items())

    given = GivenStep(
        name=found.name,
        python=stated["python"],
        package=folder.name,
        source=folder,
        inputs=tensors("inputs"),
        outputs=tensors("outputs"),
        max_batch=stated["max_batch"],
    )
    try:
        prepare_steps(work, [given])
    except InputError as error:
        return replace(found, step=None, reason=f"does not run as a step: {error}")
    return replace(found, reason="goes on there; a copy of it runs as a step of the plan")


def _open_shapes(found: Found) -> dict[str, tuple[int, ...]]:
    """Sizes of the configuration for inputs that the ONNX file leaves open.

    Raises:
        InputError: they do not fit the file, or the configuration leaves some open too.
    """
    assert found.file is not None
    where, model = str(found.file), load_skeleton(found.file)
    left_open = open_inputs(model)
    shapes = {name: shape for name, shape in found.shapes.items() if name in left_open}
    try:
        fix_sizes(model, shapes, where)
    except InputError as error:
        if error.where != where:
            raise
        way = "several sizes go under `sizes` in workload.yaml"
        reason = f"{error.reason} to `poolpipe split --name {found.name}`"
        raise InputError(where, f"{reason}: {CONFIGURATION} leaves them open too; {way}") from error
    return shapes


def _without_lost_steps(found: Found, planned: set[str]) -> Found:
    if found.kind != APPLICATION:
        return found
    steps = [step.model_name for step in found.message.ensemble_scheduling.step]
    lost = [name for name in steps if name not in planned]
    if not lost:
        return found
    return replace(found, kind=BESIDE, reason=f"its step {lost[0]} is not planned")


def _check_planned(
    option: str, name: str, planned: Collection[str], beside: Mapping[str, str]
) -> None:
    """Check that a name in an option is one of those that are planned.

    Raises:
        InputError: it is not; with the reason, where it is left beside the plan.
    """
    if name in planned:
        return
    reason = f"{name!r} is not among those to plan: {', '.join(sorted(planned))}"
    if name in beside:
        reason = f"{name!r} is left beside the plan: {beside[name]}"
    raise InputError(option, reason)


def workload_of(found: Sequence[Found], objectives: Objectives) -> dict[str, Any]:
    """The document of `workload.yaml`: models that clients may ask for, and applications.

    Raises:
        InputError: nothing can be planned, or a rate or SLO is given of another name.
    """
    served = [each for each in found if each.kind != BESIDE]
    beside = {each.name: each.reason for each in found if each.kind == BESIDE}
    if not served:
        reasons = "; ".join(f"{name}: {reason}" for name, reason in [*beside.items()][:_SHOWN])
        more = f"; {len(beside) - _SHOWN} more" if len(beside) > _SHOWN else ""
        raise InputError("the repository", f"has no model that can be planned: {reasons}{more}")
    slos = [name for name in objectives.slo_us if name != "*"]
    for option, names in (("--slo", slos), ("--rate", objectives.rate_rps)):
        for name in names:
            _check_planned(option, name, {each.name for each in served}, beside)
    document: dict[str, Any] = {}
    models = [_demand(each, objectives) for each in served if each.kind == MODEL]
    applications = [_application(each, objectives) for each in served if each.kind == APPLICATION]
    if models:
        document["models"] = models
    if applications:
        document["applications"] = applications
    steps = steps_of(found)
    if steps:
        document["steps"] = [stated_step(one.message, one.name, STEPS_FOLDER) for one in steps]
    return document


def _demand(found: Found, objectives: Objectives) -> dict[str, Any]:
    demand: dict[str, Any] = {"name": found.name, "slo_ms": us_to_ms(objectives.slo_of(found))}
    if found.name in objectives.rate_rps:
        demand["rate_rps"] = objectives.rate_rps[found.name]
    return demand


def _application(found: Found, objectives: Objectives) -> dict[str, Any]:
    made = from_ensemble(found.message, found.name, objectives.slo_of(found)).application
    rate = objectives.rate_rps.get(found.name)
    return replace(made, name=found.name, rate_rps=rate).to_dict()


def cluster_of(models: int) -> dict[str, Any]:
    """The document of `cluster.yaml` for this machine: its GPUs.

    Without GPUs one processor stands for as many as there are models, which tries a repository out
    and says nothing of how many GPUs it needs.
    """
    try:
        return propose_cluster(list_devices())
    except InputError:
        core = min(os.sched_getaffinity(0))
        return {
            "name": "cluster",
            "gpu_classes": {CPU_CLASS: {"runtime": {"cores": [core]}}},
            "nodes": [{"count": 1, "gpu_class": CPU_CLASS, "gpus": models, "nic_gbps": 10}],
        }
