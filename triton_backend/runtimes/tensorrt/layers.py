"""Layers of an engine in TensorRT's words, and the ONNX nodes of each.

Here: parsers for the two sources (the layer table in the builder's log, which needs no GPU, and
the inspector's JSON, which needs one) and the mapping of fused layers back to ONNX nodes.
Not here: anything that calls TensorRT.

TensorRT fuses nodes and repeats the layers once per optimisation profile; each layer carries the
names of its nodes as metadata: `[ONNX Layer: conv1]`, then a unit separator, then the next.
"""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from triton_backend.contract.errors import InputError
from triton_backend.runtimes.tensorrt.library import LogLine

TABLE_START = "Layers:\n"
TENSORS_START = "\nI/O Tensors:"
_NODE = re.compile(r"\[ONNX Layer: ([^\]\x1f]+)\]")
_PROFILE = re.compile(r"_myl(\d+)_\d+$|\[profile (\d+)\]")
_LAYER = re.compile(r"^Name: (.*?), LayerType: (.*?), ", re.MULTILINE)
_METADATA = re.compile(r"Metadata: ([^\n]*)$")
_TENSOR = re.compile(
    r"^ Name: (.*), IOMode: (Input|Output), DataType: (\w+), Dimensions: \[([-\d,]*)\]",
    re.MULTILINE,
)
_LAYER_TYPES_WITHOUT_WORK = frozenset({"signal", "wait"})
_KSERVE_OF_WORD: Mapping[str, str] = {
    "Float": "FP32",
    "Half": "FP16",
    "BFloat16": "BF16",
    "Int8": "INT8",
    "Int32": "INT32",
    "Int64": "INT64",
    "UInt8": "UINT8",
    "Uint8": "UINT8",
    "Bool": "BOOL",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineLayer:
    """One layer: its ONNX nodes in order, and the optimisation profile it belongs to."""

    name: str
    kind: str
    nodes: tuple[str, ...]
    profile: int

    @property
    def works(self) -> bool:
        """False for the marks by which two streams wait for each other."""
        return self.kind not in _LAYER_TYPES_WITHOUT_WORK


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineTensor:
    """One tensor at the engine's edge; datatype in KServe's words."""

    name: str
    is_input: bool
    dtype: str
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineDescription:
    """All layers of all profiles and, from the builder's log, the tensors at the edge."""

    layers: tuple[EngineLayer, ...]
    tensors: tuple[EngineTensor, ...] = ()

    def of_profile(self, profile: int) -> tuple[EngineLayer, ...]:
        """Layers of one optimisation profile."""
        return tuple(layer for layer in self.layers if layer.profile == profile)

    def to_dict(self) -> dict[str, Any]:
        """Plain form, as kept beside the engine."""
        return {
            "layers": [
                {"name": x.name, "kind": x.kind, "nodes": list(x.nodes), "profile": x.profile}
                for x in self.layers
            ],
            "tensors": [
                {"name": x.name, "is_input": x.is_input, "dtype": x.dtype, "shape": list(x.shape)}
                for x in self.tensors
            ],
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "EngineDescription":
        """Inverse of `to_dict`."""
        return cls(
            layers=tuple(
                EngineLayer(
                    name=x["name"], kind=x["kind"], nodes=tuple(x["nodes"]), profile=x["profile"]
                )
                for x in data["layers"]
            ),
            tensors=tuple(
                EngineTensor(
                    name=x["name"],
                    is_input=x["is_input"],
                    dtype=x["dtype"],
                    shape=tuple(x["shape"]),
                )
                for x in data["tensors"]
            ),
        )


def description_from_log(lines: Iterable[LogLine]) -> EngineDescription | None:
    """The layer table that the builder logs at its most detailed; None where there is none."""
    for line in lines:
        if line.text.startswith(TABLE_START):
            table, _, edge = line.text.removeprefix(TABLE_START).partition(TENSORS_START)
            return EngineDescription(layers=_table_layers(table), tensors=_edge_tensors(edge))
    return None


def description_from_inspector(text: str) -> EngineDescription:
    """Layers from `EngineInspector.get_engine_information(JSON)` of a detailed engine.

    Raises:
        InputError: not the inspector's JSON, or an engine built without detail (names alone).
    """
    try:
        layers = json.loads(text)["Layers"]
        found = tuple(
            _layer(x["Name"], str(x.get("LayerType", "")), str(x.get("Metadata", "")))
            for x in layers
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError("engine inspector", f"not a detailed description: {error!r}") from error
    return EngineDescription(layers=found)


def _table_layers(table: str) -> tuple[EngineLayer, ...]:
    starts = [m.start() for m in _LAYER.finditer(table)]
    found: list[EngineLayer] = []
    for start, end in zip(starts, [*starts[1:], len(table)], strict=True):
        entry = table[start:end].rstrip()
        head, metadata = _LAYER.match(entry), _METADATA.search(entry)
        if head is not None:
            found.append(_layer(head[1], head[2], metadata[1] if metadata else ""))
    return tuple(found)


def _layer(name: str, kind: str, metadata: str) -> EngineLayer:
    profile = _PROFILE.search(name)
    number = 0 if profile is None else int(profile[1] or profile[2])
    return EngineLayer(name=name, kind=kind, nodes=tuple(_NODE.findall(metadata)), profile=number)


def _edge_tensors(text: str) -> tuple[EngineTensor, ...]:
    return tuple(
        EngineTensor(
            name=name,
            is_input=mode == "Input",
            dtype=_KSERVE_OF_WORD.get(word, word),
            shape=tuple(int(d) for d in dims.split(",") if d),
        )
        for name, mode, word, dims in _TENSOR.findall(text)
    )


def node_times_us(
    layers: Sequence[EngineLayer],
    layer_times_us: Mapping[str, float],
    nodes: Sequence[str],
    *,
    weights: Mapping[str, float] | None = None,
) -> dict[str, float]:
    """Time of every ONNX node from the times of the fused layers that do their work.

    A layer's time is shared among its nodes in proportion to `weights` (for instance their times
    on a CPU), equally where those say nothing. The time of layers without nodes (copies between
    memory formats, glue) goes to the nodes of the next layer that has some, else of the last: the
    copy is there because of it. Nodes that were folded away take 0.

    Args:
        layers: of one optimisation profile, in the order they run.
        layer_times_us: by layer name; layers that are missing took no time.
        nodes: names of all nodes of the stage, in graph order.
        weights: how much each node weighs within its layer.

    Raises:
        InputError: a layer names a node that the stage lacks, or a time has no layer.
    """
    unknown = set(layer_times_us) - {layer.name for layer in layers}
    if unknown:
        raise InputError("layer times", f"no such layer: {', '.join(sorted(unknown)[:3])}")
    times = dict.fromkeys(nodes, 0.0)
    waiting_us, last = 0.0, ()
    for layer in layers:
        waiting_us += layer_times_us.get(layer.name, 0.0)
        if not layer.nodes:
            continue
        _share(times, layer.nodes, waiting_us, weights or {})
        waiting_us, last = 0.0, layer.nodes
    if last:
        _share(times, last, waiting_us, weights or {})
    return times


def _share(
    times: dict[str, float], nodes: tuple[str, ...], time_us: float, weights: Mapping[str, float]
) -> None:
    lacking = [name for name in nodes if name not in times]
    if lacking:
        raise InputError("engine layers", f"node {lacking[0]!r} is not in the stage")
    parts = [max(weights.get(name, 0.0), 0.0) for name in nodes]
    if not sum(parts):
        parts = [1.0] * len(nodes)
    for name, part in zip(nodes, parts, strict=True):
        times[name] += time_us * part / sum(parts)
