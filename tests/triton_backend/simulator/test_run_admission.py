"""The door of the gateway, simulated.

The same requests are refused, and goodput under overload holds.
"""

import itertools
from dataclasses import replace

import pytest

from tests.fakes.applications import hand_application, hand_module, with_applications
from tests.fakes.plans import Own, make_plan
from triton_backend.contract.plan import Plan
from triton_backend.contract.workload import ModelDemand, Workload
from triton_backend.serving.gateway.admission import Admission
from triton_backend.simulator.counted import request_columns
from triton_backend.simulator.results import SimResult
from triton_backend.simulator.run import simulate
from triton_backend.simulator.scenario import PlanChange, SimOptions

SLO_US = 60_000


def batching_plan(plan_id: str = "batching") -> Plan:
    latencies = tuple(4_000 + 1_000 * n for n in range(1, 9))
    return make_plan([[Own(latency_us=latencies, gpus=2)]], slo_us=SLO_US, plan_id=plan_id)


def chain_plan(alone: str) -> Plan:
    """Jobs of three modules, one of whose models has as many clients of its own."""
    latencies = tuple(4_000 + 1_500 * n for n in range(1, 9))  # 400 samples/s in batches of 4
    plan = make_plan(*[[[Own(latency_us=latencies[:4])]] for _ in range(3)], slo_us=SLO_US)
    names = [model.name for model in plan.models]
    modules = [hand_module(names[0], names[0])]
    modules += [hand_module(name, name, before) for before, name in itertools.pairwise(names)]
    planned = hand_application("chain", modules, slo_us=SLO_US, rate_rps=200.0)
    demands = (ModelDemand(name=alone, slo_us=SLO_US),)
    workload = Workload(models=demands, applications=(planned.application,))
    return replace(with_applications(plan, planned), workload=workload)


def overloaded(*, admission: bool, changes: tuple[PlanChange, ...] = ()) -> SimResult:
    options = SimOptions(load_factor=3.0, duration_s=5, admission=admission, changes=changes)
    return simulate(batching_plan(), options)


def refused(result: SimResult) -> list[bool]:
    return (request_columns(result)["reason"] == "overload").tolist()


def test_the_simulator_refuses_what_the_gateway_refuses() -> None:
    result = overloaded(admission=True)
    door = Admission(batching_plan(), None)
    rows = result.requests
    told = zip(rows["deadline_us"].tolist(), rows["arrival_us"].tolist(), strict=True)
    assert refused(result) == [not door.admits(0, 1, deadline, now) for deadline, now in told]
    assert any(refused(result))


def test_the_door_keeps_batches_large_under_overload() -> None:
    without, with_door = (overloaded(admission=on).models[0] for on in (False, True))
    assert with_door.served > without.served
    assert (with_door.late, with_door.offered) == (0, without.offered)


def test_late_binding_has_a_door_where_it_is_asked_for() -> None:
    options = SimOptions(policy="deferred", load_factor=3.0, duration_s=5)
    assert not any(refused(simulate(batching_plan(), options)))
    assert any(refused(simulate(batching_plan(), replace(options, admission=True))))


def test_without_the_option_nothing_is_refused() -> None:
    assert not any(refused(overloaded(admission=False)))


def test_a_change_of_plan_opens_new_doors() -> None:
    change = PlanChange(at_s=2.0, plan=batching_plan("after"))
    result = overloaded(admission=True, changes=(change,))
    after = result.requests["arrival_us"] > 3_000_000
    assert any(flag for flag, late in zip(refused(result), after, strict=True) if late)


@pytest.mark.parametrize("alone", ["m0", "m1", "m2"])
def test_overload_by_clients_of_a_module_leaves_jobs_their_part(alone: str) -> None:
    """Clients have more time for the work before them than jobs; that must not shut jobs out."""
    plan = chain_plan(alone)

    def goodput(load_factor: float) -> tuple[int, int]:
        options = SimOptions(
            policy="reservation-ahead", load_factor=load_factor, duration_s=10, admission=True
        )
        result = simulate(plan, options)
        return result.applications["chain"].outcome.served, sum(m.served for m in result.models)

    jobs, clients = goodput(1.1)
    jobs_then, clients_then = goodput(3.0)
    assert jobs_then > 0.9 * jobs
    assert clients_then > 0.9 * clients
