"""Entries beside applications: parts on GPUs of their own, verified and simulated as one plan."""

from dataclasses import replace
from typing import Any

import pytest

from flows.planning import PlanOptions, make_plan
from flows.planning.apart import SPACE, plan_apart, without
from flows.planning.promises.attainment import with_attainment
from flows.planning.registry import Inputs
from flows.planning.verify.numbers import verify_plan
from flows.planning.verify.parts import parts_of, whole_differences
from flows.planning.watch import Watch
from tests.flows.planning.small import cluster, profile
from triton_backend.contract.errors import InfeasibleError, InputError
from triton_backend.contract.plan import Plan
from triton_backend.contract.workload import Workload

PROFILES = {name: profile(name) for name in ("net", "sub", "alone", "tails")}
PRICED = cluster(8, 8, fast_hourly_cost=2.0, slow_hourly_cost=0.5)
MODULES = [
    {"name": "detect", "model": "net"},
    {"name": "cars", "model": "sub", "after": ["detect"]},
]
ENTRIES = [
    {"name": "whole", "block": 0, "budget_ms": 60, "rate_rps": 40},
    {"name": "last", "block": 2, "budget_ms": 40, "rate_rps": 60},
]
MIXED: dict[str, Any] = {
    "models": [
        {"name": "tails", "slo_ms": 100, "entries": ENTRIES},
        {"name": "alone", "slo_ms": 50, "rate_rps": 100},
    ],
    "applications": [{"name": "traffic", "slo_ms": 200, "rate_rps": 50, "modules": MODULES}],
}
BY_COST = PlanOptions(objective="cost")


@pytest.fixture(scope="module")
def plan() -> Plan:
    return make_plan(PROFILES, PRICED, Workload.from_dict(MIXED), BY_COST)


def gpus_of(plan: Plan, model: str) -> set[tuple[int, int]]:
    return {
        (slot.node, slot.gpu)
        for one, _, _, pool in plan.placed_stages()
        if one.name == model
        for slot in pool.slots()
    }


def test_each_kind_stands_on_gpus_of_its_own_and_the_plan_verifies(plan: Plan) -> None:
    assert [model.name for model in plan.models] == ["tails", "alone", "net", "sub"]
    assert [one.name for one in plan.applications] == ["traffic"]
    others = set().union(*(gpus_of(plan, name) for name in ("alone", "net", "sub")))
    assert gpus_of(plan, "tails")
    assert not gpus_of(plan, "tails") & others
    assert verify_plan(plan, PROFILES) == []
    again = Plan.from_dict(plan.to_dict())
    assert again.plan_id == plan.plan_id
    assert verify_plan(again, PROFILES) == []


def test_it_costs_what_its_parts_cost_by_themselves(plan: Plan) -> None:
    entries = {"models": MIXED["models"][:1]}
    others = {"models": MIXED["models"][1:], "applications": MIXED["applications"]}
    alone = [
        make_plan(PROFILES, PRICED, Workload.from_dict(part), BY_COST) for part in (others, entries)
    ]
    assert plan.objective.value == pytest.approx(sum(one.objective.value for one in alone))
    assert plan.objective.space == SPACE
    assert sum(plan.gpus_used.values()) == sum(sum(one.gpus_used.values()) for one in alone)


def test_all_that_was_promised_is_attained_in_the_simulator(plan: Plan) -> None:
    attained = with_attainment(plan).attained
    assert attained is not None
    assert attained.even is not None
    assert attained.poisson is not None
    assert attained.even >= 0.995
    assert attained.poisson >= 0.99


def test_parts_that_hold_the_same_gpus_or_models_are_found(plan: Plan) -> None:
    first, second = parts_of(plan)
    assert list(whole_differences(plan, [first, second])) == []
    found = list(whole_differences(plan, [first, first, second]))
    assert any("is held by two" in text for text in found), found
    assert any("are not each of the plan's once" in text for text in found), found
    assert list(whole_differences(plan, [first])) != []


def test_a_sum_that_is_not_that_of_the_parts_is_found(plan: Plan) -> None:
    wrong = replace(plan.objective, value=plan.objective.value + 1)
    found = verify_plan(replace(plan, objective=wrong), PROFILES)
    assert any(text.startswith("objective value is") for text in found)
    bare = {name: one for name, one in plan.certificate.items() if name != "parts"}
    assert verify_plan(replace(plan, certificate=bare), PROFILES) == [
        "certificate.parts: is missing"
    ]


def test_what_cannot_be_planned_apart_is_refused_in_one_line() -> None:
    asked = Workload.from_dict(MIXED)
    with pytest.raises(InputError, match="are planned for given rates, by cost and power"):
        make_plan(PROFILES, PRICED, asked, PlanOptions())
    with pytest.raises(InputError, match="piccolo plans whole models"):
        make_plan(PROFILES, PRICED, asked, PlanOptions(planner="piccolo", objective="cost"))
    other = {**MIXED["applications"][0], "modules": [{**MODULES[0], "model": "tails"}]}
    with pytest.raises(InputError, match="'tails' lists entries; no module can use it"):
        Workload.from_dict(MIXED | {"applications": [other]})


def test_parts_that_do_not_fit_beside_each_other_are_refused() -> None:
    entries = [{**ENTRIES[0], "rate_rps": 600}]
    asked = MIXED | {"models": [{**MIXED["models"][0], "entries": entries}]}
    small = cluster(1, 1, fast_hourly_cost=2.0, slow_hourly_cost=0.5)
    with pytest.raises(InfeasibleError):
        make_plan(PROFILES, small, Workload.from_dict(asked), BY_COST)


def test_applications_leave_entries_half_of_a_time_limit(plan: Plan) -> None:
    left_s: dict[str, float | None] = {}

    def make(inputs: Inputs) -> Plan:
        left_s[inputs.workload.models[0].name] = inputs.watch.left_s()
        if inputs.workload.has_entries:
            raise InfeasibleError("cluster", "no plan")
        return parts_of(plan)[0]

    asked = Workload.from_dict(MIXED)
    inputs = Inputs(
        profiles=PROFILES,
        cluster=PRICED,
        workload=asked,
        options=BY_COST,
        watch=Watch(limit_s=1e4),
    )
    with pytest.raises(InfeasibleError, match="no plan"):
        plan_apart(make, inputs)
    assert left_s["alone"] is not None
    assert left_s["tails"] is not None
    assert left_s["alone"] <= 5e3 < left_s["tails"]


def test_the_rest_of_a_cluster_keeps_the_names_of_its_nodes(plan: Plan) -> None:
    rest, left = without(PRICED, plan)
    held = {(slot.node, slot.gpu) for pool in plan.pools for slot in pool.slots()}
    names = [rest.node_name(node) for node in range(rest.node_count)]
    assert names == [PRICED.node_name(node) for node in left]
    assert sum(map(len, left.values())) == 16 - len(held)
    assert not held & {(node, gpu) for node, gpus in left.items() for gpu in gpus}
