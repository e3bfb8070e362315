"""Clients and server in one time.

What is open, what a change of plan does to who waits, and what is held.
"""

from dataclasses import replace
from typing import Any

import pytest

from flows.planning import PlanOptions, make_plan
from tests.flows.planning.entries.entry_cases import Case, entry, made, profile
from triton_backend.client.link import Trace
from triton_backend.contract.errors import InputError
from triton_backend.contract.plan import Plan
from triton_backend.simulator.clients.client import ClientSpec
from triton_backend.simulator.clients.closed_loop import ClosedLoop, percents
from triton_backend.simulator.scenario import SimOptions

MS = 1_000
NET = profile(7)


def planned(*entries: Any, shadow_rps: float = 0.0, problem: Case | None = None) -> Plan:
    problem = problem or made(NET, entries)
    options = PlanOptions(planner="pool", objective="share", own={"shadow_rps": shadow_rps})
    return make_plan(problem.profiles, problem.cluster, problem.workload, options)


def client(name: str, mbit_per_s: float = 80.0, **more: Any) -> ClientSpec:
    fields: dict[str, Any] = {
        "name": name,
        "model": "net",
        "fps": 20.0,
        "slo_us": 100 * MS,
        "heads_us": (0, 10 * MS, 20 * MS, 200 * MS),
        "upload_bytes": (100_000, 50_000, 10_000),
        "trace": Trace([(0.0, mbit_per_s)]),
    }
    return ClientSpec(**(fields | more))


def ran(plan: Plan, *clients: ClientSpec, seconds: float = 4.0, **more: Any) -> ClosedLoop:
    loop = ClosedLoop(plan, clients, SimOptions(duration_s=seconds, **more))
    loop.finish()
    return loop


def test_clients_are_served_at_open_cuts_and_nobody_accepted_is_late() -> None:
    plan = planned(entry("a", 0, 60, 60), entry("b", 2, 60, 60))
    loop = ran(plan, *(client(f"c{n}") for n in range(3)))
    for counts in loop.client_counts:
        assert counts.offered == 80
        assert set(counts.cuts) <= {0, 2, 3}
        assert counts.reached_served == counts.reached
        assert counts.served == counts.feasible_served >= 70
    assert loop.late_after_accepting() == 0
    assert loop.mean_percent() == pytest.approx(percents(plan))


def test_the_same_seed_gives_the_same_run() -> None:
    plan = planned(entry("a", 0, 60, 60))
    runs = [ran(plan, client("c"), client("d", 30.0), seed=s).client_counts for s in (3, 3, 4)]
    assert runs[0] == runs[1] != runs[2]


def test_a_plan_that_takes_over_opens_its_cuts_and_keeps_who_waits() -> None:
    """Under the first plan clients send their input.

    Under the second what crosses before block 2.
    """
    first, second = planned(entry("a", 0, 60, 60)), planned(entry("b", 2, 60, 60))
    loop = ClosedLoop(first, [client("c")], SimOptions(duration_s=20.0))
    loop.advance(2_000 * MS)
    loop.change(second, 4_000 * MS)
    assert loop.changing
    loop.finish()
    assert loop.plan is second
    counts = loop.client_counts[0]
    assert counts.cuts[2] > 250
    assert counts.cuts[0] + counts.cuts[2] == counts.feasible
    assert counts.refused < 5  # the cut is closed when the client next sends, and rests
    both = percents(first) + percents(second)  # while new workers start
    expected = (2 * percents(first) + 2 * both + 16 * percents(second)) / 20
    assert loop.mean_percent() == pytest.approx(expected)


def test_a_shadow_pool_serves_a_cut_that_nobody_planned_for_at_once() -> None:
    plan = planned(entry("a", 0, 60, 30), shadow_rps=60.0)
    assert set(plan.least_tails_us("net")) == {0, 1, 2}
    slow = ran(plan, client("c", 10.0, upload_bytes=(900_000, 800_000, 10_000)))
    assert set(slow.client_counts[0].cuts) - {2, 3} <= {0}  # the first, before the link is known
    assert slow.client_counts[0].reached_served == slow.client_counts[0].reached > 60
    closed = ran(
        replace(planned(entry("a", 0, 60, 30))), client("c", 10.0, upload_bytes=(900_000,) * 3)
    )
    assert closed.client_counts[0].served == 0


def test_a_model_of_other_blocks_is_refused() -> None:
    other = client("c", heads_us=(0, 1), upload_bytes=(1,))
    with pytest.raises(InputError, match="client 'c': 1 cuts, net has 3 blocks"):
        ClosedLoop(planned(entry("a", 0, 60, 30)), [other], SimOptions())
