"""Artifacts named in a plan: what every stage loads, built where it is not there yet.

A plan decides; artifacts only say with which files the decision is carried out. Not here: how they are
built (`flows/preparation`).
"""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from flows.device_class import DeviceClass
from flows.files import read_device_classes
from flows.planning.stored_plans import store_plan
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
from flows.workspace import Workspace
from triton_backend.contract.errors import InputError
from triton_backend.contract.plan import ModelPlan, Pipeline, Plan


def attach_artifacts(work: Workspace, plan: Plan, classes: Mapping[str, DeviceClass]) -> Plan:
    """The same plan with every stage built for its CPU class and named; stored in its place.

    Raises:
        InputError: a model was never split here, or a class has no runtime.
    """
    models = tuple(_with_artifacts(work, model, classes) for model in plan.models)
    plan = replace(plan, models=models)
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


def attach_engines(
    work: Workspace, plan: Plan, settings: EngineSettings, precision: str | None = None
) -> Plan:
    """The same plan with an engine named for every stage; stored in its place.

    Each pipeline's engines are built for the batch sizes 1, 2, 4, … up to its own.

    Args:
        work: where artifacts and the warehouse are.
        plan: what is to be served; its boundaries stay as they were planned.
        settings: library, cards, limits.
        precision: `fp32` or `fp16`; None is, stage by stage, what its class was measured in.

    Raises:
        InputError: a model was never split here, or an engine cannot be built.
    """
    models = tuple(
        replace(
            model,
            pipelines=tuple(
                _with_engines(work, read_split(work, model.name), p, settings, precision)
                for p in model.pipelines
            ),
        )
        for model in plan.models
    )
    plan = replace(plan, models=models)
    store_plan(work, plan)
    return plan


def _with_engines(
    work: Workspace,
    split: SplitModel,
    pipeline: Pipeline,
    settings: EngineSettings,
    precision: str | None,
) -> Pipeline:
    options = EngineOptions(batches=batches_up_to(pipeline.batch), settings=settings)
    measured = measured_precisions(work, split)
    chain = [
        Place(s.blocks, (s.gpu_class,), precision or measured.get(s.gpu_class, PRECISIONS[0]))
        for s in pipeline.stages
    ]
    report = build_chains(work, split, [chain], options)
    if report.failures:
        raise InputError(f"engine of {split.name!r}", str(report.failures[0]))
    keys = {(r.request.stage, r.request.gpu_class): r.key for r in report.results}
    stages = tuple(
        replace(stage, artifact=keys[stage_name(split, stage.blocks), stage.gpu_class])
        for stage in pipeline.stages
    )
    return replace(pipeline, stages=stages)
