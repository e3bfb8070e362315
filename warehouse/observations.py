"""Observations: minutes of models and vGPUs, and the history of rollouts.

Here: typed rows in, answers to an operator's questions out. Not here: reading the gateway's files
(a flow does that and hands the rows over), and carrying out a rollout.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any

from triton_backend.contract.errors import InputError
from warehouse.db import Warehouse


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelMinute:
    """One minute of one model under one plan; counts are requests, `samples` those in batches.

    Also of an application, by its name, whose jobs are its requests; batches are of its modules'
    models.
    """

    instance: str
    model: str
    minute: datetime
    plan_id: str
    offered: int
    served: int
    late: int
    dropped: int
    failed: int
    batches: int
    samples: int
    latency_sum_us: int


@dataclass(frozen=True, slots=True, kw_only=True)
class VGpuMinute:
    """One minute of one vGPU with one stage: busy as measured, and by the plan's latency table.

    Attributes:
        pool: name of the vGPU's pool; None from before pools had names.
        model, stage: of the batches; a shared vGPU has a row for each.
        share: of a GPU, in 300ths.
    """

    instance: str
    plan_id: str
    vgpu: int
    pool: str | None
    model: str
    stage: int
    gpu_class: str
    share: int
    minute: datetime
    batches: int
    busy_us: int
    profiled_us: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DropMinute:
    """Requests of one model dropped for one reason in one minute."""

    instance: str
    model: str
    minute: datetime
    reason: str
    dropped: int


@dataclass(frozen=True, slots=True, kw_only=True)
class NeighbourMinute:
    """Runs of a whole model beside one other kind of batch on the same GPU, in one minute.

    Attributes:
        batch, beside_batch: samples in a run.
        share, beside_share: of a GPU, in 300ths.
        busy_us: of these runs together.
    """

    instance: str
    gpu_class: str
    model: str
    batch: int
    share: int
    beside_model: str
    beside_batch: int
    beside_share: int
    minute: datetime
    runs: int
    busy_us: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ModuleMinute:
    """Rows that a module ran for requests of one minute, under one plan.

    Attributes:
        samples: of the requests for which it was known how many rows it runs.
    """

    instance: str
    application: str
    module: str
    minute: datetime
    plan_id: str
    samples: int
    rows: int


@dataclass(frozen=True, slots=True, kw_only=True)
class EntryMinute:
    """Requests offered at one entry of a model in one minute, under one plan.

    Attributes:
        block, budget_us: of the entry in that plan; plans may give one name to several.
    """

    instance: str
    model: str
    entry: str
    block: int
    budget_us: int
    minute: datetime
    plan_id: str
    offered: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StatisticsFile:
    """The content of one file of the gateway; `digest` is its hash.

    `cursor` (source, JSON text) is kept with the rows, for the next reader.
    """

    path: str
    digest: str
    cursor: tuple[str, str] | None = None
    models: Sequence[ModelMinute] = ()
    vgpus: Sequence[VGpuMinute] = ()
    drops: Sequence[DropMinute] = ()
    pairs: Sequence[NeighbourMinute] = ()
    modules: Sequence[ModuleMinute] = ()
    entries: Sequence[EntryMinute] = ()


def add_statistics(warehouse: Warehouse, file: StatisticsFile, now: datetime) -> bool:
    """Store the minutes of a file, all or none; False when this content was stored before.

    A minute that is stored already is replaced: a file that grew says the whole minute again.
    """
    with warehouse.transaction():
        known = "SELECT 1 FROM ingested_files WHERE path = ? AND digest = ?"
        if warehouse.rows(known, [file.path, file.digest]):
            return False
        tables = (
            ("model_minutes", file.models),
            ("vgpu_minutes", file.vgpus),
            ("drop_minutes", file.drops),
            ("neighbour_minutes", file.pairs),
            ("module_minutes", file.modules),
            ("entry_minutes", file.entries),
        )
        for table, rows in tables:
            warehouse.insert(table, [asdict(row) for row in rows], replace=True)
        record = {
            "path": file.path,
            "digest": file.digest,
            "rows": sum(len(rows) for _, rows in tables),
            "ingested_at": now,
        }
        warehouse.insert("ingested_files", [record])
        if file.cursor is not None:
            source, document = file.cursor
            row = {"source": source, "document": document, "changed_at": now}
            warehouse.insert("ingest_cursors", [row], replace=True)
    return True


def read_cursor(warehouse: Warehouse, source: str) -> str | None:
    """The cursor kept last for a source of statistics."""
    rows = warehouse.rows("SELECT document FROM ingest_cursors WHERE source = ?", [source])
    return None if not rows else str(rows[0]["document"])


def rates_between(warehouse: Warehouse, since: datetime, until: datetime) -> list[dict[str, Any]]:
    """Per minute and model: minute, model, offered_rps, served_rps."""
    return warehouse.query("rates_between", [since, until])


def entry_rates_between(
    warehouse: Warehouse, since: datetime, until: datetime
) -> list[dict[str, Any]]:
    """Per minute and entry: minute, model, entry, block, budget_us, offered_rps."""
    return warehouse.query("entry_rates_between", [since, until])


def module_rows_between(
    warehouse: Warehouse, since: datetime, until: datetime
) -> list[dict[str, Any]]:
    """Per module: application, module, samples of requests, rows that it ran for them."""
    return warehouse.query("module_rows_between", [since, until])


def drops_between(warehouse: Warehouse, since: datetime, until: datetime) -> list[dict[str, Any]]:
    """Per model and reason: model, reason, dropped; the most frequent first."""
    return warehouse.query("drops_between", [since, until])


@dataclass(frozen=True, slots=True, kw_only=True)
class Rollout:
    """A rollout as it stands; `outcome` is None while it goes on."""

    rollout_id: str
    plan_id: str
    former_plan_id: str | None
    state: str
    requested_by: str
    reason: str
    outcome: str | None
    started_at: datetime
    changed_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutStep:
    """One step that was taken."""

    step: str
    detail: str
    seconds: float
    done_at: datetime


def begin_rollout(warehouse: Warehouse, rollout: Rollout) -> None:
    """Store a new rollout.

    Raises:
        InputError: another one has not ended, or the id is taken.
    """
    with warehouse.transaction():
        if find_rollout(warehouse, rollout.rollout_id) is not None:
            raise InputError(f"rollout {rollout.rollout_id}", "is stored already")
        running = unfinished_rollout(warehouse)
        if running is not None:
            raise InputError(
                f"rollout {rollout.rollout_id}",
                f"{running.rollout_id} has not ended; it reached {running.state!r}",
            )
        warehouse.insert("rollouts", [asdict(rollout)])


def add_rollout_step(warehouse: Warehouse, rollout_id: str, step: RolloutStep) -> None:
    """Store a step; the rollout's state is then the step's name.

    Raises:
        InputError: no such rollout.
    """
    _change(warehouse, rollout_id, (step.step, None, step.done_at), step)


def end_rollout(
    warehouse: Warehouse, rollout_id: str, state: str, outcome: str, now: datetime
) -> None:
    """Note how a rollout ended.

    Raises:
        InputError: no such rollout.
    """
    _change(warehouse, rollout_id, (state, outcome, now), None)


def _change(
    warehouse: Warehouse,
    rollout_id: str,
    reached: tuple[str, str | None, datetime],
    step: RolloutStep | None,
) -> None:
    with warehouse.transaction():
        if not warehouse.query("rollout_change", [*reached, rollout_id]):
            raise InputError(f"rollout {rollout_id!r}", f"is not in {warehouse.path}")
        if step is not None:
            warehouse.insert("rollout_steps", [{"rollout_id": rollout_id} | asdict(step)])


def find_rollout(warehouse: Warehouse, rollout_id: str) -> Rollout | None:
    """A rollout by its id."""
    rows = warehouse.rows("SELECT * FROM rollouts WHERE rollout_id = ?", [rollout_id])
    return Rollout(**rows[0]) if rows else None


def unfinished_rollout(warehouse: Warehouse) -> Rollout | None:
    """The rollout that has not ended, if any."""
    rows = warehouse.rows(
        "SELECT * FROM rollouts WHERE outcome IS NULL ORDER BY started_at DESC LIMIT 1"
    )
    return Rollout(**rows[0]) if rows else None


def list_rollouts(warehouse: Warehouse, limit: int = 50) -> list[Rollout]:
    """The newest rollouts."""
    return [Rollout(**row) for row in warehouse.query("rollouts", [limit])]


def rollout_steps(warehouse: Warehouse, rollout_id: str) -> list[RolloutStep]:
    """The steps of a rollout, in order."""
    return [RolloutStep(**row) for row in warehouse.query("rollout_steps", [rollout_id])]
