"""The probe against every path tried one by one."""

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fakes.plans import Own, make_plan, two_tails
from triton_backend.contract.events import Arrival
from triton_backend.contract.plan import Plan
from triton_backend.scheduler.compiled import FAR, NONE
from triton_backend.scheduler.feedback import worker_lost
from triton_backend.scheduler.kernel_api import arrive
from triton_backend.scheduler.plan_rows import build_topology
from triton_backend.scheduler.reservations.probe import BY_FINISH, BY_UPLINK, commit, probe
from triton_backend.scheduler.scheduler import Scheduler
from triton_backend.scheduler.tables import Tables, new_tables
from triton_backend.scheduler.topology import vgpus_of

Busy = dict[int, list[tuple[int, int]]]


def free_at(busy: Busy, resources: list[int], at_us: int, length_us: int) -> int:
    """First instant from which all resources are free, found by trying."""
    ends = [end for r in resources for _, end in busy.get(r, [])]
    for start in sorted({at_us, *(end for end in ends if end > at_us)}):
        if all(
            start + length_us <= begin or start >= end
            for r in resources
            for begin, end in busy.get(r, [])
        ):
            return start
    raise AssertionError


def greedy_path(tables: Tables, busy: Busy, samples: int, now_us: int) -> tuple[list[int], int]:
    """Algorithm 2 as written, over every vGPU of every pool."""
    topology = tables.topology
    at, sender, path = now_us, None, list[int]()
    for stage in range(len(topology.stages)):
        best: tuple[int, int] | None = None
        latency = int(topology.latency_us[stage, samples])
        for vgpu in vgpus_of(topology, stage):
            t = at
            if sender is not None:
                move = int(topology.move_us[stage, 0, samples])
                links = [
                    int(topology.vgpus[sender]["uplink"]),
                    int(topology.vgpus[vgpu]["downlink"]),
                ]
                if move:
                    t = free_at(busy, links, t, move) + move
            t = free_at(busy, [vgpu], t, latency) + latency
            if best is None or t < best[0]:
                best = (t, vgpu)
        assert best is not None
        at, sender = best
        path.append(sender)
    return path, at


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    return make_plan(
        [
            [
                Own(
                    latency_us=tuple(draw(st.integers(1, 50)) + 20 * n for n in range(3)),
                    gpus=4,
                    gpus_per_node=draw(st.sampled_from([1, 2, 4])),
                    divisor=draw(st.sampled_from([1, 2])),
                    bytes_out=draw(st.sampled_from([0, 5_000, 40_000])),
                )
                for _ in range(draw(st.integers(1, 3)))
            ]
        ]
    )


def reserved(tables: Tables) -> Busy:
    busy: Busy = {}
    for row in tables.intervals:
        if row["resource"] >= 0:
            busy.setdefault(int(row["resource"]), []).append(
                (int(row["start_us"]), int(row["end_us"]))
            )
    return busy


@pytest.mark.long
@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    plan=plans(),
    nic=st.sampled_from(["shared", "isolated"]),
    batches=st.lists(st.tuples(st.integers(1, 3), st.integers(0, 60)), min_size=1, max_size=25),
)
def test_the_probe_finds_what_trying_every_vgpu_finds(
    plan: Plan, nic: str, batches: list[tuple[int, int]]
) -> None:
    tables = new_tables(build_topology(plan, nic))
    now_us = 0
    for number, (samples, gap) in enumerate(batches):
        now_us += gap
        tables.counts[0]["now_us"] = now_us
        path, finish_us = greedy_path(tables, reserved(tables), samples, now_us)
        assert probe(tables, 0, samples, now_us, BY_FINISH) == finish_us
        assert tables.offers[0, : len(path)]["vgpu"].tolist() == path
        commit(tables, 0, number)


@settings(max_examples=40, deadline=None, derandomize=True)
@given(plan=plans())
def test_on_an_idle_cluster_no_path_at_all_is_earlier(plan: Plan) -> None:
    tables = new_tables(build_topology(plan))
    topology = tables.topology
    pools = [vgpus_of(topology, s) for s in range(len(topology.stages))]
    work = sum(
        int(topology.latency_us[s, 2] + topology.move_us[s, 0, 2]) for s in range(len(pools))
    )
    ends = [1_000 + work for _ in product(*(pool[:2] for pool in pools))]
    assert probe(tables, 0, 2, 1_000, BY_FINISH) == min(ends)
    assert tables.quotes[0]["wait_us"] == 0


def test_a_probe_changes_no_reservation() -> None:
    tables = new_tables(build_topology(make_plan([[Own(latency_us=(5, 9))]])))
    before = [np.copy(array) for array in (tables.intervals, tables.resources, tables.free_from_us)]
    probe(tables, 0, 2, 0, BY_FINISH)
    after = [tables.intervals, tables.resources, tables.free_from_us]
    assert all(np.array_equal(a, b) for a, b in zip(before, after, strict=True))


def test_no_offer_where_a_pool_has_no_vgpu_left() -> None:
    tables = new_tables(build_topology(make_plan([[Own(latency_us=(5,))]])))
    worker_lost(tables, 0)
    assert probe(tables, 0, 1, 0, BY_FINISH) >= FAR


def test_by_uplink_the_probe_prefers_the_vgpu_whose_uplink_is_free() -> None:
    first = Own(latency_us=(1_000,), gpus=2, bytes_out=50_000_000)
    plan = make_plan([[first, Own(latency_us=(1_000,), gpus=4)]])

    def second_path(rank_by: int) -> list[int]:
        tables = new_tables(build_topology(plan))
        probe(tables, 0, 1, 0, rank_by)
        commit(tables, 0, 0)
        probe(tables, 0, 1, 1_000, rank_by)
        return tables.offers[0, :2]["vgpu"].tolist()

    assert second_path(BY_FINISH)[0] == 0
    assert second_path(BY_UPLINK)[0] == 1


def test_by_uplink_the_probe_prefers_who_finishes_first_where_all_wait_for_one_uplink() -> None:
    first = Own(latency_us=(1_000,), gpus=2, gpus_per_node=2, bytes_out=50_000_000)
    plan = make_plan([[first, Own(latency_us=(1_000,), gpus=4)]])
    tables = new_tables(build_topology(plan))
    probe(tables, 0, 1, 0, BY_UPLINK)
    commit(tables, 0, 0)
    probe(tables, 0, 1, 500, BY_UPLINK)
    assert tables.offers[0, 0]["vgpu"] == 1


def test_by_uplink_the_first_of_equal_vgpus_is_taken() -> None:
    """All wait for one uplink, and end at the same instant: the lowest number."""
    first = Own(latency_us=(1_000,), gpus=4, gpus_per_node=4, bytes_out=50_000_000)
    plan = make_plan([[first, Own(latency_us=(1_000,), gpus=4)]])
    tables = new_tables(build_topology(plan))
    probe(tables, 0, 1, 0, BY_UPLINK)
    commit(tables, 0, 0)
    probe(tables, 0, 1, 2_000, BY_UPLINK)
    assert tables.offers[0, 0]["vgpu"] == 0


def test_who_boards_a_shared_batch_that_stays_for_company_is_not_kept_waiting_for_a_vgpu() -> None:
    scheduler = Scheduler(two_tails())
    scheduler.handle(Arrival(now_us=0, request_id=0, model=0, entry=1, deadline_us=100_000))
    tables = scheduler._tables
    arrive(tables, 1, 1, 100_000, 1)  # the head, not looked at yet
    probe(tables, 1, 1, 10, BY_FINISH)
    offer, quote = tables.offers[1, 0], tables.quotes[1]
    assert offer["shared_batch"] != NONE
    assert offer["start_us"] > 10
    assert quote["wait_us"] == 0


def test_an_answer_that_takes_any_time_at_all_has_its_slot_on_the_uplink() -> None:
    plan = make_plan([[Own(latency_us=(10,), bytes_out=500)]])
    tables = new_tables(build_topology(plan, count_io=True))
    probe(tables, 0, 1, 0, BY_FINISH)
    answer = tables.offers[0, 1]
    assert (answer["move_start_us"], answer["move_end_us"]) == (10, 11)
    assert answer["uplink"] == tables.topology.vgpus[0]["uplink"]
