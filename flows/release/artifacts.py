"""Artifacts named in a plan: what every stage loads, built where it is not there yet.

A plan decides; artifacts only say with which files the decision is carried out. Not here: how they
are built (`flows/preparation`).
"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from flows.device_class import DeviceClass
from flows.files import read_device_classes
from flows.preparation.building.onnxruntime import build_stages
from flows.preparation.building.tensorrt.engines import (
    PRECISIONS,
    EngineOptions,
    Place,
    batches_up_to,
    build_chains,
    measured_precisions,
    stage_name,
)
from flows.preparation.building.tensorrt.requests import EngineSettings
from flows.preparation.splitting.model import SplitModel
from flows.preparation.splitting.stored_split import read_split
from flows.workspace import Workspace, store_plan
from triton_backend.contract.errors import InputError
from triton_backend.contract.plan import ModelPlan, Pipeline, Plan, Stage
from triton_backend.contract.transition.workers import StageKey, stage_key
from triton_backend.scheduler.policies.registry import largest_batches


def attach_artifacts(work: Workspace, plan: Plan, classes: Mapping[str, DeviceClass]) -> Plan:
    """The same plan with every stage built for its CPU class and named; stored in its place.

    Raises:
        InputError: a model was never split here, or a class has no runtime.
    """
    return _attached(work, plan, classes, {model.name for model in plan.models})


def attach_steps(work: Workspace, plan: Plan, classes: Mapping[str, DeviceClass]) -> Plan:
    """As `attach_artifacts`, for the workload's Python steps alone.

    Other models wait for their engines.
    """
    return _attached(work, plan, classes, {step.name for step in plan.workload.steps})


def _attached(
    work: Workspace, plan: Plan, classes: Mapping[str, DeviceClass], names: Collection[str]
) -> Plan:
    classes_of = _classes_of(plan)

    def built(model: ModelPlan) -> ModelPlan:
        if model.name not in names:
            return model
        split = read_split(work, model.name)

        def artifact(stage: Stage) -> str:
            device = classes[classes_of[stage.pool]]
            return build_stages(work, split, [stage.blocks], device)[stage.blocks].key

        pipelines = tuple(
            replace(p, stages=tuple(replace(s, artifact=artifact(s)) for s in p.stages))
            for p in model.pipelines
        )
        return replace(model, pipelines=pipelines)

    plan = replace(plan, models=tuple(map(built, plan.models)))
    store_plan(work, plan)
    return plan


def _classes_of(plan: Plan) -> dict[str, str]:
    """GPU class of every pool, by its name."""
    return {pool.name: pool.gpu_class for pool in plan.pools}


def attach_devices(work: Workspace, plan: Plan, cluster: Path) -> Plan:
    """`attach_artifacts` with the runtimes a cluster.yaml states; a plan without any is emulated.

    Where other classes have none, the Python steps of the workload alone (`attach_steps`).

    Raises:
        InputError: as `attach_artifacts`, or some of the plan's classes state no runtime.
    """
    devices = read_device_classes(cluster)
    if not devices:
        return plan
    used = {pool.gpu_class for pool in plan.pools}
    if used - devices.keys():
        if plan.workload.steps:
            return attach_steps(work, plan, devices)
        missing = ", ".join(sorted(used - devices.keys()))
        raise InputError(str(cluster), f"{missing}: no `runtime`, while other classes state one")
    return attach_artifacts(work, plan, devices)


def with_artifacts_in_force(plan: Plan, in_force: Plan) -> Plan:
    """The same plan with the artifacts of the one in force for the stages that both have.

    The same blocks of a split on a class, with the same tensors, and in batches no larger than an
    engine of the plan in force may hold. Other stages stay as they are.
    """
    held: dict[_Carried, Stage] = {}
    for key, stage in _carried(in_force):
        if stage.artifact is not None and (key not in held or held[key].largest < stage.largest):
            held[key] = stage

    def filled(key: _Carried, stage: Stage) -> Stage:
        there = held.get(key)
        if stage.artifact is not None or there is None or there.largest < stage.largest:
            return stage
        return replace(stage, artifact=there.artifact)

    stages = (filled(key, stage) for key, stage in _carried(plan))
    models = tuple(
        replace(
            model,
            pipelines=tuple(
                replace(pipeline, stages=tuple(next(stages) for _ in pipeline.stages))
                for pipeline in model.pipelines
            ),
        )
        for model in plan.models
    )
    return replace(plan, models=models)


_Carried = tuple[StageKey, str | None, str]


def _carried(plan: Plan) -> Iterator[tuple[_Carried, Stage]]:
    """Every stage in the order of rows, with what its artifact depends on."""
    for row, (model, _, stage, pool) in zip(plan.stage_rows(), plan.placed_stages(), strict=True):
        key = stage_key(plan, row)._replace(artifact=None)
        yield (key, model.split, pool.gpu_class), stage


def attach_engines(
    work: Workspace,
    plan: Plan,
    settings: EngineSettings,
    precision: str | None = None,
    policy: str | None = None,
) -> Plan:
    """The same plan with an engine named for every stage; stored in its place.

    Each pipeline's engines are built for the batch sizes 1, 2, 4, … up to the largest that its
    policy may send: the planned batch, or all that the latency table has under late binding.

    Args:
        work: where artifacts and the warehouse are.
        plan: what is to be served; its boundaries stay as they were planned.
        settings: library, cards, limits.
        precision: `fp32` or `fp16`; None is, stage by stage, what its class was measured in.
        policy: what the plan will be served by, where that is not what it says.

    Raises:
        InputError: a model was never split here, there is no such policy, or an engine cannot be
            built.
    """
    classes, largest = _classes_of(plan), largest_batches(plan, policy)

    def built(model: ModelPlan) -> ModelPlan:
        split = read_split(work, model.name)
        if split.step:
            _check_attached(model)
            return model
        measured = measured_precisions(work, split)

        def place(stage: Stage) -> Place:
            gpu_class = classes[stage.pool]
            wanted = precision or measured.get(gpu_class, PRECISIONS[0])
            return Place(stage.blocks, (gpu_class,), wanted)

        pipelines: list[Pipeline] = []
        for pipeline, most in zip(model.pipelines, largest[model.name], strict=True):
            chain = list(map(place, pipeline.stages))
            joint = (stage.batch or pipeline.batch for stage in pipeline.stages if stage.boards)
            options = EngineOptions(batches=batches_up_to(max(most, *joint, 1)), settings=settings)
            names = _engines_of(work, split, chain, options)
            stages = tuple(
                replace(stage, artifact=name)
                for stage, name in zip(pipeline.stages, names, strict=True)
            )
            pipelines.append(replace(pipeline, stages=stages))
        return replace(model, pipelines=tuple(pipelines))

    plan = replace(plan, models=tuple(map(built, plan.models)))
    store_plan(work, plan)
    return plan


def _check_attached(model: ModelPlan) -> None:
    """A step has no engine: `plan` gives it its artifact."""
    if any(stage.artifact is None for p in model.pipelines for stage in p.stages):
        reason = "is a Python step without an artifact: plan on a class with `runtime: {cores}`"
        raise InputError(f"model {model.name!r}", reason)


def _engines_of(
    work: Workspace, split: SplitModel, chain: list[Place], options: EngineOptions
) -> list[str]:
    """Names of the engines of a chain of stages, built or found.

    Raises:
        InputError: one cannot be built.
    """
    report = build_chains(work, split, [chain], options)
    if report.failures:
        raise InputError(f"engine of {split.name!r}", str(report.failures[0]))
    keys = {(r.request.stage, r.request.gpu_class): r.key for r in report.results}
    return [keys[stage_name(split, place.blocks), place.classes[0]] for place in chain]
