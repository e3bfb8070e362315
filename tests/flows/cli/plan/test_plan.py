import json
from errno import ENOSPC
from pathlib import Path

import duckdb
import pytest
import yaml

from tests.flows.cli.conftest import NOW, PLAN, Command
from warehouse.db import open_warehouse
from warehouse.details import whatif_rows
from warehouse.plans import list_plans
from warehouse.runs import list_runs

WHATIF = (
    *("whatif", "--cluster", "cluster.yaml", "--workload", "workload.yaml"),
    *("--vary", "slo-scale", "--values", "1"),
)


def changed(path: Path, **fields: object) -> None:
    path.write_text(yaml.safe_dump({**yaml.safe_load(path.read_text()), **fields}))


def assert_refused(ran: object, *parts: str) -> None:
    code, out, err = (getattr(ran, name) for name in ("code", "out", "err"))
    assert code == 2, err
    assert out == ""
    assert err.count("\n") == 1
    for part in parts:
        assert part in err


def test_a_plan_is_shown_stored_and_written(profiled: Path, poolpipe: Command) -> None:
    ran = poolpipe(*PLAN, "-o", "plan.json")
    assert ran.code == 0
    assert "net" in ran.out
    assert "fast" in ran.out
    document = json.loads((profiled / "plan.json").read_text())
    with open_warehouse(profiled / "poolpipe.duckdb", read_only=True) as warehouse:
        assert [row["plan_id"] for row in list_plans(warehouse)] == [document["plan_id"]]


def test_a_warehouse_that_takes_no_plan_is_said_before_one_is_looked_for(
    profiled: Path, poolpipe: Command
) -> None:
    (profiled / "poolpipe.duckdb").chmod(0o444)
    ran = poolpipe(*PLAN, "-o", "plan.json", "--progress", "json")
    assert_refused(ran, "poolpipe.duckdb: cannot be written")


@pytest.mark.usefixtures("profiled")
def test_plan_json_prints_the_object_of_the_file(poolpipe: Command) -> None:
    printed = poolpipe(*PLAN, "-o", "plan.json", "--json").document
    assert printed == json.loads(Path("plan.json").read_text())
    assert printed["options"]["slo_margin"] == 0.4
    assert printed["pools"][0]["placement"][0].keys() == {"node", "gpu", "slot"}


@pytest.mark.long
def test_sub_clusters_are_planned_verified_and_simulated(profiled: Path, poolpipe: Command) -> None:
    planner = ("--planner", "subclusters", "--utilisation", "0.8", "--exclude", "*=slow")
    ran = poolpipe(*PLAN, *planner, "-o", "plan.json")
    assert ran.code == 0, ran.err
    assert "analytic (staggered batches) fast:" in ran.err
    assert poolpipe("verify", "plan.json").code == 0
    document = json.loads((profiled / "plan.json").read_text())
    assert document["objective"]["space"] == "sub-clusters"
    assert (document["options"]["slo_margin"], document["options"]["utilisation"]) == (0.0, 0.8)
    served = poolpipe("simulate", "--plan", "plan.json", "--policy", "deferred", "--json").document
    assert served["policy"] == "deferred"
    assert served["attainment"] > 0.9
    later = poolpipe(*PLAN, *planner, "--subclusters", "1", "--previous", "plan.json", "--json")
    assert later.document["pools"] == document["pools"]
    assert_refused(poolpipe(*PLAN, *planner, "--subclusters", "2"), "2 sub-clusters for 1 models")
    assert_refused(
        poolpipe(*PLAN, *planner, "--objective", "gpus"),
        "'net', rate_rps: needed for the objective",
    )
    assert_refused(
        poolpipe(*PLAN, *planner, "--objective", "share"),
        "subclusters is defined for throughput and cost",
    )


@pytest.mark.slow
@pytest.mark.usefixtures("profiled")
def test_margins_can_be_chosen_by_simulation(poolpipe: Command) -> None:
    made = poolpipe(*PLAN, "--json", "--slo-margin", "auto").document
    assert made["certificate"]["robust"]["goodput"] > 0
    assert made["options"]["slo_margins"].keys() == {"net"}


@pytest.mark.usefixtures("profiled")
def test_a_plan_states_and_shows_what_simulate_says_it_attains(poolpipe: Command) -> None:
    shown = poolpipe(*PLAN, "-o", "plan.json", "--slo-margin", "0")
    found = json.loads(Path("plan.json").read_text())["attained"]
    how = ("--duration", str(found["duration_s"]), "--seed", str(found["seed"]), "--json")
    loads = {
        "even": ("--arrivals", "deterministic"),
        "poisson": ("--load-factor", str(found["poisson_load"])),
    }
    for name, load in loads.items():
        models = poolpipe("simulate", "plan.json", *load, *how).document["models"]
        assert found[name] == min(model["attainment"] for model in models.values())
    assert found["poisson"] < 0.99
    assert "in time: " in shown.out
    notes = [line for line in shown.out.splitlines() if line.startswith("note: ")]
    assert len(notes) == 1
    assert "of Poisson arrivals at 0.9 of the planned rates" in notes[0]
    assert "--headroom poisson99" in notes[0]
    assert shown.err == ""
    held = poolpipe(*PLAN, "-o", "plan.json", "--slo-margin", "0", "--headroom", "poisson99")
    assert "note: " not in held.out
    assert json.loads(Path("plan.json").read_text())["attained"]["poisson"] >= 0.99


@pytest.mark.usefixtures("profiled")
@pytest.mark.parametrize("given", ["much", "0.5", "nan", "-1"])
def test_what_is_no_headroom_is_refused_in_one_line(given: str, poolpipe: Command) -> None:
    assert_refused(poolpipe(*PLAN, f"--headroom={given}"), "--headroom", given)


@pytest.mark.long
@pytest.mark.usefixtures("profiled")
def test_options_reach_the_planner(poolpipe: Command) -> None:
    ran = poolpipe(
        *PLAN, "--json", "--planner", "no-partitioning", "--slo-margin", "0.1", "--keep", "net=1"
    )
    options = ran.document["options"]
    assert ran.document["planner"] == "no-partitioning"
    assert (options["slo_margin"], options["minimum_rps"]) == (0.1, {"net": 1.0})
    excluded = poolpipe(*PLAN, "--json", "--exclude", "net=slow").document
    assert excluded["gpus_used"]["slow"] == 0


@pytest.mark.parametrize(
    ("option", "value", "reason"),
    [
        ("--planner", "guess", "'guess' is none of"),
        ("--objective", "fun", "'fun' is none of throughput"),
        ("--pin", "net", "pinned model 'net': needs the plan in force (--previous)"),
        ("--solver", "abacus", "'abacus' is none of highs"),
        ("--slo-margin", "1.5", "1.5 is not within 0 and 0.99"),
        ("--slo-margin", "wide", "'wide' is neither a number nor auto"),
        ("--slo-margin", "nan", "--slo-margin: nan is no finite number"),
        ("--previous", "", "plan '': name a plan.json, the id of a stored plan, or its beginning"),
        ("--keep", "net", "is not NAME=VALUE"),
        ("--keep", "net=much", "write MODEL=NUMBER"),
        ("--keep", "net=nan", "--keep net: nan is no finite number"),
        ("--previous", "none.json", "none.json: no such file"),
    ],
)
@pytest.mark.usefixtures("profiled")
def test_a_wrong_option_is_named(option: str, value: str, reason: str, poolpipe: Command) -> None:
    assert_refused(poolpipe(*PLAN, option, value), reason)


@pytest.mark.parametrize("option", ["--cluster", "--workload"])
@pytest.mark.usefixtures("profiled")
def test_a_missing_file_is_named(option: str, poolpipe: Command) -> None:
    assert_refused(poolpipe(*PLAN, option, "none.yaml"), "none.yaml: no such file")


def test_a_workload_that_names_an_unknown_model_is_refused(
    profiled: Path, poolpipe: Command
) -> None:
    models = [{"name": "net", "slo_ms": 15}, {"name": "other", "slo_ms": 15}]
    changed(profiled / "workload.yaml", models=models)
    assert_refused(
        poolpipe(*PLAN), "workload.yaml, models[1].name", "'other'", "is not in", "it has net"
    )


@pytest.mark.parametrize(
    ("name", "several"),
    [
        ("all", {"versions": [{"version": 1, "name": "net"}, {"version": 2, "name": "b"}]}),
        ("net", {"accuracy": 1, "variants": [{"accuracy": 0, "name": "b"}]}),
    ],
)
def test_an_unknown_model_of_several_is_named_with_its_entry_in_the_file(
    profiled: Path, poolpipe: Command, name: str, several: dict[str, object]
) -> None:
    changed(profiled / "workload.yaml", models=[{"name": name, "slo_ms": 15, **several}])
    assert_refused(poolpipe(*PLAN), "workload.yaml, models[0]: model 'b': is not in")


def test_a_cluster_that_names_an_unknown_class_is_refused(
    profiled: Path, poolpipe: Command
) -> None:
    nodes = [{"count": 1, "gpu_class": "T9", "gpus": 1, "nic_gbps": 1}]
    changed(profiled / "cluster.yaml", nodes=nodes)
    assert_refused(poolpipe(*PLAN), "cluster.yaml", "nodes[0].gpu_class", "'T9'", "fast, slow")


def test_a_class_that_was_never_profiled_is_refused(profiled: Path, poolpipe: Command) -> None:
    before = yaml.safe_load((profiled / "cluster.yaml").read_text())
    nodes = [*before["nodes"], {"count": 1, "gpu_class": "T9", "gpus": 1, "nic_gbps": 1}]
    changed(
        profiled / "cluster.yaml", gpu_classes=before["gpu_classes"] | {"T9": None}, nodes=nodes
    )
    assert_refused(poolpipe(*PLAN), "cluster.yaml, gpu_classes.T9", "profiled", "fast, slow")


def test_an_slo_nobody_can_meet_is_refused_with_the_best_latency(
    profiled: Path, poolpipe: Command
) -> None:
    changed(profiled / "workload.yaml", models=[{"name": "net", "slo_ms": 1}])
    assert_refused(poolpipe(*PLAN), "workload.yaml", "'net'", "3.000 ms")


@pytest.mark.usefixtures("project")
def test_planning_without_a_warehouse_is_refused(poolpipe: Command) -> None:
    assert_refused(poolpipe(*PLAN), "poolpipe.duckdb: no such warehouse")
    assert not Path("poolpipe.duckdb").exists()


@pytest.mark.usefixtures("project")
def test_a_folder_is_no_warehouse(poolpipe: Command, tmp_path: Path) -> None:
    (tmp_path / "tables").mkdir()
    ran = poolpipe("warehouse", "prune", "--days", "1", "--warehouse", str(tmp_path / "tables"))
    assert_refused(ran, "is a folder")


@pytest.mark.long
def test_a_read_only_warehouse_is_refused(profiled: Path, poolpipe: Command) -> None:
    poolpipe("profiles", "export", "tables")
    (profiled / "poolpipe.duckdb").chmod(0o444)
    assert_refused(poolpipe(*PLAN), "poolpipe.duckdb", "cannot be written")
    assert_refused(poolpipe("profiles", "import", "tables"), "cannot be written")
    # /sys takes no files, not even from root.
    ran = poolpipe("profiles", "import", "tables", "--warehouse", "/sys/poolpipe.duckdb")
    assert_refused(ran, "/sys/poolpipe.duckdb", "cannot be written")


def test_a_warehouse_of_a_newer_schema_is_refused(profiled: Path, poolpipe: Command) -> None:
    with open_warehouse(profiled / "poolpipe.duckdb") as warehouse:
        warehouse.rows("INSERT INTO schema_migrations VALUES (999, 'later', ?)", [NOW])
    assert_refused(poolpipe(*PLAN), "has schema 999, newer than")


@pytest.mark.usefixtures("project")
def test_a_file_that_is_no_warehouse_is_refused(poolpipe: Command) -> None:
    Path("poolpipe.duckdb").write_text("no database" * 1000)
    assert_refused(poolpipe(*PLAN), "poolpipe.duckdb", "is not a warehouse")


def test_a_plan_holds_until_a_number_is_changed(planned: Path, poolpipe: Command) -> None:
    assert poolpipe("verify", "plan.json").code == 0
    assert poolpipe("verify", "plan.json", "--profiles").code == 0
    document = json.loads(planned.read_text())
    document["models"][0]["throughput_rps"] *= 2
    planned.write_text(json.dumps(document))
    ran = poolpipe("verify", "plan.json")
    assert ran.code == 1
    assert "net: throughput_rps" in ran.out
    told = poolpipe("verify", "plan.json", "--json")
    assert (told.code, told.document["holds"]) == (1, False)


def test_a_stored_plan_is_found_by_the_beginning_of_its_id(
    planned: Path, poolpipe: Command
) -> None:
    plan_id = json.loads(planned.read_text())["plan_id"]
    assert poolpipe("verify", plan_id[:6]).code == 0
    assert_refused(poolpipe("verify", "zzz"), "plan 'zzz'", "poolpipe.duckdb")


@pytest.mark.usefixtures("project")
def test_a_plan_that_is_neither_file_nor_stored_is_refused(poolpipe: Command) -> None:
    assert_refused(poolpipe("verify", "abc"), "abc: neither a file nor")
    assert_refused(poolpipe("verify", "none.json"), "none.json: no such file")


@pytest.mark.usefixtures("profiled")
def test_a_chart_of_an_unknown_type_is_refused_before_the_plans(poolpipe: Command) -> None:
    vary = ("whatif", *PLAN[1:], "--vary", "slo", "--values", "1")
    assert_refused(poolpipe(*vary, "--chart", "x.zzz"), "x.zzz: cannot be drawn: its type is none")


def test_a_curve_that_cannot_be_drawn_is_stored_all_the_same(
    profiled: Path, poolpipe: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(ENOSPC, "No space left on device")

    monkeypatch.setattr("flows.reporting.plots.curve_chart", full)
    vary = ("whatif", *PLAN[1:], "--vary", "slo", "--values", "2")
    ran = poolpipe(*vary, "--chart", "x.svg")
    assert_refused(ran, "x.svg: cannot be drawn: No space left on device\n")
    with open_warehouse(profiled / "poolpipe.duckdb", read_only=True) as warehouse:
        assert [row["kind"] for row in list_runs(warehouse)] == ["whatif"]


@pytest.mark.long
def test_a_curve_is_planned_drawn_and_stored(profiled: Path, poolpipe: Command) -> None:
    vary = ("whatif", *PLAN[1:], "--vary", "gpus:fast", "--values", "1:3:1")
    ran = poolpipe(*vary, "--planner", "pool", "--planner", "no-partitioning", "--json")
    assert ran.code == 0, ran.err
    curves = ran.document["curves"]
    assert [point["value"] for point in curves["pool"]] == [1, 2, 3]
    objectives = [point["objective"] for point in curves["pool"]]
    assert objectives == sorted(objectives)
    assert all(p["objective"] >= n["objective"] for p, n in zip(*curves.values(), strict=True))
    with open_warehouse(profiled / "poolpipe.duckdb", read_only=True) as warehouse:
        assert len(whatif_rows(warehouse, ran.document["run_id"])) == 6
    shown = poolpipe(*vary, "--chart", "curve.svg")
    assert "objective" in shown.out
    assert "<svg" in Path("curve.svg").read_text()


@pytest.mark.usefixtures("profiled")
def test_inputs_that_are_refused_cost_their_points_or_the_sweep_if_there_are_no_others(
    poolpipe: Command,
) -> None:
    given = yaml.safe_load(Path("cluster.yaml").read_text())["gpu_classes"]
    priced, bare = next(iter(given)), list(given)[1]
    changed(
        Path("cluster.yaml"), gpu_classes={**given, priced: {**given[priced], "hourly_cost": 1}}
    )
    model = yaml.safe_load(Path("workload.yaml").read_text())["models"][0]
    model = {name: model[name] for name in ("name", "slo_ms")} | {"rate_rps": 1}
    changed(Path("workload.yaml"), models=[model])
    vary = ("whatif", *PLAN[1:], "--vary", "classes", "--objective", "cost", "--values")
    refused = f"gpu_classes.{bare}.hourly_cost: needed for the objective 'cost'"
    ran = poolpipe(*vary, "1,2", "--json")
    assert ran.code == 0, ran.err
    planned, unpriced = ran.document["curves"]["pool"]
    assert planned["objective"] >= 1
    assert (unpriced["objective"], unpriced["reason"]) == (None, refused)
    assert_refused(poolpipe(*vary, "2"), refused)


@pytest.mark.parametrize(
    ("vary", "values", "reason"),
    [
        ("colour", "1", "'colour' is none of gpus"),
        ("gpus:T9", "1", "no GPU class 'T9'"),
        ("slo", "1,inf", "--values: inf is no finite number"),
        ("gpus", "few", "'few' is neither A,B,C nor FROM:TO:STEP"),
        ("gpus", "3:1:1", "'3:1:1' names no value"),
        ("gpus", "1:0.5:1", "'1:0.5:1' names no value"),
        ("gpus", "0:1e9:1", "'0:1e9:1' names 1,000,000,001 values, 1,000 at most"),
        ("slo:fast", "1", "--vary: slo:fast: slo is not of one class; gpus, ratio, bandwidth may"),
        ("gpus", "1:2:0", "neither A,B,C nor"),
        ("ratio", "7", "7 is not within 0 and 1"),
    ],
)
@pytest.mark.usefixtures("profiled")
def test_a_wrong_variation_is_refused(
    vary: str, values: str, reason: str, poolpipe: Command
) -> None:
    assert_refused(poolpipe("whatif", *PLAN[1:], "--vary", vary, "--values", values), reason)


def test_a_warehouse_of_an_older_schema_is_brought_up_to_date(
    profiled: Path, poolpipe: Command
) -> None:
    Path("old.duckdb").unlink(missing_ok=True)
    with duckdb.connect("old.duckdb") as connection:
        connection.execute(
            "CREATE TABLE schema_migrations (number INTEGER PRIMARY KEY, name VARCHAR NOT NULL,"
            " applied_at TIMESTAMPTZ NOT NULL)"
        )
    found = poolpipe("warehouse", "check", "--json", "--warehouse", "old.duckdb")
    assert found.document["problems"] == []
    assert profiled.is_dir()


@pytest.mark.usefixtures("profiled")
@pytest.mark.parametrize(
    ("command", "place", "why"),
    [
        ((*PLAN, "-o"), ".", "Is a directory"),
        ((*PLAN, "-o"), "none/plan.json", "there is no folder none"),
        ((*WHATIF, "--chart"), ".", "Is a directory"),
        ((*WHATIF, "--chart"), "cluster.yaml/new/x.svg", "there is no folder cluster.yaml"),
    ],
)
def test_where_nothing_can_be_written_is_said_before_the_work(
    command: tuple[str, ...], place: str, why: str, poolpipe: Command
) -> None:
    ran = poolpipe(*command, place)
    assert (ran.code, ran.out) == (2, "")
    assert ran.err == f"poolpipe: {place}: cannot be written: {why}\n"
    assert poolpipe("warehouse", "plans", "--json").document == {"plans": []}
