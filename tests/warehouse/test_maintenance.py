import os
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path

import duckdb
import pytest

from tests.fakes.minutes import model_minute
from tests.fakes.plans import two_stages
from triton_backend.contract.errors import InputError
from triton_backend.contract.profiles import ProfileKey
from triton_backend.contract.shares import LOADED, WHOLE_GPU
from warehouse.db import Warehouse, open_warehouse
from warehouse.maintenance import check, compact, export_parquet, prune, snapshot, table_sizes
from warehouse.observations import (
    DropMinute,
    ModelMinute,
    Rollout,
    RolloutStep,
    StatisticsFile,
    add_rollout_step,
    add_statistics,
    begin_rollout,
    end_rollout,
    list_rollouts,
)
from warehouse.plans import add_plan, list_plans
from warehouse.profiles import (
    CellRecord,
    ModelRecord,
    add_cells,
    add_model,
    find_model,
    read_profile,
)
from warehouse.runs import add_run
from warehouse.schema import migrations

OLD = datetime(2026, 1, 1, tzinfo=UTC)
NEW = datetime(2026, 3, 1, tzinfo=UTC)
BETWEEN = datetime(2026, 2, 1, tzinfo=UTC)


def cell(mean_us: float, *, block: int = 0) -> CellRecord:
    return CellRecord(
        block=block, gpu_class="L4", share=WHOLE_GPU, basis=LOADED, batch=1, mean_us=mean_us
    )


def model(boundary_bytes: tuple[int, ...] = ()) -> ModelRecord:
    return ModelRecord(
        model_key="k", name="m", source="f", folder=None, boundary_bytes=boundary_bytes
    )


def minute(at: datetime) -> ModelMinute:
    return model_minute(at, 1)


def outcome(*, offered: int, served: int) -> dict[str, object]:
    counts = {"offered": offered, "served": served, "late": 0, "dropped": 0}
    return {"models": {"m": counts | {"attainment": 1.0, "latency_ms": {"p50": 1, "p99": 2}}}}


def test_a_fresh_warehouse_is_sound(store: Warehouse) -> None:
    assert check(store) == []


def test_cells_without_their_model_and_lost_requests_are_found(store: Warehouse) -> None:
    add_cells(store, "k", [cell(1.0)], OLD)
    run_id = add_run(store, "load", None, ({}, outcome(offered=5, served=3)), OLD)
    assert check(store) == [
        "cells of k: their model is missing",
        f"run {run_id}, model m: offered 5 but 3 accounted for",
    ]


def test_a_cell_of_a_block_the_model_lacks_is_found(store: Warehouse) -> None:
    add_model(store, model(), OLD)
    add_cells(store, "k", [cell(1.0, block=3)], OLD)
    assert check(store) == ["cells of k: block 3 of 1 blocks"]


@pytest.mark.long
def test_compacting_keeps_every_row_and_the_schema(tmp_path: Path) -> None:
    path = tmp_path / "w.duckdb"
    with open_warehouse(path) as warehouse:
        add_model(warehouse, model(), OLD)
        for at in (OLD, NEW):  # the old ones first: a file ends with its last block in use
            drop = DropMinute(instance="i", model="m", minute=at, reason="late", dropped=1)
            drops = [replace(drop, reason=f"{number:x}" * 8) for number in range(30_000)]
            file = StatisticsFile(path=str(at), digest="1", drops=drops)
            add_statistics(warehouse, file, at)
            warehouse.rows("CHECKPOINT")
        prune(warehouse, NEW)
        sizes = table_sizes(warehouse)
    before, after = compact(path)
    assert after < before
    with open_warehouse(path) as warehouse:
        assert table_sizes(warehouse) == sizes
        assert check(warehouse) == []
    assert [file.name for file in tmp_path.iterdir()] == ["w.duckdb"]


def test_what_a_link_names_is_replaced_and_the_link_stays(tmp_path: Path) -> None:
    for folder in ("disk", "project"):
        (tmp_path / folder).mkdir()
    path, kept = tmp_path / "disk" / "w.duckdb", tmp_path / "disk" / "kept.duckdb"
    link, copy = tmp_path / "project" / "w.duckdb", tmp_path / "project" / "kept.duckdb"
    open_warehouse(path).close()
    link.symlink_to("../disk/w.duckdb")
    copy.symlink_to("../disk/kept.duckdb")
    before = path.stat().st_ino
    compact(link)
    for _ in range(2):
        with open_warehouse(link) as warehouse:
            add_run(warehouse, "simulate", None, ({}, {}), OLD)
            snapshot(warehouse, copy)
    assert link.is_symlink()
    assert path.stat().st_ino != before
    assert copy.is_symlink()
    with open_warehouse(kept, read_only=True) as warehouse:
        assert table_sizes(warehouse)["runs"] == 2


def test_who_waits_for_a_warehouse_writes_into_the_compacted_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "w.duckdb"
    open_warehouse(path).close()
    give_back = Warehouse.close

    def close(held: Warehouse) -> None:
        give_back(held)
        monkeypatch.setattr(Warehouse, "close", give_back)
        with open_warehouse(path) as other:
            add_run(other, "simulate", None, ({}, {}), NEW)

    monkeypatch.setattr(Warehouse, "close", close)
    compact(path)
    with open_warehouse(path) as warehouse:
        assert table_sizes(warehouse)["runs"] == 1


def test_a_snapshot_is_read_only_and_holds_what_the_warehouse_held(
    store: Warehouse, tmp_path: Path
) -> None:
    add_model(store, model(), OLD)
    add_cells(store, "k", [cell(7.0)], OLD)
    target = tmp_path / "it's a copy.duckdb"
    snapshot(store, target)
    snapshot(store, target)
    with open_warehouse(target, read_only=True) as copy:
        profile, _ = read_profile(copy, "m")
        assert profile.tables[ProfileKey("L4", 300)].latency_us.tolist() == [[7.0]]
    with pytest.raises(InputError):
        open_warehouse(target)


def test_a_warehouse_open_for_reading_alone_can_be_copied(tmp_path: Path) -> None:
    path, target = tmp_path / "w.duckdb", tmp_path / "copy.duckdb"
    with open_warehouse(path) as warehouse:
        add_run(warehouse, "simulate", None, ({}, {}), OLD)
    with open_warehouse(path, read_only=True) as warehouse:
        snapshot(warehouse, target)
    with open_warehouse(target, read_only=True) as copy:
        assert table_sizes(copy)["runs"] == 1


def test_a_snapshot_never_replaces_the_warehouse(store: Warehouse) -> None:
    with pytest.raises(InputError, match="is the warehouse itself"):
        snapshot(store, store.path)
    with pytest.raises(InputError, match="is a folder"):
        snapshot(store, store.path.parent)


@pytest.mark.parametrize("content", ["notes", None])
def test_a_snapshot_replaces_neither_a_file_nor_another_warehouse(
    store: Warehouse, tmp_path: Path, content: str | None
) -> None:
    other = tmp_path / "other"
    if content is None:
        open_warehouse(other).close()
    else:
        other.write_text(content)
    before = other.read_bytes()
    with pytest.raises(InputError, match="is there already and is no snapshot"):
        snapshot(store, other)
    assert other.read_bytes() == before


def test_a_snapshot_takes_the_place_of_an_empty_file(store: Warehouse, tmp_path: Path) -> None:
    target = tmp_path / "made by mktemp"
    target.touch()
    snapshot(store, target)
    with open_warehouse(target, read_only=True) as copy:
        assert check(copy) == []


def test_a_pipe_or_device_is_no_snapshot_and_stays(store: Warehouse, tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(InputError, match=r"pipe: is there already and is no snapshot$"):
        snapshot(store, pipe)
    assert pipe.is_fifo()


def test_places_that_cannot_be_written_are_said_in_words(store: Warehouse, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match=r"file: is a file, not a folder$"):
        export_parquet(store, tmp_path / "file")
    with pytest.raises(InputError, match=r"cannot be written: No such file or directory$"):
        snapshot(store, tmp_path / "none" / "copy.duckdb")


def test_every_table_is_exported_as_parquet(store: Warehouse, tmp_path: Path) -> None:
    add_cells(store, "k", [cell(7.0)], OLD)
    files = export_parquet(store, tmp_path / "out")
    assert {file.stem for file in files} == set(table_sizes(store))
    cells = tmp_path / "out" / "cells.parquet"
    assert store.rows(f"SELECT mean_us FROM '{cells}'") == [{"mean_us": 7.0}]


def test_a_folder_that_cannot_be_made_is_named(store: Warehouse, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match="file/out: cannot be written"):
        export_parquet(store, tmp_path / "file" / "out")


def test_pruning_forgets_what_is_old_and_keeps_what_counts(store: Warehouse) -> None:
    add_model(store, model((4,)), OLD)
    add_cells(store, "k", [cell(1.0), cell(2.0, block=1)], OLD)
    add_cells(store, "k", [cell(3.0)], OLD + timedelta(days=1))
    rows = [minute(OLD), minute(NEW)]
    add_statistics(store, StatisticsFile(path="f", digest="1", models=rows), NEW)
    for at in (OLD, NEW):
        add_run(store, "simulate", None, ({}, {}), at)
    assert prune(store, BETWEEN) == {
        "model_minutes": 1,
        "vgpu_minutes": 0,
        "drop_minutes": 0,
        "neighbour_minutes": 0,
        "module_minutes": 0,
        "entry_minutes": 0,
        "cells": 1,
        "plans": 0,
        "rollouts": 0,
        "rollout_steps": 0,
    }
    profile, _ = read_profile(store, "m")
    assert profile.tables[ProfileKey("L4", 300)].latency_us.tolist() == [[3.0], [2.0]]
    assert table_sizes(store)["runs"] == 2


@pytest.mark.long
@pytest.mark.parametrize("served", [None, "in-force", "first"])
def test_pruning_forgets_old_rollouts_and_plans_that_only_they_name(
    store: Warehouse, served: str | None
) -> None:
    """After an undone rollout the plan before it is in force, or one served without a rollout."""
    names = ["first", "old", "counted", "run", "before", "in-force", "undone"]
    for name in [*names, "never-rolled-out"]:
        add_plan(store, replace(two_stages(), plan_id=name), OLD)
    for number, (former, name) in enumerate(pairwise(names)):
        at = OLD + timedelta(hours=number)
        state = "rolled back" if name == "undone" else "done"
        rollout = Rollout(
            rollout_id=str(number),
            plan_id=name,
            former_plan_id=former,
            state="begun",
            requested_by="",
            reason="",
            outcome=None,
            started_at=at,
            changed_at=at,
        )
        begin_rollout(store, rollout)
        add_rollout_step(
            store,
            rollout.rollout_id,
            RolloutStep(step="swap", detail="", seconds=1.0, done_at=at),
        )
        end_rollout(store, rollout.rollout_id, state, "", at)
    add_run(store, "simulate", "run", ({}, {}), OLD)
    rows = [replace(minute(NEW), plan_id="counted")]
    add_statistics(store, StatisticsFile(path="f", digest="1", models=rows), NEW)
    forgotten = prune(store, BETWEEN, served)
    assert [rollout.plan_id for rollout in list_rollouts(store)] == [
        "undone",
        "in-force",
        "counted",
    ]
    assert {plan["plan_id"] for plan in list_plans(store)} == {
        "old",
        "counted",
        "run",
        "before",
        "in-force",
        "undone",
        "never-rolled-out",
        *(["first"] if served == "first" else []),
    }
    plans = 0 if served == "first" else 1
    assert [forgotten[kind] for kind in ("plans", "rollouts", "rollout_steps")] == [plans, 3, 3]


def test_an_older_file_is_copied_before_it_is_migrated_and_keeps_its_rows(tmp_path: Path) -> None:
    path = tmp_path / "w.duckdb"
    connection = duckdb.connect(str(path))
    connection.execute(
        "CREATE TABLE schema_migrations (number INTEGER PRIMARY KEY, name VARCHAR NOT NULL,"
        " applied_at TIMESTAMPTZ NOT NULL)"
    )
    for number, file in enumerate(migrations()[:3], start=1):
        connection.execute(file.read_text())
        connection.execute("INSERT INTO schema_migrations VALUES (?, ?, ?)", [number, "x", OLD])
    connection.execute(
        "INSERT INTO vgpu_minutes VALUES ('i', 'p', 0, 'm', 0, 'L4', ?, 1, 60000000, 1)", [OLD]
    )
    connection.execute(
        "INSERT INTO models VALUES ('k', 'm', 's', NULL, 2, [3], [5, 6], ?, [], ?)",
        ['{"inputs": [], "outputs": [], "boundaries": []}', OLD],
    )
    connection.executemany(
        "INSERT INTO cells VALUES ('k', ?, 'L4', 3, 1, NULL, ?, NULL, NULL, NULL, NULL, ?)",
        [(0, 5.0, OLD), (1, 6.0, OLD), (1, 7.0, OLD)],  # the last of equal instants counts
    )
    connection.close()
    with open_warehouse(path) as warehouse:
        tables = read_profile(warehouse, "m")[0].tables
        assert {key: table.latency_us.tolist() for key, table in tables.items()} == {
            ProfileKey("L4", 100, "loaded"): [[5.0], [7.0]]
        }
        rows = warehouse.rows("SELECT vgpu_divisor, mean_us FROM newest_cells ORDER BY block")
        assert [tuple(row.values()) for row in rows] == [(3, 5.0), (3, 7.0)]
        kept = find_model(warehouse, "m")
        assert (kept.block_memory_bytes, kept.block_workspace_bytes) == ((5, 6), ())
        assert warehouse.rows("SELECT gpus_busy FROM gpus_by_hour") == [{"gpus_busy": 1.0}]
        assert warehouse.rows("SELECT vgpu, pool, model, share FROM vgpu_minutes") == [
            {"vgpu": 0, "pool": None, "model": "m", "share": 300}
        ]
    with pytest.raises(InputError, match="has schema 3 of"):
        open_warehouse(tmp_path / "w.duckdb.before-0004", read_only=True)
