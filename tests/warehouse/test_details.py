import math
import re
from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone

import duckdb
import pytest

from triton_backend.contract.shares import LOADED, WHOLE_GPU
from warehouse.db import QUERY_FOLDER, Warehouse
from warehouse.details import (
    BuildFailure,
    WhatIfRow,
    add_build_failure,
    add_whatif_rows,
    build_failures,
    figures,
    whatif_rows,
)
from warehouse.profiles import (
    CellRecord,
    ModelRecord,
    add_artifact,
    add_cells,
    add_model,
    read_profile,
)
from warehouse.runs import Figure, add_figures, add_run

NOW = datetime(2026, 1, 1, tzinfo=UTC)
LATER = NOW + timedelta(hours=1)
QUERIES = sorted(path.stem for path in QUERY_FOLDER.glob("*.sql"))


def add_split(store: Warehouse, key: str, gpu_class: str, at: datetime) -> None:
    record = ModelRecord(model_key=key, name="m", source="f", folder=None, boundary_bytes=())
    add_model(store, record, at)
    add_cells(store, key, [built_cell(gpu_class, 1, "a")], at)


def built_cell(gpu_class: str, batch: int, artifact: str) -> CellRecord:
    return CellRecord(
        block=0,
        gpu_class=gpu_class,
        share=WHOLE_GPU,
        basis=LOADED,
        batch=batch,
        mean_us=9.0,
        artifact=artifact,
    )


@pytest.mark.parametrize("name", QUERIES)
def test_every_query_says_what_it_is_for_and_what_it_takes_and_gives(name: str) -> None:
    lines = (QUERY_FOLDER / f"{name}.sql").read_text().splitlines()
    header = "\n".join(line for line in lines if line.startswith("-- "))
    assert re.match(r"-- [A-Z](?:.|\n-- (?!P))*\.\n-- Parameters: .+", header), header
    assert " Columns: " in header


def test_every_query_fits_the_schema(store: Warehouse) -> None:
    for name in QUERIES:
        text = (QUERY_FOLDER / f"{name}.sql").read_text()
        store.connection.execute(f"PREPARE q_{name} AS {text}")


def test_a_curve_keeps_its_order_and_its_gaps(store: Warehouse) -> None:
    rows = [
        WhatIfRow(varied="slo_scale", setting="10", objective=3.5, document={"gpus": 4}),
        WhatIfRow(varied="slo_scale", setting="2", objective=None),
    ]
    add_whatif_rows(store, "whatif-1", rows)
    assert whatif_rows(store, "whatif-1") == rows


def test_a_failure_counts_until_the_stage_is_built(store: Warehouse) -> None:
    failure = BuildFailure(
        first_block=0, last_block=2, gpu_class="L4", runtime="tensorrt", reason="no kernel"
    )
    add_build_failure(store, "k", failure, NOW)
    assert build_failures(store, "k") == [failure]
    add_artifact(store, "a", "k", (0, 2, "L4"), "tensorrt", LATER)
    assert build_failures(store, "k") == []


def test_an_interval_of_a_single_run_is_not_known_and_a_mean_must_be(store: Warehouse) -> None:
    add_split(store, "k", "L4", NOW)
    add_cells(store, "k", [replace(built_cell("L4", 2, "a"), interval=math.inf)], LATER)
    assert store.rows("SELECT interval FROM cells WHERE batch = 2") == [{"interval": None}]
    with pytest.raises(duckdb.ConstraintException, match="NOT NULL"):
        add_cells(store, "k", [replace(built_cell("L4", 3, "a"), mean_us=math.nan)], LATER)


def test_instants_and_fractions_come_back_exactly(store: Warehouse) -> None:
    at = datetime(2026, 1, 1, 12, 30, 0, 123456, tzinfo=timezone(timedelta(hours=2)))
    add_split(store, "k", "L4", NOW)
    add_cells(store, "k", [replace(built_cell("L4", 2, "a"), mean_us=0.1 + 0.2)], at)
    (row,) = store.rows("SELECT mean_us, measured_at FROM cells WHERE batch = 2")
    assert row == {"mean_us": 0.1 + 0.2, "measured_at": at}


def test_latencies_of_two_builds_never_mix(store: Warehouse) -> None:
    add_split(store, "k", "L4", NOW)
    add_cells(store, "k", [built_cell("L4", 2, "a")], NOW)
    add_cells(store, "k", [built_cell("L4", 1, "rebuilt")], LATER)
    profile, _ = read_profile(store, "m")
    assert [table.largest for table in profile.tables.values()] == [1]


def test_the_newest_figure_of_a_name_counts(store: Warehouse) -> None:
    for at, seconds in ((NOW, 2.0), (LATER, 1.0)):
        figure = Figure(name="solve", value=seconds, unit="s", target="<= 5")
        add_figures(store, "planner", [figure], ({"cores": 2}, {"highspy": "1"}), at)
    (row,) = figures(store, "planner")
    assert (row["value"], row["machine"], row["versions"]) == (1.0, {"cores": 2}, {"highspy": "1"})


def test_outcomes_of_runs_can_be_asked_in_sql(store: Warehouse) -> None:
    counts = {"offered": 4, "served": 3, "late": 0, "dropped": 1, "attainment": 0.75}
    result = {"models": {"m": counts | {"latency_ms": {"p50": 1.5, "p99": None}}}}
    for document in (result, {"models": ["m"]}, {}):
        add_run(store, "simulate", None, ({}, document), NOW)
    rows = store.rows("SELECT model, served, failed, p50_ms, p99_ms FROM run_models")
    assert rows == [{"model": "m", "served": 3, "failed": 0, "p50_ms": 1.5, "p99_ms": None}]
