"""Clients cut once, where their link's mean rate says; `static-plus` serves them as they are."""

from dataclasses import replace

import pytest

from flows.planning import PlanOptions, make_plan
from flows.planning.verify.numbers import verify_plan
from scripts.paper.graft.mean_rates import at_mean_rates, static_plus
from tests.flows.planning.entries.entry_cases import entry, made, profile
from triton_backend.client.link import Trace
from triton_backend.simulator.clients.client import ClientSpec

MS = 1_000
PROBLEM = made(profile(7), [entry("first", 0, 60, 30)])
OPTIONS = PlanOptions(planner="graft", objective="share", own={"shadow_rps": 60.0})
IN_FORCE = make_plan(PROBLEM.profiles, PROBLEM.cluster, PROBLEM.workload, OPTIONS)
# 106 Mbit/s in the mean of 16 s, whichever comes first.
LINKS = (Trace([(0.0, 200.0), (8.0, 12.0)]), Trace([(0.0, 12.0), (8.0, 200.0)]))
FAST = ClientSpec(
    name="fast",
    model="net",
    fps=20.0,
    slo_us=120 * MS,
    heads_us=(0, 30 * MS, 45 * MS, 250 * MS),
    upload_bytes=(200_000, 150_000, 8_000),
    trace=LINKS[0],
)


def test_every_client_has_one_cut_with_what_the_upload_leaves_of_its_slo() -> None:
    found = at_mean_rates([FAST, replace(FAST, trace=LINKS[1])], IN_FORCE, 16.0)
    assert [(one.block, one.rate_rps) for one in found] == [(0, 20.0)] * 2
    assert [one.budget_us for one in found] == pytest.approx(
        [120_000 - 200_000 * 8 / 106] * 2, abs=1
    )


def test_static_plus_merges_uniform_clients_and_leaves_out_those_that_stay_on_their_device() -> (
    None
):
    at_home = replace(FAST, heads_us=(0, 30 * MS, 45 * MS, 60 * MS), trace=Trace([(0.0, 0.1)]))
    assert static_plus(PROBLEM.profiles, IN_FORCE, [at_home], 16.0) is None
    plan = static_plus(PROBLEM.profiles, IN_FORCE, [FAST, FAST, at_home], 16.0)
    assert plan is not None
    assert verify_plan(plan, PROBLEM.profiles) == []
    assert plan.planner == "static-plus"
    assert [e.rate_rps for e in plan.models[0].entries] == [20.0, 20.0]
    assert len(plan.pools) == 1
