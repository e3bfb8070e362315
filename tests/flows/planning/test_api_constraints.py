import sys
from dataclasses import replace

import pytest

from flows.planning import PlanOptions, make_plan
from flows.planning.verify.numbers import verify_plan
from scripts.golden.problems import named
from tests.flows.planning.small import cluster, profile, workload
from triton_backend.contract.errors import InfeasibleError, InputError
from triton_backend.contract.plan import Plan
from triton_backend.contract.workload import ModelDemand

PROFILES = {"net": profile(), "other": profile("other", (500, 2000, 500))}
DEMANDS = (
    ModelDemand(name="net", slo_us=12_000, weight=1.0, batch_building_rate_rps=1e9),
    ModelDemand(name="other", slo_us=12_000, weight=1.0, batch_building_rate_rps=1e9),
)


def planned(**options: object) -> Plan:
    """Two models on four fast and eight slow GPUs."""
    asked = PlanOptions(**options)  # pyright: ignore[reportArgumentType] - the options of each test
    plan = make_plan(PROFILES, cluster(4, 8), workload(*DEMANDS), asked)
    assert verify_plan(plan, PROFILES) == []
    return plan


def classes_of(plan: Plan, model: str) -> set[str]:
    """GPU classes that a model runs on."""
    return {pool.gpu_class for m, _, _, pool in plan.placed_stages() if m.name == model}


def test_an_excluded_class_is_not_used() -> None:
    assert planned().gpus_used["slow"] > 0
    assert planned(excluded_classes={"*": ("slow",)}).gpus_used["slow"] == 0
    assert classes_of(planned(excluded_classes={"net": ("slow",)}), "net") == {"fast"}


def test_a_model_pinned_to_a_class_runs_nowhere_else() -> None:
    assert classes_of(planned(allowed_classes={"other": ("fast",)}), "other") == {"fast"}


@pytest.mark.long
def test_a_rate_to_keep_is_kept_at_the_expense_of_the_lowest() -> None:
    free = planned()
    least = free.model("net").throughput_rps * 1.6
    kept = planned(minimum_rps={"net": least})
    assert kept.model("net").throughput_rps >= least * (1 - 1e-9)
    assert kept.objective.value < free.objective.value


def test_a_rate_beyond_the_cluster_is_refused_with_the_share_it_reaches() -> None:
    with pytest.raises(InfeasibleError, match=r"at most 0\.\d% of the rates"):
        planned(minimum_rps={"net": 1e6})


def test_more_stages_than_asked_for_are_not_used() -> None:
    plan = planned(max_partitions=1)
    assert all(len(p.stages) == 1 for m in plan.models for p in m.pipelines)


def test_gurobi_solves_the_same_program_or_says_why_not() -> None:
    plan = planned(solver="gurobi")
    assert plan.objective.value == pytest.approx(planned().objective.value, rel=1e-4)
    assert plan.solver == "gurobi" or any(
        "solved with HiGHS" in note for note in plan.certificate["notes"]
    )


def test_a_plan_names_the_solvers_that_answered() -> None:
    assert planned().solver == "highs"
    made = named("applications-00").make()  # a depth-first search finds the machines
    asked = replace(made.options, solver="gurobi")
    assert make_plan(made.profiles, made.cluster, made.workload, asked).solver == "none"


def test_a_plan_whose_programs_gurobi_refuses_names_highs_and_says_why_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "gurobipy", None)
    plan = planned(solver="gurobi")
    assert plan.solver == "highs"
    assert plan.certificate["notes"] == ["solved with HiGHS: gurobipy is not installed"]


@pytest.mark.parametrize(
    "options",
    [
        {"planner": "guess"},
        {"slo_margin": 1.0},
        {"slo_margins": {"net": -0.1}},
        {"max_partitions": 0},
        {"max_partitions": 9},
        {"time_limit_s": 0.0},
        {"minimum_rps": {"net": float("inf")}},
        {"minimum_rps": {"absent": 1.0}},
    ],
)
def test_an_option_out_of_range_is_refused(options: dict[str, object]) -> None:
    with pytest.raises(InputError):
        planned(**options)


def test_dart_r_needs_two_classes() -> None:
    single = replace(cluster(), gpu_classes=cluster().gpu_classes[:1], nodes=cluster().nodes[:1])
    with pytest.raises(InputError, match="two GPU classes"):
        make_plan(PROFILES, single, workload(*DEMANDS), PlanOptions(planner="dart-r"))


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"excluded_classes": {"nobody": ("slow",)}}, "model 'nobody' is not in the workload"),
        ({"excluded_classes": {"*": ("T4",)}}, "no GPU class 'T4' in the cluster; it has fast, sl"),
        (
            {"excluded_classes": {"*": ("fast", "slow")}},
            "model 'net' may use no GPU class of the cluster: allowed and excluded ones leave none",
        ),
        ({"allowed_classes": {"net": ("fast", "T4")}}, r"allowed_classes.net: no GPU class 'T4'"),
        ({"minimum_rps": {"net": 1e9}}, "minimum_rps.net: 1000000000.0 is not within"),
    ],
)
def test_a_constraint_about_what_is_not_there_is_refused(
    options: dict[str, object], complaint: str
) -> None:
    with pytest.raises(InputError, match=complaint):
        planned(**options)
