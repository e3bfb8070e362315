"""The door of the gateway, simulated: the same requests are refused, and goodput under overload holds."""

from dataclasses import replace

from tests.fakes.plans import Own, make_plan
from triton_backend.contract.plan import Plan
from triton_backend.serving.gateway.admission import Admission
from triton_backend.simulator.results import SimResult, request_columns
from triton_backend.simulator.run import simulate
from triton_backend.simulator.scenario import PlanChange, SimOptions

SLO_US = 60_000


def batching_plan(plan_id: str = "batching") -> Plan:
    latencies = tuple(4_000 + 1_000 * n for n in range(1, 9))
    return make_plan([[Own(latency_us=latencies, gpus=2)]], slo_us=SLO_US, plan_id=plan_id)


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
