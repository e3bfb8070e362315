"""The bound that a certificate's prices prove is recomputed.

Prices that prove less than is said are refused.
"""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from flows.planning import PlanOptions, make_plan
from flows.planning.verify.bound import cheapest, most_cells
from flows.planning.verify.numbers import verify_plan
from scripts.golden.problems import Made, named
from tests.fakes.plans import hand_model, hand_pipeline, hand_plan, hand_stage
from tests.flows.planning.small import profile
from triton_backend.contract.cluster import NodeGroup
from triton_backend.contract.plan import PlacementRun, Plan
from triton_backend.contract.profiles import loaded
from triton_backend.contract.workload import ModelDemand

Change = Callable[[dict[str, Any]], None]


def planned(problem: str) -> tuple[Made, Plan]:
    made = named(problem).make()
    return made, make_plan(made.profiles, made.cluster, made.workload, made.options)


@pytest.fixture(scope="module")
def one() -> tuple[Made, Plan]:
    return planned("one-model-00")


def said(given: tuple[Made, Plan], change: Change, *, profiles: bool = True) -> list[str]:
    """Differences that `verify` finds in the proof of a plan changed by hand."""
    made, plan = given
    document = plan.to_dict()
    document["certificate"]["proof"] = [dict(part) for part in document["certificate"]["proof"]]
    first = document["certificate"]["proof"][0]
    first["prices"] = {kind: dict(known) for kind, known in first["prices"].items()}
    change(document)
    found = verify_plan(Plan.from_dict(document), made.profiles if profiles else None)
    return [text for text in found if text.startswith("proof")]


def relaxation(document: dict[str, Any]) -> dict[str, Any]:
    return document["certificate"]["proof"][0]


@pytest.mark.parametrize(
    "problem", ["one-model-01", "one-model-02", "three-stages-01", "cost-01", "in-force-01"]
)
def test_prices_of_plans_prove_the_bound_that_is_said(problem: str) -> None:
    made, plan = planned(problem)
    first, *rest = plan.certificate["proof"]
    assert (first["kind"], first["proven_by"]) == ("relaxation", "duality")
    assert [part["proven_by"] for part in rest] in ([], ["solver"])
    assert verify_plan(plan, made.profiles) == verify_plan(plan) == []


def test_a_bound_that_its_prices_do_not_give_is_refused(one: tuple[Made, Plan]) -> None:
    def tighter(document: dict[str, Any]) -> None:
        relaxation(document)["bound"] *= 0.99

    assert any("its prices give" in text for text in said(one, tighter, profiles=False))


def test_a_price_above_that_of_the_cheapest_pipeline_is_refused(one: tuple[Made, Plan]) -> None:
    """The arithmetic holds: only trying every pipeline shows it."""

    def dearer(document: dict[str, Any]) -> None:
        rates = relaxation(document)["prices"]["rates"]
        for name in rates:
            rates[name] *= 1.001
        relaxation(document)["bound"] /= 1.001

    assert said(one, dearer, profiles=False) == []
    (text,) = said(one, dearer)
    assert "its cheapest pipeline takes" in text


def test_a_bound_that_no_part_gives_is_refused(one: tuple[Made, Plan]) -> None:
    def shorter(document: dict[str, Any]) -> None:
        del document["certificate"]["proof"][1:]

    (text,) = said(one, shorter)
    assert text.startswith("proof: upper_bound is")


@pytest.mark.parametrize(
    ("name", "value", "complaint"),
    [
        ("proven_by", "faith", "relaxation is proven by 'faith', none of duality, solver, none"),
        ("kind", "stars", "no prices of the kind 'stars' are known"),
    ],
)
def test_an_unknown_kind_of_proof_is_refused(
    one: tuple[Made, Plan], name: str, value: str, complaint: str
) -> None:
    (text,) = said(one, lambda document: relaxation(document).update({name: value}))
    assert complaint in text


def test_prices_of_gpus_that_are_not_scarce_prove_the_rates_asked_for() -> None:
    """For cost the bound is the cheapest pipelines' price, less what scarce classes add."""
    _, plan = planned("cost-02")
    first = plan.certificate["proof"][0]
    rates = first["prices"]["rates"]
    worth = math.fsum(rates[m.name] * (m.rate_rps or 0.0) for m in plan.workload.models)
    assert first["bound"] <= worth * (1 + 1e-9)
    assert first["bound"] <= plan.objective.upper_bound * (1 + 1e-9)


@pytest.mark.long
def test_prices_prove_the_fewest_gpus_too() -> None:
    """Every GPU counts 1, whatever it costs; the plan is that of least cost at prices of 1."""
    made = named("cost-01").make()
    counted = replace(made.options, objective="gpus")
    plan = make_plan(made.profiles, made.cluster, made.workload, counted)
    assert plan.certificate["proof"][0]["kind"] == "relaxation"
    assert verify_plan(plan, made.profiles) == []
    assert plan.objective.value == sum(plan.gpus_used.values())
    classes = tuple(replace(c, hourly_cost=1.0) for c in made.cluster.gpu_classes)
    alike = replace(made.cluster, gpu_classes=classes)
    least = make_plan(made.profiles, alike, made.workload, made.options)
    assert least.objective.name == "cost"
    assert least.objective.value == plan.objective.value
    document = plan.to_dict()
    document["certificate"]["proof"][0]["bound"] *= 1.01
    (text,) = verify_plan(Plan.from_dict(document), made.profiles)
    assert text.startswith("proof")


@pytest.mark.parametrize(
    ("problem", "by"), [("entries-mixed-01", "solver"), ("percents-00", "solver")]
)
def test_what_no_prices_prove_is_a_solvers_word(problem: str, by: str) -> None:
    _, plan = planned(problem)
    (part,) = plan.certificate["proof"]
    assert (part["proven_by"], part["bound"]) == (by, plan.objective.upper_bound)


def test_a_rule_proves_nothing() -> None:
    made = named("entries-mixed-01").make()
    options = PlanOptions(planner="gslice", objective="share")
    plan = make_plan(made.profiles, made.cluster, made.workload, options)
    assert [part["proven_by"] for part in plan.certificate["proof"]] == ["none"]


def on_narrow_links(stages: int) -> Plan:
    """GPUs of 13 GiB behind links of 10 Mbit/s, for pipelines of at most so many stages."""
    place = PlacementRun(node=0, gpu=0, slot=0)
    model = hand_model(
        "net", hand_pipeline(hand_stage((0, 1), "fast", place, (1,)), batch=1), slo_us=10_000
    )
    group = NodeGroup(count=2, gpu_class="fast", gpus=1, nic_gbps=0.01)
    plan = hand_plan(model, nodes=[group])
    (kind,) = plan.cluster.gpu_classes
    roomy = replace(plan.cluster, gpu_classes=(replace(kind, memory_gib=13.0),))
    return replace(plan, cluster=roomy, options={"max_partitions": stages})


def test_a_stage_is_as_fast_as_what_crosses_its_own_boundaries() -> None:
    """The model needs two GPUs, cut after its second block; after its first nothing crosses."""
    parted = replace(
        profile(boundary_bytes=(0, 4_000)),
        tables=loaded({("fast", 1): np.array([[4_000.0], [1_000.0], [1_000.0]])}),
        block_memory_bytes=(6 * 2**30, 6 * 2**30, 8 * 2**30),
    )
    demand = ModelDemand(name="net", slo_us=60_000, weight=1.0, batch_building_rate_rps=1e9)
    run, sent = 1 / 200, 8 * 4_000 / 1e7  # seconds of a GPU for a request, by either stage
    found = cheapest(on_narrow_links(2), demand, parted, {"fast": 1.0})
    assert found == pytest.approx(run + sent)


@pytest.mark.parametrize(("stages", "cuts"), [(1, 1), (2, 1 + 2), (3, 1 + 2 + 1), (9, 1 + 2 + 1)])
def test_pipelines_are_counted_by_cuts_and_batches(stages: int, cuts: int) -> None:
    (size,) = loaded({("fast", 1): np.ones((3, 4))}).items()
    whole = replace(profile(), tables=dict([size]))
    assert most_cells(on_narrow_links(stages), whole) == 4 * cuts
