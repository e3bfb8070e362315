"""`interference fit` on generated tables."""

import json
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pytest

from flows.workspace import workspace
from tests.flows.cli.conftest import Command
from warehouse.observations import NeighbourMinute, StatisticsFile, add_statistics
from warehouse.profiles import read_pairs

MODELS = ("a", "b", "c", "d")
BATCHES = (1, 2, 4)


def write_tables(folder: Path, c5: float) -> None:
    """All pairs of four models in three batches, made by a linear model."""
    random = np.random.default_rng(0)
    cells = [(model, batch) for model in MODELS for batch in BATCHES]
    used = {cell: random.uniform(5, 60, 2) for cell in cells}
    latency = ["model,gpu_class,vgpu_percent,batch,latency_us"]
    latency += [f"{m},G,50,{b},{1000 * b}" for m, b in cells]
    utilisation = ["model,gpu_class,vgpu_percent,batch,l2_percent,dram_percent"]
    utilisation += [f"{m},G,50,{b},{used[m, b][0]},{used[m, b][1]}" for m, b in cells]
    pairs = ["model_1,batch_1,percent_1,model_2,batch_2,percent_2,latency_1_us"]
    for one in cells:
        for other in cells:
            slow = c5 + (0.2 * used[one][1] + 0.5 * used[other][1]) / 100
            pairs.append(f"{one[0]},{one[1]},50,{other[0]},{other[1]},50,{slow * 1000 * one[1]}")
    folder.mkdir()
    for name, lines in (
        ("block_latency_us", latency),
        ("utilisation", utilisation),
        ("pairs", pairs),
    ):
        (folder / f"{name}.csv").write_text("\n".join(lines) + "\n")


def test_the_model_is_shown_and_written(poolpipe: Command) -> None:
    write_tables(Path("tables"), 0.95)
    answer = poolpipe("interference", "fit", "tables", "--json", "-o", "interference.csv")
    assert answer.code == 0
    found = json.loads(answer.out)
    assert not found["refused"]
    assert abs(found["constants"]["c4_dram_other"] - 0.5) < 1e-6
    assert "\nG," in Path("interference.csv").read_text()
    assert "linear model from" in poolpipe("interference", "fit", "tables").out


@pytest.mark.long
def test_what_was_imported_is_fitted_planned_with_and_written_again(poolpipe: Command) -> None:
    """From tables to a plan whose latencies hold the factor; the plan verifies and is simulated."""
    write_tables(Path("tables"), 1.2)
    Path("cluster.yaml").write_text(
        "gpu_classes: {G: {vgpu_percents: [50]}}\n"
        "nodes: [{count: 1, gpu_class: G, gpus: 1, nic_gbps: 10}]\n"
    )
    Path("workload.yaml").write_text(
        "models: [{name: a, slo_ms: 20, weight: 1}, {name: b, slo_ms: 20, weight: 1}]\n"
    )
    assert "144 pairs are in" in poolpipe("profiles", "import", "tables").out
    asked = ("plan", "--cluster", "cluster.yaml", "--workload", "workload.yaml", "--json")

    def factors(*more: str) -> list[float]:
        answer = poolpipe(*asked, "--planner", "gpulets", "-o", "plan.json", *more)
        assert answer.code == 0, answer.err
        pools = [pool["interference"]["seats"] for pool in json.loads(answer.out)["pools"]
                 if "interference" in pool]  # fmt: skip
        return [seat["factor"] for seats in pools for seat in seats]

    assert factors() == []  # no model is known yet
    assert poolpipe("interference", "fit").code == 0
    assert max(factors()) > 1
    assert set(factors("--interference", "off")) == {1.0}
    assert max(factors()) > 1
    assert poolpipe("verify", "plan.json", "--profiles").code == 0
    simulate = ("simulate", "--plan", "plan.json", "--load-factor", "0.5", "--json")
    assert poolpipe(*simulate, "--interference", "overlap").document["attainment"] == 1.0
    wrong = poolpipe(*simulate, "--interference", "some")
    assert (wrong.code, "'some' is none of planned, overlap, off" in wrong.err) == (2, True)
    for folder, warehouse in (("first", "poolpipe.duckdb"), ("second", "copy.duckdb")):
        export = poolpipe("profiles", "export", folder, "--warehouse", warehouse)
        assert export.code == 0
        poolpipe("profiles", "import", folder, "--warehouse", "copy.duckdb")
    names = sorted(path.name for path in Path("first").iterdir())
    assert {"pairs.csv", "utilisation.csv", "interference.csv"} < set(names)
    for name in names:
        assert Path("first", name).read_text() == Path("second", name).read_text()


def test_bad_input_is_one_line(poolpipe: Command) -> None:
    answer = poolpipe("interference", "fit", "nowhere")
    assert answer.code == 2
    assert answer.err.count("\n") == 1
    assert "block_latency_us.csv" in answer.err


@pytest.mark.long
def test_production_runs_give_the_model_that_pairs_give(poolpipe: Command) -> None:
    write_tables(Path("tables"), 0.95)
    assert poolpipe("profiles", "import", "tables").code == 0
    ask = ("interference", "fit", "--robust", "--json")
    profiled = poolpipe(*ask).document
    absent = poolpipe(*ask, "--from-runs")
    assert (absent.code, "pairs: there are none" in absent.err) == (2, True)
    with workspace().open() as warehouse:
        rows = [
            NeighbourMinute(
                instance="i",
                gpu_class=pair.gpu_class,
                model=pair.model_1,
                batch=pair.batch_1,
                share=pair.share_1,
                beside_model=pair.model_2,
                beside_batch=pair.batch_2,
                beside_share=pair.share_2,
                minute=datetime(2026, 1, 1, 12, minute, tzinfo=UTC),
                runs=runs,
                busy_us=round(1000 * (pair.latency_1_us or 0)) * runs,
            )
            for pair in read_pairs(warehouse)
            for minute, runs in ((0, 2), (1, 3))
        ]
        few = replace(rows[0], model="d", batch=4, beside_model="d", busy_us=1, runs=4)
        rows = [row for row in rows if (row.model, row.batch, row.beside_model) != ("d", 4, "d")]
        file = StatisticsFile(path="f", digest="1", pairs=[*rows, few])
        add_statistics(warehouse, file, datetime(2026, 1, 1, 13, tzinfo=UTC))
    learnt = poolpipe(*ask, "--from-runs").document
    for name, value in profiled["constants"].items():
        assert abs(learnt["constants"][name] / 1000 - value) < 1e-3, name
    assert sum(learnt["rows"].values()) == 144 - 3
    both = poolpipe(*ask, "tables", "--from-runs")
    assert (both.code, both.err.count("\n")) == (2, 1)


@pytest.mark.usefixtures("profiled")
def test_a_warehouse_without_pairs_is_said_with_what_measures_them(poolpipe: Command) -> None:
    ran = poolpipe("interference", "fit")
    reason = "pairs: there are none; `poolpipe profile --pairs` or a running system measures them"
    assert (ran.code, ran.out, ran.err) == (2, "", f"poolpipe: {reason}\n")
