import json
import os
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, cast

import duckdb
import numpy as np
import pytest

from tests.fakes.plans import two_stages
from triton_backend.contract.errors import InputError
from triton_backend.contract.profiles import ModelProfile, ProfileKey, loaded
from triton_backend.contract.shares import LOADED, WHOLE_GPU
from triton_backend.contract.tensors import TensorSpec
from warehouse.db import Warehouse, WarehouseInUseError, open_warehouse
from warehouse.maintenance import prune
from warehouse.plans import add_plan, read_plan
from warehouse.profiles import (
    CellRecord,
    ModelRecord,
    add_cells,
    add_model,
    add_sum_ratio,
    find_model,
    import_profile,
    measured_cells,
    model_names,
    read_profile,
    sum_ratios,
)
from warehouse.runs import add_run, list_runs, read_run, set_report
from warehouse.schema import migrations

NOW = datetime(2026, 1, 1, tzinfo=UTC)
LATER = datetime(2026, 1, 2, tzinfo=UTC)
IMAGE = TensorSpec(name="x", dtype="FP32", shape=(-1, 3))


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Warehouse]:
    with open_warehouse(tmp_path / "w.duckdb") as warehouse:
        yield warehouse


def model(key: str = "k1", name: str = "m") -> ModelRecord:
    return ModelRecord(
        model_key=key,
        name=name,
        source="m.onnx",
        folder="models/m/k1",
        boundary_bytes=(12,),
        inputs=(IMAGE,),
        outputs=(IMAGE,),
        boundaries=((IMAGE,),),
        block_memory_bytes=(5, 6),
        block_workspace_bytes=(7, 8),
        block_times_us=(1.5, 2.5),
    )


def cells(mean_us: float, artifact: str = "a") -> list[CellRecord]:
    return [
        CellRecord(
            block=block,
            gpu_class="L4",
            share=WHOLE_GPU,
            basis=LOADED,
            batch=batch,
            mean_us=mean_us * batch,
            artifact=artifact,
        )
        for block in (0, 1)
        for batch in (1, 2)
    ]


def test_a_model_comes_back_as_it_was_stored(store: Warehouse) -> None:
    add_model(store, model(), NOW)
    assert find_model(store, "m") == model()


def test_the_newest_model_of_a_name_counts(store: Warehouse) -> None:
    add_model(store, model("old"), NOW)
    add_model(store, model("new"), LATER)
    assert (find_model(store, "m").model_key, model_names(store)) == ("new", ["m"])


def test_an_unknown_model_is_refused_with_the_known_names(store: Warehouse) -> None:
    add_model(store, model(), NOW)
    with pytest.raises(
        InputError, match=r"model 'q': is not in .*; it has m; `poolpipe split` adds others$"
    ):
        find_model(store, "q")
    size = r"`poolpipe split FILE --name q --input-shape INPUT=3x4 --input-shape INPUT=7` adds it$"
    with pytest.raises(InputError, match=size):
        find_model(store, "q@3x4+7")
    with pytest.raises(InputError, match=r"`poolpipe split` adds others$"):
        find_model(store, "q@home")


def test_a_profile_takes_the_newest_measurement_of_every_cell(store: Warehouse) -> None:
    add_model(store, model(), NOW)
    add_cells(store, "k1", cells(100.0), NOW)
    add_cells(store, "k1", cells(200.0), LATER)
    profile, warnings = read_profile(store, "m")
    assert warnings == []
    assert profile.tables[ProfileKey("L4", 300)].latency_us.tolist() == [
        [200.0, 400.0],
        [200.0, 400.0],
    ]
    assert (profile.inputs, profile.boundaries) == ((IMAGE,), ((IMAGE,),))
    assert (profile.block_memory_bytes, profile.block_workspace_bytes) == ((5, 6), (7, 8))


def test_cells_of_a_rebuilt_artifact_count_as_not_measured(store: Warehouse) -> None:
    add_cells(store, "k1", cells(100.0, "old"), NOW)
    assert measured_cells(store, "k1", ["new"]) == set()
    assert len(measured_cells(store, "k1", ["old", "new"])) == 4


def test_an_artifact_that_is_taken_up_again_is_measured_again(store: Warehouse) -> None:
    add_cells(store, "k1", cells(100.0, "one runtime"), NOW)
    add_cells(store, "k1", cells(200.0, "another"), LATER)
    assert measured_cells(store, "k1", ["one runtime"]) == set()
    assert len(measured_cells(store, "k1", ["another"])) == 4


def of_block(block: int, runtime: str) -> list[CellRecord]:
    """Its cells with an artifact of its own."""
    known = [cell for cell in cells(100.0) if cell.block == block]
    return [replace(cell, artifact=f"{runtime}-{block}") for cell in known]


def stale_after(store: Warehouse, *runs: tuple[int, str]) -> list[str]:
    """Warnings about a model whose blocks were measured in this order, by these runtimes."""
    add_model(store, model(), NOW)
    for hour, (block, runtime) in enumerate(runs):
        add_cells(store, "k1", of_block(block, runtime), NOW + timedelta(hours=hour))
    return read_profile(store, "m")[1]


MIXED = (
    "m: L4: of 2 blocks {} was measured on another build than what was measured last;"
    " `poolpipe profile` measures it again"
)
BOTH = ((0, "old"), (1, "old"))


@pytest.mark.parametrize(
    ("since", "stale"),
    [
        ((), None),
        (((0, "new"),), 1),
        (((0, "new"), (1, "new")), None),
        (((0, "new"), (0, "newest")), 1),
        (((0, "new"), (0, "newest"), (1, "newest")), None),
        (((0, "new"), (1, "new"), (0, "newest")), 1),
        (((0, "new"), (0, "old")), None),
        (((0, "new"), (1, "new"), (0, "old")), 1),
    ],
)
def test_blocks_that_an_interrupted_profile_left_on_another_build_are_named(
    store: Warehouse, since: tuple[tuple[int, str], ...], stale: int | None
) -> None:
    warnings = [] if stale is None else [MIXED.format(stale)]
    assert stale_after(store, *BOTH, *since) == warnings


def test_blocks_of_two_builds_are_named_after_pruning_until_they_are_measured(
    store: Warehouse,
) -> None:
    """Older measurements alone tell that the blocks left are of two builds."""
    named = [MIXED.format(1)]
    assert stale_after(store, *BOTH, (0, "new")) == named
    prune(store, NOW + timedelta(days=1))
    assert read_profile(store, "m")[1] == named
    add_cells(store, "k1", of_block(1, "new"), NOW + timedelta(days=2))
    assert prune(store, NOW + timedelta(days=3))["cells"]
    assert read_profile(store, "m")[1] == []
    assert not prune(store, NOW + timedelta(days=3))["cells"]


def test_a_profile_with_gaps_names_the_build_that_was_not_finished(store: Warehouse) -> None:
    add_model(store, model(), NOW)
    add_cells(store, "k1", [*of_block(0, "old"), *of_block(1, "old")], NOW)
    add_cells(store, "k1", of_block(0, "new")[:1], LATER)
    with pytest.raises(InputError, match=r"no usable cells.*; m: L4: of 2 blocks 1 was measured"):
        read_profile(store, "m")


def test_a_model_without_measurements_has_no_profile(store: Warehouse) -> None:
    add_model(store, model(), NOW)
    with pytest.raises(
        InputError, match=r"has no profile on T4 in .*; `poolpipe profile` measures it$"
    ):
        read_profile(store, "m", ["T4"])


def test_an_imported_profile_comes_back_and_is_stored_once(store: Warehouse) -> None:
    table = np.arange(1.0, 7.0).reshape(2, 3)
    profile = ModelProfile(name="m", boundary_bytes=(7,), tables=loaded({("L4", 2): table}))
    import_profile(store, profile, "folder", NOW)
    import_profile(store, profile, "folder", LATER)
    back, _ = read_profile(store, "m")
    assert back.tables[ProfileKey("L4", 150)].latency_us.tolist() == table.tolist()
    assert store.rows("SELECT count(*) AS n FROM cells") == [{"n": 6}]


def test_the_newest_ratio_of_each_place_is_read(store: Warehouse) -> None:
    add_sum_ratio(store, "k1", ("L4", 1, 1), (110.0, 100.0), NOW)
    add_sum_ratio(store, "k1", ("L4", 1, 1), (120.0, 100.0), LATER)
    assert sum_ratios(store, "k1") == {("L4", 1, 1): 1.2}


def test_a_run_comes_back_with_its_report(store: Warehouse) -> None:
    run_id = add_run(store, "simulate", "p1", ({"seed": 1}, {"attainment": 0.5}), NOW)
    set_report(store, run_id, "r.html")
    run = read_run(store, run_id)
    assert (run["options"], run["result"], run["report"]) == (
        {"seed": 1},
        {"attainment": 0.5},
        "r.html",
    )
    assert [r["run_id"] for r in list_runs(store)] == [run_id]


def test_an_unknown_run_is_refused_with_the_newest_ones(store: Warehouse) -> None:
    run_id = add_run(store, "simulate", None, ({}, {}), NOW)
    with pytest.raises(InputError, match=f"newest: {run_id}"):
        read_run(store, "nope")


def test_a_failed_transaction_leaves_nothing(store: Warehouse) -> None:
    def add_and_fail() -> None:
        with store.transaction():
            add_model(store, model(), NOW)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        add_and_fail()
    assert model_names(store) == []


@pytest.mark.parametrize("interrupt", [KeyboardInterrupt, SystemExit])
def test_an_interrupt_of_a_query_stays_one(
    store: Warehouse, interrupt: type[BaseException]
) -> None:
    def stop(*_: object) -> None:
        raise interrupt

    usual = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, 0.05)
    try:
        with pytest.raises(interrupt), store.transaction():
            store.rows("SELECT count(*) FROM range(1000000) a, range(1000000) b WHERE a <> b")
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, usual)
    assert store.rows("SELECT 1 AS one") == [{"one": 1}]


@pytest.mark.parametrize("begun", [False, True])
def test_an_interrupt_while_a_transaction_begins_stays_one(
    store: Warehouse, *, begun: bool
) -> None:
    class Interrupted:
        """A connection whose `begin` ends as DuckDB's does where a signal comes meanwhile."""

        def __getattr__(self, name: str) -> object:
            return getattr(store.connection, name)

        def begin(self) -> None:
            if begun:
                store.connection.begin()
            raise RuntimeError("Query interrupted") from KeyboardInterrupt()

    interrupted = replace(store, connection=cast("Any", Interrupted()))
    with pytest.raises(KeyboardInterrupt), interrupted.transaction():
        pytest.fail("it never begins")
    with store.transaction():
        assert store.rows("SELECT 1 AS one") == [{"one": 1}]


def test_reopening_applies_no_migration_twice(tmp_path: Path) -> None:
    open_warehouse(tmp_path / "w.duckdb").close()
    with open_warehouse(tmp_path / "w.duckdb") as warehouse:
        count = warehouse.rows("SELECT count(*) AS n FROM schema_migrations")
    assert count == [{"n": len(migrations())}]


def test_an_older_warehouse_is_backed_up_before_it_is_migrated(tmp_path: Path) -> None:
    path = tmp_path / "w.duckdb"
    connection = duckdb.connect(str(path))
    connection.execute(
        "CREATE TABLE schema_migrations (number INTEGER, name VARCHAR, applied_at TIMESTAMPTZ)"
    )
    connection.execute(migrations()[0].read_text())
    connection.execute("INSERT INTO schema_migrations VALUES (1, 'x', now())")
    connection.close()
    with pytest.raises(InputError, match="open it once for writing"):
        open_warehouse(path, read_only=True)
    with open_warehouse(path) as warehouse:
        assert warehouse.rows("SELECT count(*) AS n FROM plans") == [{"n": 0}]
    assert (tmp_path / "w.duckdb.before-0002").exists()


def test_a_newer_warehouse_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "w.duckdb"
    with open_warehouse(path) as warehouse:
        warehouse.rows("INSERT INTO schema_migrations VALUES (999, 'future', now())")
    with pytest.raises(InputError, match="has schema 999, newer than"):
        open_warehouse(path)


@pytest.mark.parametrize("name", ["text", "table.csv", "table.json", "table.parquet"])
@pytest.mark.parametrize("read_only", [False, True])
def test_a_file_that_is_no_database_is_refused(
    tmp_path: Path, name: str, *, read_only: bool
) -> None:
    (tmp_path / name).write_text("hello, this is no database at all\n" * 200)
    with pytest.raises(InputError, match="not a DuckDB file"):
        open_warehouse(tmp_path / name, read_only=read_only)


def test_a_database_of_others_is_refused(tmp_path: Path) -> None:
    duckdb.connect(str(tmp_path / "foreign")).execute("CREATE TABLE t (i INTEGER)").close()
    with pytest.raises(InputError, match=r"foreign tables \(t\)"):
        open_warehouse(tmp_path / "foreign")
    with pytest.raises(InputError, match="no such warehouse"):
        open_warehouse(tmp_path / "absent", read_only=True)
    with pytest.raises(InputError, match="does not exist"):
        open_warehouse(tmp_path / "no" / "such" / "w.duckdb")


@pytest.mark.slow
def test_a_warehouse_in_use_names_the_process(tmp_path: Path) -> None:
    path = tmp_path / "w.duckdb"
    code = (
        "import sys\nfrom warehouse.db import open_warehouse\n"
        f"w = open_warehouse({str(path)!r})\nprint('open', flush=True)\nsys.stdin.read()"
    )
    root = Path(__file__).parents[2]
    with subprocess.Popen(
        [sys.executable, "-c", code],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(root)},
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"open\n"
        with pytest.raises(InputError, match=f"in use by process {other.pid}"):
            open_warehouse(path)
        other.communicate(b"")


@pytest.mark.parametrize(
    ("holder", "reason"),
    [
        ("PID 0.", "another process that has no name here, as one of another container"),
        ("/usr/bin/python3 (PID 41) by user root.", r"process 41 \(/usr/bin/python3\)"),
    ],
)
@pytest.mark.parametrize("hint", ["", " However, you would be able to open it in read-only mode."])
def test_a_warehouse_is_in_use_where_its_holder_cannot_be_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, holder: str, reason: str, hint: str
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise duckdb.IOException(
            'IO Error: Could not set lock on file "/a/w.duckdb": Conflicting lock is held in '
            f"{holder}{hint} See also https://duckdb.org/docs/stable/connect/concurrency"
        )

    monkeypatch.setattr(duckdb, "connect", refuse)
    with pytest.raises(WarehouseInUseError, match=f"is in use by {reason}; one process writes"):
        open_warehouse(tmp_path / "w.duckdb")


KILLED = """
import os, sys
from pathlib import Path
from typing import Any, cast
from warehouse.db import open_warehouse
store = open_warehouse(Path(sys.argv[1]))
os._exit(1)
"""


@pytest.mark.slow
def test_a_warehouse_whose_first_process_was_killed_can_be_opened(tmp_path: Path) -> None:
    path = tmp_path / "w.duckdb"
    subprocess.run([sys.executable, "-c", KILLED, str(path)], check=False)
    with open_warehouse(path) as store:
        assert not list_runs(store)


FULL = """
import resource, sys
from pathlib import Path
from typing import Any, cast
from warehouse.db import open_warehouse
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]), resource.RLIM_INFINITY))
try:
    with open_warehouse(Path(sys.argv[1])) as store, store.transaction():
        store.rows("CREATE TABLE much AS SELECT random() AS x FROM range(1000000)")
except OSError as error:
    print(f"{error.filename}: {error.strerror}")
"""


@pytest.mark.slow
@pytest.mark.parametrize("most_bytes", [20_000, 1_000_000, 3_000_000])
def test_a_disk_without_room_is_named_and_the_file_is_whole_later(
    tmp_path: Path, most_bytes: int
) -> None:
    path = tmp_path / "w.duckdb"
    limited = [sys.executable, "-c", FULL, str(path), str(most_bytes)]
    done = subprocess.run(limited, capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == (f"{path}: File too large\n", "")
    with open_warehouse(path) as store:
        assert not list_runs(store)


def test_a_read_only_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "w.duckdb"
    open_warehouse(path).close()
    path.chmod(stat.S_IREAD)
    with pytest.raises(InputError, match="cannot be written"):
        open_warehouse(path)


def test_a_plan_stored_as_format_1_is_read_as_one_of_today(store: Warehouse) -> None:
    plan = two_stages()
    stored = plan.to_dict()
    pools = {pool["name"]: pool for pool in stored.pop("pools")}
    del stored["format"]
    for model in stored["models"]:
        model["slo_ms"] = model.pop("slo_us") / 1000
        for pipeline in model["pipelines"]:
            pipeline["latency_ms"] = pipeline.pop("latency_us") / 1000
            for stage in pipeline["stages"]:
                stage.update(pools[stage.pop("pool")])
                stage["latency_ms"] = stage.pop("latency_us") / 1000
                stage["transfer_ms"] = stage.pop("transfer_us") / 1000
    add_plan(store, plan, NOW)
    store.rows("UPDATE plans SET document = ?", [json.dumps(stored)])
    read = read_plan(store, plan.plan_id)
    assert read.vgpus() == plan.vgpus()
    assert [pool.name for pool in read.pools] == ["gpu-0", "gpu-1"]
    assert read.models[0].slo_us == plan.models[0].slo_us


def test_a_plan_by_its_whole_id_is_found_beside_one_whose_id_is_longer(store: Warehouse) -> None:
    first, second = (two_stages(slo_us) for slo_us in (100_000, 90_000))
    add_plan(store, replace(first, plan_id="by-hand"), NOW)
    add_plan(store, replace(second, plan_id="by-hand-2"), NOW)
    assert read_plan(store, "by-hand").models[0].slo_us == first.models[0].slo_us
    with pytest.raises(InputError, match="by-hand, by-hand-2 of that id"):
        read_plan(store, "by-ha")
