"""One stage through TensorRT's builder: parse, profiles, build, describe, compare.

Here: every call into the builder half of TensorRT. Runs inside a worker process
(`builder_process.py`), because a builder that meets a bug may take its process down.
Not here: which stages are built and where engines are kept (`tensorrt.py`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flows.preparation.building.tensorrt.edges import StageEdges, read_edges, without_forwarded
from triton_backend.contract.errors import InputError
from triton_backend.contract.tensors import TensorSpec
from triton_backend.runtimes.cuda import open_cuda
from triton_backend.runtimes.tensorrt.layers import (
    EngineDescription,
    description_from_inspector,
    description_from_log,
)
from triton_backend.runtimes.tensorrt.library import RTX, Library, LogKeeper, make_logger

MIB = 1 << 20


class StageError(InputError):
    """One stage cannot be built; `node` is the ONNX node at fault where it is known."""

    def __init__(self, where: str, reason: str, *, node: str | None = None) -> None:
        super().__init__(where, f"node {node!r}: {reason}" if node else reason)
        self.node = node
        self.bare_reason = reason


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineRecipe:
    """How one engine is built.

    Attributes:
        batches: planned batch sizes, ascending; each gets an optimisation profile of its own
            that admits nothing else.
        compute_capability: for instance `8.9`; the library builds for that card.
        dimensions: sizes for symbolic dimensions other than the batch.
        tf32: let fp32 layers use the shorter TF32 mantissa.
    """

    batches: tuple[int, ...]
    compute_capability: str
    dimensions: Mapping[str, int]
    workspace_mib: int
    tf32: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class BuiltEngine:
    """A serialised engine and what it turned out to be."""

    plan: memoryview
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    forwarded: tuple[str, ...]
    unused: tuple[str, ...]
    description: EngineDescription
    described_by: str
    precision: str
    timing_cache: bytes | None


def build_engine(
    library: Library,
    path: Path,
    recipe: EngineRecipe,
    keeper: LogKeeper,
    timing_cache: bytes | None = None,
) -> BuiltEngine:
    """Build one stage.

    Raises:
        StageError: the stage cannot be built; names the node where the library does.
        InputError: the ONNX file itself cannot be used, or the class's card is not supported.
    """
    edges = read_edges(path, recipe.dimensions)
    trt, logger = library.module, make_logger(library, keeper)
    builder = trt.Builder(logger)
    network = _parse(library, builder, logger, path, edges)
    _fix_inputs(network, edges)
    computed = _output_specs(library, network, edges, str(path))
    config, cache = _configure(library, builder, edges, recipe, timing_cache)
    plan = builder.build_serialized_network(network, config)
    if plan is None:
        raise _build_error(str(path), keeper)
    # A view: the plan of a large model is not held twice.
    plan = memoryview(plan)
    description, source = _describe(library, plan, keeper, logger)
    _compare(str(path), description, edges.engine_inputs, computed)
    return BuiltEngine(
        plan=plan,
        inputs=edges.inputs,
        outputs=_all_outputs(edges, computed),
        forwarded=edges.forwarded,
        unused=edges.unused,
        description=description,
        described_by=source,
        precision=edges.precision,
        timing_cache=None if cache is None else bytes(config.get_timing_cache().serialize()),
    )


def _parse(library: Library, builder: Any, logger: Any, path: Path, edges: StageEdges) -> Any:
    trt = library.module
    # Networks are strongly typed everywhere from TensorRT 11 on, where the flag is gone.
    typed = getattr(trt.NetworkDefinitionCreationFlag, "STRONGLY_TYPED", None)
    network = builder.create_network(0 if typed is None else 1 << int(typed))
    parser = trt.OnnxParser(network, logger)
    parsed = (
        parser.parse(without_forwarded(path, edges), str(path))
        if edges.forwarded
        else parser.parse_from_file(str(path))
    )
    if not parsed:
        errors = [parser.get_error(i) for i in range(parser.num_errors)]
        first = errors[0] if errors else None
        raise StageError(
            str(path),
            _parser_reason(first),
            node=None if first is None else first.node_name() or first.node_operator() or None,
        )
    return network


def _parser_reason(error: Any) -> str:
    if error is None:
        return "TensorRT's parser refused it and said nothing"
    operator, detail = error.node_operator(), error.desc().strip()
    code = str(error.code()).rpartition(".")[2]
    unsupported = "UNSUPPORTED" in code or "Plugin not found" in detail
    head = (
        f"operator {operator} is not supported" if unsupported else f"operator {operator} refused"
    )
    return f"{head} ({code})" if detail == "false" else f"{head} ({code}: {detail})"


def _fix_inputs(network: Any, edges: StageEdges) -> None:
    shapes = {spec.name: spec.shape for spec in edges.engine_inputs}
    for tensor in (network.get_input(i) for i in range(network.num_inputs)):
        tensor.shape = shapes[tensor.name]


def _output_specs(
    library: Library, network: Any, edges: StageEdges, where: str
) -> tuple[TensorSpec, ...]:
    """Outputs as the network sees them, which must agree with what the file declares."""
    found = {t.name: t for t in (network.get_output(i) for i in range(network.num_outputs))}
    specs: list[TensorSpec] = []
    for sketch in edges.engine_outputs:
        tensor = found.get(sketch.name)
        if tensor is None:
            raise StageError(where, f"output {sketch.name!r} is missing in the network")
        shape, dtype = tuple(tensor.shape), library.kserve_dtype(tensor.dtype)
        if not shape or shape[0] != -1:
            raise StageError(
                where,
                f"output {sketch.name!r} has shape {list(shape)}: the batch is frozen in the graph",
            )
        if any(size < 1 for size in shape[1:]):
            raise StageError(
                where, f"output {sketch.name!r} has shape {list(shape)}: a dynamic size is left"
            )
        declared = sketch.shape or (None,) * len(shape)
        agrees = len(declared) == len(shape) and all(
            d in {None, s} for d, s in zip(declared[1:], shape[1:], strict=True)
        )
        if dtype != sketch.dtype or not agrees:
            raise StageError(
                where,
                f"output {sketch.name!r} is {dtype} {list(shape)} in the network,"
                f" {sketch.dtype} {list(declared)} in the file",
            )
        specs.append(TensorSpec(name=sketch.name, dtype=dtype, shape=shape))
    return tuple(specs)


def _all_outputs(edges: StageEdges, computed: tuple[TensorSpec, ...]) -> tuple[TensorSpec, ...]:
    """Outputs in the file's order: computed ones, and inputs handed on."""
    known = {spec.name: spec for spec in (*edges.inputs, *computed)}
    return tuple(known[sketch.name] for sketch in edges.outputs)


def _configure(
    library: Library,
    builder: Any,
    edges: StageEdges,
    recipe: EngineRecipe,
    timing_cache: bytes | None,
) -> tuple[Any, Any]:
    """Builder configuration, and the timing cache where the library has one."""
    trt = library.module
    config = builder.create_builder_config()
    config.profiling_verbosity = trt.ProfilingVerbosity.DETAILED
    config.set_memory_pool_limit(trt.MemoryPoolType.WORKSPACE, recipe.workspace_mib * MIB)
    if not recipe.tf32:
        config.clear_flag(trt.BuilderFlag.TF32)
    if hasattr(trt.BuilderFlag, "REQUIRE_USER_ALLOCATION"):
        # tensorrt-rtx: memory taken while running would make CUDA graph capture impossible.
        config.set_flag(trt.BuilderFlag.REQUIRE_USER_ALLOCATION)
    _target(library, config, recipe.compute_capability)
    for batch in recipe.batches:
        profile = builder.create_optimization_profile()
        for spec in edges.engine_inputs:
            shape = (batch, *spec.shape[1:])
            profile.set_shape(spec.name, shape, shape, shape)
        config.add_optimization_profile(profile)
    if library.name == RTX:  # it times nothing while building
        return config, None
    cache = config.create_timing_cache(timing_cache or b"")
    config.set_timing_cache(cache, ignore_mismatch=False)
    return config, cache


def require_supported(library: Library, capability: str) -> None:
    """Check that the library builds for a card.

    Raises:
        InputError: it does not; the message lists what it builds for.
    """
    kinds = library.module.ComputeCapability if library.name == RTX else None
    if kinds is not None and not hasattr(kinds, _kind_name(capability)):
        known = sorted(k for k in vars(kinds) if k.startswith("SM"))
        raise InputError(
            f"compute capability {capability}",
            f"{library.name} {library.version} builds for {', '.join(known)} only",
        )


def _kind_name(capability: str) -> str:
    return "SM" + capability.replace(".", "")


def _target(library: Library, config: Any, capability: str) -> None:
    """Name the card to build for; the data-centre library builds for the card it runs on."""
    require_supported(library, capability)
    if library.name == RTX:
        config.num_compute_capabilities = 1
        kind = getattr(library.module.ComputeCapability, _kind_name(capability))
        config.set_compute_capability(kind, 0)
        return
    found = open_cuda().compute_capability()
    if found != capability:
        raise InputError(
            f"compute capability {capability}", f"{library.name} builds on the GPU here, a {found}"
        )


def _build_error(where: str, keeper: LogKeeper) -> StageError:
    errors = [line.text for line in keeper.lines("ERROR", "INTERNAL_ERROR")]
    reason = errors[-1].strip() if errors else "the builder gave no engine and no message"
    for text in errors:
        _, found, rest = text.partition("Could not find any implementation for node ")
        if found:
            return StageError(where, text.strip(), node=rest.split()[0].strip(".{}"))
    return StageError(where, reason)


def _describe(
    library: Library, plan: memoryview, keeper: LogKeeper, logger: Any
) -> tuple[EngineDescription, str]:
    """Describe the engine: from the builder's log, which needs no GPU, else by the inspector."""
    description = description_from_log(keeper.lines())
    if description is not None:
        return description, "builder log"
    trt = library.module
    engine = trt.Runtime(logger).deserialize_cuda_engine(plan)
    if engine is None:
        raise StageError("engine", "cannot be read back, and the builder's log describes no layers")
    inspector = engine.create_engine_inspector()
    text = inspector.get_engine_information(trt.LayerInformationFormat.JSON)
    return description_from_inspector(text), "inspector"


def _compare(
    where: str,
    description: EngineDescription,
    inputs: Sequence[TensorSpec],
    outputs: Sequence[TensorSpec],
) -> None:
    """Hold the engine's edge against the stage's; the batch is free, all else must be equal."""
    if not description.tensors:
        return
    expected = {(s.name, True, s.dtype, s.shape[1:]) for s in inputs}
    expected |= {(s.name, False, s.dtype, s.shape[1:]) for s in outputs}
    found = {(t.name, t.is_input, t.dtype, t.shape[1:]) for t in description.tensors}
    if found != expected:
        raise StageError(
            where,
            f"the engine's tensors {sorted(found - expected)} differ from the stage's"
            f" {sorted(expected - found)}",
        )
