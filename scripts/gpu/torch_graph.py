"""ONNX graphs of CNNs computed by torch: the way to a GPU where no packaged runtime supports it.

Here: the operators that image classifiers use, one function each. For `scripts/gpu/check.py` alone;
the product's runtimes are in `triton_backend/engines`.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch  # pyright: ignore[reportMissingImports] -- not a dependency
from onnx import helper, numpy_helper
from torch.nn import functional  # pyright: ignore[reportMissingImports] -- not a dependency

from triton_backend.contract.errors import InputError

Values = dict[str, Any]
Operator = Callable[[list[Any], dict[str, Any]], Any]


class TorchGraph:
    """One ONNX file on one device; `run` maps input tensors to output tensors."""

    def __init__(self, path: Path, device: str) -> None:
        graph = onnx.load(path).graph
        self._constants: Values = {
            t.name: _tensor(numpy_helper.to_array(t), device) for t in graph.initializer
        }
        # Made once: a copy to the device cannot be captured in a CUDA graph.
        self._constants |= {
            node.output[0]: _tensor(_constant(node), device)
            for node in graph.node
            if node.op_type == "Constant"
        }
        self._nodes = [node for node in graph.node if node.op_type != "Constant"]
        self.inputs = [v.name for v in graph.input if v.name not in self._constants]
        self.outputs = [v.name for v in graph.output]
        lacking = {n.op_type for n in self._nodes} - set(OPERATORS)
        if lacking:
            raise InputError(str(path), f"operators {sorted(lacking)} are not written for torch")

    def run(self, given: Mapping[str, Any]) -> Values:
        """Compute every output."""
        values: Values = {**self._constants, **given}
        for node in self._nodes:
            attributes = {a.name: helper.get_attribute_value(a) for a in node.attribute}
            read = [values[name] if name else None for name in node.input]
            values[node.output[0]] = OPERATORS[node.op_type](read, attributes)
        return {name: values[name] for name in self.outputs}


def _constant(node: onnx.NodeProto) -> np.ndarray[Any, Any]:
    values = {a.name: helper.get_attribute_value(a) for a in node.attribute}
    if "value" in values:
        return numpy_helper.to_array(values["value"])
    name, value = next(iter(values.items()))
    return np.asarray(value, np.float32 if "float" in name else np.int64)


def _tensor(array: np.ndarray[Any, Any], device: str) -> Any:
    # Shapes and axes are read on the host: on the device every use would wait for it.
    where = "cpu" if array.dtype == np.int64 else device
    return torch.from_numpy(np.array(array)).to(where)


def _pads(attributes: dict[str, Any]) -> list[int]:
    """Pads as torch wants them: last dimension first, begin and end of each."""
    pads = list(attributes.get("pads", [0, 0, 0, 0]))
    half = len(pads) // 2
    return [p for i in reversed(range(half)) for p in (pads[i], pads[half + i])]


def _convolution(read: list[Any], attributes: dict[str, Any]) -> Any:
    padded = functional.pad(read[0], _pads(attributes))
    bias = read[2] if len(read) > 2 else None
    return functional.conv2d(
        padded,
        read[1],
        bias,
        stride=attributes.get("strides", [1, 1]),
        dilation=attributes.get("dilations", [1, 1]),
        groups=attributes.get("group", 1),
    )


def _max_pool(read: list[Any], attributes: dict[str, Any]) -> Any:
    padded = functional.pad(read[0], _pads(attributes), value=float("-inf"))
    return functional.max_pool2d(
        padded, attributes["kernel_shape"], stride=attributes.get("strides", [1, 1])
    )


def _average_pool(read: list[Any], attributes: dict[str, Any]) -> Any:
    pads, kernel = _pads(attributes), attributes["kernel_shape"]
    stride = attributes.get("strides", [1, 1])
    total = functional.avg_pool2d(functional.pad(read[0], pads), kernel, stride=stride)
    if attributes.get("count_include_pad", 0) or not any(pads):
        return total
    present = functional.pad(torch.ones_like(read[0][:1, :1]), pads)
    return total / functional.avg_pool2d(present, kernel, stride=stride)


def _normalise(read: list[Any], attributes: dict[str, Any]) -> Any:
    x, scale, bias, mean, variance = read
    return functional.batch_norm(
        x, mean, variance, scale, bias, training=False, eps=attributes.get("epsilon", 1e-5)
    )


def _lrn(read: list[Any], attributes: dict[str, Any]) -> Any:
    return functional.local_response_norm(
        read[0],
        attributes["size"],
        alpha=attributes.get("alpha", 1e-4),
        beta=attributes.get("beta", 0.75),
        k=attributes.get("bias", 1.0),
    )


def _gemm(read: list[Any], attributes: dict[str, Any]) -> Any:
    a = read[0].T if attributes.get("transA", 0) else read[0]
    b = read[1].T if attributes.get("transB", 0) else read[1]
    product = attributes.get("alpha", 1.0) * (a @ b)
    return product + attributes.get("beta", 1.0) * read[2] if len(read) > 2 else product


def _reshape(read: list[Any], _: dict[str, Any]) -> Any:
    wanted = [int(size) for size in read[1]]
    return read[0].reshape([read[0].shape[i] if s == 0 else s for i, s in enumerate(wanted)])


def _unsqueeze(read: list[Any], attributes: dict[str, Any]) -> Any:
    axes = attributes["axes"] if len(read) == 1 else [int(a) for a in read[1]]
    for axis in sorted(axes):
        read[0] = read[0].unsqueeze(axis)
    return read[0]


def _sum(read: list[Any], _: dict[str, Any]) -> Any:
    total = read[0]
    for other in read[1:]:
        total = total + other
    return total


def _concat(read: list[Any], attributes: dict[str, Any]) -> Any:
    return torch.cat(read, attributes["axis"])


def _relu(read: list[Any], _: dict[str, Any]) -> Any:
    return torch.relu(read[0])


def _global_average(read: list[Any], _: dict[str, Any]) -> Any:
    return read[0].mean((2, 3), keepdim=True)


def _cast(read: list[Any], attributes: dict[str, Any]) -> Any:
    kinds = {1: torch.float32, 10: torch.float16, 7: torch.int64}
    return read[0].to(kinds[attributes["to"]])


def _flatten_softmax(read: list[Any], attributes: dict[str, Any]) -> Any:
    """Before opset 13 softmax ran over all dimensions from its axis on."""
    axis = attributes.get("axis", 1)
    flat = read[0].flatten(axis) if axis >= 0 else read[0]
    return torch.softmax(flat, -1).reshape(read[0].shape)


OPERATORS: dict[str, Operator] = {
    "Add": lambda r, _: r[0] + r[1],
    "AveragePool": _average_pool,
    "BatchNormalization": _normalise,
    "Cast": _cast,
    "Concat": _concat,
    "Conv": _convolution,
    "Dropout": lambda r, _: r[0],
    "Flatten": lambda r, a: r[0].flatten(a.get("axis", 1)),
    "Gemm": _gemm,
    "GlobalAveragePool": _global_average,
    "Identity": lambda r, _: r[0],
    "LRN": _lrn,
    "MatMul": lambda r, _: r[0] @ r[1],
    "MaxPool": _max_pool,
    "Mul": lambda r, _: r[0] * r[1],
    "Relu": _relu,
    "Reshape": _reshape,
    "Softmax": _flatten_softmax,
    "Sum": _sum,
    "Transpose": lambda r, a: r[0].permute(a["perm"]),
    "Unsqueeze": _unsqueeze,
}
