"""Cuts that are offered, leases that end, and a table that stays small."""

import contextlib
import json
from collections import Counter
from typing import Any

import pytest

from flows.planning import PlanOptions, make_plan
from tests.flows.planning.entries.entry_cases import entry, made, profile
from triton_backend.contract.errors import InputError
from triton_backend.contract.plan import Plan
from triton_backend.serving.gateway.offload import (
    MOST_CLIENTS,
    NEW_AT_ONCE,
    Offload,
    PlanReader,
    cuts_of,
)


def planned(shadow_rps: float) -> Plan:
    problem = made(profile(7), [entry("a", 1, 60, 30)])
    options = PlanOptions(planner="graft", objective="share", own={"shadow_rps": shadow_rps})
    return make_plan(problem.profiles, problem.cluster, problem.workload, options)


class Clock:
    now_us = 0


def table(plan: Plan) -> tuple[Offload, Clock]:
    clock = Clock()
    return Offload(lambda: plan, lambda: clock.now_us), clock


def announce(offload: Offload, client: str = "c", **more: Any) -> dict[str, Any]:
    fields = {"client": client, "model": "net", "cut": 1, "rate_rps": 5.0, "budget_ms": 40.0}
    return offload.answer(json.dumps({"command": "announce"} | fields | more))


def test_cuts_are_planned_served_by_the_shadow_pool_or_closed() -> None:
    assert [c.state for c in cuts_of(planned(30.0), "net")] == ["shadow", "planned", "shadow"]
    bare = cuts_of(planned(0.0), "net")
    assert [c.state for c in bare] == ["closed", "planned", "closed"]
    assert bare[0].to_dict()["tail_ms"] == {"least": None, "p50": None, "p99": None}


def test_a_cut_with_a_pool_of_its_own_quotes_the_shadow_pool_as_least() -> None:
    """It serves until a plan has another pool, and clients leave it time enough."""
    plan = planned(30.0)
    assert {c.block: c.least_us for c in cuts_of(plan, "net")} == plan.least_tails_us("net")
    own, shadow = cuts_of(planned(0.0), "net")[1], cuts_of(plan, "net")[1]
    assert own.least_us == own.p50_us == shadow.p50_us


def test_a_lease_lasts_ten_seconds_and_is_renewed_moved_and_given_back() -> None:
    offload, clock = table(planned(30.0))
    assert announce(offload)["state"] == "planned"
    announce(offload, "d", rate_rps=2.0)
    leases = offload.leases()
    assert {(one.model, one.block, one.budget_us) for one in leases} == {("net", 1, 40_000)}
    assert {one.client: one.rate_rps for one in leases} == {"c": 5.0, "d": 2.0}
    clock.now_us = 6_000_000
    announce(offload, "d", cut=2)
    clock.now_us = 10_000_000
    assert [one.block for one in offload.leases()] == [2]
    announce(offload, "d", rate_rps=0)
    assert offload.leases() == []


def test_names_that_are_made_up_keep_no_client_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("triton_backend.serving.gateway.offload.NEW_AT_ONCE", MOST_CLIENTS + 2)
    offload, clock = table(planned(30.0))
    announce(offload, "honest", cut=2)
    for number in range(MOST_CLIENTS - 1):
        announce(offload, f"c{number}", rate_rps=1.0)
    announce(offload, "honest", cut=2)  # a client that renews its lease makes room last
    announce(offload, "late", cut=0)
    assert len(offload) == MOST_CLIENTS
    rates = Counter[int]()
    for one in offload.leases():
        rates[one.block] += int(one.rate_rps)
    assert rates == {0: 5.0, 1: MOST_CLIENTS - 2, 2: 5.0}
    clock.now_us = 10_000_000
    announce(offload, "later")
    assert len(offload) == 1


def test_so_many_new_clients_a_second_are_taken_and_those_that_are_known_always() -> None:
    """A flood of names would push out who has a lease."""
    offload, clock = table(planned(30.0))
    announce(offload, "honest", cut=2)
    for number in range(NEW_AT_ONCE - 1):
        announce(offload, f"c{number}", rate_rps=1.0)
    with pytest.raises(
        InputError, match=r"client: more than 500 new ones a second; announce it again"
    ):
        announce(offload, "late")
    announce(offload, "honest", cut=1)
    announce(offload, "nobody", rate_rps=0)  # ends a lease, if there is one
    clock.now_us = 10_000
    taken = 0
    for number in range(2 * NEW_AT_ONCE):
        with contextlib.suppress(InputError):
            announce(offload, f"d{number}")
            taken += 1
    assert taken == 5
    clock.now_us = 9_000_000
    announce(offload, "late")
    for number in range(NEW_AT_ONCE - 1):
        announce(offload, f"e{number}")
    with pytest.raises(InputError, match="announce it again"):
        announce(offload, "later")


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"cut": 3}, "offload request.cut: 3 is not within 0 and 2"),
        ({"cut": "one"}, "offload request.cut"),
        ({"rate_rps": -1}, "rate_rps: -1 is not within 0 and 1e+06"),
        ({"rate_rps": 10**400}, f"rate_rps: 1{'0' * 39}... is not within 0 and 1e+06"),
        ({"rate_rps": float("nan")}, "rate_rps: nan is no finite number"),
        ({"budget_ms": 0}, "budget_ms: 0 is not within 0.001"),
        ({"client": ""}, "offload request, client: is empty"),
        ({"client": "x" * 129}, "client: 'xxx"),
        ({"client": "one\ntwo"}, r"client: 'one\ntwo' is no name"),
        ({"model": "other"}, "offload request, model: 'other' is none of net"),
        ({"command": "take"}, "'take' is none of offer, announce"),
    ],
)
def test_what_makes_no_sense_is_said_in_one_line(change: dict[str, Any], reason: str) -> None:
    offload, _ = table(planned(30.0))
    with pytest.raises(InputError) as error:
        announce(offload, **change)
    assert reason in str(error.value)
    assert "\n" not in str(error.value)
    assert offload.leases() == []


def test_only_who_has_the_token_reads_what_is_announced() -> None:
    offload, _ = table(planned(30.0))
    with pytest.raises(InputError, match="needs the system's token"):
        offload.answer('{"command": "announced"}')
    assert offload.answer('{"command": "announced"}', trusted=True)["leases"] == []


def test_the_plan_is_read_once_for_every_generation() -> None:
    read: list[int] = []
    plan, now = planned(0.0), [1]
    reader = PlanReader(lambda: now[0], lambda number: read.append(number) or plan)
    for number in (1, 1, 2, 2):
        now[0] = number
        assert reader() is plan
    assert read == [1, 2]
