"""Real CNN topologies for trying things out: the `light_*` graphs of the onnx wheel.

The wheel ships the graphs with every weight replaced by one constant, which makes the answer the
same for every input. Here they get seeded random weights scaled so that activations neither vanish
nor explode, and a symbolic batch. The same name and seed give the same bytes.
"""

from pathlib import Path

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import numpy_helper

from flows.preparation.splitting.loading import load_skeleton
from flows.preparation.splitting.symbolic import make_batch_symbolic
from triton_backend.contract.errors import InputError

LIGHT_FOLDER = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"
DEFAULT_SEED = 20250701
# Two branches that are added get half the scale each, so that residual sums keep their size.
RESIDUAL_SCALE = 0.5
MOVERS = ("AveragePool", "Concat", "Dropout", "MaxPool", "Reshape", "Transpose")


def example_names() -> tuple[str, ...]:
    """Names that `write_example` knows, for instance `squeezenet`."""
    return tuple(sorted(p.stem.removeprefix("light_") for p in LIGHT_FOLDER.glob("light_*.onnx")))


def write_example(name: str, path: Path, *, seed: int = DEFAULT_SEED) -> Path:
    """Write the example model `name` to `path` and return `path`.

    Raises:
        InputError: no such example.
    """
    source = LIGHT_FOLDER / f"light_{name}.onnx"
    if not source.is_file():
        raise InputError(f"example {name!r}", f"is none of {', '.join(example_names())}")
    model = load_skeleton(source)
    _randomise(model.graph, np.random.default_rng(seed))
    del model.graph.value_info[:]
    model = make_batch_symbolic(model, source.name)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(model.SerializeToString(deterministic=True))
    return path


def _randomise(graph: onnx.GraphProto, rng: np.random.Generator) -> None:
    """Replace every float constant that a layer uses as a weight by a random tensor."""
    shapes = _constant_shapes(graph)
    made = [
        numpy_helper.from_array(_draw(role, shapes[name], rng), name)
        for name, role in sorted(_roles(graph).items())
        if name in shapes
    ]
    replaced = {tensor.name for tensor in made}
    kept = [t for t in graph.initializer if t.name not in replaced]
    nodes = [n for n in graph.node if not (set(n.output) & replaced)]
    del graph.initializer[:], graph.node[:]
    graph.initializer.extend(kept + made)
    graph.node.extend(nodes)
    used = {name for node in graph.node for name in node.input}
    kept = [t for t in graph.initializer if t.name in used]
    del graph.initializer[:]
    graph.initializer.extend(kept)


def _constant_shapes(graph: onnx.GraphProto) -> dict[str, tuple[int, ...]]:
    """Shape of every float constant: float initialisers and what ConstantOfShape makes."""
    values = {t.name: t for t in graph.initializer}
    shapes = {
        name: tuple(t.dims) for name, t in values.items() if t.data_type == onnx.TensorProto.FLOAT
    }
    for node in graph.node:
        if node.op_type == "ConstantOfShape" and node.input[0] in values:
            dims = numpy_helper.to_array(values[node.input[0]])
            shapes[node.output[0]] = tuple(int(d) for d in dims)
    return shapes


def _roles(graph: onnx.GraphProto) -> dict[str, str]:
    """The role of each input of a layer: weight, scale, residual scale, bias or variance."""
    users: dict[str, list[onnx.NodeProto]] = {}
    for node in graph.node:
        for name in node.input:
            users.setdefault(name, []).append(node)
    makers = {name: node for node in graph.node for name in node.output}
    roles: dict[str, str] = {}
    for node in graph.node:
        inputs = list(node.input)
        if node.op_type in ("Conv", "Gemm"):
            weight = "weight after relu" if _rectified(inputs[0], makers) else "weight"
            roles |= dict(zip(inputs[1:], (weight, "bias"), strict=False))
        elif node.op_type == "BatchNormalization":
            added = any(user.op_type == "Sum" for user in users.get(node.output[0], []))
            scale = "residual" if added else "scale"
            roles |= dict(zip(inputs[1:], (scale, "bias", "bias", "variance"), strict=True))
        elif node.op_type == "Unsqueeze":  # a per-channel scale or shift, as densenet has them
            kinds = {user.op_type for user in users.get(node.output[0], [])}
            roles[inputs[0]] = "scale" if "Mul" in kinds else "bias"
    return roles


def _rectified(name: str, makers: dict[str, onnx.NodeProto]) -> bool:
    """True if a tensor comes out of a Relu, seen through layers that only move values."""
    node = makers.get(name)
    while node is not None and node.op_type in MOVERS:
        node = makers.get(node.input[0])
    return node is not None and node.op_type == "Relu"


def _draw(role: str, shape: tuple[int, ...], rng: np.random.Generator) -> NDArray[np.float32]:
    """Random values for one constant; He et al. 2015 for weights."""
    normal = rng.standard_normal(shape, dtype=np.float32)
    if role.startswith("weight"):
        gain = 2.0 if role == "weight after relu" else 1.0
        values = normal * np.sqrt(gain / max(1, int(np.prod(shape[1:]))))
    elif role == "bias":
        values = 0.1 * normal
    elif role == "variance":
        values = 1.0 + 0.1 * np.abs(normal)
    else:
        values = (RESIDUAL_SCALE if role == "residual" else 1.0) * (1.0 + 0.1 * normal)
    return values.astype(np.float32)
