from dataclasses import replace

import pytest

from flows.planning import PlanOptions, sweep
from flows.planning.sweep import Situation, check_any_fits, what_if
from tests.flows.planning.small import cluster, profile, workload
from triton_backend.contract.applications import Application, Module
from triton_backend.contract.entries import Entry
from triton_backend.contract.errors import InfeasibleError, InputError
from triton_backend.contract.workload import ModelDemand, Workload

DEMAND = ModelDemand(name="net", slo_us=12_000, weight=1.0, batch_building_rate_rps=1e9)
SITUATION = Situation(
    profiles={"net": profile()},
    cluster=cluster(),
    workload=workload(DEMAND),
    options=PlanOptions(),
)


def curve(vary: str, *values: float) -> list[float | None]:
    """Objectives for the values."""
    return [point.objective for point in what_if(SITUATION, vary, values)]


@pytest.mark.parametrize(
    ("vary", "values"),
    [
        ("gpus", (0.5, 1, 2)),
        ("gpus:slow", (0, 4, 40)),
        ("ratio", (0.0, 0.5, 1.0)),
        ("slo-scale", (2, 5, 10)),
        ("slo", (1, 2, 4)),
        ("bandwidth", (1e-5, 1, 10)),
        ("classes", (1, 2)),
    ],
)
def test_more_of_a_good_thing_is_never_worse(vary: str, values: tuple[float, ...]) -> None:
    known = [value or 0.0 for value in curve(vary, *values)]
    assert known == sorted(known)
    assert known[-1] > known[0]


def test_a_larger_margin_is_never_better() -> None:
    known = [value or 0.0 for value in curve("margin", 0.0, 0.4, 0.7)]
    assert known == sorted(known, reverse=True)


@pytest.mark.parametrize(
    ("vary", "budgets_us"), [("slo", (24_000, 8_000)), ("slo-scale", (6_000, 2_000))]
)
def test_budgets_of_entries_go_with_the_slo(
    monkeypatch: pytest.MonkeyPatch, vary: str, budgets_us: tuple[int, ...]
) -> None:
    whole = Entry(name="whole", block=0, budget_us=12_000, rate_rps=1.0)
    tails = Entry(name="tails", block=2, budget_us=4_000, rate_rps=1.0)
    asked = workload(ModelDemand(name="net", slo_us=12_000, entries=(whole, tails)))
    planned: list[Workload] = []

    def note(
        _profiles: object, _cluster: object, asked: Workload, *_: object, **__: object
    ) -> None:
        planned.append(asked)
        raise InfeasibleError("net", "seen")

    monkeypatch.setattr(sweep, "make_plan", note)
    what_if(replace(SITUATION, workload=asked), vary, [2.0])
    assert [e.budget_us for e in planned[0].models[0].entries] == list(budgets_us)


def test_a_value_without_a_plan_says_why() -> None:
    (point,) = what_if(SITUATION, "slo-scale", [1.0])
    assert point.objective is None
    assert "no pipeline" in str(point.reason)


def test_inputs_that_a_planner_refuses_cost_their_point_alone() -> None:
    priced = replace(DEMAND, weight=None, rate_rps=10.0)
    on = replace(
        SITUATION,
        cluster=cluster(fast_hourly_cost=1.0),
        workload=workload(priced),
        options=PlanOptions(objective="cost"),
    )
    one, both = what_if(on, "classes", [1, 2])
    assert one.objective == 1.0
    assert (both.objective, both.bad_input) == (None, True)
    assert "hourly_cost" in str(both.reason)
    check_any_fits([one, both])
    with pytest.raises(InputError, match="hourly_cost") as refused:
        check_any_fits([both, both])
    assert str(refused.value) == both.reason


@pytest.mark.parametrize(
    ("vary", "value"), [("weather", 1.0), ("gpus:fast", 1.5), ("classes", 3), ("gpus:none", 1)]
)
def test_what_cannot_be_varied_is_refused(vary: str, value: float) -> None:
    with pytest.raises(InputError):
        what_if(SITUATION, vary, [value])


@pytest.mark.parametrize(
    ("vary", "value", "reason"),
    [
        ("gpus", 1e308, "1e+308 is not within 1e-06 and 1e+06"),
        ("gpus:fast", 1e300, "1e+300 is not within 0 and 1e+07"),
        ("gpus:fast", 1.5, "1.5 is not a whole number"),
        ("slo", 1e308, "1e+308 is not within 1e-06 and 1e+06"),
        ("slo-scale", 1e308, "1e+308 is not within 1e-06 and 1e+06"),
        ("bandwidth", 0.0, "0 is not within 1e-06 and 1e+06"),
    ],
)
def test_a_value_beyond_its_range_is_refused_with_the_range(
    vary: str, value: float, reason: str
) -> None:
    with pytest.raises(InputError) as refused:
        what_if(SITUATION, vary, [value])
    assert str(refused.value) == f"option vary: {vary.partition(':')[0]}: {reason}"


@pytest.mark.parametrize(("vary", "values"), [("gpus:fast", [1.0, 1.5]), ("margin", [0.1, 2.0])])
def test_all_values_are_checked_before_one_is_planned(
    monkeypatch: pytest.MonkeyPatch, vary: str, values: list[float]
) -> None:
    planned: list[object] = []

    def plan(*asked: object, **_: object) -> None:
        planned.append(asked)
        raise InfeasibleError("net", "seen")

    monkeypatch.setattr(sweep, "make_plan", plan)
    with pytest.raises(InputError, match="is not"):
        what_if(SITUATION, vary, values)
    assert planned == []


SEEN = "the cluster has no GPU of a class that it may use and was measured on; measured: "
TOO_FEW = "the GPUs are too few for its 2 modules together: 0 of fast, 1 of slow"
BOTH = {"net": profile(), "two": profile("two", (2000, 2000, 2000))}
FAST_ALONE = replace(
    profile(), tables={k: t for k, t in profile().tables.items() if k.gpu_class == "fast"}
)
CHAIN = Application(
    name="app",
    slo_us=60_000,
    rate_rps=30.0,
    modules=(Module(name="one", model="net"), Module(name="two", model="two", after=("one",))),
)
ENTRY = Entry(name="first", block=0, budget_us=15_000, rate_rps=5_000.0)
BUSY = Workload(models=(ModelDemand(name="net", slo_us=15_000, entries=(ENTRY,)),))


@pytest.mark.parametrize("planner", ["auto", "pool", "subclusters", "gpulets", "gpulets-greedy"])
def test_a_value_that_leaves_no_gpus_says_so(planner: str) -> None:
    fast = replace(cluster(), gpu_classes=cluster().gpu_classes[:1], nodes=cluster().nodes[:1])
    bare = replace(SITUATION, cluster=fast, options=PlanOptions(planner=planner))
    (point,) = what_if(bare, "gpus:fast", [0])
    assert point.reason == "cluster: has no GPUs"


@pytest.mark.parametrize("planner", ["pool", "graft", "gpulets"])
def test_a_value_that_leaves_no_gpu_of_the_measured_class_says_which(planner: str) -> None:
    known, options = {"net": FAST_ALONE}, PlanOptions(planner=planner)
    (point,) = what_if(replace(SITUATION, profiles=known, options=options), "gpus:fast", [0])
    measured = "1/1 of fast; 1/2 of fast, loaded"
    assert point.reason == f"workload model 'net': {SEEN}{measured}"


@pytest.mark.parametrize(
    ("slo_us", "reason"),
    [
        (
            60_000,
            "its least latency, 27.000 ms, is within SLO less margin, 36.000 ms of 60.000 ms; "
            + TOO_FEW,
        ),
        (20_000, "SLO less margin is 12.000 ms of 20.000 ms, its least latency is 27.000 ms"),
    ],
)
def test_an_application_that_gpus_are_too_few_for_is_not_called_too_slow(
    slo_us: int, reason: str
) -> None:
    asked = Workload(models=(), applications=(replace(CHAIN, slo_us=slo_us),))
    on = replace(SITUATION, profiles=BOTH, cluster=cluster(1, 1), workload=asked)
    (point,) = what_if(on, "gpus:fast", [0])
    assert point.reason == f"application 'app': {reason}"


def test_too_few_gpus_of_one_class_are_of_one_of_several_plans() -> None:
    options = PlanOptions(planner="graft", objective="gpus")
    busy = replace(SITUATION, cluster=cluster(2, 1), workload=BUSY, options=options)
    (point,) = what_if(busy, "gpus:fast", [1])
    assert point.reason == (
        "gpu_classes.slow: the last of 16 plans with other weights of classes needs 15 GPUs or"
        " more, the cluster has 1"
    )


def test_auto_says_the_reason_of_every_planner() -> None:
    asked = workload(
        ModelDemand(name="net", slo_us=15_000, rate_rps=100.0),
        ModelDemand(name="two", slo_us=30_000, rate_rps=50.0),
    )
    options = PlanOptions(planner="auto", objective="gpus")
    on = Situation(profiles=BOTH, cluster=cluster(2, 1), workload=asked, options=options)
    (point,) = what_if(on, "gpus:fast", [0])
    reason = str(point.reason)
    assert "pool: workload model 'two': the GPUs are too few for 2 models" in reason
    assert "subclusters: workload: the cluster reaches at most 45.0% of the rates" in reason
