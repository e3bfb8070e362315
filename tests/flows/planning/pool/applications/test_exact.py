"""Applications by the planner `pool`: against brute force, and plans that hold."""

from dataclasses import replace
from itertools import product
from math import ceil, inf
from typing import Any

import pytest

from flows.planning import PlanOptions, make_plan
from flows.planning.applications.division import divide
from flows.planning.pool.applications import exact, pools
from flows.planning.verify.numbers import verify_plan
from flows.planning.watch import Watch
from scripts.golden.problems import Made, Recipe, drawn, named
from tests.flows.planning.small import cluster, profile
from triton_backend.contract.cluster import Cluster
from triton_backend.contract.errors import InfeasibleError, InputError
from triton_backend.contract.plan import Plan
from triton_backend.contract.workload import Workload

FAST, SLOW = 2.0, 0.8
CLUSTER = cluster(6, 8, fast_hourly_cost=FAST, slow_hourly_cost=SLOW)
PROFILES = {
    name: profile(name, (1000 * k, 1000 * k, 1000 * k))
    for name, k in (("a", 1.0), ("b", 2.0), ("c", 0.5), ("d", 1.5))
}


def module(name: str, model: str, *after: str, **more: Any) -> dict[str, Any]:
    return {"name": name, "model": model, "after": list(after)} | more


def asked(slo_ms: float, *modules: dict[str, Any], rate_rps: float = 200.0) -> Workload:
    app = {"name": "app", "slo_ms": slo_ms, "rate_rps": rate_rps, "modules": list(modules)}
    return Workload.from_dict({"applications": [app]})


DIAMOND = (
    module("one", "a"),
    module("left", "b", "one", rows_per_request=0.5, max_rows=2),
    module("right", "c", "one", rows_per_request=2, max_rows=4),
    module("join", "d", "left", "right"),
)


def made(workload: Workload, on: Cluster = CLUSTER, **options: Any) -> Plan:
    plan = make_plan(PROFILES, on, workload, PlanOptions(slo_margin=0.1, **options))
    assert verify_plan(plan, PROFILES) == []
    back = Plan.from_dict(plan.to_dict())
    assert back.to_dict() == plan.to_dict()
    return plan


def _ways(model: str, limit_us: float) -> dict[tuple[str, int], float]:
    """Highest rows/s of one GPU of each class and size within a time, over batches."""
    best: dict[tuple[str, int], float] = {}
    for key, measured in PROFILES[model].tables.items():
        kind, table = (key.gpu_class, 300 // key.share), measured.latency_us
        for batch in range(1, table.shape[1] + 1):
            latency = ceil(float(table[:, batch - 1].sum()) - 1e-6)
            if latency <= limit_us:
                best[kind] = max(best.get(kind, 0.0), kind[1] * batch * 1e6 / latency)
    return best


def _times(model: str) -> list[int]:
    tables = [table.latency_us for table in PROFILES[model].tables.values()]
    return sorted({ceil(float(v) - 1e-6) for table in tables for v in table.sum(axis=0)})


def _least_cost(
    workload: Workload,
    models: tuple[str, ...],
    rates: tuple[float, ...],
    gpus: tuple[int, int] = (6, 8),
) -> float:
    """All times of all models, all counts of GPUs; halves count in halves of a GPU."""
    limit = workload.applications[0].slo_us * 0.9
    best = inf
    for times in product(*map(_times, models)):
        if sum(times) > limit:
            continue
        best = min(best, _cheapest_gpus(models, times, rates, gpus))
    return best


def _cheapest_gpus(
    models: tuple[str, ...],
    times: tuple[int, ...],
    rates: tuple[float, ...],
    gpus: tuple[int, int],
) -> float:
    best = inf
    options: list[list[tuple[int, int]]] = []
    for model, time, rate in zip(models, times, rates, strict=True):
        ways = _ways(model, time)
        fast = max(ways.get(("fast", 1), 0.0), ways.get(("fast", 2), 0.0))
        slow = ways.get(("slow", 1), 0.0)
        every = product(range(gpus[0] + 1), range(gpus[1] + 1))
        pairs = [(f, s) for f, s in every if f * fast + s * slow >= rate * (1 - 1e-9)]
        options.append(pairs)
    for choice in product(*options):
        fast, slow = (sum(pair[k] for pair in choice) for k in (0, 1))
        if fast <= gpus[0] and slow <= gpus[1]:
            best = min(best, fast * FAST + slow * SLOW)
    return best


@pytest.mark.long
@pytest.mark.parametrize("slo_ms", [14.3, 20.3, 30.3, 45.3])
@pytest.mark.parametrize("rate_rps", [150.0, 420.0])
def test_whole_models_cost_what_brute_force_says(slo_ms: float, rate_rps: float) -> None:
    chain = (
        module("one", "a", batch_building_rate_rps=1e9),
        module("two", "c", "one", rows_per_request=2, max_rows=4, batch_building_rate_rps=1e9),
    )
    workload = asked(slo_ms, *chain, rate_rps=rate_rps)
    expected = _least_cost(workload, ("a", "c"), (rate_rps, 2 * rate_rps))
    options: dict[str, Any] = {
        "objective": "cost",
        "max_partitions": 1,
        "own": {"gathering": "fixed"},
    }
    if expected == inf:
        with pytest.raises(InputError):
            made(workload, **options)
        return
    plan = made(workload, **options)
    assert plan.objective.value == pytest.approx(expected)
    assert plan.objective.upper_bound >= expected * (1 - 2e-4)


@pytest.mark.parametrize("gpus", [(1, 9), (2, 6), (3, 3), (4, 2)])
@pytest.mark.parametrize("slo_ms", [14.3, 30.3])
def test_scarce_gpus_cost_what_brute_force_says(gpus: tuple[int, int], slo_ms: float) -> None:
    """Where the lines, each by itself, would take more GPUs of a class than there are."""
    chain = (
        module("one", "a", batch_building_rate_rps=1e9),
        module("two", "c", "one", rows_per_request=2, max_rows=4, batch_building_rate_rps=1e9),
    )
    workload = asked(slo_ms, *chain, rate_rps=300.0)
    few = cluster(*gpus, fast_hourly_cost=FAST, slow_hourly_cost=SLOW)
    options: dict[str, Any] = {"objective": "cost", "own": {"gathering": "fixed"}}
    expected = _least_cost(workload, ("a", "c"), (300.0, 600.0), gpus)
    if expected == inf:
        with pytest.raises(InputError):
            made(workload, on=few, max_partitions=1, **options)
        return
    plan = made(workload, on=few, max_partitions=1, **options)
    assert plan.objective.value == pytest.approx(expected)
    assert plan.objective.gap <= 1e-4
    split = made(workload, on=few, max_partitions=2, **options)
    assert split.objective.value <= plan.objective.value * (1 + 1e-9)


def _most_throughput(limit_us: float, models: dict[str, float], fast: int, slow: int) -> float:
    """Requests/s of a chain: all times of its models, all GPUs of each; rows a request by model."""
    best = 0.0
    for times in product(*map(_times, models)):
        if sum(times) > limit_us:
            continue
        ways = [_ways(model, time) for model, time in zip(models, times, strict=True)]
        shares = [
            (max(way.get(("fast", 1), 0.0), way.get(("fast", 2), 0.0)), way.get(("slow", 1), 0.0))
            for way in ways
        ]
        for counts in product(product(range(fast + 1), range(slow + 1)), repeat=len(models)):
            if sum(f for f, _ in counts) <= fast and sum(s for _, s in counts) <= slow:
                rates = [
                    (f * a + s * b) / rows
                    for (f, s), (a, b), rows in zip(counts, shares, models.values(), strict=True)
                ]
                best = max(best, min(rates))
    return best


def _few(slo_ms: float, rows: float) -> Workload:
    """A chain for few GPUs, of whose relaxation every plan falls short."""
    chain = [
        module("one", "a", batch_building_rate_rps=1e9),
        module("two", "c", "one", rows_per_request=rows, max_rows=4, batch_building_rate_rps=1e9),
    ]
    return Workload.from_dict(
        {"applications": [{"name": "app", "slo_ms": slo_ms, "modules": chain}]}
    )


@pytest.mark.parametrize("slo_ms", [9.3, 14.3, 20.3, 45.3])
@pytest.mark.parametrize("rows", [0.7, 2.0])
@pytest.mark.parametrize("relaxed", [pools._RELAXED, 0])
def test_few_gpus_carry_what_brute_force_says(
    slo_ms: float, rows: float, relaxed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the relaxation, which hands out parts of GPUs, is far above every plan."""
    monkeypatch.setattr(pools, "_RELAXED", relaxed)
    plan = made(_few(slo_ms, rows), on=cluster(1, 3), max_partitions=1)
    expected = _most_throughput(slo_ms * 900, {"a": 1.0, "c": rows}, 1, 3)
    assert plan.objective.value == pytest.approx(expected)
    assert plan.objective.gap <= 1e-4


def _finding_nothing(*given: Any) -> tuple[None, float]:
    """A program for time and GPUs that ends without a plan."""
    return None, given[-1]


def test_late_boxes_are_bounded_by_whole_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """Six boxes prove the plan; bounded by their relaxations alone they leave 16 % open."""
    monkeypatch.setattr(pools, "_RELAXED", 0)
    monkeypatch.setattr(exact, "_MOST", 6)
    monkeypatch.setattr(exact, "_MANY", 1)
    monkeypatch.setattr(pools.Pools, "together", _finding_nothing)
    plan = made(_few(25.3, 0.7), on=cluster(1, 3), max_partitions=1)
    assert plan.objective.gap <= 1e-4


def test_boxes_after_the_program_find_what_it_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exact, "_MOST", 1)
    monkeypatch.setattr(pools.Pools, "together", _finding_nothing)
    plan = made(_few(14.3, 0.7), on=cluster(1, 3), max_partitions=1)
    expected = _most_throughput(14.3 * 900, {"a": 1.0, "c": 0.7}, 1, 3)
    assert plan.objective.value == pytest.approx(expected)


def test_boxes_leave_the_program_most_of_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    limits: list[float] = []

    def recorded(*given: Any) -> Any:
        limits.append(given[3].limit_s)
        return divide(*given)

    monkeypatch.setattr(exact, "divide", recorded)
    made(_few(20.3, 2.0), on=cluster(1, 3), max_partitions=1, time_limit_s=1_000.0)
    assert limits[0] < 500


@pytest.mark.long
def test_boxes_prove_throughput_that_the_one_program_leaves_open() -> None:
    """Two hundred boxes close it to 2 %; after 24 of them the program leaves 13 % open."""
    problem = named("applications-throughput-03").make()
    free = replace(problem, options=replace(problem.options, time_limit_s=None))
    assert free.plan().objective.gap <= problem.options.gap


@pytest.mark.slow
def test_split_models_cost_no_more_than_whole_ones() -> None:
    plans = [
        made(
            asked(16, DIAMOND[0], module("two", "c", "one")),
            objective="cost",
            max_partitions=stages,
            own={"gathering": "fixed"},
        )
        for stages in (1, 2)
    ]
    whole, split = plans
    assert split.objective.value <= whole.objective.value * (1 + 1e-4)
    # Batches are gathered in the same time, so that every plan of whole models is one of split
    # ones.
    assert split.workload == whole.workload


@pytest.mark.parametrize(
    "own",
    [
        {},
        {"billing": "occupancy"},
        {"billing": "occupancy", "dummies": False},
        {"billing": "occupancy", "gathering": "tc-even"},
    ],
)
def test_a_diamond_is_planned_with_proof_by_every_accounting(own: dict[str, Any]) -> None:
    plan = made(asked(60, *DIAMOND), objective="cost", own=own)
    assert plan.objective.gap <= 1e-4
    planned = plan.applications[0]
    assert planned.application.longest(planned.budgets_us) <= 54_000
    assert planned.tails_us["one"] > planned.tails_us["left"] > planned.tails_us["join"] == 0


def test_billing_of_what_is_paid_minimises_the_price_of_the_gpus_that_are_on() -> None:
    workload = asked(60, *DIAMOND)
    plan = made(workload, objective="cost", own={"billing": "paid"})
    assert plan.objective.value == pytest.approx(plan.price_paid)
    assert plan.options["billing"] == "gpu"
    occupied = made(workload, objective="cost", own={"billing": "occupancy"})
    assert plan.price_paid is not None
    assert occupied.price_paid is not None
    assert plan.price_paid <= occupied.price_paid + 1e-9


PAID_BY: tuple[tuple[str, dict[str, Any]], ...] = (
    ("pool", {"gathering": "fixed"}),
    ("pool", {"billing": "occupancy"}),
    ("pool", {"billing": "paid"}),
    ("pool", {"billing": "occupancy", "gathering": "tc-even"}),
    ("piccolo", {}),
)


@pytest.mark.slow
@pytest.mark.parametrize(("planner", "own"), PAID_BY, ids=str)
def test_the_price_paid_of_a_hundred_plans_is_that_of_the_gpus_they_hold(
    planner: str, own: dict[str, Any]
) -> None:
    """Twenty rates by each of five plannings; every GPU that holds a vGPU is paid once, whole."""
    prices = {"fast": FAST, "slow": SLOW}
    for rate_rps in range(200, 400, 10):
        workload = asked(60, *DIAMOND, rate_rps=float(rate_rps))
        plan = made(workload, objective="cost", planner=planner, own=own)
        held = {
            (pool.gpu_class, slot.node, slot.gpu) for pool in plan.pools for slot in pool.slots()
        }
        paid = sum(prices[gpu_class] for gpu_class, _, _ in held)
        assert plan.price_paid == pytest.approx(paid)


def test_planners_of_the_paper_cost_no_less_than_the_exact_one() -> None:
    workload = asked(60, *DIAMOND)
    exact = made(workload, objective="cost", own={"billing": "occupancy"}).objective.value
    costs = {
        name: made(workload, objective="cost", planner=name).objective.value
        for name in ("piccolo", "nexus-dag", "scrooge", "inferline", "clipper")
    }
    assert min(costs.values()) == costs["piccolo"] >= exact * (1 - 1e-9)


@pytest.mark.long
def test_throughput_is_shared_by_weight() -> None:
    chain = (module("one", "a"), module("two", "c", "one", rows_per_request=2, max_rows=4))
    app = {"name": "app", "slo_ms": 40, "weight": 3, "modules": list(chain)}
    workload = Workload.from_dict({"applications": [app]})
    plan = made(workload, max_partitions=1)
    rate = 3 * plan.objective.value
    assert plan.applications[0].application.rate_rps == pytest.approx(rate)
    assert plan.model("c").throughput_rps >= 2 * rate * (1 - 1e-9)
    assert plan.options["batch_building_rates"] == "pool without gathering"


def test_models_and_applications_share_lines() -> None:
    workload = asked(60, *DIAMOND)
    workload = replace(
        workload,
        models=Workload.from_dict({"models": [{"name": "a", "slo_ms": 12, "rate_rps": 50}]}).models,
    )
    plan = made(workload, objective="cost")
    assert plan.model("a").throughput_rps == pytest.approx(250)
    assert plan.model("a").slo_us <= 12_000


@pytest.mark.parametrize(
    ("workload", "options", "message"),
    [
        (asked(3, *DIAMOND), {"objective": "cost"}, "application 'app': SLO less margin is 2.700"),
        (
            asked(3, *DIAMOND),
            {"objective": "cost", "own": {"gathering": "fixed"}},
            "application 'app': SLO less margin is 2.700 ms",
        ),
        (asked(60, *DIAMOND), {"planner": "dart-r"}, "option planner: dart-r plans models alone"),
        (
            asked(60, *DIAMOND),
            {"own": {"gathering": "tc-tail"}},
            "option gathering: tc-tail is defined for the objective cost",
        ),
        (
            asked(60, *DIAMOND),
            {"objective": "cost", "own": {"gathering": "tc-tail"}},
            "option billing: tc-tail is defined for billing occupancy",
        ),
        (
            asked(60, *DIAMOND),
            {"objective": "cost", "planner": "piccolo", "own": {"without": "x"}},
            "option without: 'x' is none of batching",
        ),
        (
            asked(60, *DIAMOND),
            {"objective": "cost", "planner": "piccolo", "own": {"max_configs": 3}},
            "option max_configs: 3 is none of 0, 1, 2",
        ),
        (
            asked(60, *DIAMOND, rate_rps=20_000),
            {"objective": "cost"},
            "gpu_classes.",
        ),
        (
            asked(60, *DIAMOND),
            {"objective": "cost", "slo_margins": {"nobody": 0.1}},
            "option slo_margins.nobody: no model or application",
        ),
        (
            asked(60, *DIAMOND),
            {"objective": "share"},
            "option objective: pool is defined for share where models list entries",
        ),
        (
            asked(60, module("one", "ghost")),
            {"objective": "cost"},
            "workload model 'ghost': no profile",
        ),
        (
            Workload.from_dict(
                {"applications": [{"name": "app", "slo_ms": 9, "modules": [module("x", "a")]}]}
            ),
            {"objective": "cost"},
            "application 'app'.rate_rps: needed",
        ),
    ],
)
def test_what_cannot_be_planned_is_named(
    workload: Workload, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(InputError) as raised:
        made(workload, **options)
    assert str(raised.value).startswith(message)
    assert "\n" not in str(raised.value)


def _crowded(cut: str, objective: str, limit_s: float | None) -> Made:
    """Modules that hardly find room on one GPU."""
    recipe = Recipe(
        count=1, models=(1, 4), gpus={"fast": 1}, cut=cut, blocks=1, applications=True,
        objective=objective, rates_rps=(10.0, 5.0),
    )  # fmt: skip
    problem = drawn(recipe, seed=303)
    return replace(problem, options=replace(problem.options, time_limit_s=limit_s))


@pytest.mark.long
def test_modules_that_find_no_room_beside_each_other_are_refused() -> None:
    with pytest.raises(InfeasibleError, match="the GPUs are too few for its"):
        _crowded("divisors", "throughput", None).plan()


def test_more_lines_than_gpus_are_refused_without_a_search(monkeypatch: pytest.MonkeyPatch) -> None:
    """On equal parts no GPU serves two lines; a search for whole GPUs took minutes to end."""

    def never(*_: Any, **__: Any) -> None:
        pytest.fail("GPUs were handed out")

    monkeypatch.setattr(pools, "search", never)
    few = cluster(1, 2, fast_hourly_cost=FAST, slow_hourly_cost=SLOW)
    options: dict[str, Any] = {"objective": "cost", "own": {"gathering": "fixed"}}
    with pytest.raises(InfeasibleError, match="the GPUs are too few for its"):
        made(asked(90, *DIAMOND, rate_rps=1.0), few, max_partitions=3, **options)


@pytest.mark.long
@pytest.mark.parametrize("limit_s", [0.6, 0.8, 1.0, 1.5])
def test_a_limit_that_ends_before_rates_are_known_is_named(limit_s: float) -> None:
    try:
        _crowded("percents", "cost", limit_s).plan()
        said = "planned"  # on a fast machine
    except InfeasibleError as error:
        said = str(error)
    assert said == "planned" or said.endswith("raise --time-limit")


CHANGES: list[tuple[str, Any, str]] = [
    ("slo_us", 50_000, "SLO, outputs or modules are not those of the workload"),
    ("rate_rps", 190.0, "rate_rps is 190.0, derived 200.0"),
]


@pytest.mark.parametrize(("field", "value", "found"), CHANGES)
def test_a_changed_application_is_found(field: str, value: Any, found: str) -> None:
    data = made(asked(60, *DIAMOND), objective="cost").to_dict()
    data["applications"][0][field] = value
    assert any(found in text for text in verify_plan(Plan.from_dict(data)))


def test_a_detector_alone_is_planned_as_what_it_runs() -> None:
    """How many rows it gives at most is part of the plan, and costs nothing."""
    plan = made(asked(60, module("find", "a", max_rows_given=5)), objective="cost")
    assert verify_plan(plan) == []
    assert (
        plan.objective.value
        == made(asked(60, module("find", "a")), objective="cost").objective.value
    )
    data = plan.to_dict()
    data["applications"][0]["modules"][0]["max_rows_given"] = 6
    assert any("modules are not those" in text for text in verify_plan(Plan.from_dict(data)))


@pytest.mark.parametrize("own", [{}, {"billing": "occupancy"}])
def test_a_changed_budget_or_occupancy_is_found(own: dict[str, Any]) -> None:
    plan = made(asked(60, *DIAMOND), objective="cost", own=own)
    for factor in (0.5, 3.0):
        data = plan.to_dict()
        modules = data["applications"][0]["modules"]
        modules[3]["budget_us"] = int(modules[3]["budget_us"] * factor)
        for item in modules:
            del item["tail_us"]
        assert verify_plan(Plan.from_dict(data))
    data = plan.to_dict()
    data["models"][0]["pipelines"][0]["occupied_vgpus"] *= 0.5
    assert verify_plan(Plan.from_dict(data))


def test_where_the_time_is_over_a_plan_that_is_known_is_kept_and_no_other_looked_for() -> None:
    """The first search for whole GPUs has the time that there is; what comes after has none."""
    workload = asked(16, DIAMOND[0], module("two", "c", "one"))
    watch = Watch()
    watch.stop()
    plan = make_plan(
        PROFILES,
        CLUSTER,
        workload,
        PlanOptions(objective="cost", slo_margin=0.1, own={"gathering": "fixed"}),
        watch,
    )
    assert verify_plan(plan, PROFILES) == []
    assert plan.certificate["status"] == "time limit reached"


def test_a_run_that_ends_before_any_plan_says_so_and_claims_nothing_else() -> None:
    """Two lines are too slow on two GPUs: only a search that was finished may say that."""
    workload = asked(90, module("one", "a"), module("two", "b"), rate_rps=200.0)
    few = cluster(1, 1, fast_hourly_cost=FAST, slow_hourly_cost=SLOW)
    options = PlanOptions(objective="cost", slo_margin=0.1, own={"gathering": "fixed"})
    over = Watch(limit_s=0.0)
    with pytest.raises(
        InfeasibleError, match=r"no plan under a time limit of 0 s; raise --time-limit"
    ):
        make_plan(PROFILES, few, workload, options, over)
    with pytest.raises(InfeasibleError, match="the GPUs are too few for its 2 modules"):
        make_plan(PROFILES, few, workload, options)
