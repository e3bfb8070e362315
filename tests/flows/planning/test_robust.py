from math import inf

import pytest

from flows.planning import PlanOptions, make_plan
from flows.planning.robust import make_robust_plan, robust_goodput
from flows.planning.verify.numbers import verify_plan
from tests.flows.planning.small import cluster, profile, workload
from triton_backend.contract.errors import InputError
from triton_backend.contract.workload import ModelDemand

PROFILES = {"net": profile()}
DEMAND = ModelDemand(name="net", slo_us=15_000, weight=1.0)
SECONDS = 2.0  # of arrivals


@pytest.mark.long
def test_a_robust_plan_serves_at_least_what_the_default_margin_serves() -> None:
    default = make_plan(PROFILES, cluster(), workload(DEMAND))
    robust = make_robust_plan(
        PROFILES, cluster(), workload(DEMAND), duration_s=SECONDS, budget_s=inf
    )
    found = robust.certificate["robust"]
    assert found["default_goodput"] is not None
    assert found["goodput"] >= found["default_goodput"]
    assert found["goodput"] >= robust_goodput(default, SECONDS) * 0.999
    assert not found["budget_spent"]
    assert found["goodput"] == robust_goodput(robust, SECONDS)
    assert robust.options["slo_margins"] == found["slo_margins"]
    assert verify_plan(robust, PROFILES) == []


def test_a_plan_that_does_not_beat_another_is_left_early() -> None:
    default = make_plan(PROFILES, cluster(), workload(DEMAND))
    served = robust_goodput(default, SECONDS)
    assert robust_goodput(default, SECONDS, beat=served) <= served


def test_a_spent_budget_ends_the_search_with_the_default_margin() -> None:
    robust = make_robust_plan(
        PROFILES, cluster(), workload(DEMAND), duration_s=SECONDS, budget_s=0.0
    )
    found = robust.certificate["robust"]
    assert (found["candidates"], found["budget_spent"]) == (1, True)
    assert found["slo_margins"] == {"net": 0.4}
    assert found["goodput"] == found["default_goodput"]


def test_robust_plans_are_for_throughput() -> None:
    with pytest.raises(InputError, match="throughput"):
        make_robust_plan(PROFILES, cluster(), workload(DEMAND), PlanOptions(objective="cost"))


@pytest.mark.long
def test_sub_clusters_begin_with_their_own_margin_and_are_tried_under_their_own_policy() -> None:
    options = PlanOptions(planner="subclusters", excluded_classes={"*": ("slow",)})
    robust = make_robust_plan(PROFILES, cluster(), workload(DEMAND), options, duration_s=SECONDS)
    default = make_plan(PROFILES, cluster(), workload(DEMAND), options)
    found = robust.certificate["robust"]
    assert found["default_goodput"] == robust_goodput(default, SECONDS)
    assert found["goodput"] >= found["default_goodput"] > 0
    assert verify_plan(robust, PROFILES) == []
