"""Transfers between modules: planners and `verify` count them, schedulers reserve them."""

from collections.abc import Iterable
from dataclasses import replace

from triton_backend.contract.applications import producing_models, received_bytes
from triton_backend.contract.plan.plan import Plan
from triton_backend.contract.plan.pools import Pool
from triton_backend.contract.plan.stages import ModelPlan, Pipeline
from triton_backend.contract.units import transfer_us

#     worker of the module before     uplink of its node    ─┐
#                                                             ├─ input_transfer_us, before the first
#     first stage of a pipeline       downlink of its node  ─┘   stage of a planned batch
#
# The time is that of a boundary between stages, at the slowest NIC of all classes that hold a side.


def modules_spread(plan: Plan) -> bool:
    """True if modules that read each other's tensors lie on more than one node."""
    asked = [planned.application for planned in plan.applications]
    for model in plan.models:
        if received_bytes(asked, model.name, model.inputs):
            nodes = _nodes(pool for p in model.pipelines for pool in (plan.pool_of(p.stages[0]),))
            if len(nodes | _nodes(giving_pools(plan, model.name))) > 1:
                return True
    return False


def giving_pools(plan: Plan, model: str) -> list[Pool]:
    """Pools of the last stages of the models whose outputs a model's modules read."""
    asked = [planned.application for planned in plan.applications]
    return [
        plan.pool_of(pipeline.stages[-1])
        for name in producing_models(asked, model)
        for pipeline in plan.model(name).pipelines
    ]


def module_rate_gbps(plan: Plan, model: str, pipeline: Pipeline) -> float:
    """The slowest NIC between the modules before a pipeline and its first stage (Gbit/s)."""
    pools = [*giving_pools(plan, model), plan.pool_of(pipeline.stages[0])]
    return min(plan.cluster.nic_gbps(pool.gpu_class) for pool in pools)


def sending_node(plan: Plan, model: str) -> int | None:
    """The node that all rows of a model come from; None where there are several, or none."""
    nodes = _nodes(giving_pools(plan, model))
    return nodes.pop() if len(nodes) == 1 else None


def receiving_nodes(plan: Plan, pipeline: Pipeline) -> set[int]:
    """The nodes of a pipeline's first stage."""
    return _nodes([plan.pool_of(pipeline.stages[0])])


def with_module_transfers(plan: Plan) -> Plan:
    """The plan with the transfers between its modules in its pipelines."""
    asked = [planned.application for planned in plan.applications]

    def moved(model: ModelPlan, pipeline: Pipeline, size: int) -> Pipeline:
        rate = module_rate_gbps(plan, model.name, pipeline)
        takes_us = transfer_us(pipeline.batch * size, rate)
        return replace(
            pipeline,
            input_bytes_per_sample=size,
            input_transfer_us=takes_us,
            latency_us=pipeline.latency_us + takes_us,
        )

    models: list[ModelPlan] = []
    for model in plan.models:
        size = received_bytes(asked, model.name, model.inputs)
        pipelines = tuple(moved(model, p, size) for p in model.pipelines) if size else ()
        models.append(replace(model, pipelines=pipelines or model.pipelines))
    return replace(plan, models=tuple(models))


def _nodes(pools: Iterable[Pool]) -> set[int]:
    return {slot.node for pool in pools for slot in pool.slots()}
