"""Every field of `plan.json` with its type, a description and an example, for reference and editors.

Here: the table, object by object. Not here: reading and writing (`plan`), and the fields of `cluster`
and `workload`, which are those of the files of that name.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class PlanField:
    """One field of one object.

    Attributes:
        name: its key.
        kind: `text`, `integer`, `number`, `flag`, `texts`, `integers`, `table` (any object),
            the name of an object of `OBJECTS`, that name with `[]`, `cluster` or `workload`.
        about: one sentence.
        example: one value.
        required: every plan states it.
    """

    name: str
    kind: str
    about: str
    example: Any
    required: bool = True


def _optional(name: str, kind: str, about: str, example: Any) -> PlanField:
    return PlanField(name, kind, about, example, required=False)


_TENSOR = {"name": "image", "dtype": "FP32", "shape": [-1, 3, 224, 224]}

OBJECTS: Mapping[str, tuple[PlanField, ...]] = {
    "plan": (
        PlanField("format", "integer", "Version of this form.", 2),
        PlanField(
            "plan_id", "text", "Identity of the plan: a hash of its content.", "3f2a9c01d7e4"
        ),
        PlanField("planner", "text", "Planner that made it.", "pool"),
        _optional("options", "table", "Options it was planned with.", {"slo_margin": 0.4}),
        PlanField("objective", "objective", "What was optimised, and the proof.", {"gap": 0.0}),
        _optional(
            "solver",
            "text",
            "Solvers that solved its programs: highs, gurobi, gurobi+highs, none.",
            "highs",
        ),
        _optional("solve_seconds", "number", "Wall time of planning, in s.", 1.7),
        _optional(
            "certificate",
            "table",
            "What the search did: status, seconds per step, configurations; keys vary by planner.",
            {"status": "optimal"},
        ),
        PlanField("cluster", "cluster", "The cluster, as in cluster.yaml.", {"name": "lab"}),
        PlanField("workload", "workload", "The workload, as in workload.yaml.", {"models": []}),
        PlanField("gpus_used", "table", "GPUs that hold at least one vGPU, by class.", {"L4": 2}),
        PlanField("pools", "pool[]", "Pools of vGPUs, numbered in this order.", []),
        PlanField("models", "model[]", "Models with their pipelines.", []),
        _optional("applications", "application[]", "Applications with their time budgets.", []),
        _optional(
            "waits",
            "text",
            "How the wait for a whole batch counts: gathering, turn or margin.",
            "gathering",
        ),
        _optional(
            "gathering_rule",
            "text",
            "Rate at which batches gather, if not the workload's: dt, 2d, tc-even, tc-tail, tc-padded.",
            "tc-tail",
        ),
    ),
    "objective": (
        PlanField("name", "text", "throughput, cost, power, gpus or share.", "throughput"),
        PlanField("value", "number", "Value of this plan.", 70.7),
        PlanField(
            "upper_bound",
            "number",
            "No plan of `space` is better: an upper bound for throughput, a lower bound otherwise.",
            70.7,
        ),
        PlanField("gap", "number", "Relative distance of value and bound.", 0.0),
        _optional("space", "text", "Plans that the bound covers.", "pool"),
    ),
    "pool": (
        PlanField("name", "text", "Name of the pool.", "l4-0"),
        PlanField("gpu_class", "text", "Its GPU class.", "L4"),
        _optional("vgpu_divisor", "integer", "Each vGPU is 1/n of a GPU.", 2),
        _optional("vgpu_percent", "integer", "Each vGPU is this percentage of a GPU.", 40),
        _optional("vgpu_mig", "text", "Each vGPU is this MIG slice, or part of one.", "1g/2"),
        PlanField("vgpus", "integer", "Number of vGPUs.", 4),
        PlanField("placement", "placement[]", "Where the vGPUs are, in order.", []),
        _optional(
            "starts_anywhere", "flag", "Any tail of its model may start here at once.", example=True
        ),
        _optional(
            "interference", "interference", "Slow-down by neighbours on the GPU.", {"felt": 0.1}
        ),
    ),
    "placement": (
        PlanField("node", "text", "Name of the (first) node.", "L4-0"),
        PlanField("gpu", "integer", "Number of the (first) GPU on the node.", 0),
        PlanField("slot", "integer", "Number of the (first) part of the GPU.", 1),
        _optional("nodes", "integer", "Nodes of the block; 1 by default.", 8),
        _optional("gpus", "integer", "GPUs per node of the block; 1 by default.", 4),
        _optional("slots", "integer", "Parts per GPU of the block; 1 by default.", 2),
    ),
    "interference": (
        PlanField("pressure", "number", "Pressure on other vGPUs of the GPU.", 0.3),
        PlanField("felt", "number", "Sum of the pressures of the other vGPUs.", 0.25),
        PlanField("inflation", "number", "Reserve factor for what the model does not see.", 1.05),
        PlanField("seats", "seat[]", "One per stage on the pool.", []),
    ),
    "seat": (
        PlanField("susceptibility", "number", "Slow-down of the stage per unit of pressure.", 0.4),
        PlanField("pressure", "number", "Pressure that the stage exerts.", 0.3),
        PlanField("factor", "number", "Factor that its latencies contain.", 1.1),
    ),
    "model": (
        PlanField("name", "text", "Name of the model.", "squeezenet"),
        PlanField("slo_us", "integer", "Latency objective in µs.", 200000),
        _optional("throughput_rps", "number", "Planned rate, in requests/s.", 70.7),
        _optional("policy", "text", "Dispatch policy of its queue.", "reservation-ahead"),
        _optional("inputs", "tensor[]", "Tensors of a request.", [_TENSOR]),
        _optional("outputs", "tensor[]", "Tensors of the answer.", [_TENSOR]),
        _optional("split", "text", "Key of the split whose blocks these are.", "8c1d…"),
        _optional("entries", "entry[]", "Blocks at which requests come in.", []),
        PlanField("pipelines", "pipeline[]", "Ways through the pools.", []),
    ),
    "entry": (
        PlanField("name", "text", "Name of the entry.", "tails"),
        PlanField("block", "integer", "First block that runs here.", 4),
        PlanField("budget_us", "integer", "Time from arrival to answer, in µs.", 120000),
        PlanField("rate_rps", "number", "Planned rate, in requests/s.", 90),
        _optional("inputs", "tensor[]", "Tensors that cross before the block.", [_TENSOR]),
        _optional("clients", "integer", "Number of clients, if stated.", 20),
        _optional("dtype", "text", "Datatype in which tensors are sent.", "FP16"),
    ),
    "pipeline": (
        _optional("entry", "text", "Entry whose requests it takes.", "tails"),
        PlanField("batch", "integer", "Planned batch size.", 4),
        _optional("throughput_rps", "number", "Planned rate; 0 for best effort.", 35.3),
        _optional(
            "latency_us", "integer", "Time of a planned batch, transfers included, in µs.", 96000
        ),
        _optional("occupied_vgpus", "number", "vGPUs it keeps busy, if billed by occupancy.", 1.6),
        PlanField("stages", "stage[]", "Its stages, without a gap between their blocks.", []),
    ),
    "stage": (
        PlanField("blocks", "integers", "First block, and the block after the last.", [0, 4]),
        PlanField("pool", "text", "Pool that runs it.", "p4-0"),
        _optional("batch", "integer", "Planned batch, if not the pipeline's.", 8),
        PlanField("latency_us", "integer", "Run time of the planned batch, in µs.", 52000),
        PlanField("transfer_us", "integer", "Time to move a batch to the next stage, in µs.", 900),
        PlanField(
            "latency_us_by_batch",
            "integers",
            "Run time of batch 1, 2, …, in µs.",
            [16000, 28000, 40000, 52000],
        ),
        PlanField("boundary_bytes_per_sample", "integer", "Bytes leaving it per sample.", 401408),
        _optional("duty_cycle_us", "integer", "Period of its turn on a shared vGPU, in µs.", 40000),
        _optional("boundary", "tensor[]", "Tensors that leave it.", [_TENSOR]),
        _optional(
            "memory_bytes", "memory", "Memory of its GPU.", {"static": 5000000, "dynamic": 0}
        ),
        _optional(
            "artifact", "text", "Folder that the runtime loads; absent if emulated.", "9a/1f…"
        ),
        _optional(
            "boards", "flag", "Batches of several pipelines run together here.", example=True
        ),
    ),
    "memory": (
        PlanField("static", "integer", "Bytes held always (weights).", 5000000),
        PlanField("dynamic", "integer", "Bytes held while it runs.", 12000000),
    ),
    "tensor": (
        PlanField("name", "text", "Name of the tensor.", "image"),
        PlanField("dtype", "text", "KServe v2 datatype.", "FP32"),
        PlanField("shape", "integers", "Shape; -1 is the batch dimension.", [-1, 3, 224, 224]),
    ),
    "application": (
        PlanField("name", "text", "Name of the application.", "traffic"),
        PlanField("slo_us", "integer", "Latency objective in µs.", 400000),
        PlanField("rate_rps", "number", "Planned rate, in requests/s.", 50),
        _optional("least_latency_us", "integer", "No plan could promise less, in µs.", 88000),
        _optional("inputs", "tensor[]", "Tensors of a request.", [_TENSOR]),
        _optional("outputs", "table", "Tensor of the answer -> MODULE.TENSOR.", {"y": "cars.y"}),
        PlanField("modules", "module[]", "Its modules.", []),
    ),
    "module": (
        PlanField("name", "text", "Name of the module.", "cars"),
        PlanField("model", "text", "Model that it runs.", "carnet"),
        _optional("after", "texts", "Modules that must end first.", ["detect"]),
        _optional("rows_per_request", "number", "Rows per request, on average.", 2.4),
        _optional("max_rows", "integer", "Most rows of one request.", 16),
        _optional("max_rows_given", "integer", "Most rows that one sample produces.", 100),
        _optional(
            "optional", "flag", "The request is answered without it if it is late.", example=True
        ),
        _optional("bindings", "table", "Tensor of the model -> its source.", {"x": "request.x"}),
        PlanField(
            "budget_us", "integer", "Time that it may take, waiting included, in µs.", 150000
        ),
        _optional("tail_us", "integer", "Largest sum of budgets after it, in µs.", 0),
    ),
}
