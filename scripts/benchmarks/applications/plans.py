"""Applications of emulated models for this folder's benchmarks, and their right answers.

Every model has one stage on vGPUs of its own, which takes 100 ms for its planned batch of four
rows. Rows that a module gives are drawn by its input (`runtimes/emulated.py`), so a file of
requests with their answers holds some of every number of rows from none to the most.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import ceil
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from scripts.benchmarks.served import BLOCKS, SMALL_BATCH, quick_model, small_stage
from tests.fakes.applications import hand_application, hand_module
from tests.fakes.plans import HandModel, hand_model, hand_pipeline, hand_plan, hand_stage
from tests.triton_backend.serving.served_applications import expected
from triton_backend.contract.applications import ApplicationPlan, Module
from triton_backend.contract.cluster import NodeGroup
from triton_backend.contract.plan import PlacementRun, Plan, with_module_transfers
from triton_backend.contract.tensors import TensorSpec
from triton_backend.contract.workload import ModelDemand, Workload
from triton_backend.serve_folder.settings import ServeSettings
from triton_backend.serving.deployment import Deployment

BATCH, LARGEST = 4, 8
LATENCY_US = tuple(40_000 + 15_000 * rows for rows in range(1, LARGEST + 1))
SLO_US = 700_000
PLANNED_SHARE = 0.95  # of what the vGPUs run in planned batches
VGPU_RPS = 1e6 * BATCH / LATENCY_US[BATCH - 1]
MOST_CARS, MOST_PEOPLE = 6, 2
REQUESTS = 128
FAR = "two_nodes"  # a chain whose modules lie on two nodes in turn
FAR_BYTES, END_BYTES = 1_200_000, 64  # a row between modules: 9.6 ms at 1 Gbit/s; request, answer
FAR_NIC_GBPS = 1.0


class Shape(NamedTuple):
    """Modules of an application, each on a model of its own name, and what it answers."""

    modules: tuple[Module, ...]
    outputs: Mapping[str, str]


def _rows(name: str, mean: float, most: int, *, optional: bool = False) -> Module:
    return hand_module(name, name, "detect", rows=mean, max_rows=most, optional=optional)


DETECT = hand_module("detect", "detect")
FOUND = {"boxes": "detect.output", "car": "cars.output", "person": "people.output"}
SHAPES: Mapping[str, Shape] = {
    "chain": Shape(
        (hand_module("a", "a"), hand_module("b", "b", "a"), hand_module("c", "c", "b")),
        {"y": "c.output"},
    ),
    "diamond": Shape(
        (
            hand_module("a", "a"),
            hand_module("b", "b", "a"),
            hand_module("c", "c", "a"),
            hand_module("d", "d", "b", "c"),
        ),
        {"y": "d.output", "half": "b.output"},
    ),
    "fan_out": Shape(
        (DETECT, _rows("cars", 2.0, MOST_CARS), _rows("people", 0.7, MOST_PEOPLE)), FOUND
    ),
    "sources": Shape(
        (
            hand_module("left", "left"),
            hand_module("right", "right"),
            hand_module("wide", "wide"),
            hand_module("join", "join", "left", "right", "wide"),
        ),
        {"y": "join.output"},
    ),
    "optional": Shape(
        (DETECT, _rows("cars", 2.0, MOST_CARS, optional=True), _rows("people", 0.7, MOST_PEOPLE)),
        FOUND,
    ),
    FAR: Shape(
        (
            Module(name="a", model="a", inputs={"input": "request.input"}),
            Module(name="b", model="b", inputs={"input": "a.output"}),
            Module(name="c", model="c", inputs={"input": "b.output"}),
        ),
        {"y": "c.output"},
    ),
}


def application(
    name: str, shape: Shape, *, rate_rps: float, slo_us: int = SLO_US
) -> ApplicationPlan:
    """An application of a shape."""
    planned = hand_application(name, shape.modules, slo_us=slo_us, rate_rps=rate_rps)
    return replace(planned, application=replace(planned.application, outputs=shape.outputs))


def plan_of(
    *applications: ApplicationPlan,
    alone_rps: Mapping[str, float] | None = None,
    latency_us: Mapping[str, Sequence[int]] | None = None,
    plan_id: str = "applications",
) -> Plan:
    """A plan of applications, and of models that clients ask by themselves at these rates.

    Every model has as many vGPUs as its rate takes; `latency_us` are tables of models that do not
    have the usual one.
    """
    rates = dict(alone_rps or {})
    slos_us = dict.fromkeys(rates, SLO_US)
    for planned in applications:
        graph = planned.application
        for module in graph.modules:
            slos_us.setdefault(module.model, planned.budgets_us[module.name])
            more = (graph.rate_rps or 0.0) * module.rows_per_request
            rates[module.model] = rates.get(module.model, 0.0) + more
    models: list[HandModel] = []
    gpus = 0
    for name, rate_rps in rates.items():
        table = (latency_us or {}).get(name, LATENCY_US)
        batch = min(BATCH, len(table))
        vgpus = ceil(rate_rps * table[batch - 1] / (1e6 * batch))
        place = PlacementRun(node=0, gpu=gpus, slot=0, gpus=vgpus)
        gpus += vgpus
        pipeline = hand_pipeline(
            hand_stage((0, 10), "GPU", place, table, batch=batch), batch=batch, rate_rps=rate_rps
        )
        models.append(hand_model(name, pipeline, slo_us=slos_us[name], policy="reservation-ahead"))
    nodes = [NodeGroup(count=1, gpu_class="GPU", gpus=gpus, nic_gbps=10.0)]
    plan = hand_plan(*models, nodes=nodes, plan_id=plan_id)
    demands = tuple(ModelDemand(name=name, slo_us=SLO_US) for name in alone_rps or {})
    graphs = tuple(planned.application for planned in applications)
    workload = Workload(models=demands, applications=graphs)
    return replace(plan, workload=workload, applications=applications)


def shape_plan(name: str, stretch: float = 1.0) -> Plan:
    """A plan of one of the shapes, at as many jobs per second as one vGPU serves of rows.

    Slower where stretched.
    """
    rate_rps, slo_us = PLANNED_SHARE * VGPU_RPS / stretch, round(SLO_US * stretch)
    planned = application(name, SHAPES[name], rate_rps=rate_rps, slo_us=slo_us)
    table = [round(us * stretch) for us in LATENCY_US]
    plan = plan_of(
        planned, latency_us=dict.fromkeys(planned.application.models, table), plan_id=name
    )
    return on_two_nodes(plan, FAR_NIC_GBPS / stretch) if name == FAR else plan


def on_two_nodes(plan: Plan, nic_gbps: float) -> Plan:
    """The plan of a chain with every second module on another node, transfers counted."""
    last = len(plan.models) - 1

    def tensors(name: str, size: int) -> tuple[TensorSpec, ...]:
        return (TensorSpec(name=name, dtype="UINT8", shape=(-1, size)),)

    models = tuple(
        replace(
            model,
            inputs=tensors("input", END_BYTES if number == 0 else FAR_BYTES),
            outputs=tensors("output", END_BYTES if number == last else FAR_BYTES),
        )
        for number, model in enumerate(plan.models)
    )
    pools = tuple(
        replace(pool, placement=(replace(pool.placement[0], node=number % 2),))
        for number, pool in enumerate(plan.pools)
    )
    nodes = (replace(plan.cluster.nodes[0], count=2, nic_gbps=nic_gbps),)
    planned = plan.applications[0]
    first = tuple(replace(spec, name="input") for spec in models[0].inputs)
    made = replace(
        plan,
        cluster=replace(plan.cluster, nodes=nodes),
        pools=pools,
        models=models,
        applications=(replace(planned, inputs=first),),
    )
    return with_module_transfers(made).counted()


def faulty_application() -> Plan:
    """A diamond and a quick model on the vGPUs that `small_plan` has, for the same faults.

    Its modules stand on four vGPUs each, of two nodes of one class and of the other in turn.
    """
    stage_us = 160_000
    modules, outputs = SHAPES["diamond"]
    rate_rps = 0.5 * 4 * SMALL_BATCH * 1e6 / stage_us
    models = [
        hand_model(
            module.model,
            hand_pipeline(
                small_stage((0, BLOCKS), ("FAST", "SLOW")[number % 2], 2 * (number // 2), stage_us),
                batch=SMALL_BATCH,
                rate_rps=rate_rps,
            ),
            slo_us=2 * SLO_US // 3,
            policy="reservation-ahead",
        )
        for number, module in enumerate(modules)
    ]
    quick = quick_model("quick", SLO_US // 3, 4)
    nodes = [NodeGroup(count=2, gpu_class=name, gpus=5, nic_gbps=10.0) for name in ("FAST", "SLOW")]
    plan = hand_plan(*models, quick, nodes=nodes, plan_id="faults")
    planned = application("alpha", Shape(modules, outputs), rate_rps=rate_rps, slo_us=2 * SLO_US)
    demands = (ModelDemand(name="quick", slo_us=quick.model.slo_us),)
    workload = Workload(models=demands, applications=(planned.application,))
    return replace(plan, workload=workload, applications=(planned,))


def guarded(plan: Plan, settings: ServeSettings) -> Plan:
    """The plan with the deadlines that the gateway announces to its scheduler."""

    def less(us: int) -> int:
        return us - settings.guard_us(us)

    models = tuple(replace(model, slo_us=less(model.slo_us)) for model in plan.models)
    applications = tuple(
        replace(
            planned,
            application=replace(planned.application, slo_us=less(planned.application.slo_us)),
            budgets_us={name: less(us) for name, us in planned.budgets_us.items()},
        )
        for planned in plan.applications
    )
    return replace(plan, models=models, applications=applications)


class Requests(NamedTuple):
    """A file of requests of one application with their answers, for `--check`.

    Attributes:
        request_bytes: of each request.
        answer_bytes: [request], of the answers.
        rows: by output whose rows vary, [request] how many.
    """

    path: Path
    request_bytes: int
    answer_bytes: NDArray[np.int64]
    rows: Mapping[str, NDArray[np.int64]]


def requests_of(folder: Path, name: str, *, seed: int = 0) -> Requests:
    """Random requests of an application served from a folder, and its models' answers."""
    deployment = Deployment.read(ServeSettings.read(folder / "settings.json"), 1)
    rng = np.random.default_rng(seed)
    graph = deployment.applications.graph_of(name)
    inputs = {
        spec.name: rng.integers(0, 256, (REQUESTS, *spec.shape[1:]), dtype=np.uint8)
        for spec in deployment.served[name].inputs
    }
    given = [
        expected(deployment, name, {tensor: a[i : i + 1] for tensor, a in inputs.items()})
        for i in range(REQUESTS)
    ]
    arrays: dict[str, NDArray[Any]] = {f"inputs/{tensor}": a for tensor, a in inputs.items()}
    rows: dict[str, NDArray[np.int64]] = {}
    for output in graph.outputs:
        arrays[f"outputs/{output}"] = np.concatenate([answer[output] for answer in given])
        rows[output] = np.array([len(answer[output]) for answer in given])
        arrays[f"rows/{output}"] = rows[output]
    path = folder / f"requests-{name}.npz"
    np.savez(path, **arrays)
    return Requests(
        path,
        sum(a[0].nbytes for a in inputs.values()),
        np.array([sum(tensor.nbytes for tensor in answer.values()) for answer in given]),
        rows,
    )
