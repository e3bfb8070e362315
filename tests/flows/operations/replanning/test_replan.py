"""From measured minutes to a plan and advice, with real planner, simulator and warehouse."""

import json
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from flows.clock import now_utc
from flows.deployments.parameters import ReplanParameters
from flows.operations.replanning.planner import options_of
from flows.operations.replanning.replan import Replanned, ReplanOptions, replan
from flows.planning import PlanOptions
from flows.planning.stored_plans import plan_step
from flows.workspace import Workspace
from tests.fakes.applications import hand_module
from tests.fakes.minutes import model_minute
from tests.flows.operations.fake_gateway import workspace_of
from tests.flows.planning.entries.entry_cases import case, entry, made, planned
from tests.flows.planning.entries.entry_cases import profile as case_profile
from tests.flows.planning.small import cluster as bare_cluster
from tests.flows.planning.small import profile, workload
from triton_backend.contract.applications import Application
from triton_backend.contract.cluster import Cluster
from triton_backend.contract.errors import InputError
from triton_backend.contract.plan import Plan
from triton_backend.contract.workload import ModelDemand, Workload
from triton_backend.scheduler.policies.demand import LEAST_RATE_RPS
from warehouse.observations import EntryMinute, ModuleMinute, StatisticsFile, add_statistics
from warehouse.profiles import import_profile

DEMAND = workload(ModelDemand(name="net", slo_us=60_000, weight=1.0, batch_building_rate_rps=1e9))
CHEAPEST = ReplanOptions(planning=PlanOptions(objective="cost"))


def cluster(fast: int = 2, slow: int = 4) -> Cluster:
    """GPUs of two classes, of one price."""
    return bare_cluster(fast, slow, fast_hourly_cost=1.0, slow_hourly_cost=1.0)


def measured(
    folder: Path, rate_rps: int, minutes: int = 5, *, application: str | None = None
) -> Workspace:
    """A warehouse with a profile and the last minutes of a model or application at a rate."""
    work = workspace_of(folder)
    now = now_utc().replace(second=0, microsecond=0)
    rows = [
        model_minute(now - timedelta(minutes=ago), 60 * rate_rps, model=application or "net")
        for ago in range(1, minutes + 1)
    ]
    with work.open() as warehouse:
        import_profile(warehouse, profile("net"), "by hand", now)
        add_statistics(warehouse, StatisticsFile(path="f", digest="1", models=rows), now)
    return work


@pytest.mark.long
def test_the_cheapest_plan_for_what_was_measured_is_rolled_out_where_none_is(
    tmp_path: Path,
) -> None:
    found = replan(measured(tmp_path, 50), cluster(), DEMAND, None, CHEAPEST)
    assert found.recommendation.roll_out
    assert found.forecast_rps["net"] == pytest.approx(55.0)
    assert found.plan.model("net").throughput_rps >= 55.0
    assert sum(found.plan.gpus_used.values()) == 1
    assert found.new.lowest_attainment > 0.99


@pytest.mark.long
def test_a_plan_that_serves_the_same_with_fewer_gpus_is_worth_a_rollout(tmp_path: Path) -> None:
    work = measured(tmp_path, 50)
    most = replan(work, cluster(), DEMAND, None, ReplanOptions()).plan
    found = replan(work, cluster(), DEMAND, most, CHEAPEST)
    assert found.recommendation.roll_out
    assert "fewer GPUs" in found.recommendation.reason
    again = replan(work, cluster(), DEMAND, found.plan, CHEAPEST)
    assert not again.recommendation.roll_out


@pytest.mark.long
def test_beside_a_loop_that_follows_the_load_only_a_plan_for_other_gpus_is_worth_a_rollout(
    tmp_path: Path,
) -> None:
    work, loop = measured(tmp_path, 50), "process 7 (poolpipe autoscale)"
    most = replan(work, cluster(), DEMAND, None, ReplanOptions()).plan
    kept = replan(work, cluster(), DEMAND, most, CHEAPEST, loop).recommendation
    assert not kept.roll_out
    assert kept.reason.startswith("it needs 83.3% fewer GPUs")
    assert kept.reason.endswith(f", but a loop that brings plans by the load would undo it: {loop}")
    assert replan(work, cluster(fast=3), DEMAND, most, CHEAPEST, loop).recommendation.roll_out
    again = replan(work, cluster(), DEMAND, most, ReplanOptions(), loop).recommendation
    assert (again.roll_out, loop in again.reason) == (False, False)


def test_a_plan_for_the_least_cost_is_refused_where_a_class_states_no_price(tmp_path: Path) -> None:
    reason = "gpu_classes.fast.hourly_cost: needed for the objective 'cost'"
    with pytest.raises(InputError, match=reason):
        replan(measured(tmp_path, 50), bare_cluster(), DEMAND, None, CHEAPEST)


@pytest.mark.long
def test_rates_beyond_the_cluster_are_planned_for_as_far_as_it_goes(tmp_path: Path) -> None:
    found = replan(measured(tmp_path, 1_500), cluster(fast=1, slow=1), DEMAND, None, CHEAPEST)
    assert 0 < found.plan.model("net").throughput_rps < found.forecast_rps["net"]


SIZED = Workload.from_dict(
    {
        "models": [
            {
                "name": "reader",
                "slo_ms": 60,
                "weight": 1,
                "batch_building_rate_rps": 1e9,
                "sizes": [
                    {"input_shapes": {"x": "4"}, "share": 0.5},
                    {"input_shapes": {"x": "8"}, "share": 0.5},
                ],
            }
        ]
    }
)


def measured_sizes(folder: Path, rates_rps: tuple[int, int]) -> Workspace:
    """A warehouse with profiles of two sizes, one twice as slow, and the last minutes of both."""
    work = workspace_of(folder)
    now = now_utc().replace(second=0, microsecond=0)
    names = [model.name for model in SIZED.models]
    rows = [
        model_minute(now - timedelta(minutes=ago), 60 * rate, model=name)
        for ago in range(1, 6)
        for name, rate in zip(names, rates_rps, strict=True)
    ]
    with work.open() as warehouse:
        for name, block_us in zip(names, (5_000.0, 10_000.0), strict=True):
            import_profile(warehouse, profile(name, fast_us=(block_us,) * 3), "by hand", now)
        add_statistics(warehouse, StatisticsFile(path="f", digest="1", models=rows), now)
    return work


@pytest.mark.long
def test_every_size_is_planned_for_the_share_that_was_measured(tmp_path: Path) -> None:
    """Half each was foreseen; of 160 requests/s, 120 are of the small size, or of the large one."""
    found: Replanned | None = None
    for number, rates_rps in enumerate(((120, 40), (40, 120))):
        (tmp_path / str(number)).mkdir()
        work = measured_sizes(tmp_path / str(number), rates_rps)
        found = replan(work, cluster(8, 8), SIZED, found and found.plan, CHEAPEST)
        assert [model.size_of for model in found.plan.workload.models] == ["reader", "reader"]
        for model, rate_rps in zip(SIZED.models, rates_rps, strict=True):
            assert found.forecast_rps[model.name] == pytest.approx(1.1 * rate_rps)
            assert found.plan.model(model.name).throughput_rps >= found.forecast_rps[model.name]
    assert found is not None
    assert found.recommendation.roll_out
    assert found.share_shift > 0.2


TRAFFIC = Application(
    name="traffic",
    slo_us=60_000,
    rate_rps=10.0,
    modules=(
        hand_module("detect", "net"),
        hand_module("cars", "sub", "detect", rows=0.5, max_rows=8),
    ),
)


def measured_jobs(folder: Path, rate_rps: int, rows: float) -> Workspace:
    """A warehouse with two profiles and minutes of an application, with so many rows a request."""
    work = measured(folder, rate_rps, application="traffic")
    now = now_utc().replace(second=0, microsecond=0)
    modules = [
        ModuleMinute(
            instance="i",
            application="traffic",
            module=module,
            minute=now - timedelta(minutes=ago),
            plan_id="any",
            samples=60 * rate_rps,
            rows=round(60 * rate_rps * mean),
        )
        for ago in range(1, 6)
        for module, mean in (("detect", 1.0), ("cars", rows))
    ]
    with work.open() as warehouse:
        import_profile(warehouse, profile("sub"), "by hand", now)
        add_statistics(warehouse, StatisticsFile(path="m", digest="1", modules=modules), now)
    return work


@pytest.mark.long
def test_an_application_is_planned_for_the_jobs_and_rows_that_were_measured(tmp_path: Path) -> None:
    """Foreseen were 10 requests/s of half a row each; there are 300 of four rows."""
    work = measured_jobs(tmp_path, 300, 4.0)
    asked = Workload(applications=(TRAFFIC,))
    whole = replace(CHEAPEST, planning=replace(CHEAPEST.planning, max_partitions=1))
    first = plan_step(work, cluster(4, 8), asked, whole.planning).plan
    found = replan(work, cluster(4, 8), asked, first, whole)
    (planned,) = found.plan.applications
    assert found.forecast_rps == {"traffic": pytest.approx(330.0)}
    assert planned.application.rate_rps == pytest.approx(330.0)
    assert planned.application.module("cars").rows_per_request == pytest.approx(4.0)
    assert found.plan.model("sub").throughput_rps >= 4 * 330.0 * (1 - 1e-6)
    assert found.old is not None
    assert found.old.attainment["traffic"] < found.new.attainment["traffic"]
    assert found.recommendation.roll_out, found.recommendation.reason
    again = replan(work, cluster(4, 8), asked, found.plan, whole)
    assert not again.recommendation.roll_out


@pytest.mark.long
def test_every_entry_is_planned_for_the_requests_that_came_in_at_its_cut(tmp_path: Path) -> None:
    """Those at a cut that the workload lists under another name count for it; others do not."""
    entries = (entry("whole", 0, 400, 30), entry("tails", 1, 300, 30), entry("quiet", 2, 200, 30))
    problem = made(case_profile(7), entries)
    work, now = workspace_of(tmp_path), now_utc().replace(second=0, microsecond=0)
    came_in = (("whole", 0, 60), ("cut-1", 1, 90), ("other", 7, 500))
    rows = [
        EntryMinute(
            instance="i",
            model="net",
            entry=name,
            block=block,
            budget_us=300_000,
            minute=now - timedelta(minutes=ago),
            plan_id="any",
            offered=60 * rate_rps,
        )
        for ago in range(1, 6)
        for name, block, rate_rps in came_in
    ]
    with work.open() as warehouse:
        import_profile(warehouse, problem.profile, "by hand", now)
        add_statistics(warehouse, StatisticsFile(path="f", digest="1", entries=rows), now)
    options = ReplanOptions(planning=PlanOptions(objective="share"))
    first = plan_step(work, problem.cluster, problem.workload, options.planning).plan
    found = replan(work, problem.cluster, problem.workload, first, options)
    assert found.forecast_rps == pytest.approx(
        {"net/whole": 66.0, "net/tails": 99.0, "net/quiet": LEAST_RATE_RPS}
    )
    rates = {e.name: e.rate_rps for e in found.plan.models[0].entries}
    assert rates == pytest.approx({"whole": 66.0, "tails": 99.0, "quiet": LEAST_RATE_RPS})
    assert found.old is not None
    assert set(found.new.attainment) == {"net/whole", "net/tails", "net/quiet"}
    assert found.new.attainment["net/tails"] > found.old.attainment["net/tails"]
    assert found.recommendation.roll_out, found.recommendation.reason


def test_nothing_measured_is_said(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no request of net was measured"):
        replan(measured(tmp_path, 1, minutes=0), cluster(), DEMAND, None, CHEAPEST)


@pytest.mark.long
def test_replanning_keeps_every_option_of_the_plan_in_force(tmp_path: Path) -> None:
    """Also when its parameters come as the nightly deployment gives them: files, nothing else."""
    work = measured(tmp_path, 50)
    asked = PlanOptions(
        objective="throughput",
        max_partitions=1,
        slo_margin=0.3,
        slo_margins={"net": 0.2},
        time_limit_s=30.0,
        gap=0.01,
        allowed_classes={"net": ("fast", "slow")},
        excluded_classes={"*": ("slow",)},
        minimum_rps={"net": 5.0},
        own={"overflow": True},
    )
    served = plan_step(work, cluster(), DEMAND, asked).plan
    in_force = Plan.from_dict(json.loads(json.dumps(served.to_dict())))
    nightly = ReplanParameters(cluster=Path("cluster.yaml"), workload=Path("workload.yaml"))
    found = replan(work, cluster(), DEMAND, in_force, nightly.options(in_force))
    assert dict(found.plan.options) == dict(served.options) | {"previous": served.plan_id}
    assert found.plan.gpus_used.get("slow", 0) == 0


def test_what_is_asked_of_a_replan_goes_before_what_is_in_force(tmp_path: Path) -> None:
    work = measured(tmp_path, 50)
    asked = PlanOptions(slo_margin=0.3, excluded_classes={"*": ("slow",)}, own={"overflow": True})
    in_force = plan_step(work, cluster(), DEMAND, asked).plan
    files = {"cluster": "c", "workload": "w"}
    given = {"slo_margin": 0.1, "overflow": False, "objective": "cost"}
    nightly = ReplanParameters.model_validate(files | given)
    kept = nightly.options(in_force).planning
    assert (kept.slo_margin, kept.own["overflow"], kept.objective) == (0.1, False, "cost")
    assert kept.excluded_classes == {"*": ("slow",)}
    assert nightly.options(None).planning.excluded_classes == {}


def test_options_of_an_older_plan_are_read_as_far_as_they_still_are() -> None:
    old = {
        "max_partitions": 3,
        "slo_margin": 0.4,
        "objective": "throughput",
        "solver": "highs",
        "time_limit_s": None,
        "node_limit": 5,
        "relative_gap": 1e-3,
        "max_columns": None,
        "overflow": True,
        "previous": "abc",
    }
    assert PlanOptions.from_dict("pool", old) == PlanOptions(
        max_partitions=3, gap=1e-3, own={"overflow": True}
    )


def test_a_plan_of_entries_that_states_no_phases_was_made_by_rates_alone() -> None:
    problem = case(0, 3)
    plan = planned(problem)
    stated = {k: v for k, v in plan.options.items() if k not in {"phases", "headroom"}}
    assert options_of(replace(plan, options=stated)) == options_of(plan)
    assert options_of(plan).own["headroom"] == "none"
    promised = planned(problem, own={"phases": "any", "headroom": "poisson99"})
    assert "headroom_factor" in promised.options
    assert options_of(promised).own["headroom"] == "poisson99"
