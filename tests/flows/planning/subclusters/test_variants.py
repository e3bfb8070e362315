"""Plans of variants: the most accurate mix that fits, or the cheapest that is accurate enough."""

from typing import Any

import pytest

from flows.planning import PlanOptions, make_plan
from flows.planning.verify.numbers import verify_plan
from tests.fakes.variants import (
    ACCURACY,
    CHEAP,
    NAME,
    gpus,
    plain_plan,
    variant_plan,
    variant_profiles,
    variant_workload,
)
from triton_backend.contract.errors import InfeasibleError, InputError
from triton_backend.contract.plan import Plan

WHOLE = plain_plan().own_rate_rps(NAME)  # rate of the accurate one on 4 GPUs


def planned(
    objective: str = "gpus", own: dict[str, Any] | None = None, count: int = 4, **more: Any
) -> Plan:
    options = PlanOptions(planner="subclusters", objective=objective, own=own or {})
    return make_plan(variant_profiles(), gpus(count), variant_workload(**more), options)


def rates(plan: Plan) -> dict[str, float]:
    return {model.name: model.throughput_rps for model in plan.models}


@pytest.mark.parametrize(
    ("load", "accurate"), [(0.5, 1.0), (0.99, 1.0), (1.25, 0.6), (1.6, 0.25), (1.99, 0.0)]
)
def test_the_most_accurate_mix_that_fits_is_planned(load: float, accurate: float) -> None:
    plan = planned(rate_rps=load * WHOLE)
    assert rates(plan)[NAME] / (load * WHOLE) == pytest.approx(accurate, abs=0.03)
    assert sum(rates(plan).values()) == pytest.approx(load * WHOLE)
    assert not verify_plan(plan, variant_profiles())
    assert Plan.from_dict(plan.to_dict()) == plan


def test_what_not_even_the_cheapest_carries_is_infeasible() -> None:
    with pytest.raises(InfeasibleError, match="of the rates asked for"):
        planned(rate_rps=2.2 * WHOLE)


def test_all_are_planned_for_the_accurate_one_where_throughput_is_maximised() -> None:
    assert rates(variant_plan()) == {NAME: pytest.approx(WHOLE), CHEAP: 0.0}
    assert not verify_plan(variant_plan(), variant_profiles())


def test_variants_share_the_gpus_of_one_pool() -> None:
    for plan in (variant_plan(), planned(rate_rps=0.5 * WHOLE)):
        assert len({stage.pool for _, _, stage, _ in plan.placed_stages()}) == 1


def test_a_variant_is_planned_with_the_batch_of_its_load_when_it_is_alone() -> None:
    batches = [model.pipelines[0].batch for model in variant_plan().models]
    assert batches[1] >= batches[0]


@pytest.mark.parametrize(
    ("least", "accurate"), [(ACCURACY[NAME], 1.0), (0.75, 0.5), (0.7, 0.0), (0.1, 0.0)]
)
def test_an_accuracy_that_suffices_is_planned_at_least_cost(least: float, accurate: float) -> None:
    plan = planned(own={"least_accuracy": least}, rate_rps=0.6 * WHOLE)
    assert rates(plan)[NAME] / (0.6 * WHOLE) == pytest.approx(accurate, abs=1e-6)
    assert not verify_plan(plan, variant_profiles())
    dearer = planned(rate_rps=0.6 * WHOLE)
    assert plan.objective.value <= dearer.objective.value


def test_an_accuracy_that_none_has_is_refused() -> None:
    with pytest.raises(InputError, match=r"most accurate that answers for 'net' has 0\.8"):
        planned(own={"least_accuracy": 0.9}, rate_rps=1.0)


def test_planners_that_share_no_gpus_take_stated_shares_alone() -> None:
    options = PlanOptions(planner="pool")
    given = variant_profiles(), gpus()
    with pytest.raises(InputError, match="pool gives each variant GPUs of its own: state a share"):
        make_plan(*given, variant_workload(weight=1.0), options)
    stated = [{"name": CHEAP, "accuracy": 0.7, "share": 0.25}]
    plan = make_plan(*given, variant_workload(stated, weight=1.0), options)
    assert rates(plan)[CHEAP] == pytest.approx(sum(rates(plan).values()) / 4)


def test_auto_asks_planners_that_share_gpus() -> None:
    options = PlanOptions(planner="auto", objective="gpus")
    plan = make_plan(variant_profiles(), gpus(), variant_workload(rate_rps=0.5 * WHOLE), options)
    assert plan.planner == "subclusters"


def test_of_three_neighbours_share() -> None:
    variants = [{"name": name, "accuracy": a} for name, a in (("half", 0.7), ("quarter", 0.6))]
    workload = variant_workload(variants, rate_rps=2.5 * WHOLE)
    options = PlanOptions(planner="subclusters", objective="gpus")
    plan = make_plan(variant_profiles(half=0.5, quarter=0.25), gpus(), workload, options)
    found = rates(plan)
    assert found[NAME] == 0.0
    assert found["half"] / (2.5 * WHOLE) == pytest.approx(0.6, abs=0.03)


def test_one_that_is_less_accurate_and_no_cheaper_is_planned_for_nothing() -> None:
    variants = [{"name": name, "accuracy": a} for name, a in (("same", 0.75), ("half", 0.7))]
    workload = variant_workload(variants, rate_rps=1.25 * WHOLE)
    options = PlanOptions(planner="subclusters", objective="gpus")
    plan = make_plan(variant_profiles(same=1.0, half=0.5), gpus(), workload, options)
    assert rates(plan)["same"] == 0.0
    assert rates(plan)["half"] > 0.0
