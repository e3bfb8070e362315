"""Models and measured cells, to and from the core's types."""

import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any

from triton_backend.contract.applications.sizes import AND, AT
from triton_backend.contract.errors import InputError
from triton_backend.contract.profiles import (
    InterferenceModel,
    LatencyCell,
    ModelProfile,
    Pair,
    Utilisation,
    profile_from_cells,
    utilisations_of,
    with_utilisation,
)
from triton_backend.contract.tensors import TensorSpec
from warehouse.db import Warehouse

CellId = tuple[int, str, int, str, int]
"""(block, GPU class, share in 300ths, basis, batch)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelRecord:
    """One model as it was split (or imported, then `folder` is None)."""

    model_key: str
    name: str
    source: str
    folder: str | None
    boundary_bytes: tuple[int, ...]
    inputs: tuple[TensorSpec, ...] = ()
    outputs: tuple[TensorSpec, ...] = ()
    boundaries: tuple[tuple[TensorSpec, ...], ...] = ()
    block_memory_bytes: tuple[int, ...] = ()
    block_workspace_bytes: tuple[int, ...] = ()
    block_times_us: tuple[float, ...] = ()

    @property
    def blocks(self) -> int:
        """Number of blocks."""
        return len(self.boundary_bytes) + 1


@dataclass(frozen=True, slots=True, kw_only=True)
class CellRecord:
    """One measured cell (µs); `artifact` and the statistics are None for imported tables."""

    block: int
    gpu_class: str
    share: int
    basis: str
    batch: int
    mean_us: float
    artifact: str | None = None
    p50_us: float | None = None
    p99_us: float | None = None
    runs: int | None = None
    interval: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RatioRecord:
    """Sum of block means beside the whole model's mean (µs) on a class."""

    gpu_class: str
    vgpu_divisor: int
    batch: int
    blocks_us: float
    whole_us: float


def add_model(warehouse: Warehouse, record: ModelRecord, now: datetime) -> None:
    """Store a model; the newest of a name is the one planned with."""
    tensors = {
        "inputs": [s.to_dict() for s in record.inputs],
        "outputs": [s.to_dict() for s in record.outputs],
        "boundaries": [[s.to_dict() for s in specs] for specs in record.boundaries],
    }
    row = {
        "model_key": record.model_key,
        "name": record.name,
        "source": record.source,
        "folder": record.folder,
        "blocks": record.blocks,
        "boundary_bytes": list(record.boundary_bytes),
        "block_memory_bytes": list(record.block_memory_bytes),
        "block_workspace_bytes": list(record.block_workspace_bytes),
        "tensors": json.dumps(tensors),
        "block_times_us": list(record.block_times_us),
        "added_at": now,
    }
    warehouse.insert("models", [row], replace=True)


def find_model(warehouse: Warehouse, name: str) -> ModelRecord:
    """The newest model of that name.

    Raises:
        InputError: there is none; the message lists those there are.
    """
    rows = warehouse.query("newest_model", [name])
    if not rows:
        known = ", ".join(model_names(warehouse)) or "none"
        reason = f"is not in {warehouse.path}; it has {known}; {_how_to_add(name)}"
        raise InputError(f"model {name!r}", reason)
    return _model(rows[0])


def _how_to_add(name: str) -> str:
    model, several, shapes = name.rpartition(AT)
    if not several or not re.fullmatch(r"[\dx+]+", shapes):
        return "`poolpipe split` adds others"
    options = "".join(f" --input-shape INPUT={shape}" for shape in shapes.split(AND))
    return f"`poolpipe split FILE --name {model}{options}` adds it"


def model_names(warehouse: Warehouse) -> list[str]:
    """Names of all models, sorted."""
    return [row["name"] for row in warehouse.rows("SELECT DISTINCT name FROM models ORDER BY name")]


def _model(row: Mapping[str, Any]) -> ModelRecord:
    tensors = json.loads(row["tensors"])
    return ModelRecord(
        model_key=row["model_key"],
        name=row["name"],
        source=row["source"],
        folder=row["folder"],
        boundary_bytes=tuple(row["boundary_bytes"]),
        inputs=tuple(map(TensorSpec.from_dict, tensors["inputs"])),
        outputs=tuple(map(TensorSpec.from_dict, tensors["outputs"])),
        boundaries=tuple(tuple(map(TensorSpec.from_dict, b)) for b in tensors["boundaries"]),
        block_memory_bytes=tuple(row["block_memory_bytes"]),
        block_workspace_bytes=tuple(row["block_workspace_bytes"]),
        block_times_us=tuple(row["block_times_us"]),
    )


def add_cells(
    warehouse: Warehouse, model_key: str, cells: Sequence[CellRecord], now: datetime
) -> None:
    """Store measured cells."""
    names = CellRecord.__slots__
    warehouse.insert(
        "cells",
        [
            {"model_key": model_key, "measured_at": now} | {n: getattr(c, n) for n in names}
            for c in cells
        ],
    )


def cells_of_class(warehouse: Warehouse, model_key: str, gpu_class: str) -> list[CellRecord]:
    """Every cell ever measured of a model on a class, oldest first."""
    rows = warehouse.query("cells_of_class", [model_key, gpu_class])
    return [CellRecord(**row) for row in rows]


def ratios_of_class(warehouse: Warehouse, model_key: str, gpu_class: str) -> list[RatioRecord]:
    """Every sum of blocks beside a whole model on a class, oldest first."""
    rows = warehouse.query("ratios_of_class", [model_key, gpu_class])
    return [RatioRecord(**row) for row in rows]


def add_ratios(
    warehouse: Warehouse, model_key: str, ratios: Sequence[RatioRecord], now: datetime
) -> None:
    """Store sums of blocks beside whole models."""
    warehouse.insert(
        "sum_ratios",
        [{"model_key": model_key, "measured_at": now} | asdict(ratio) for ratio in ratios],
    )


def measured_cells(warehouse: Warehouse, model_key: str, artifacts: Iterable[str]) -> set[CellId]:
    """Cells measured with exactly these artifacts, and with no other since.

    So a rebuilt one is measured again, and one of a runtime that a class has come back to: a
    profile takes the artifact that was measured last.
    """
    rows = warehouse.query("measured_cells", [model_key, list(artifacts)])
    return {(r["block"], r["gpu_class"], r["share"], r["basis"], r["batch"]) for r in rows}


def newest_artifacts(warehouse: Warehouse, name: str) -> dict[tuple[str, int], str]:
    """The artifact of the newest measurement of a model, by (GPU class, block).

    Raises:
        InputError: no such model.
    """
    rows = warehouse.query("newest_artifacts", [find_model(warehouse, name).model_key])
    return {(row["gpu_class"], row["block"]): row["artifact"] for row in rows}


def stale_blocks(warehouse: Warehouse, model_key: str) -> dict[str, list[int]]:
    """Blocks that were measured on another build than what was measured last, by GPU class.

    A profile that was interrupted after a change of runtime leaves them. A build begins with an
    artifact of a block that has one of the build before already.
    """
    rows_of: dict[str, list[dict[str, Any]]] = {}
    for row in warehouse.query("artifacts_measured", [model_key]):
        rows_of.setdefault(row["gpu_class"], []).append(row)
    stale: dict[str, list[int]] = {}
    for gpu_class, rows in rows_of.items():
        build, build_of, newest = 0, dict[int, int](), dict[int, tuple[datetime, int]]()
        for row in rows:
            block = row["block"]
            build += build_of.get(block) == build
            build_of[block] = build
            newest[block] = max(newest.get(block, (row["last_at"], build)), (row["last_at"], build))
        last = max(newest.values())[1]
        others = sorted(block for block, (_, of) in newest.items() if of != last)
        if others:
            stale[gpu_class] = others
    return stale


def _named_stale(warehouse: Warehouse, model: ModelRecord, classes: set[str] | None) -> list[str]:
    return [
        f"{model.name}: {gpu_class}: of {model.blocks} blocks {', '.join(map(str, blocks))}"
        f" {'was' if len(blocks) == 1 else 'were'} measured on another build than what was measured"
        f" last; `poolpipe profile` measures {'it' if len(blocks) == 1 else 'them'} again"
        for gpu_class, blocks in stale_blocks(warehouse, model.model_key).items()
        if classes is None or gpu_class in classes
    ]


def read_profile(
    warehouse: Warehouse, name: str, classes: Iterable[str] | None = None
) -> tuple[ModelProfile, list[str]]:
    """The newest profile of a model, and warnings about classes left out or of several builds.

    `classes` names the GPU classes wanted; None stands for all that were measured.

    Raises:
        InputError: no such model, or nothing was measured of it.
    """
    model = find_model(warehouse, name)
    wanted = None if classes is None else set(classes)
    cells = [
        LatencyCell(r["gpu_class"], r["share"], r["basis"], r["block"], r["batch"], r["mean_us"])
        for r in warehouse.query("newest_cells", [model.model_key])
        if wanted is None or r["gpu_class"] in wanted
    ]
    if not cells:
        on = f" on {', '.join(sorted(wanted))}" if wanted else ""
        reason = f"has no profile{on} in {warehouse.path}; `poolpipe profile` measures it"
        raise InputError(f"model {name!r}", reason)
    used = [Utilisation(**row) for row in warehouse.query("newest_utilisations", [model.model_key])]
    stale = _named_stale(warehouse, model, wanted)
    try:
        profile, warnings = profile_from_cells(
            name,
            with_utilisation(cells, used),
            model.boundary_bytes,
            inputs=model.inputs,
            outputs=model.outputs,
            boundaries=model.boundaries,
            block_memory_bytes=model.block_memory_bytes,
            block_workspace_bytes=model.block_workspace_bytes,
            split=None if model.folder is None else model.model_key,
        )
    except InputError as error:
        raise InputError(error.where, "; ".join([error.reason, *stale])) from error
    return profile, [*stale, *warnings]


def read_profiles(
    warehouse: Warehouse, names: Iterable[str], classes: Iterable[str] | None = None
) -> tuple[dict[str, ModelProfile], list[str]]:
    """Profiles of several models by name, and all warnings.

    Raises:
        InputError: as `read_profile`.
    """
    profiles: dict[str, ModelProfile] = {}
    warnings: list[str] = []
    wanted = None if classes is None else tuple(classes)
    for name in names:
        profiles[name], more = read_profile(warehouse, name, wanted)
        warnings.extend(more)
    return profiles, warnings


def import_profile(warehouse: Warehouse, profile: ModelProfile, source: str, now: datetime) -> None:
    """Store a profile that was measured elsewhere; the same one twice is stored once."""
    cells = [
        CellRecord(
            block=cell.block,
            gpu_class=cell.gpu_class,
            share=cell.share,
            basis=cell.basis,
            batch=cell.batch,
            mean_us=cell.latency_us,
        )
        for cell in profile.cells()
    ]
    used = utilisations_of(profile)
    content = json.dumps([profile.name, profile.boundary_bytes, [repr(c) for c in (*cells, *used)]])
    key = "import-" + hashlib.sha256(content.encode()).hexdigest()[:16]
    known = warehouse.rows("SELECT 1 FROM cells WHERE model_key = ? LIMIT 1", [key])
    record = ModelRecord(
        model_key=key,
        name=profile.name,
        source=source,
        folder=None,
        boundary_bytes=profile.boundary_bytes,
        inputs=profile.inputs,
        outputs=profile.outputs,
        boundaries=profile.boundaries,
        block_memory_bytes=profile.block_memory_bytes,
        block_workspace_bytes=profile.block_workspace_bytes,
    )
    with warehouse.transaction():
        add_model(warehouse, record, now)
        if not known:
            add_cells(warehouse, key, cells, now)
            add_utilisations(warehouse, key, used, now)


def add_utilisations(
    warehouse: Warehouse, model_key: str, known: Iterable[Utilisation], now: datetime
) -> None:
    """Store what a model uses of GPUs."""
    rows = [{"model_key": model_key, "measured_at": now} | row._asdict() for row in known]
    warehouse.insert("utilisations", rows)


def add_pairs(warehouse: Warehouse, pairs: Iterable[Pair], now: datetime) -> None:
    """Store models that ran side by side."""
    warehouse.insert("pairs", [{"measured_at": now} | pair._asdict() for pair in pairs])


def read_pairs(warehouse: Warehouse) -> list[Pair]:
    """The newest measurement of every two models side by side."""
    return [Pair(**row) for row in warehouse.query("newest_pairs")]


def pairs_of_runs(warehouse: Warehouse, fewest: int) -> list[Pair]:
    """Models side by side as the running system measured them, of at least so many runs each."""
    return [Pair(**row) for row in warehouse.query("pairs_of_runs", [fewest])]


def add_interference(
    warehouse: Warehouse, models: Mapping[str, InterferenceModel], source: str, now: datetime
) -> None:
    """Store interference models by GPU class."""
    rows = [
        {"gpu_class": name, "source": source, "added_at": now}
        | asdict(model)
        | {"residuals": list(model.residuals)}
        for name, model in models.items()
    ]
    warehouse.insert("interference_models", rows)


def read_interference(warehouse: Warehouse) -> dict[str, InterferenceModel]:
    """The newest interference model of every GPU class that has one."""
    found: dict[str, InterferenceModel] = {}
    for row in warehouse.query("newest_interference"):
        name: str = row.pop("gpu_class")
        residuals: list[float] = row.pop("residuals")
        found[name] = InterferenceModel(**row, residuals=tuple(residuals))
    return found


def add_sum_ratio(
    warehouse: Warehouse,
    model_key: str,
    place: tuple[str, int, int],
    measured_us: tuple[float, float],
    now: datetime,
) -> None:
    """Store the sum of block means and the whole stage's mean for (class, divisor, batch)."""
    gpu_class, divisor, batch = place
    row = {
        "model_key": model_key,
        "gpu_class": gpu_class,
        "vgpu_divisor": divisor,
        "batch": batch,
        "blocks_us": measured_us[0],
        "whole_us": measured_us[1],
        "measured_at": now,
    }
    warehouse.insert("sum_ratios", [row])


def sum_ratios(warehouse: Warehouse, model_key: str) -> dict[tuple[str, int, int], float]:
    """Sum of blocks / whole stage by (class, divisor, batch), the newest each."""
    rows = warehouse.query("sum_ratios", [model_key])
    return {(r["gpu_class"], r["vgpu_divisor"], r["batch"]): r["ratio"] for r in rows}


def add_artifact(
    warehouse: Warehouse,
    artifact: str,
    model_key: str,
    place: tuple[int, int, str],
    runtime: str,
    now: datetime,
) -> None:
    """Record that `artifact` runs blocks [first, last) on a class: place = (first, last, class)."""
    row = {
        "artifact": artifact,
        "model_key": model_key,
        "first_block": place[0],
        "last_block": place[1],
        "gpu_class": place[2],
        "runtime": runtime,
        "built_at": now,
    }
    warehouse.insert("artifacts", [row], replace=True)
