"""The tensors around every stage of a plan, also where only byte counts are known.

A plan made from latency tables alone (no ONNX model behind it) names no tensors. To serve it with
emulated runtimes it is completed: one UINT8 tensor of the right size for every boundary, a small
one for the model's input and its output.
"""

from dataclasses import replace

from triton_backend.contract.errors import InputError
from triton_backend.contract.plan import ModelPlan, Pipeline, Plan
from triton_backend.contract.tensors import TensorSpec

EMULATED_INPUT_BYTES = 4096
EMULATED_OUTPUT_BYTES = 4000  # 1,000 FP32 scores


def complete_tensors(plan: Plan) -> Plan:
    """The plan with inputs, outputs and every boundary named; what is named stays as it is."""
    return replace(plan, models=tuple(map(_complete_model, plan.models)))


def _complete_model(model: ModelPlan) -> ModelPlan:
    inputs = model.inputs or (_bytes_tensor("input", EMULATED_INPUT_BYTES),)
    outputs = model.outputs or (_bytes_tensor("output", _answer_bytes(model)),)
    return replace(
        model,
        inputs=inputs,
        outputs=outputs,
        entries=tuple(
            entry if entry.inputs else replace(entry, inputs=_cut(model, entry.block, inputs))
            for entry in model.entries
        ),
        pipelines=tuple(_complete_pipeline(pipeline, outputs) for pipeline in model.pipelines),
    )


def _complete_pipeline(pipeline: Pipeline, outputs: tuple[TensorSpec, ...]) -> Pipeline:
    last = len(pipeline.stages) - 1
    stages = tuple(
        replace(stage, boundary=outputs)
        if i == last
        else stage
        if stage.boundary
        else replace(
            stage,
            boundary=(_bytes_tensor(f"boundary_{i}", stage.boundary_bytes_per_sample),),
        )
        for i, stage in enumerate(pipeline.stages)
    )
    return replace(pipeline, stages=stages)


def _cut(model: ModelPlan, block: int, inputs: tuple[TensorSpec, ...]) -> tuple[TensorSpec, ...]:
    """The tensors that cross before a block: those of a stage that ends there, else one of its size."""
    if block == 0:
        return inputs
    ending = [s for p in model.pipelines for s in p.stages[:-1] if s.blocks[1] == block]
    for stage in ending:
        if stage.boundary:
            return stage.boundary
    size = ending[0].boundary_bytes_per_sample if ending else EMULATED_INPUT_BYTES
    return (_bytes_tensor(f"cut_{block}", size),)


def _answer_bytes(model: ModelPlan) -> int:
    known = (p.stages[-1].boundary_bytes_per_sample for p in model.pipelines)
    return max(known, default=0) or EMULATED_OUTPUT_BYTES


def _bytes_tensor(name: str, size: int) -> TensorSpec:
    return TensorSpec(name=name, dtype="UINT8", shape=(-1, max(size, 1)))


def request_tensors(model: ModelPlan) -> dict[TensorSpec, bool]:
    """Every tensor that a request of a completed plan may bring, and whether it may be left out.

    Raises:
        InputError: a name stands for different tensors at two entries.
    """
    cuts = [entry.inputs for entry in model.entries] or [model.inputs]
    found: dict[TensorSpec, bool] = {}
    by_name: dict[str, TensorSpec] = {}
    for spec in (spec for cut in cuts for spec in cut):
        if by_name.setdefault(spec.name, spec) != spec:
            raise InputError(f"model {model.name!r}, entries", f"{spec.name!r} is two tensors")
        found[spec] = not all(spec in cut for cut in cuts)
    return found
