"""An example detector in the form in which exporters write them.

For one picture, with its choice of boxes. As a single-shot detector traced with its
post-processing: a trunk, one convolution for boxes and one for classes, then for the one picture:
threshold, TopK, an `If` around NonMaxSuppression, Gather. It gives `boxes` [n, 4] (x1, y1, x2, y2
in pixels), `scores` [n] and `labels` [n] (INT64, from 1), n from 0 to `most`. Weights are random:
boxes stand anywhere, but they depend on the picture.
"""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from flows.preparation.graphs.examples import DEFAULT_SEED, write_example
from flows.preparation.splitting.graph import drop_unread
from flows.preparation.splitting.running import quiet_options, random_inputs
from triton_backend.contract.errors import InputError
from triton_backend.contract.tensors import TensorSpec

TRUNK, OPSET = "squeezenet", 17
MOST_BOXES = 4
ANCHORS = ((0.25, 0.35), (0.5, 0.3), (0.4, 0.7))  # width and height, in parts of the picture
CLASSES = 3  # background and two others
CANDIDATES = 30
OVERLAP = 0.4
# Deviation of logits over cells and pictures.
SPREAD, THRESHOLD = 1.0, 0.96
PICTURES, SMALLEST = 16, 1e-3


def write_detector(
    path: Path,
    *,
    trunk: str = TRUNK,
    features: str = "",
    threshold: float = THRESHOLD,
    seed: int = 0,
) -> Path:
    """Write a detector on the trunk of an example model (`examples`) to `path` and return `path`.

    Args:
        path: the file to write.
        trunk: name of the example.
        features: its tensor that the heads read; empty: what its last convolution of many channels
            reads.
        threshold: least score of a box.
        seed: of the weights of the heads.

    Raises:
        InputError: no such example, or it has no such tensor.
    """
    model = onnx.load(write_example(trunk, path))
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_value = 1
    name = features or _features(model.graph)
    add_heads(model, name, threshold=threshold, seed=seed or DEFAULT_SEED)
    path.write_bytes(model.SerializeToString(deterministic=True))
    return path


def _features(graph: onnx.GraphProto) -> str:
    makers = {name: node for node in graph.node for name in node.output}
    read = [node for node in graph.node if node.op_type == "Conv"][-1].input[0]
    return makers[read].input[0] if makers[read].op_type == "Dropout" else read


def add_heads(
    model: onnx.ModelProto,
    features: str,
    *,
    threshold: float,
    seed: int,
    most: int = MOST_BOXES,
) -> None:
    """Put heads and post-processing in place of a model's outputs and of what only these read.

    Raises:
        InputError: the model has no such tensor of [1, channels, height, width].
    """
    inferred = onnx.shape_inference.infer_shapes(model).graph
    values = {v.name: v for v in (*inferred.value_info, *inferred.input, *inferred.output)}
    dims = (
        [d.dim_value for d in values[features].type.tensor_type.shape.dim]
        if features in values
        else []
    )
    if len(dims) != 4 or not all(dims):  # noqa: PLR2004  # batch, channels, height, width
        raise InputError(f"tensor {features!r}", f"is {dims}, not [1, channels, height, width]")
    # The rest of the trunk is the same in all operator sets.
    del model.opset_import[:]
    model.opset_import.append(helper.make_opsetid("", OPSET))
    graph = model.graph
    size = graph.input[0].type.tensor_type.shape.dim
    width, height = size[3].dim_value, size[2].dim_value
    usual = _usual(model, features, np.random.default_rng(seed))
    build = _Nodes(graph)
    rng = np.random.default_rng(seed)
    heads = {
        name: build("Conv", features, *_weights(rng, len(ANCHORS) * per_anchor, *usual))
        for name, per_anchor in (("deltas", 4), ("logits", CLASSES))
    }
    cells = dims[2] * dims[3]

    def flat(name: str, last: int) -> str:
        apart = build("Reshape", heads[name], np.array([1, len(ANCHORS), last, *dims[2:]]))
        moved = build("Transpose", apart, perm=[0, 3, 4, 1, 2])
        return build("Reshape", moved, np.array([1, cells * len(ANCHORS), last]))

    deltas, logits = flat("deltas", 4), flat("logits", CLASSES)
    # From here on one picture, as `for boxes, scores in zip(...)` is traced.
    scores = build("Squeeze", build("Softmax", logits, axis=-1), np.array([0]))
    boxes = _decoded(
        build, build("Squeeze", deltas, np.array([0])), (dims[3], dims[2]), (width, height)
    )
    found = [_candidates(build, boxes, scores, label, threshold) for label in range(1, CLASSES)]
    boxes, scores, labels = (build("Concat", *(one[i] for one in found), axis=0) for i in range(3))
    kept = _chosen(build, boxes, scores, labels, reach=float(2 * max(width, height)))
    kept = build("Slice", kept, np.array([0]), np.array([most]), np.array([0]))
    del graph.output[:]
    for name, tensor, kind, shape in (
        ("boxes", boxes, TensorProto.FLOAT, ["found", 4]),
        ("scores", scores, TensorProto.FLOAT, ["found"]),
        ("labels", labels, TensorProto.INT64, ["found"]),
    ):
        build("Gather", tensor, kept, name=name, axis=0)
        graph.output.append(helper.make_tensor_value_info(name, kind, shape))
    drop_unread(graph)


def _usual(
    model: onnx.ModelProto, features: str, rng: np.random.Generator
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Mean and deviation of every channel of the features, over random pictures."""
    seen = onnx.ModelProto()
    seen.CopyFrom(model)
    del seen.graph.output[:]
    seen.graph.output.append(onnx.ValueInfoProto(name=features))
    drop_unread(seen.graph)
    given = seen.graph.input[0]
    shape = tuple(d.dim_value for d in given.type.tensor_type.shape.dim)
    spec = TensorSpec(name=given.name, dtype="FP32", shape=(-1, *shape[1:]))
    session = onnxruntime.InferenceSession(
        seen.SerializeToString(), quiet_options(), providers=["CPUExecutionProvider"]
    )
    pictures = random_inputs([spec], PICTURES, rng)[given.name]
    made = [
        np.asarray(session.run(None, {given.name: pictures[i : i + 1]})[0]) for i in range(PICTURES)
    ]
    found = np.concatenate(made).astype(np.float64)
    return found.mean(axis=(0, 2, 3)), found.std(axis=(0, 2, 3)) + SMALLEST


def _weights(
    rng: np.random.Generator,
    outputs: int,
    mean: NDArray[np.float64],
    deviation: NDArray[np.float64],
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """A convolution whose results are about normal on such features."""
    values = rng.standard_normal((outputs, len(mean))) * SPREAD / np.sqrt(len(mean)) / deviation
    weights = values.reshape(outputs, -1, 1, 1).astype(np.float32)
    return weights, (-values @ mean).astype(np.float32)


def _decoded(build: "_Nodes", deltas: str, cells: tuple[int, int], size: tuple[int, int]) -> str:
    """Boxes [n, 4] in pixels inside the picture, of deltas to the anchors of all cells."""
    columns, rows = cells
    ys, xs = np.mgrid[0:rows, 0:columns]
    centres = np.stack([(xs + 0.5) / columns, (ys + 0.5) / rows], axis=-1).reshape(-1, 1, 2)
    sizes = np.broadcast_to(np.array(ANCHORS), (rows * columns, len(ANCHORS), 2))
    centres = np.broadcast_to(centres, sizes.shape).reshape(-1, 2) * size
    sizes = sizes.reshape(-1, 2) * size

    def part(first: int) -> str:
        return build("Slice", deltas, np.array([first]), np.array([first + 2]), np.array([1]))

    moved = build("Mul", build("Tanh", part(0)), (sizes / 4).astype(np.float32))
    middle = build("Add", moved, centres.astype(np.float32))
    grown = build("Exp", build("Mul", build("Tanh", part(2)), np.array(0.4, np.float32)))
    half = build("Mul", grown, (sizes / 2).astype(np.float32))
    corners = build("Concat", build("Sub", middle, half), build("Add", middle, half), axis=1)
    inside = build("Max", corners, np.zeros(4, np.float32))
    return build("Min", inside, np.array([*size, *size], np.float32))


def _candidates(
    build: "_Nodes", boxes: str, scores: str, label: int, threshold: float
) -> tuple[str, str, str]:
    """The best boxes of a class above the threshold: boxes, scores, labels."""
    own = build("Gather", scores, np.array(label), axis=1)
    above = build("NonZero", build("Greater", own, np.array(threshold, np.float32)))
    places = build("Squeeze", above, np.array([0]))
    own, some = build("Gather", own, places, axis=0), build("Gather", boxes, places, axis=0)
    number = build("Shape", own)
    most = build("Min", number, np.array([CANDIDATES]))
    build.graph.node.append(
        helper.make_node("TopK", [own, most], [f"best_{label}", f"places_{label}"], axis=0)
    )
    best = build("Gather", some, f"places_{label}", axis=0)
    shape = build("Shape", f"best_{label}")
    value = numpy_helper.from_array(np.array([label], np.int64))
    return best, f"best_{label}", build("ConstantOfShape", shape, value=value)


def _chosen(build: "_Nodes", boxes: str, scores: str, labels: str, *, reach: float) -> str:
    """Places of the boxes that stay, best first.

    An `If`, as tracing writes it where there may be none.
    """
    number = build("Reshape", build("Shape", scores), np.array([], np.int64))
    none = build("Equal", number, np.array(0))
    then, other = _Nodes(onnx.GraphProto(), "then_"), _Nodes(onnx.GraphProto(), "else_")
    empty = then("Constant", value=numpy_helper.from_array(np.empty(0, np.int64)))
    # Classes are moved apart, so that boxes of two do not overlap.
    apart = other("Mul", other("Cast", labels, to=TensorProto.FLOAT), np.array(reach, np.float32))
    moved = other("Add", boxes, other("Unsqueeze", apart, np.array([1])))
    chosen = other(
        "NonMaxSuppression",
        other("Unsqueeze", moved, np.array([0])),
        other("Unsqueeze", scores, np.array([0, 1])),
        np.array([1000]),
        np.array([OVERLAP], np.float32),
    )
    places = other(
        "Squeeze", other("Slice", chosen, *map(np.array, ([2], [3], [1]))), np.array([1])
    )
    branches = {
        name: helper.make_graph(
            list(inner.graph.node),
            name,
            [],
            [helper.make_tensor_value_info(end, TensorProto.INT64, ["chosen"])],
            list(inner.graph.initializer),
        )
        for name, inner, end in (("then", then, empty), ("else", other, places))
    }
    return build("If", none, then_branch=branches["then"], else_branch=branches["else"])


class _Nodes:
    """Nodes of a graph, one after the other; arrays among their inputs become initialisers."""

    def __init__(self, graph: onnx.GraphProto, prefix: str = "head_") -> None:
        self.graph, self._prefix = graph, prefix

    def __call__(
        self, kind: str, *inputs: str | NDArray[np.generic], name: str = "", **attributes: Any
    ) -> str:
        names: list[str] = []
        for one in inputs:
            if isinstance(one, str):
                names.append(one)
                continue
            names.append(f"{self._prefix}constant_{len(self.graph.initializer)}")
            self.graph.initializer.append(numpy_helper.from_array(np.asarray(one), names[-1]))
        made = name or f"{self._prefix}{kind}_{len(self.graph.node)}"
        self.graph.node.append(helper.make_node(kind, names, [made], name=f"/{made}", **attributes))
        return made
