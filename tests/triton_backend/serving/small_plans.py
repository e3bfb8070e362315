"""Small plans for servers that must start in seconds: stages of 5 ms on two nodes."""

from dataclasses import replace
from typing import Any

from tests.fakes.plans import HandModel, HandStage, hand_model, hand_pipeline, hand_plan, hand_stage
from triton_backend.contract.cluster import NodeGroup
from triton_backend.contract.plan import PlacementRun, Plan, Pool
from triton_backend.contract.tensors import TensorSpec

BATCH = 4
SLO_US = 400_000
RATE_RPS = 100.0


def tensor(name: str, *dims: int, dtype: str = "FP32") -> TensorSpec:
    return TensorSpec(name=name, dtype=dtype, shape=(-1, *dims))


def stage(
    blocks: tuple[int, int], gpu_class: str, node: int, vgpus: int = 1, gpu: int = 0, **fields: Any
) -> HandStage:
    place = PlacementRun(node=node, gpu=gpu, slot=0, gpus=vgpus)
    values: dict[str, Any] = {"boundary_bytes_per_sample": 4096, **fields}
    latency_us = values.pop("latency_us_by_batch", (2_000, 3_000, 4_000, 5_000))
    return hand_stage(blocks, gpu_class, place, latency_us, **values)


def model(
    name: str, stages: tuple[HandStage, ...], slo_us: int = SLO_US, **fields: Any
) -> HandModel:
    only = hand_pipeline(*stages, batch=BATCH, rate_rps=RATE_RPS)
    return hand_model(name, only, slo_us=slo_us, **fields)


def plan(*models: HandModel, plan_id: str = "test-plan", gpus: int = 2) -> Plan:
    """A plan in which every model has `gpus` GPUs of its own on each of the two nodes."""
    nodes = [
        NodeGroup(count=1, gpu_class=name, gpus=gpus * len(models), nic_gbps=10.0)
        for name in ("FAST", "SLOW")
    ]
    apart = [on_gpus(model, gpus * number) for number, model in enumerate(models)]
    return hand_plan(*apart, nodes=nodes, plan_id=plan_id)


def on_gpus(model: HandModel, first: int) -> HandModel:
    """The same model with its pools moved `first` GPUs on."""

    def moved(pool: Pool) -> Pool:
        runs = tuple(replace(run, gpu=run.gpu + first) for run in pool.placement)
        return replace(pool, name=f"{pool.name}+{first}", placement=runs)

    pipelines = tuple(
        replace(p, stages=tuple(replace(s, pool=f"{s.pool}+{first}") for s in p.stages))
        for p in model.model.pipelines
    )
    return HandModel(
        model=replace(model.model, pipelines=pipelines), pools=tuple(map(moved, model.pools))
    )


def two_stage(name: str = "pair", **fields: Any) -> HandModel:
    stages = (
        stage((0, 5), "FAST", 0, boundary=(tensor("middle", 8, 16),)),
        stage((5, 10), "SLOW", 1, vgpus=2),
    )
    inputs = (tensor("image", 3, 16), tensor("mask", 4, dtype="UINT8"))
    return model(name, stages, inputs=inputs, outputs=(tensor("scores", 10),), **fields)


def joined(batch: int) -> HandModel:
    """`two_stage`, whose second stage runs batches of several pipelines together, of its own size.

    Its pipeline stays with batches of `BATCH`.
    """
    one = two_stage()
    (pipeline,) = one.model.pipelines
    first, second = pipeline.stages
    latency_us = second.latency_us_by_batch[:batch]
    second = replace(
        second, boards=True, batch=batch, latency_us_by_batch=latency_us, latency_us=latency_us[-1]
    )
    return one.replaced(pipelines=(replace(pipeline, stages=(first, second)),))


def alone(one: HandModel) -> HandModel:
    """The same with batches of one sample."""
    (pipeline,) = one.model.pipelines
    return one.replaced(pipelines=(replace(pipeline, batch=1),))
