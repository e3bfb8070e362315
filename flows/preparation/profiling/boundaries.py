"""Tensors between blocks as the measured artifacts pass them on: engines in fp16 halve their bytes.

A split model's boundaries have the ONNX file's types. Where every class that a model was measured
on was measured with artifacts that carry others, plans are made with those. Not here: how artifacts
come to carry them (`flows/preparation/building/tensorrt/half.py`).
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace

from flows.workspace import Workspace
from triton_backend.contract.errors import InputError
from triton_backend.contract.profiles import ModelProfile
from triton_backend.contract.tensors import TensorSpec, total_bytes_per_sample
from triton_backend.runtimes.base import Artifact
from warehouse.db import Warehouse
from warehouse.profiles import newest_artifacts

Boundaries = tuple[tuple[TensorSpec, ...], ...]


def as_measured(
    work: Workspace, warehouse: Warehouse, profile: ModelProfile
) -> tuple[ModelProfile, list[str]]:
    """The profile with the boundaries of its artifacts, and a warning where its classes differ."""
    if not profile.boundaries:
        return profile, []
    artifacts = newest_artifacts(warehouse, profile.name)
    classes = profile.classes
    found = {c: _boundaries(work, profile.boundaries, _blocks(artifacts, c)) for c in classes}
    if len(set(found.values())) > 1:
        changed = ", ".join(c for c in classes if found[c] != profile.boundaries)
        warning = (
            f"{profile.name}: {changed} measured with other boundary types than the rest;"
            " planned with those of the split, and converted on the way"
        )
        return profile, [warning]
    boundaries = found[classes[0]]
    sizes = tuple(map(total_bytes_per_sample, boundaries))
    return replace(profile, boundaries=boundaries, boundary_bytes=sizes), []


def _blocks(artifacts: Mapping[tuple[str, int], str], gpu_class: str) -> dict[int, str]:
    return {block: key for (known, block), key in artifacts.items() if known == gpu_class}


def _boundaries(work: Workspace, split: Boundaries, artifacts: Mapping[int, str]) -> Boundaries:
    """Each boundary with the types in which the block before it gives its tensors."""
    return tuple(
        _typed(specs, _outputs(work, artifacts.get(block))) for block, specs in enumerate(split)
    )


def _outputs(work: Workspace, artifact: str | None) -> tuple[TensorSpec, ...]:
    """The outputs of an artifact; none if its file is gone."""
    if artifact is None:
        return ()
    try:
        return Artifact.read(work.state.artifacts / artifact).outputs
    except InputError:
        return ()


def _typed(specs: Iterable[TensorSpec], made: Iterable[TensorSpec]) -> tuple[TensorSpec, ...]:
    types = {spec.name: spec.dtype for spec in made}
    return tuple(replace(spec, dtype=types.get(spec.name, spec.dtype)) for spec in specs)
