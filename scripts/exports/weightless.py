"""ONNX models without their weights, kept small, and with weights drawn again from a seed.

A drawn tensor has the mean and deviation of the one that was left out, and is positive where that
was: values then stay of the size that the architecture was made for, as batch statistics do. Small
tensors stay, so all that shapes and axes depend on does.
"""

import numpy as np
import onnx
from onnx import TensorProto, numpy_helper

KEPT = 256  # elements of tensors that stay
FLOATS = (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.DOUBLE)


def without_weights(model: onnx.ModelProto) -> onnx.ModelProto:
    """The same graph; every large tensor of floats is its shape, type, mean and deviation."""
    found = onnx.ModelProto()
    found.CopyFrom(model)
    for tensor in found.graph.initializer:
        if tensor.data_type not in FLOATS or np.prod(tensor.dims) <= KEPT:
            continue
        values = numpy_helper.to_array(tensor).astype(np.float64)
        positive = int(values.min() >= 0)
        kept = TensorProto(name=tensor.name, dims=tensor.dims, data_type=tensor.data_type)
        kept.doc_string = f"{values.mean():.6g} {values.std():.6g} {positive}"
        tensor.CopyFrom(kept)
    return found


def with_weights(model: onnx.ModelProto, seed: int = 0) -> onnx.ModelProto:
    """The same graph with weights; `model` was made by `without_weights`."""
    found = onnx.ModelProto()
    found.CopyFrom(model)
    rng = np.random.default_rng(seed)
    for tensor in found.graph.initializer:
        if not tensor.doc_string:
            continue
        mean, deviation, positive = map(float, tensor.doc_string.split())
        values = rng.normal(mean, deviation, tuple(tensor.dims))
        kind = onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type)
        drawn = (np.abs(values) if positive else values).astype(kind)
        tensor.CopyFrom(numpy_helper.from_array(drawn, tensor.name))
    return found
