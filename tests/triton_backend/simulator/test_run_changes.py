"""Plans that change under load: nothing is lost, nothing accepted is late, a worker runs one batch at a time."""

import pytest

from tests.fakes.changes import check_run, random_run
from tests.fakes.plans import Own, make_plan, two_stages
from triton_backend.contract.errors import InputError
from triton_backend.simulator.failures import Failure
from triton_backend.simulator.run import simulate
from triton_backend.simulator.scenario import PlanChange, SimOptions
from triton_backend.simulator.world import DROPPED

SEEDS = 40


def test_random_changes_lose_nothing_and_make_nothing_late() -> None:
    in_flight = inherited = served = 0
    for seed in range(SEEDS):
        result, wrong = check_run(random_run(seed))
        assert wrong == [], f"seed {seed}"
        in_flight += sum(change.in_flight for change in result.changes)
        inherited += sum(change.inherited for change in result.changes)
        served += sum(model.served for model in result.models)
    assert min(in_flight, inherited, served) > SEEDS


def test_the_same_plan_again_and_again_changes_nothing() -> None:
    plan = two_stages()
    options = SimOptions(load_factor=0.9, duration_s=1)
    changes = tuple(PlanChange(at_s=0.1 * n, plan=plan) for n in range(1, 9))
    plain, changed = (simulate(plan, options) for options in (options, SimOptions(
        load_factor=0.9, duration_s=1, changes=changes
    )))  # fmt: skip
    assert changed.requests.tobytes() == plain.requests.tobytes()
    assert changed.utilisation == pytest.approx(plain.utilisation)
    assert [change.inherited for change in changed.changes] == [6] * 8


def test_uses_are_numbered_by_the_plan_that_dispatched_them() -> None:
    slow, quick = Own(latency_us=(50_000,), gpus=2), Own(latency_us=(1_000,))
    before = make_plan([[slow]], [[quick]], names=["a", "b"])
    after = make_plan([[quick]], names=["b"], plan_id="after")
    options = SimOptions(load_factor=2.0, duration_s=1, changes=(PlanChange(at_s=0.5, plan=after),))
    result = simulate(before, options)
    assert result.changes[0].in_flight > 0
    guests = result.uses[(result.uses["plan"] == 0) & (result.uses["end_us"] > 500_000)]
    numbers = set(guests[["vgpu", "model"]].tolist())
    assert {(0, 0), (1, 0)} <= numbers <= {(0, 0), (1, 0), (2, 1)}
    new = result.uses[result.uses["plan"] == 1]
    assert set(new[["vgpu", "model"]].tolist()) == {(0, 0)}
    busy_us = (result.uses["end_us"] - result.uses["start_us"]).sum()
    span_us = result.uses["end_us"].max()
    assert result.utilisation["GPU"] == pytest.approx(busy_us / span_us / 3, rel=1e-9)


def test_a_node_that_has_failed_takes_new_workers_with_it() -> None:
    before = make_plan([[Own(latency_us=(1_000,))]], slo_us=10_000)
    after = make_plan([[Own(latency_us=(2_000,))]], slo_us=10_000, plan_id="after")
    result = simulate(
        before,
        SimOptions(
            load_factor=0.4,
            duration_s=1,
            failures=(Failure(start_s=0.4, end_s=0.8, node="n0"),),
            changes=(PlanChange(at_s=0.6, plan=after),),
        ),
    )
    rows = result.requests
    gone = rows[(rows["arrival_us"] > 400_000) & (rows["arrival_us"] < 785_000)]
    assert set(gone["outcome"].tolist()) == {DROPPED}
    assert result.uses["end_us"].max() > 900_000


def test_changes_out_of_order_are_named() -> None:
    changes = tuple(PlanChange(at_s=at_s, plan=two_stages()) for at_s in (2.0, 1.0))
    with pytest.raises(InputError, match="changes of plan: their instants"):
        SimOptions(changes=changes)
    with pytest.raises(InputError, match="change of plan: at -1 s"):
        PlanChange(at_s=-1, plan=two_stages())
