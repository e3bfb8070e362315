"""Parts of a model that handle one sample, run for each of a batch.

What exporters write around detectors. A detector is exported for one picture. Before its backbone
it may take the picture out of its batch of one and put it back; behind its heads it chooses boxes,
with control flow and shapes that depend on values, and gives as many rows as it found. Neither part
can be given a batch, the layers between them can:

    layers     0 ...... first ...................... last ...... n
               one Loop        any batch, may be cut    one Loop

`first` and `last` are found by running: `last` is the last position before control flow up to which
the layers run at other batches and every live tensor carries the batch; where that is not far,
later positions are tried as `first`. The body of a Loop is the part as it was written, on one
sample. Outputs whose rows vary come one sample after the other, with an output `rows` that says how
many each has (`runtimes/base.py`).

Here: where the parts begin, and the model with the Loops. Not here: whether that is needed
(`split`).
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from flows.preparation.splitting.graph import (
    HEAD_NAME,
    TAIL_NAME,
    Layers,
    irregular_tensors,
    is_irregular,
    read_layers,
    reads,
    rename_tensors,
)
from flows.preparation.splitting.inputs.values import InputValues, ModelInputs
from flows.preparation.splitting.loading import save_model
from flows.preparation.splitting.observing import (
    NUMPY_TO_KSERVE,
    batch_specs,
    input_specs,
    run_batches,
)
from flows.preparation.splitting.running import (
    Arrays,
    open_session,
    plain_options,
    relative_error,
    run_session,
    with_outputs,
)
from flows.preparation.splitting.shapes import derived_from_shapes
from flows.preparation.splitting.symbolic import BATCH, make_batch_symbolic
from triton_backend.contract.errors import InputError
from triton_backend.contract.tensors import TensorSpec
from triton_backend.runtimes.base import NUMPY_DTYPES, ROWS, counts_name, counts_of

SAMPLES = 6
MOST_FIRSTS = 12
SEED = 23
MAX_ERROR = 1e-5
ONE, SAMPLES_OF = "__of_one_sample", "_samples"


class Left(NamedTuple):
    """A tensor that leaves a part.

    Attributes:
        varies: its dimension 0 is a number of rows; else it is the sample's 1.
    """

    name: str
    dtype: np.dtype[np.generic]
    shape: tuple[int, ...]
    varies: bool


def is_sample_by_sample(layers: Layers) -> bool:
    """True if no layer is outside of the Loops but those that read the batch's size."""
    names = {node.name for node in layers.nodes}
    outside = [n for n in layers.nodes if n.name not in (HEAD_NAME, TAIL_NAME)]
    return TAIL_NAME in names and all(n.op_type in {"Shape", "Gather"} for n in outside)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Exported:
    """A model as exported, for one sample.

    Attributes:
        model: with batch 1; `free`: the same, its batch symbolic where that is a matter of
            constants.
        derived: tensors computed from shapes that are the same for every sample.
        known: tensors at one sample, by name: all before control flow, and the outputs.
        irregular: index of the first layer that control flow or values decide.
        places: index of every layer among the nodes.
    """

    where: str
    path: Path
    model: onnx.ModelProto
    free: onnx.ModelProto
    layers: Layers
    inputs: ModelInputs
    derived: frozenset[str]
    known: Arrays
    irregular: int
    places: tuple[int, ...]

    def crossing(self, position: int) -> tuple[str, ...]:
        """Live tensors that are not derived from shapes: those become constants."""
        return tuple(n for n in self.layers.live_at(position) if n not in self.derived)

    def specs(self, names: Sequence[str]) -> tuple[TensorSpec, ...] | None:
        """Specs of tensors, each of one sample; None where one of them is not."""
        found: list[TensorSpec] = []
        for name in names:
            array = self.known.get(name)
            dtype = None if array is None else NUMPY_TO_KSERVE.get(array.dtype)
            if array is None or dtype is None or array.shape[:1] != (1,) or not array.size:
                return None
            found.append(TensorSpec(name=name, dtype=dtype, shape=(-1, *array.shape[1:])))
        return tuple(found)


def run_ends_per_sample(model: onnx.ModelProto, where: str, values: InputValues) -> onnx.ModelProto:
    """The model with a symbolic batch, its parts of one sample in Loops.

    Args:
        model: with its weights; dimension 0 of its inputs is 1 or symbolic.
        where: what to call it.
        values: what to run it on.

    Raises:
        InputError: it does not run on one sample, outputs of such a form cannot be served, or the
            model that was made does not answer as the one given.
    """
    with TemporaryDirectory() as scratch:
        folder = Path(scratch)
        exported = _observe(model, folder / "exported.onnx", where, values)
        made = _with_loops(exported, *_between(exported, folder))
        save_model(made, folder / "made.onnx")
        _compare(exported, folder / "made.onnx")
    return made


def can_run_per_sample(model: onnx.ModelProto) -> bool:
    """True if a model is one of these.

    Something irregular in it, one sample, no rows counted already.
    """
    known = {t.name for t in model.graph.initializer}
    inputs = [value for value in model.graph.input if value.name not in known]
    firsts = [v.type.tensor_type.shape.dim[:1] for v in inputs]
    one = all(dim and (not dim[0].HasField("dim_value") or dim[0].dim_value == 1) for dim in firsts)
    counted = counts_of(output.name for output in model.graph.output)
    return one and not counted and any(map(is_irregular, read_layers(model.graph).nodes))


def _observe(model: onnx.ModelProto, path: Path, where: str, values: InputValues) -> _Exported:
    free = onnx.ModelProto()
    free.CopyFrom(model)
    free = make_batch_symbolic(free, where)
    fixed = onnx.ModelProto()
    fixed.CopyFrom(model)
    for value in fixed.graph.input:
        value.type.tensor_type.shape.dim[0].dim_value = 1
    layers = read_layers(fixed.graph)
    for output in layers.outputs:
        if layers.made_at.get(output, -1) < 0:
            raise InputError(f"{where}, output {output!r}", "is not computed from any input")
    save_model(fixed, path)
    irregular = next(i for i, node in enumerate(layers.nodes) if is_irregular(node))
    regular = [n for n, at in layers.made_at.items() if 0 <= at < irregular]
    inputs = ModelInputs(specs=input_specs(free, layers.inputs, where), values=values)
    wanted = list(dict.fromkeys((*regular, *layers.outputs)))
    (known,) = _runs(path, where, inputs, wanted, samples=1)
    derived = derived_from_shapes(layers)
    return _Exported(
        where=where,
        path=path,
        model=fixed,
        free=free,
        layers=layers,
        inputs=inputs,
        derived=frozenset(name for name in derived if name in regular),
        known=known,
        irregular=irregular,
        places=tuple(
            i for i, n in enumerate(fixed.graph.node) if any(o in layers.made_at for o in n.output)
        ),
    )


def _runs(
    path: Path, where: str, inputs: ModelInputs, wanted: Sequence[str], *, samples: int
) -> list[Arrays]:
    """A model's outputs for random samples, one at a time, without graph optimisation.

    Which of two nearly equal boxes comes first hangs on the last bits, and these on what is fused.
    """
    probe = with_outputs(path, wanted, path.with_name(f".one-{path.name}"))
    try:
        session = open_session(probe, where, plain_options())
    finally:
        probe.unlink()
    feed = inputs.draw(samples, np.random.default_rng(SEED))
    found: list[Arrays] = []
    for i in range(samples):
        try:
            found.append(run_session(session, {n: a[i : i + 1] for n, a in feed.items()}))
        except Exception as error:  # onnxruntime's own exceptions share no public base class
            raise InputError(where, f"cannot run one sample: {error}") from error
    return found


def _between(exported: _Exported, folder: Path) -> tuple[int, int]:
    """First and last position of the longest part found that takes any batch.

    (0, 0) where there is none.
    """
    best = (0, _last(exported, 0, folder))
    enough = exported.irregular // 2
    tries = 0
    for first in range(1, exported.irregular):
        if best[1] - best[0] >= enough or tries == MOST_FIRSTS:
            break
        if exported.specs(exported.crossing(first)):
            tries += 1
            last = _last(exported, first, folder)
            if last - first > best[1] - best[0]:
                best = (first, last)
    return best if best[1] > best[0] else (0, 0)


def _last(exported: _Exported, first: int, folder: Path) -> int:
    """The last position that layers from `first` on reach at any batch.

    `first` where there is none.
    """
    low, high = first, exported.irregular
    found: set[str] = set()
    while low < high:  # layers up to `low` run, those up to `high + 1` do not
        middle = (low + high + 1) // 2
        specs = _run_between(exported, first, middle, folder)
        if specs is None:
            high = middle - 1
        else:
            low, found = middle, specs
    for position in range(low, first, -1):
        names = exported.crossing(position)
        if names and exported.specs(names) and found.issuperset(names):
            return position
    return first


def _run_between(exported: _Exported, first: int, last: int, folder: Path) -> set[str] | None:
    """Tensors of layers [first, last) that carry the batch; None where these do not run."""
    given = exported.specs(exported.crossing(first)) if first else exported.inputs.specs
    assert given is not None, "first is such a position"
    part = onnx.ModelProto()
    part.CopyFrom(exported.free)
    layers = [part.graph.node[place] for place in exported.places]
    _fold(part.graph, layers[first:], exported, first)
    kept = [*_constants(part.graph, exported.layers), *layers[first:last]]
    _replace(part.graph.node, kept)
    _replace(part.graph.input, [_value(spec) for spec in given])
    del part.graph.output[:]
    names = [name for node in layers[first:last] for name in node.output if name]
    file = folder / "between.onnx"
    save_model(part, file)
    try:
        small, large = run_batches(file, exported.where, names, _inputs(exported, given))
    except InputError:
        return None
    finally:
        file.unlink()
    return {*batch_specs(names, small, large), *(spec.name for spec in given)}


def _inputs(exported: _Exported, given: Sequence[TensorSpec]) -> ModelInputs:
    """The inputs of a part; tensors from inside the model are drawn freely."""
    return exported.inputs if given is exported.inputs.specs else ModelInputs(specs=tuple(given))


def _fold(
    graph: onnx.GraphProto, layers: Sequence[onnx.NodeProto], exported: _Exported, before: int
) -> None:
    """Let layers read constants in place of what was computed from shapes before a position."""
    values = {n for n in exported.derived if exported.layers.made_at[n] < before}
    names = {name: f"{name}__before_{before}" for name in values}
    used: set[str] = set()
    for node in layers if values else ():
        used |= values & reads(node).keys()
        rename_tensors(node, names)
    graph.initializer.extend(
        numpy_helper.from_array(np.asarray(exported.known[name]), names[name])
        for name in sorted(used)
    )


def _constants(graph: onnx.GraphProto, layers: Layers) -> list[onnx.NodeProto]:
    return [n for n in graph.node if not any(o in layers.made_at for o in n.output)]


def _replace(values: Any, new: Iterable[Any]) -> None:
    """Other messages in place of those of a repeated field, which they may come from."""
    copies = [type(value).FromString(value.SerializeToString()) for value in new]
    del values[:]
    values.extend(copies)


def _value(spec: TensorSpec) -> onnx.ValueInfoProto:
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(NUMPY_DTYPES[spec.dtype]))
    return helper.make_tensor_value_info(spec.name, kind, [BATCH, *spec.shape[1:]])


def _with_loops(exported: _Exported, first: int, last: int) -> onnx.ModelProto:
    """Layers [first, last) as they are for any batch, those before and after in a Loop each."""
    layers, made = exported.layers, exported.free
    heads = _leaving(exported, exported.crossing(first)) if first else []
    tails = _leaving(exported, [n for n in layers.outputs if layers.made_at[n] >= last])
    between = [made.graph.node[place] for place in exported.places]
    _fold(made.graph, between[first:], exported, first)
    _fold(made.graph, layers.nodes[last:], exported, last)
    nodes = _constants(made.graph, layers)
    known = {t.name for t in made.graph.initializer}
    made.graph.initializer.extend(
        t for t in exported.model.graph.initializer if t.name not in known
    )
    inputs = [spec.name for spec in exported.inputs.specs]
    if first:
        nodes += _loop(HEAD_NAME, layers.nodes[:first], inputs, heads, made.graph)
    nodes += between[first:last]
    entering = exported.crossing(last) if last else inputs
    nodes += _loop(TAIL_NAME, layers.nodes[last:], entering, tails, made.graph)
    varying = {one.name: one for one in tails if one.varies}
    values: list[onnx.ValueInfoProto] = []
    for value in made.graph.output:
        one = varying.get(value.name)
        dims = [] if one is None else [f"rows_of_{one.name}", *one.shape[1:]]
        values.append(
            value if one is None else helper.make_tensor_value_info(one.name, _code(one), dims)
        )
    values += [
        helper.make_tensor_value_info(count, TensorProto.INT64, [BATCH])
        for count in dict.fromkeys(_counts(tails).values())
    ]
    _replace(made.graph.node, nodes)
    _replace(made.graph.output, values)
    return made


def _leaving(exported: _Exported, names: Sequence[str]) -> list[Left]:
    """The outputs of a part by name; shape inference does not know whose rows vary.

    Raises:
        InputError: an output of a form that cannot be served.
    """
    inferred = onnx.shape_inference.infer_shapes(exported.model)
    values = (*inferred.graph.value_info, *inferred.graph.output)
    fronts = {v.name: v.type.tensor_type.shape.dim[:1] for v in values}
    irregular = irregular_tensors(exported.layers)
    runs = _runs(exported.path, exported.where, exported.inputs, names, samples=SAMPLES)
    found: list[Left] = []
    for name in names:
        shapes = {run[name].shape for run in runs}
        place = f"{exported.where}, output {name!r}"
        if any(not shape for shape in shapes):
            raise InputError(place, "is a scalar; outputs have rows")
        if len({shape[1:] for shape in shapes}) > 1:
            seen = sorted(map(list, shapes))[:2]
            raise InputError(place, f"only dimension 0 may depend on the sample; shapes {seen}")
        front = fronts.get(name)
        known = bool(front and front[0].HasField("dim_value"))
        lengths = {shape[0] for shape in shapes}
        varies = lengths != {1} or (name in irregular and not known)
        array = runs[0][name]
        found.append(Left(name, array.dtype, array.shape, varies))
    return found


def _counts(leaving: Sequence[Left]) -> dict[str, str]:
    """The output that counts the rows of each whose rows vary: `rows` where one serves them all."""
    varying = [one.name for one in leaving if one.varies]
    taken = {one.name for one in leaving}
    return {name: ROWS if ROWS not in taken else counts_name(name) for name in varying}


def _loop(
    name: str,
    layers: Sequence[onnx.NodeProto],
    entering: Sequence[str],
    leaving: Sequence[Left],
    graph: onnx.GraphProto,
) -> list[onnx.NodeProto]:
    """Layers on one sample at a time.

    Tensors enter as [batch, ...], and leave stacked or one after the other.
    """
    counts = _counts(leaving)
    own = {one.name: one.name + ONE for one in leaving} | {n: n + ONE for n in entering}
    constant = _Constants(graph, name)
    body = [
        helper.make_node("Identity", [f"{name}_go"], [f"{name}_on"]),
        helper.make_node("Reshape", [f"{name}_at", constant([1])], [f"{name}_index"]),
    ]
    body += [
        helper.make_node("Gather", [given, f"{name}_index"], [own[given]], axis=0)
        for given in entering
    ]
    for layer in layers:
        copy = onnx.NodeProto()
        copy.CopyFrom(layer)
        rename_tensors(copy, own)
        body.append(copy)
    carried = [one for one in leaving if one.varies]
    stacked = [one for one in leaving if not one.varies]
    scans: list[onnx.ValueInfoProto] = []
    for one in carried:
        here = own[one.name]
        body.append(helper.make_node("Concat", [f"{here}_before", here], [f"{here}_all"], axis=0))
    for count in dict.fromkeys(counts.values()):
        here = own[next(one for one, named in counts.items() if named == count)]
        body.append(helper.make_node("Shape", [here], [f"{count}_shape"]))
        body.append(
            helper.make_node("Gather", [f"{count}_shape", constant(0)], [f"{count}{ONE}"], axis=0)
        )
        scans.append(helper.make_tensor_value_info(f"{count}{ONE}", TensorProto.INT64, []))
    for one in stacked:
        here, flat = own[one.name], f"{own[one.name]}_flat"
        body.append(helper.make_node("Reshape", [here, constant(list(one.shape[1:]))], [flat]))
        scans.append(helper.make_tensor_value_info(flat, _code(one), list(one.shape[1:])))
    values = [
        helper.make_tensor_value_info(f"{own[one.name]}_{end}", _code(one), [None, *one.shape[1:]])
        for end in ("before", "all")
        for one in carried
    ]
    graph_of_one = helper.make_graph(
        body,
        f"{name}_body",
        [
            helper.make_tensor_value_info(f"{name}_at", TensorProto.INT64, []),
            helper.make_tensor_value_info(f"{name}_go", TensorProto.BOOL, []),
            *values[: len(carried)],
        ],
        [
            helper.make_tensor_value_info(f"{name}_on", TensorProto.BOOL, []),
            *values[len(carried) :],
            *scans,
        ],
    )
    trips = name + SAMPLES_OF
    empty = [constant(np.empty((0, *one.shape[1:]), one.dtype)) for one in carried]
    given = [one.name for one in carried], dict.fromkeys(counts.values()), [s.name for s in stacked]
    return [
        helper.make_node("Shape", [entering[0]], [f"{name}_shape"]),
        helper.make_node("Gather", [f"{name}_shape", constant(0)], [trips], axis=0),
        helper.make_node(
            "Loop",
            [trips, constant(np.ones((), np.bool_)), *empty],
            [output for names in given for output in names],
            name=name,
            body=graph_of_one,
        ),
    ]


class _Constants:
    """Constants of a Loop, among the initialisers of its graph."""

    def __init__(self, graph: onnx.GraphProto, name: str) -> None:
        self._graph, self._name = graph, name

    def __call__(self, value: int | list[int] | NDArray[np.generic]) -> str:
        array = np.asarray(value)
        name = f"{self._name}_constant_{len(self._graph.initializer)}"
        self._graph.initializer.append(numpy_helper.from_array(array, name))
        return name


def _code(one: Left) -> int:
    return helper.np_dtype_to_tensor_dtype(one.dtype)


def _compare(exported: _Exported, made: Path) -> None:
    """Run the model that was made beside the one given, on samples one at a time.

    Raises:
        InputError: they differ.
    """
    outputs = exported.layers.outputs
    ways = (
        _runs(path, exported.where, exported.inputs, outputs, samples=SAMPLES)
        for path in (exported.path, made)
    )
    for answer, got in zip(*ways, strict=True):
        for name in outputs:
            error = relative_error(got[name], answer[name])
            if not error <= MAX_ERROR:
                raise InputError(
                    f"{exported.where}, output {name!r}",
                    f"differs by {error:.2g} relative where samples are run one by one",
                )


def tail_inputs(layers: Layers) -> tuple[str, ...]:
    """The tensors that enter the last part of a model made here.

    None where there is no such part.
    """
    for node in layers.nodes:
        if node.name == TAIL_NAME:
            names = (n for n in reads(node) if n in layers.made_at and n != TAIL_NAME + SAMPLES_OF)
            return tuple(names)
    return ()
