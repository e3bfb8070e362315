"""Clients that are steered, and that are not, in the closed loop."""

from collections.abc import Sequence
from typing import Any

import pytest

from flows.operations.steering.policy import (
    Steering,
)
from flows.operations.steering.simulated import SteeredRun, SteerTimes, steer_simulated
from tests.flows.operations.steering.steered import MS, own_entries, steered
from triton_backend.client.link import Trace
from triton_backend.contract.plan import Plan
from triton_backend.simulator.clients.client import ClientSpec
from triton_backend.simulator.clients.closed_loop import percents
from triton_backend.simulator.scenario import SimOptions


def clients() -> list[ClientSpec]:
    """A client that sends the input over a fast link, and block 2 over a slow one."""
    traces = [Trace([(0.0, 200.0), (8.0, 12.0)]), Trace([(0.0, 12.0), (8.0, 200.0)])]
    return [
        ClientSpec(
            name=f"c{n}",
            model="net",
            fps=20.0,
            slo_us=120 * MS,
            heads_us=(0, 30 * MS, 45 * MS, 250 * MS),
            upload_bytes=(200_000, 150_000, 8_000),
            trace=traces[n % 2],
        )
        for n in range(4)
    ]


def ran(steering: Steering | None, plan: Plan, who: Sequence[ClientSpec]) -> dict[str, Any]:
    options, times = SimOptions(duration_s=20.0), SteerTimes(plan_s=0.1, start_s=0.5)
    loop, changes, why = steer_simulated(plan, who, options, steering, times, lambda _: None)
    run = SteeredRun(loop=loop, steering=steering, changes=changes, unsteered=why)
    return run.to_dict()


@pytest.mark.long
def test_steered_clients_are_served_wherever_they_cut_in_the_closed_loop() -> None:
    steering = steered()
    found = ran(steering, steering.in_force, clients())
    assert found["changes"] >= 2
    assert found["attainment_reached"] >= 0.99
    assert found["accepted_and_late"] == 0
    assert found["unsteered"] == []
    assert {cut for c in found["clients"].values() for cut in c["cuts"]} >= {"0", "2"}
    assert own_entries(steering.in_force)[0][0] in (0, 2)


def test_without_steering_the_plan_stays() -> None:
    plan = steered(shadow_rps=0.0).in_force
    found = ran(None, plan, clients())
    assert found["changes"] == 0
    assert found["mean_percent"] == pytest.approx(percents(plan))
    assert all(set(c["cuts"]) <= {"0", "3"} for c in found["clients"].values())
