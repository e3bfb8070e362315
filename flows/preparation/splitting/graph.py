"""Reading an ONNX graph: what is constant, what is a layer, what each tensor is used for.

A *layer* is a node whose result depends on a model input. All other nodes compute constants; they
have no place in the order of layers and are copied into every stage that uses them.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import onnx

KSERVE_DTYPES: dict[int, str] = {
    onnx.TensorProto.BOOL: "BOOL",
    onnx.TensorProto.UINT8: "UINT8",
    onnx.TensorProto.UINT16: "UINT16",
    onnx.TensorProto.UINT32: "UINT32",
    onnx.TensorProto.UINT64: "UINT64",
    onnx.TensorProto.INT8: "INT8",
    onnx.TensorProto.INT16: "INT16",
    onnx.TensorProto.INT32: "INT32",
    onnx.TensorProto.INT64: "INT64",
    onnx.TensorProto.FLOAT16: "FP16",
    onnx.TensorProto.FLOAT: "FP32",
    onnx.TensorProto.DOUBLE: "FP64",
}

CONTROL_FLOW = frozenset({"If", "Loop", "Scan"})
SEQUENCES = ("Sequence", "SplitToSequence", "ConcatFromSequence")
# How large their results are depends on values.
DATA_DEPENDENT = frozenset({"Compress", "NonMaxSuppression", "NonZero", "Unique"})
HEAD_NAME, TAIL_NAME = "poolpipe_head_of_each_sample", "poolpipe_tail_of_each_sample"


@dataclass(frozen=True, slots=True, kw_only=True)
class Layers:
    """The layers of a graph in the topological order of the file.

    Attributes:
        nodes: the layers.
        inputs: names of the model's inputs (initialisers are not inputs).
        outputs: names of the model's outputs.
        last_use: tensor name to the index of the last layer that reads it; the number of layers
            for model outputs.
        made_at: tensor name to the index of the layer that makes it; -1 for model inputs.
        half: FP16 is among the types of the graph's constants and casts.
    """

    nodes: tuple[onnx.NodeProto, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    last_use: dict[str, int]
    made_at: dict[str, int]
    half: bool

    def live_at(self, position: int) -> tuple[str, ...]:
        """Tensors made before layer `position` and read at or after it, in the order made."""
        return tuple(
            name
            for name, made in self.made_at.items()
            if made < position <= self.last_use.get(name, -1)
        )


def read_layers(graph: onnx.GraphProto) -> Layers:
    """Sort a graph's nodes into layers and constants."""
    inputs = input_names(graph)
    outputs = tuple(o.name for o in graph.output)
    made_at = dict.fromkeys(inputs, -1)
    last_use: dict[str, int] = {}
    nodes: list[onnx.NodeProto] = []
    for node in graph.node:
        read = [name for name in reads(node) if name in made_at]
        if not read:
            continue
        index = len(nodes)
        nodes.append(node)
        last_use.update(dict.fromkeys(read, index))
        made_at |= {name: index for name in node.output if name}
    last_use |= {name: len(nodes) for name in outputs if name in made_at}
    return Layers(
        nodes=tuple(nodes),
        inputs=inputs,
        outputs=outputs,
        last_use=last_use,
        made_at=made_at,
        half=_holds_half(graph),
    )


def _holds_half(graph: onnx.GraphProto) -> bool:
    kinds = {tensor.data_type for tensor in graph.initializer}
    for node in graph.node:
        for attribute in node.attribute:
            kinds.add(attribute.t.data_type)
            if node.op_type == "Cast" and attribute.name == "to":
                kinds.add(attribute.i)
    return onnx.TensorProto.FLOAT16 in kinds


def subgraphs(node: onnx.NodeProto) -> Iterator[onnx.GraphProto]:
    """Graphs inside a node: branches, bodies."""
    for attribute in node.attribute:
        if attribute.HasField("g"):
            yield attribute.g
        yield from attribute.graphs


def reads(node: onnx.NodeProto) -> dict[str, None]:
    """The inputs of a node in order, with those that inner graphs take from around them."""
    found = {name: None for name in node.input if name}
    for graph in subgraphs(node):
        own = {value.name for value in (*graph.input, *graph.initializer)}
        own |= {name for inner in graph.node for name in inner.output}
        taken = [name for inner in graph.node for name in reads(inner)]
        taken += [output.name for output in graph.output]
        found |= {name: None for name in taken if name not in own}
    return found


def rename_tensors(node: onnx.NodeProto, names: Mapping[str, str]) -> None:
    """Give tensors that a node reads or makes, also in graphs inside it, other names."""
    for values in (node.input, node.output):
        values[:] = [names.get(name, name) for name in values]
    for graph in subgraphs(node):
        for inner in graph.node:
            rename_tensors(inner, names)
        for output in graph.output:
            output.name = names.get(output.name, output.name)


def sort_nodes(graph: onnx.GraphProto) -> bool:
    """Put every node behind those whose results it reads; whether anything was moved.

    Converters to half precision leave casts at the end. Nodes on a cycle, or that read what
    nothing makes, stay at the end in their order.
    """
    made = {name for node in graph.node for name in node.output if name}
    known: set[str] = set()
    order: list[onnx.NodeProto] = []
    left = list(graph.node)
    while left:
        later: list[onnx.NodeProto] = []
        for node in left:
            if any(name in made and name not in known for name in reads(node)):
                later.append(node)
                continue
            order.append(node)
            known.update(node.output)
        if len(later) == len(left):
            order += later
            break
        left = later
    moved = [id(a) for a in order] != [id(b) for b in graph.node]
    if moved:
        copies = [onnx.NodeProto.FromString(node.SerializeToString()) for node in order]
        del graph.node[:]
        graph.node.extend(copies)
    return moved


def drop_unread(graph: onnx.GraphProto) -> None:
    """Remove nodes whose results are not read any more."""
    wanted = {output.name for output in graph.output}
    kept: list[onnx.NodeProto] = []
    for node in reversed(graph.node):
        if wanted & set(node.output):
            kept.append(node)
            wanted |= set(reads(node))
    del graph.node[:]
    graph.node.extend(reversed(kept))


def is_irregular(node: onnx.NodeProto) -> bool:
    """True if the output depends on control flow or on values, or is no tensor."""
    if node.name == HEAD_NAME:  # it stacks what has the same shape for every sample
        return False
    kind = node.op_type
    return kind in CONTROL_FLOW or kind in DATA_DEPENDENT or kind.startswith(SEQUENCES)


def irregular_tensors(layers: Layers) -> set[str]:
    """Everything that derives from a node of that kind: it crosses no boundary."""
    found: set[str] = set()
    for node in layers.nodes:
        if is_irregular(node) or not found.isdisjoint(reads(node)):
            found |= {name for name in node.output if name}
    return found


def node_label(node: onnx.NodeProto) -> str:
    """The name of a node, else (as in TensorRT's parser) that of its first output."""
    return node.name or f"node_of_{node.output[0]}"


def input_names(graph: onnx.GraphProto) -> tuple[str, ...]:
    """Model inputs; old files list initialisers among them."""
    constants = {t.name for t in graph.initializer} | {
        t.values.name for t in graph.sparse_initializer
    }
    return tuple(i.name for i in graph.input if i.name not in constants)
