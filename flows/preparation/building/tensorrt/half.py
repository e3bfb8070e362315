"""Stages in half precision: conversion of ONNX files, and what it costs in accuracy.

TensorRT's networks are strongly typed, so precision is a property of the ONNX file. Here: fp32
stages to fp16 ones with fp16 boundaries (half the bytes to send) while clients keep fp32, and the
loss measured on the model's own outputs. Not here: building; how the loss is measured
(`precision_loss.py`).

Which inputs of an operator may be fp16 is read from ONNX's own operator schemas. Operators that
lose much in half precision compute in fp32 between casts.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from flows.preparation.building.tensorrt.element_types import retype, tensors_of_type
from flows.preparation.building.tensorrt.precision_loss import PrecisionLoss, measure_loss
from triton_backend.contract.errors import InputError

# Sums of squares and exponentials leave fp16's range of 65504 or lose small terms.
KEPT_IN_FP32 = frozenset(
    {
        "Exp",
        "InstanceNormalization",
        "LRN",
        "LayerNormalization",
        "LogSoftmax",
        "Pow",
        "ReduceL2",
        "ReduceSumSquare",
        "Softmax",
    }
)
HALF_MAX = 65504.0
CAST_PREFIX = "half_cast_"
HALF_SUFFIX = ".fp16.onnx"
EXTERNAL_FROM_BYTES = 1 << 30


@dataclass(frozen=True, slots=True, kw_only=True)
class HalfChain:
    """Converted stages of one model, in order, and what the conversion cost."""

    stages: tuple[Path, ...]
    loss: PrecisionLoss


def convert_chain(stages: Sequence[Path], folder: Path, *, samples: int = 8) -> HalfChain:
    """Convert the stages of a whole model; boundaries become fp16, the model's own edges stay.

    Args:
        stages: fp32 stage files in order; together they are the model.
        folder: where the converted files go, named after the originals.
        samples: random samples to compare; the loss depends on them.

    Raises:
        InputError: a stage has control flow or a type that ONNX cannot infer, or the converted
            model gives values that are not finite where the original's are.
    """
    folder.mkdir(parents=True, exist_ok=True)
    kept = _edge_names(stages[0], inputs=True) | _edge_names(stages[-1], inputs=False)
    made: list[Path] = []
    clipped = 0
    for stage in stages:
        target = folder / (stage.stem + HALF_SUFFIX)
        clipped += convert_stage(stage, target, fp32_edges=kept)
        made.append(target)
    loss = measure_loss(stages, made, samples=samples, clipped_weights=clipped)
    return HalfChain(stages=tuple(made), loss=loss)


def convert_stage(source: Path, target: Path, *, fp32_edges: Collection[str]) -> int:
    """Convert one stage; tensors at its edge named in `fp32_edges` stay fp32.

    Returns:
        how many weights had to be clipped to fp16's range.

    Raises:
        InputError: control flow, or a tensor whose type cannot be inferred.
    """
    model = onnx.load(source)
    if any(a.HasField("g") or a.graphs for node in model.graph.node for a in node.attribute):
        raise InputError(str(source), "control flow cannot be converted to fp16")
    conversion = _Conversion(model, str(source))
    conversion.convert(frozenset(fp32_edges))
    large = model.ByteSize() > EXTERNAL_FROM_BYTES
    onnx.save_model(
        model,
        target,
        save_as_external_data=large,
        location=f"{target.name}.data" if large else None,
    )
    return conversion.clipped


def _edge_names(path: Path, *, inputs: bool) -> frozenset[str]:
    graph = onnx.load(path, load_external_data=False).graph
    return frozenset(value.name for value in (graph.input if inputs else graph.output))


class _Conversion:
    """One graph on its way to fp16; `fp16` and `fp32` say under which name a tensor has which type.

    Every float tensor is fp16 under its own name after conversion, except edges that stay fp32:
    those keep their name in fp32 and have an fp16 twin inside.
    """

    def __init__(self, model: onnx.ModelProto, where: str) -> None:
        self._model, self._where = model, where
        self._opsets = {entry.domain: entry.version for entry in model.opset_import}
        self._floats = tensors_of_type(model, TensorProto.FLOAT)
        self._weights = {t.name: t for t in model.graph.initializer if t.name in self._floats}
        self._half_names: dict[str, str] = {}
        self._single_names: dict[str, str] = {}
        self._nodes: list[onnx.NodeProto] = []
        self._made: list[onnx.TensorProto] = []
        self.clipped = 0

    def convert(self, fp32_edges: frozenset[str]) -> None:
        """Rewrite the graph in place."""
        graph = self._model.graph
        handed_on = {value.name for value in graph.input}
        for value in (*graph.input, *graph.output):
            if value.name in self._floats and value.name not in fp32_edges | set(self._weights):
                value.type.tensor_type.elem_type = TensorProto.FLOAT16
        for value in graph.input:
            if value.name in self._floats & fp32_edges:
                self._single_names[value.name] = value.name
        late = [o.name for o in graph.output if o.name in (self._floats & fp32_edges) - handed_on]
        self._half_names |= {name: f"{name}__half" for name in late}
        for node in graph.node:
            self._node(node)
        for name in late:
            self._finish(name)
        kept = [t for t in graph.initializer if t.name not in self._weights]
        inputs = [v for v in graph.input if v.name not in self._weights]
        del graph.node[:], graph.initializer[:], graph.value_info[:], graph.input[:]
        graph.node.extend(_without_unread_casts(self._nodes, {o.name for o in graph.output}))
        graph.initializer.extend([*kept, *self._made])
        graph.input.extend(inputs)

    def _node(self, node: onnx.NodeProto) -> None:
        """Append a node as fp16, or as fp32 between casts where it must stay so."""
        slots = self._half_slots(node)
        stays = node.op_type in KEPT_IN_FP32 or slots is None
        for index, name in enumerate(node.input):
            if name in self._floats:
                half = not stays and slots is not None and slots[index]
                node.input[index] = self._as_half(name) if half else self._as_single(name)
        if not stays:
            retype(node, source=TensorProto.FLOAT, target=TensorProto.FLOAT16)
        outputs = [(i, name) for i, name in enumerate(node.output) if name in self._floats]
        for index, name in outputs:
            half = self._half_names.get(name, name)
            node.output[index] = f"{name}__single" if stays else half
        self._nodes.append(node)
        if stays:
            for _, name in outputs:
                self._single_names[name] = f"{name}__single"
                half = self._half_names.get(name, name)
                self._cast(f"{name}__single", half, TensorProto.FLOAT16)

    def _half_slots(self, node: onnx.NodeProto) -> list[bool] | None:
        """Per input whether it may be fp16; None where an output may not be, so nothing can."""
        version = self._opsets.get(node.domain, 1)
        try:
            schema = onnx.defs.get_schema(node.op_type, version, node.domain)
        except onnx.defs.SchemaError:
            return None
        allowed = {c.type_param_str: c.allowed_type_strs for c in schema.type_constraints}

        def may(parameters: Sequence[Any], index: int) -> bool:
            kind = parameters[min(index, len(parameters) - 1)].type_str
            return "tensor(float16)" in allowed.get(kind, [kind])

        for index, name in enumerate(node.output):
            if name in self._floats and not may(schema.outputs, index):
                return None
        return [may(schema.inputs, index) for index in range(len(node.input))]

    def _as_half(self, name: str) -> str:
        if name in self._weights:
            return self._weight(name, half=True)
        if name in self._single_names and name not in self._half_names and self._is_edge(name):
            self._half_names[name] = f"{name}__half"
            self._cast(name, self._half_names[name], TensorProto.FLOAT16)
        return self._half_names.get(name, name)

    def _as_single(self, name: str) -> str:
        if name in self._weights:
            return self._weight(name, half=False)
        if name not in self._single_names:
            self._single_names[name] = f"{name}__single"
            self._cast(self._half_names.get(name, name), f"{name}__single", TensorProto.FLOAT)
        return self._single_names[name]

    def _is_edge(self, name: str) -> bool:
        return self._single_names[name] == name

    def _weight(self, name: str, *, half: bool) -> str:
        made = f"{name}__half" if half else name
        if any(tensor.name == made for tensor in self._made):
            return made
        values = numpy_helper.to_array(self._weights[name])
        if half:
            self.clipped += int(np.count_nonzero(np.abs(values) > HALF_MAX))
            values = np.clip(values, -HALF_MAX, HALF_MAX).astype(np.float16)
        self._made.append(numpy_helper.from_array(values, made))
        return made

    def _finish(self, name: str) -> None:
        """Give an fp32 output its name back, from fp32 where a node made it so."""
        if name in self._single_names:
            self._nodes.append(
                helper.make_node(
                    "Identity", [self._single_names[name]], [name], name=f"finish_{name}"
                )
            )
        else:
            self._cast(self._half_names[name], name, TensorProto.FLOAT)

    def _cast(self, source: str, target: str, kind: int) -> None:
        self._nodes.append(
            helper.make_node("Cast", [source], [target], name=f"{CAST_PREFIX}{target}", to=kind)
        )


def _without_unread_casts(
    nodes: Sequence[onnx.NodeProto], outputs: Collection[str]
) -> list[onnx.NodeProto]:
    read = {name for node in nodes for name in node.input} | set(outputs)
    return [n for n in nodes if not n.name.startswith(CAST_PREFIX) or n.output[0] in read]
