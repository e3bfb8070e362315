import gzip
import json
import os
import subprocess
import sys
from pathlib import Path

import duckdb
import pytest

from flows.cli.simulate.request import OfferedLoad, SimulationRequest, parse_failure
from tests.fakes.plans import two_stages
from tests.fakes.variants import NAME, variant_plan
from tests.flows.cli.conftest import Command
from triton_backend.simulator.scenario import PlanChange, SimOptions

SIMULATE = ("simulate", "--plan", "plan.json", "--duration", "2")
pytestmark = pytest.mark.usefixtures("planned")


def test_simulate_json_has_every_promised_field(poolpipe: Command) -> None:
    found = poolpipe(*SIMULATE, "--load-factor", "0.5", "--seed", "3", "--json").document
    assert (found["policy"], found["seed"], found["duration_s"]) == ("reservation-ahead", 3, 2)
    net = found["models"]["net"]
    assert net["offered"] == net["served"] + net["late"] + net["dropped"] > 0
    assert net.keys() >= {"attainment", "latency_ms", "mean_batch", "batches", "queueing_ms"}
    assert 0 <= net["queueing_ms"]["p50"] <= net["latency_ms"]["p50"]
    for pool in found["pools"].values():
        assert len(pool["busy_by_vgpu"]) == pool["vgpus"]
        assert pool.keys() >= {"idle_fraction", "bad_rate", "advice_gpus"}
    assert found["entries"] == {}
    assert found["utilisation"].keys() == {"fast", "slow"}
    assert found["decisions"]["count"] > 0
    assert found["wall_seconds"] > 0
    assert "goodput" not in found


def test_the_same_seed_gives_the_same_result(poolpipe: Command) -> None:
    first, second = (poolpipe(*SIMULATE, "--seed", "5", "--json").document for _ in range(2))
    assert first["models"] == second["models"]


@pytest.mark.long
def test_goodput_is_found_jointly_and_alone(poolpipe: Command) -> None:
    found = poolpipe(*SIMULATE, "--find-goodput", "0.9", "--json").document["goodput"]
    assert found["joint"] == found["models"]["net"]
    assert 0 < found["joint"]["load_factor"] <= 1
    alone = poolpipe(*SIMULATE, "--find-goodput", "0.9", "--model", "net", "--json").document
    assert alone["goodput"] == found
    whole = poolpipe(*SIMULATE, "--find-goodput", "0.9", "--goodput-step", "1", "--json").document
    assert whole["goodput"]["joint"]["load_factor"] in {0.0, 1.0}


def test_a_table_is_shown_without_json(poolpipe: Command) -> None:
    ran = poolpipe(*SIMULATE, "--find-goodput", "0.9")
    assert ran.code == 0
    assert "attainment" in ran.out
    assert "all together" in ran.out


def test_another_policy_than_the_plans_is_noted(poolpipe: Command) -> None:
    told = poolpipe(*SIMULATE, "--policy", "reservation", "--json")
    assert told.document["policy"] == "reservation"
    assert told.err == "note: policy reservation in place of the plan's reservation-ahead\n"
    assert poolpipe(*SIMULATE, "--policy", "reservation-ahead", "--json").err == ""


@pytest.mark.long
def test_late_binding_takes_its_rules_from_the_command_line(poolpipe: Command) -> None:
    rules = ("--heads", "head", "--target", "measured", "--rank", "efficiency", "--lead-us", "50")
    more = ("--lead-us-per-sample", "5")
    ran = poolpipe(*SIMULATE, "--policy", "deferred", *rules, *more, "--json").document
    assert (ran["policy"], ran["models"]["net"]["served"] > 0) == ("deferred", True)
    share = poolpipe(*SIMULATE, "--policy", "timeout", "--batch-timeout-share", "0.1", "--json")
    time = poolpipe(*SIMULATE, "--policy", "timeout", "--batch-timeout-ms", "1.5", "--json")
    assert share.code == time.code == 0


def test_admission_refuses_on_arrival_what_would_only_wait_and_be_dropped(
    poolpipe: Command,
) -> None:
    overload = (*SIMULATE, "--load-factor", "4", "--json")
    open_door, admitted = (
        poolpipe(*overload, *more).document["models"]["net"] for more in ((), ("--admission",))
    )
    assert admitted["offered"] == open_door["offered"]
    assert admitted["served"] > 0
    # Requests that are refused take no place in the queue of the others.
    assert admitted["queueing_ms"]["p50"] < open_door["queueing_ms"]["p50"]


def test_counted_inputs_and_answers_take_time_on_the_links(poolpipe: Command) -> None:
    plan = json.loads(Path("plan.json").read_text())
    plan["models"][0]["inputs"] = [{"name": "x", "dtype": "FP32", "shape": [-1, 250_000]}]
    Path("plan.json").write_text(json.dumps(plan))
    light = (*SIMULATE, "--load-factor", "0.2", "--arrivals", "deterministic", "--json")
    free, counted = (
        poolpipe(*light, *more).document["models"]["net"]["latency_ms"]["p50"]
        for more in ((), ("--count-io",))
    )
    assert counted > free


def test_a_trace_is_taken_as_it_is(poolpipe: Command) -> None:
    rows = ("0.5,net,900,1", "0.25,net,,2", "0.25,net,0.001,1", "1.75,other,,", "3.0,net,,")
    Path("trace.csv").write_text("arrival_s,name,deadline_ms,samples\n" + "\n".join(rows))
    asked = (
        "--arrivals",
        "trace.csv",
        "--trace-as-is",
        "--trace-model",
        "name",
        "--map",
        "net=net",
    )
    poolpipe(*SIMULATE, *asked, "--records", "r.parquet", "--json")
    columns = "model, entry, samples, arrival_us, deadline_us - arrival_us, outcome"
    told = duckdb.sql(f"SELECT {columns} FROM 'r.parquet' ORDER BY request").fetchall()
    slo_us = json.loads(Path("plan.json").read_text())["models"][0]["slo_us"]
    assert told == [
        ("net", None, 2, 250_000, slo_us, "served"),
        ("net", None, 1, 250_000, 1, "dropped"),
        ("net", None, 1, 500_000, 900_000, "served"),
    ]


@pytest.mark.long
def test_traces_of_requests_and_of_counts_are_taken(poolpipe: Command) -> None:
    rows = "".join(f"{i / 50},code\n" for i in range(100))
    with gzip.open("trace.csv.gz", "wt") as file:
        file.write("t_s,service\n" + rows)
    Path("counts.csv").write_text("minute,net\n0,600\n1,600\n")
    by_request = poolpipe(
        *SIMULATE, "--arrivals", "trace.csv.gz", "--trace-time", "t_s",
        "--trace-model", "service", "--map", "code=net", "--rate", "40", "--json",
    )  # fmt: skip
    assert by_request.document["offered_rps"] == pytest.approx(40, abs=2)
    by_count = poolpipe(
        *SIMULATE, "--arrivals", "counts.csv", "--trace-interval", "60", "--rate", "40", "--json"
    )
    assert by_count.document["offered_rps"] == pytest.approx(40, abs=15)


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("--policy", "luck"), "'luck' is none of"),
        (("--nic", "none"), "'none' is none of"),
        (("--model", "other"), "no model 'other'; it has net"),
        (("--arrivals", "none.csv"), "none.csv: no such file"),
        (("--goodput-step", "0.1"), "--goodput-step: needs --find-goodput"),
        (("--shape", "3"), "--shape: goes with --arrivals gamma, not poisson"),
        (("--trace-as-is",), "--trace-as-is: needs a trace, poisson is a process"),
        (("--trace-time", "t_s"), "--trace-time: needs a trace, poisson is a process"),
        (("--trace-model", "m", "--arrivals", "gamma"), "--trace-model: needs a trace, gamma is"),
        (("--trace-interval", "60"), "--trace-interval: needs a trace, poisson is a process"),
        (("--map", "code=net"), "--map: needs a trace, poisson is a process"),
        (("--rate", "3", "--load-factor", "1"), "--rate: is in place of --load-factor; give one"),
        (("--flush",), "--flush: needs --change, the plan to switch to"),
        (("--trace-as-is", "--rate", "3"), "--rate: scales arrivals, which"),
        (("--heads", "tail"), "'tail' is none of window, head"),
        (("--target", "most"), "'most' is none of planned, measured"),
        (("--rank", "luck"), "'luck' is none of latest, deadline, efficiency"),
        (("--heads", "head"), "heads: is of late binding, and no model of the plan is bound late"),
        (("--arrivals", "plan.json"), "no column 'arrival_s'"),
        (("--reference-plan", "none.json"), "none.json: no such file"),
        (("--arrivals", "plan.json", "--map", "code"), "is not NAME=VALUE"),
        (("--fail", "fast"), "'fast' is none of NODE@5-10"),
        (("--fail", "attic@0-1"), "no node named 'attic'"),
        (("--fail", "fast-0@2-1"), "lasts from 2.0 s to 1.0 s"),
        (("--change", "1=none.json"), "none.json: no such file"),
        (("--change", "plan.json"), "'plan.json' is not SECONDS=PLAN"),
        (("--change", "-1=plan.json"), "'-1=plan.json' is not SECONDS=PLAN"),
        (("--change", "2=plan.json", "--change", "1=plan.json"), "[2.0, 1.0] are not in order"),
        (
            ("--records", "no/such/folder.parquet"),
            "folder.parquet: cannot be written: there is no folder",
        ),
    ],
)
def test_wrong_options_are_refused_in_one_line(
    arguments: tuple[str, ...], reason: str, poolpipe: Command
) -> None:
    ran = poolpipe(*SIMULATE, *arguments)
    assert (ran.code, ran.out) == (2, "")
    assert reason in ran.err
    assert ran.err.count("\n") == 1


@pytest.mark.long
def test_a_run_is_kept_and_its_page_written(poolpipe: Command) -> None:
    run_id = poolpipe(*SIMULATE, "--arrivals", "gamma", "--json").document["run_id"]
    listed = poolpipe("warehouse", "runs", "--json").document["runs"]
    assert [row["run_id"] for row in listed] == [run_id]
    assert poolpipe("report", run_id, "-o", "pages/page.html").code == 0
    page = Path("pages/page.html").read_text()
    assert run_id in page
    assert "<svg" in page
    traced = poolpipe("report", run_id, "--perfetto", "pages/trace.json", "--json").document
    assert Path(traced["perfetto"]) == Path("pages/trace.json").resolve()
    assert json.loads(Path("pages/trace.json").read_text())["traceEvents"]
    for path, reason in (
        ("plan.json/t.json", "plan.json/t.json: cannot be written: there is no folder plan.json"),
        ("pages", "pages: cannot be written: Is a directory"),
        ("pages/new.html", "--perfetto: pages/new.html is the page's file, too"),
    ):
        ran = poolpipe("report", run_id, "-o", "pages/new.html", "--perfetto", path)
        assert (ran.code, ran.out) == (2, "")
        assert ran.err.splitlines()[-1] == f"poolpipe: {reason}"
        assert not Path("pages/new.html").exists()
    refused = poolpipe("report", "simulate-0")
    assert refused.code == 2
    assert run_id in refused.err


def test_the_page_of_a_plan_with_variants_draws_their_accuracy(poolpipe: Command) -> None:
    Path("variants.json").write_text(json.dumps(variant_plan().to_dict()))
    ran = poolpipe("simulate", "--plan", "variants.json", "--duration", "1", "--json").document
    assert poolpipe("report", ran["run_id"], "-o", "page.html").code == 0
    assert f"Accuracy against load, {NAME}" in Path("page.html").read_text()


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        (".", ".: cannot be written: Is a directory"),
        ("plan.json/page.html", "plan.json/page.html: cannot be written: there is no folder"),
    ],
)
def test_a_page_that_could_not_be_written_is_refused_before_its_run_is_read(
    poolpipe: Command, path: str, reason: str
) -> None:
    ran = poolpipe("report", "simulate-0", "-o", path)
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.startswith(f"poolpipe: {reason}")


def test_a_simulation_needs_no_warehouse(poolpipe: Command) -> None:
    ran = poolpipe(*SIMULATE, "--warehouse", "none.duckdb", "--json")
    assert ran.code == 0
    assert "run_id" not in ran.document
    assert not Path("none.duckdb").exists()


@pytest.mark.long
def test_failures_and_a_change_of_plan_are_simulated(poolpipe: Command) -> None:
    whole = poolpipe(*SIMULATE, "--json").document
    gone = [f"--fail={node}@0-" for node in ("fast-0", "fast-1", "slow-0", "slow-1")]
    less = poolpipe(*SIMULATE, *gone, "--fail", "slow-2:0@0-", "--json").document
    assert less["attainment"] < whole["attainment"]
    changes = ("--change", "0.5=plan.json", "--change", "1=plan.json")
    changed = poolpipe(*SIMULATE, *changes, "--json")
    assert changed.code == 0
    assert changed.document["models"] == whole["models"]
    assert poolpipe("report", changed.document["run_id"]).code == 0


def test_records_of_every_request_are_written_as_parquet(poolpipe: Command) -> None:
    found = poolpipe(*SIMULATE, "--load-factor", "2", "--records", "requests.parquet", "--json")
    net = found.document["models"]["net"]
    told = duckdb.sql("SELECT outcome, count(*) FROM 'requests.parquet' GROUP BY 1").fetchall()
    assert dict(told) == {k: net[k] for k in ("served", "late", "dropped") if net[k]}
    in_time = """SELECT bool_and(finish_us <= deadline_us AND dispatch_us >= arrival_us
        AND batch_id >= 0 AND reason = '' AND model = 'net')
        FROM 'requests.parquet' WHERE outcome = 'served'"""
    assert duckdb.sql(in_time).fetchall() == [(True,)]
    gone = """SELECT DISTINCT reason, dispatch_us, batch_id, batch_samples
        FROM 'requests.parquet' WHERE outcome = 'dropped'"""
    assert duckdb.sql(gone).fetchall() == [("deadline", None, None, None)]


@pytest.mark.slow
def test_a_warehouse_in_use_is_said_and_does_not_spoil_a_simulation() -> None:
    holder = (
        "import sys; from warehouse.db import open_warehouse;"
        "w = open_warehouse('poolpipe.duckdb'); print('held', flush=True); sys.stdin.read()"
    )
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[4])}
    with subprocess.Popen(
        [sys.executable, "-c", holder],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
    ) as held:
        assert held.stdout is not None
        assert held.stdout.readline() == "held\n"
        code = "from flows.cli.main import main; main()"
        ran = subprocess.run(
            [sys.executable, "-c", code, "simulate", "--plan", "plan.json", "--duration", "1"],
            capture_output=True,
            text=True,
            check=False,
            env=environment,
        )
        held.communicate()
    assert ran.returncode == 0
    assert "not stored" in ran.stderr
    assert f"is in use by process {held.pid}" in ran.stderr


def test_a_request_is_what_its_plain_form_says() -> None:
    request = SimulationRequest(
        options=SimOptions(
            models=("net",),
            rate_rps=4.5,
            seed=7,
            reference=two_stages(),
            failures=tuple(map(parse_failure, ("fast-0:1@0.5-2", "vgpu:3@1-", "slow-1@0-1"))),
            changes=(PlanChange(at_s=3.0, plan=two_stages(), flush=True),),
        ),
        load=OfferedLoad(arrivals="gamma", shape=0.5, names={"code": "net"}),
    )
    plain = json.loads(json.dumps(request.to_dict()))
    again = SimulationRequest.from_dict(plain)
    assert again.to_dict() == plain == json.loads(json.dumps(again.to_dict()))
    assert (again.load, again.options.failures) == (request.load, request.options.failures)


def test_a_request_kept_with_one_change_is_still_read() -> None:
    plain = SimulationRequest(options=SimOptions(), load=OfferedLoad()).to_dict()
    del plain["changes"]
    assert SimulationRequest.from_dict({**plain, "change": None}).options.changes == ()
    change = {"at_s": 3.0, "plan": two_stages().to_dict()}
    (read,) = SimulationRequest.from_dict({**plain, "change": change}).options.changes
    assert (read.at_s, read.flush, read.plan.plan_id) == (3.0, True, two_stages().plan_id)
