"""Late binding: batches as derived by hand, and as a definition without heaps says."""

from collections import deque
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.fakes.plans import hand_model, hand_pipeline, hand_plan, hand_stage
from tests.triton_backend.scheduler.policies.late_reference import Batch, Model, Reference, Rules
from triton_backend.contract.cluster import NodeGroup
from triton_backend.contract.decisions import Dispatch, Drop, SetTimer
from triton_backend.contract.errors import InputError
from triton_backend.contract.events import (
    Arrival,
    BatchLost,
    Cancel,
    Pause,
    PlanChanged,
    Resume,
    StageDone,
    Timer,
    WorkerBack,
    WorkerLost,
)
from triton_backend.contract.plan import PlacementRun, Plan
from triton_backend.scheduler.compiled import FAR
from triton_backend.scheduler.plan_rows import build_topology
from triton_backend.scheduler.policies.late import (
    AT_TIMEOUT,
    BY_HEAD,
    LEAST_DEADLINE,
    LEAST_WASTE,
    MEASURED,
    MOST_CROWDED,
    _in_order,
    _open_early_if_oversubscribed,
)
from triton_backend.scheduler.policies.registry import largest_batches
from triton_backend.scheduler.scheduler import Scheduler
from triton_backend.scheduler.tables import new_tables
from triton_backend.scheduler.topology import Lead

RULES = {
    "deferred": Rules("frontrun", "window", "latest"),
    "eager": Rules("now", "window", "latest"),
    "latest": Rules("latest", "window", "latest"),
    "turns": Rules("now", "head", "recent"),
    "turns-window": Rules("now", "window", "recent"),
}
# The same with other rules in their place, as ablations have them.
ABLATIONS: dict[str, tuple[str, dict[str, int], Rules]] = {
    "deadline": ("deferred", {"rank": LEAST_DEADLINE}, Rules("frontrun", "window", "deadline")),
    "efficiency": ("eager", {"rank": LEAST_WASTE}, Rules("now", "window", "efficiency")),
    "heads": ("deferred", {"heads": BY_HEAD}, Rules("frontrun", "head", "latest")),
    "measured": (
        "deferred",
        {"target": MEASURED},
        Rules("frontrun", "window", "latest", "measured"),
    ),
    "measured and eager": (
        "eager",
        {"target": MEASURED},
        Rules("now", "window", "latest", "measured"),
    ),
    "time-out": (
        "timeout",
        {"opens": AT_TIMEOUT, "timeout_us": 4},
        Rules("timeout", "window", "latest", timeout=4),
    ),
}
EVERY = ABLATIONS | {name: (name, {}, rules) for name, rules in RULES.items()}
FLAT = (10, 10, 10, 10)
RISING = (10, 12, 14, 16)


def shared(
    tables: Sequence[Sequence[int]],
    vgpus: int,
    *,
    policy: str,
    planned: Sequence[int] | None = None,
    slo_us: int = 1_000,
    rate_rps: float = 0.0,
) -> Plan:
    """Models of one stage each on one pool of so many vGPUs."""
    place = PlacementRun(node=0, gpu=0, slot=0, gpus=vgpus)
    models = [
        hand_model(
            f"m{number}",
            hand_pipeline(
                hand_stage(
                    (0, 1), "GPU", place, table, batch=None if planned is None else planned[number]
                ),
                batch=len(table) if planned is None else planned[number],
                rate_rps=rate_rps,
            ),
            slo_us=slo_us,
            policy=policy,
        )
        for number, table in enumerate(tables)
    ]
    nodes = [NodeGroup(count=1, gpu_class="GPU", gpus=vgpus, nic_gbps=10.0)]
    return hand_plan(*models, nodes=nodes)


class Life:
    """A scheduler whose batches end exactly as reserved; ends, then the timer, then arrivals."""

    def __init__(self, plan: Plan, lead_us: int = 0, **rules: int) -> None:
        self.scheduler = Scheduler(
            plan, lead=Lead(lead_us), adjust=lambda stated: stated._replace(**rules)
        )
        self.lead_us = lead_us
        self.batches: list[Batch] = []
        self.drops: list[tuple[int, int]] = []
        self.ends: list[tuple[int, int, int]] = []
        self.timer: int | None = None

    def tell(self, event: object) -> None:
        now = event.now_us  # type: ignore[attr-defined]
        for decision in self.scheduler.handle(event):  # type: ignore[arg-type]
            if isinstance(decision, Dispatch):
                (hop,) = decision.hops
                self.batches.append(Batch(now, decision.model, decision.request_ids, hop.vgpu))
                assert hop.start_us == now + self.lead_us
                self.ends.append((hop.end_us, decision.batch_id, hop.start_us))
            elif isinstance(decision, Drop):
                self.drops.append((now, decision.request_id))
            elif isinstance(decision, SetTimer):
                self.timer = decision.at_us
        self.scheduler.check_invariants()

    def until(self, at_us: float) -> None:
        """Everything that happens before an instant, and at it all but arrivals."""
        while True:
            end = min(self.ends, default=None)
            timer = float("inf") if self.timer is None else self.timer
            first = min(timer, float("inf") if end is None else end[0])
            if first > at_us or first == float("inf"):
                return
            if end is not None and end[0] <= timer:
                self.ends.remove(end)
                at, batch, start = end
                self.tell(StageDone(now_us=at, batch_id=batch, stage=0, start_us=start, end_us=at))
            else:
                at, self.timer = int(timer), None
                self.tell(Timer(now_us=at))

    def arrive(self, number: int, at: int, model: int, deadline: int, samples: int = 1) -> None:
        self.until(at)
        self.tell(
            Arrival(
                now_us=at, request_id=number, model=model, deadline_us=deadline, samples=samples
            )
        )


def run(plan: Plan, arrivals: Sequence[tuple[int, int, int, int]], **rules: int) -> Life:
    life = Life(plan, **rules)
    for number, (at, model, deadline, samples) in enumerate(arrivals):
        life.arrive(number, at, model, deadline, samples)
    life.until(float("inf"))
    return life


def test_a_batch_stays_open_until_nobody_could_join_any_more() -> None:
    # d = 30 and L(4) = 16: from 15 on a fourth request could not be served with the head.
    life = run(
        shared([RISING], 1, policy="deferred"), [(0, 0, 30, 1), (1, 0, 31, 1), (2, 0, 32, 1)]
    )
    assert life.batches == [Batch(15, 0, (0, 1, 2), 0)]


def test_who_comes_exactly_at_the_frontrun_joins() -> None:
    # Two wait: d = 30, L(3) = 14, so the frontrun is 17; the third arrives at 17 - 1 and at 17.
    early = run(
        shared([RISING], 1, policy="deferred"), [(0, 0, 30, 1), (0, 0, 30, 1), (16, 0, 60, 1)]
    )
    assert early.batches[0] == Batch(16, 0, (0, 1, 2), 0)
    late = run(
        shared([RISING], 1, policy="deferred"), [(0, 0, 30, 1), (0, 0, 30, 1), (17, 0, 60, 1)]
    )
    assert late.batches[0] == Batch(17, 0, (0, 1), 0)


def test_with_flat_latencies_the_batch_waits_for_its_latest_and_no_longer() -> None:
    life = run(shared([FLAT], 1, policy="deferred"), [(0, 0, 30, 1)])
    assert life.batches == [Batch(20, 0, (0,), 0)]


def test_a_full_batch_goes_at_once() -> None:
    life = run(shared([RISING], 1, policy="deferred"), [(0, 0, 90, 1)] * 4)
    assert life.batches == [Batch(0, 0, (0, 1, 2, 3), 0)]


def test_a_batch_that_waits_for_a_vgpu_grows() -> None:
    # The vGPU is busy until 16; the second batch could have gone with one request at its frontrun.
    arrivals = [*[(0, 0, 90, 1)] * 4, (1, 0, 28, 1), (10, 0, 40, 1)]
    life = run(shared([RISING], 1, policy="deferred"), arrivals)
    assert life.batches[1] == Batch(16, 0, (4, 5), 0)


def test_more_requests_than_an_answer_has_rows_for_are_dropped_at_one_instant() -> None:
    # The vGPU is busy until 16, too late for all that come at 1.
    arrivals = [*[(0, 0, 90, 1)] * 4, *[(1, 0, 17, 1)] * 300]
    life = run(shared([RISING], 1, policy="deferred"), arrivals)
    assert life.drops == [(8, number) for number in range(4, 304)]
    assert len(life.batches) == 1


def test_of_two_queues_the_one_with_the_least_latest_gets_the_free_vgpu() -> None:
    plan = shared([(10,), (10,), (10,)], 1, policy="eager")
    life = run(plan, [(0, 0, 99, 1), (1, 1, 60, 1), (2, 2, 50, 1)])
    assert [(b.at, b.model) for b in life.batches] == [(0, 0), (10, 2), (20, 1)]


def test_equal_latest_goes_by_the_number_of_the_model() -> None:
    plan = shared([(10,), (10,), (10,)], 1, policy="eager")
    life = run(plan, [(0, 0, 99, 1), (1, 2, 60, 1), (2, 1, 60, 1)])
    assert [(b.at, b.model) for b in life.batches] == [(0, 0), (10, 1), (20, 2)]


@pytest.mark.parametrize("policy", ["deferred", "latest", "timeout"])
def test_two_lone_requests_whose_last_moments_coincide_are_both_served(policy: str) -> None:
    plan = shared([RISING, RISING], 1, policy=policy)
    rules = {"opens": AT_TIMEOUT, "timeout_us": 95} if policy == "timeout" else {}
    life = run(plan, [(0, 0, 100, 1), (0, 1, 100, 1)], **rules)
    assert not life.drops
    assert sorted(b.model for b in life.batches) == [0, 1]
    # No earlier than needed: the first leaves room for one more that joins it.
    assert life.batches[0].at >= 100 - 12 - 12


@pytest.mark.parametrize(("rate_rps", "sent_at"), [(15_000.0, 0), (25_000.0, 50)])
def test_timeout_waits_only_where_the_pool_needs_larger_batches(
    rate_rps: float, sent_at: int
) -> None:
    """Two models of 10 µs a request keep one vGPU busy for 0.3 of the time, or for 0.5."""
    plan = shared([RISING, RISING], 1, policy="timeout", rate_rps=rate_rps)
    life = run(plan, [(0, 0, 1_000, 1)], timeout_us=50)
    assert [b.at for b in life.batches] == [sent_at]


def test_a_full_batch_that_can_wait_lets_a_lone_request_go_that_cannot() -> None:
    # At 70 model 0 has a full batch: 16, until 86. Model 1 must be sent by 80; model 0 by 84.
    plan = shared([RISING, RISING], 1, policy="deferred")
    arrivals = [(0, 1, 90, 1), *[(70, 0, 100, 1)] * 4]
    life = run(plan, arrivals)
    assert not life.drops
    assert [(b.at, b.model) for b in life.batches] == [(70, 1), (80, 0)]


def test_a_lone_request_goes_first_where_the_next_vgpu_is_free_too_late_for_it() -> None:
    # Sent 6 before they start. One of two vGPUs is busy until 85: the next batch is sent at 79.
    # Model 0 has a full batch at 72, to be sent by 79; model 1 must be sent by 76.
    life = Life(shared([RISING, RISING, FLAT], 2, policy="deferred"), lead_us=6)
    arrivals = [(0, 1, 92), (56, 2, 85), *[(72, 0, 101)] * 4]
    for number, (at, model, deadline) in enumerate(arrivals):
        life.arrive(number, at, model, deadline)
    life.until(float("inf"))
    assert not life.drops
    assert [(b.at, b.model) for b in life.batches] == [(69, 2), (72, 1), (79, 0)]


@pytest.mark.parametrize(
    ("waiting", "vgpus", "looks_at_us"), [(17, 32, FAR), (17, 16, 88), (4, 1, 100 - 3 * 12)]
)
def test_where_each_that_waits_has_a_vgpu_nobody_goes_before_another(
    waiting: int, vgpus: int, looks_at_us: int
) -> None:
    """They wait until 100.

    Where vGPUs are fewer each goes in time for the one that gets its vGPU next, 12 before.
    """
    tables = new_tables(build_topology(shared([RISING] * waiting, vgpus, policy="deferred")))
    tables.heaps[0]["waiting_count"] = waiting
    for pipeline in range(waiting):
        tables.heaps[pipeline]["key"] = 100
        tables.waiting_keep_us[tables.topology.pipelines[pipeline]["place"]] = 1_000
        tables.candidates[pipeline]["samples"] = 1
    assert _open_early_if_oversubscribed(tables, 0) == looks_at_us


def test_waiting_candidates_are_put_in_the_order_in_which_they_open() -> None:
    tables = new_tables(build_topology(shared([RISING] * 5, 1, policy="deferred")))
    opens = (40, 10, 30, 20, 30)
    for pipeline, open_us in enumerate(opens):
        tables.heaps[pipeline]["key"] = open_us
        place = tables.topology.pipelines[pipeline]["place"]
        tables.waiting_keep_us[place] = FAR if pipeline == 3 else 1_000  # which does not wait
    assert _in_order(tables, 0) == 4
    found = [(int(row["next_sent"]), int(row["send_us"])) for row in tables.heaps[:4]]
    assert found == [(1, 10), (2, 30), (4, 30), (0, 40)]


def test_of_more_candidates_than_are_put_in_order_the_first_to_open_are() -> None:
    many = MOST_CROWDED + 1
    tables = new_tables(build_topology(shared([RISING] * many, 1, policy="deferred")))
    for pipeline in range(many):
        tables.heaps[pipeline]["key"] = 50 if pipeline == MOST_CROWDED else 100 + pipeline
        tables.waiting_keep_us[tables.topology.pipelines[pipeline]["place"]] = 1_000
    assert _in_order(tables, 0) == MOST_CROWDED
    found = [int(row["next_sent"]) for row in tables.heaps[:MOST_CROWDED]]
    assert found == [MOST_CROWDED, *range(MOST_CROWDED - 1)]


def test_the_lowest_free_vgpu_is_taken() -> None:
    plan = shared([(10,), (25,)], 3, policy="eager")
    life = run(plan, [(0, 1, 99, 1), (0, 0, 99, 1), (10, 0, 99, 1)])
    assert [(b.at, b.vgpu) for b in life.batches] == [(0, 0), (0, 1), (10, 1)]


def test_a_head_that_makes_batches_small_is_dropped_for_the_sake_of_the_target() -> None:
    # Busy until 16. Head d = 28 leaves 12: two samples. Without it the other four make a full
    # batch.
    arrivals = [*[(0, 0, 90, 1)] * 4, (1, 0, 28, 1), *[(2, 0, 60, 1)] * 4]
    life = run(shared([RISING], 1, policy="deferred"), arrivals)
    assert life.batches[1] == Batch(16, 0, (5, 6, 7, 8), 0)
    assert [number for _, number in life.drops] == [4]


def test_a_slow_pipeline_passes_over_a_head_that_only_a_fast_one_still_serves() -> None:
    """The slow one takes 20, the fast one 12; it is busy until 25, the slow one until 20.

    Then request 3 (deadline 34) is too late for the slow one, request 4 (40) just in time. The fast
    one does not come to request 3 either, which goes after its last moment, 34 - 12.
    """
    pipelines = [
        hand_pipeline(
            hand_stage((0, 1), "GPU", PlacementRun(node=0, gpu=gpu, slot=0, gpus=1), (latency,)),
            batch=1,
        )
        for gpu, latency in enumerate((20, 12))
    ]
    nodes = [NodeGroup(count=1, gpu_class="GPU", gpus=2, nic_gbps=10.0)]
    plan = hand_plan(hand_model("m", *pipelines, slo_us=30, policy="deferred"), nodes=nodes)
    arrivals = [(0, 0, 30, 1), (1, 0, 31, 1), (2, 0, 32, 1), (4, 0, 34, 1), (10, 0, 40, 1)]
    life = run(plan, arrivals)
    assert life.batches == [
        Batch(0, 0, (0,), 0),
        Batch(1, 0, (1,), 1),
        Batch(13, 0, (2,), 1),
        Batch(20, 0, (4,), 0),
    ]
    assert life.drops == [(23, 3)]


def test_requests_of_several_samples_are_never_split() -> None:
    life = run(shared([RISING], 1, policy="eager"), [(0, 0, 90, 4), (1, 0, 80, 3), (2, 0, 81, 2)])
    assert [b.requests for b in life.batches] == [(0,), (1,), (2,)]


def test_a_head_goes_when_it_holds_back_several_samples_that_it_cannot_take_along() -> None:
    # From 14 on neither the three samples behind the head nor all four could be sent with it in
    # time.
    arrivals = [*[(0, 0, 90, 1)] * 4, (1, 0, 27, 1), (12, 0, 60, 3)]
    life = run(shared([RISING], 1, policy="deferred"), arrivals)
    assert life.drops == [(14, 4)]
    assert life.batches[1] == Batch(60 - 16 + 1, 0, (5,), 0)


def test_the_measured_target_is_what_fills_within_the_budget() -> None:
    # A request every 10 µs: L(4) + 4 x 10 = 56 and L(1) + 10 = 20.
    arrivals = [*[(0, 0, 90, 1)] * 4, (1, 0, 28, 1), *[(2, 0, 60, 1)] * 4]
    for slo_us, dropped in ((56, [4]), (20, [])):
        plan = shared(
            [RISING], 1, policy="deferred", planned=[1], slo_us=slo_us, rate_rps=100_000.0
        )
        measured = run(plan, arrivals, target=MEASURED)
        assert [number for _, number in measured.drops] == dropped
        assert run(plan, arrivals).drops == []  # the planned batch is one


def test_by_efficiency_the_queue_that_wastes_least_time_goes_first() -> None:
    # One sample of model 0 takes 1.8 times what it does in a pair; of model 1 pairs gain nothing.
    plan = shared([(10, 11), (10, 20)], 1, policy="eager")
    arrivals = [(0, 0, 99, 1), (1, 0, 50, 1), (2, 1, 99, 1)]
    assert [b.model for b in run(plan, arrivals).batches] == [0, 0, 1]
    assert [b.model for b in run(plan, arrivals, rank=LEAST_WASTE).batches] == [0, 1, 0]
    # Two samples of model 1 waste nothing either.
    pair = [(0, 0, 99, 1), (1, 0, 50, 1), (2, 1, 99, 1), (2, 1, 99, 1)]
    assert [b.model for b in run(plan, pair, rank=LEAST_WASTE).batches] == [0, 1, 0]


def test_requests_of_a_lost_batch_are_candidates_again() -> None:
    life = Life(shared([RISING], 1, policy="eager"))
    life.arrive(0, 0, 0, 90)
    life.arrive(1, 1, 0, 90)
    life.tell(BatchLost(now_us=2, batch_id=0))
    assert life.batches == [Batch(0, 0, (0,), 0), Batch(2, 0, (0, 1), 0)]


def test_a_cancelled_head_changes_the_window() -> None:
    life = Life(shared([RISING], 1, policy="deferred"))
    life.arrive(0, 0, 0, 30)
    life.arrive(1, 1, 0, 60)
    life.tell(Cancel(now_us=2, request_id=0))
    life.until(float("inf"))
    assert life.batches == [Batch(60 - 12 + 1, 0, (1,), 0)]  # d = 60, L(2) = 12


def test_a_pause_grants_nothing_and_heads_still_expire() -> None:
    life = Life(shared([RISING], 1, policy="deferred"))
    life.arrive(0, 0, 0, 30)
    life.arrive(1, 0, 0, 90)
    life.tell(Pause(now_us=1))
    life.until(50)
    assert (life.batches, [n for _, n in life.drops]) == ([], [0])
    life.tell(Resume(now_us=50))
    life.until(float("inf"))
    assert life.batches == [Batch(90 - 12 + 1, 0, (1,), 0)]


def test_the_only_vgpu_lost_lets_queues_wait_until_it_is_back() -> None:
    life = Life(shared([(10,)], 1, policy="eager"))
    life.tell(WorkerLost(now_us=0, vgpu=0))
    life.arrive(0, 1, 0, 30)
    life.arrive(1, 1, 0, 90)
    life.until(40)
    assert (life.batches, life.drops) == ([], [(21, 0)])  # latest 20 has passed
    life.tell(WorkerBack(now_us=40, vgpu=0))
    life.until(float("inf"))
    assert life.batches == [Batch(40, 0, (1,), 0)]


def test_a_vgpu_that_is_back_and_busy_is_waited_for() -> None:
    life = Life(shared([(10,)], 1, policy="eager"))
    life.tell(WorkerLost(now_us=0, vgpu=0))
    life.tell(WorkerBack(now_us=1, vgpu=0, idle_us=40))
    life.arrive(0, 2, 0, 49)
    life.arrive(1, 2, 0, 90)
    life.until(float("inf"))
    assert life.batches == [Batch(40, 0, (1,), 0)]
    assert [number for _, number in life.drops] == [0]


def test_a_run_that_ends_early_frees_its_vgpu_early() -> None:
    life = Life(shared([(10,)], 1, policy="eager"))
    life.arrive(0, 0, 0, 90)
    life.arrive(1, 1, 0, 90)
    ((_, batch, start),) = life.ends
    life.ends.clear()
    life.tell(StageDone(now_us=6, batch_id=batch, stage=0, start_us=start, end_us=6))
    assert life.batches[1] == Batch(6, 0, (1,), 0)


def test_queues_go_on_under_a_new_plan() -> None:
    plan = shared([RISING], 1, policy="deferred")
    life = Life(plan)
    life.arrive(0, 0, 0, 30)
    life.tell(PlanChanged(now_us=1, plan=replace(plan, plan_id="next")))
    life.until(float("inf"))
    assert life.batches == [Batch(30 - 12 + 1, 0, (0,), 0)]


def test_turns_go_to_the_queue_served_longest_ago() -> None:
    plan = shared([(10,), (10,)], 1, policy="turns")
    arrivals = [(0, 0, 99, 1), (0, 0, 99, 1), (0, 0, 99, 1), (1, 1, 99, 1), (1, 1, 99, 1)]
    life = run(plan, arrivals)
    assert [b.model for b in life.batches] == [0, 1, 0, 1, 0]


def test_what_a_queue_is_served_elsewhere_is_no_turn() -> None:
    """Two models that share a vGPU have half the turns each, whatever other vGPUs they have."""
    place = [PlacementRun(node=0, gpu=gpu, slot=0) for gpu in (0, 1)]
    both, other = (
        hand_pipeline(hand_stage((0, 1), "GPU", at, (us,)), batch=1, rate_rps=1.0)
        for at, us in zip(place, (10, 3), strict=True)
    )
    models = [
        hand_model(f"m{n}", *pipelines, slo_us=1_000, policy="turns")
        for n, pipelines in enumerate([(both, other), (both,)])
    ]
    nodes = [NodeGroup(count=1, gpu_class="GPU", gpus=2, nic_gbps=10.0)]
    life = run(hand_plan(*models, nodes=nodes), [(0, n, 99, 1) for n in (0, 1) for _ in range(20)])
    assert [b.model for b in life.batches if b.vgpu == 0][:6] == [0, 1, 0, 1, 0, 1]


def test_turns_go_on_under_a_new_plan() -> None:
    """Whose turn it was before the change has to wait for the others after it."""
    plan = shared([(10,), (10,)], 1, policy="turns")
    life = Life(plan)
    for number, model in enumerate((0, 0, 1, 1)):
        life.arrive(number, 0, model, 99)
    life.tell(PlanChanged(now_us=1, plan=replace(plan, plan_id="next")))
    life.until(float("inf"))
    assert [b.model for b in life.batches] == [0, 1, 0, 1]


def test_turns_by_window_grow_where_nobody_else_waits_for_one() -> None:
    rush = [(0, 0, 99, 1)] * 5
    alone = shared([RISING], 1, policy="turns-window", planned=[1])
    assert run(alone, rush).batches == [Batch(0, 0, (0,), 0), Batch(10, 0, (1, 2, 3, 4), 0)]
    assert largest_batches(alone) == {"m0": (4,)}
    both = shared([RISING, FLAT], 1, policy="turns-window", planned=[1, 1])
    assert [len(b.requests) for b in run(both, rush).batches] == [1] * 5
    assert largest_batches(both) == {"m0": (1,), "m1": (1,)}


def test_turns_need_pipelines_of_one_stage() -> None:
    place = [PlacementRun(node=0, gpu=gpu, slot=0) for gpu in (0, 1)]
    stages = [hand_stage((n, n + 1), "GPU", at, (10,)) for n, at in enumerate(place)]
    model = hand_model("m", hand_pipeline(*stages, batch=1), slo_us=100, policy="turns")
    nodes = [NodeGroup(count=1, gpu_class="GPU", gpus=2, nic_gbps=10.0)]
    with pytest.raises(InputError, match="'turns' takes turns on one stage, a pipeline has 2"):
        Scheduler(hand_plan(model, nodes=nodes))


Case = tuple[list[tuple[int, ...]], list[int], int, list[tuple[int, int, int, int]]]
BARELY_FILLS: Case = (
    [(3,), (6, 11, 17, 17)],
    [1, 3],
    1,
    [
        (0, 1, 36, 3),
        (6, 1, 9, 1),
        (6, 1, 23, 3),
        (10, 1, 30, 2),
        (10, 1, 13, 3),
        (10, 1, 13, 3),
        (13, 0, 16, 1),
        (19, 1, 22, 3),
        (19, 0, 22, 1),
        (19, 0, 22, 1),
    ],
)
"""From 19 on a sample of model 1 comes every 5.664 µs; three fill a batch from 5.667 on."""


@st.composite
def cases(draw: st.DrawFn) -> Case:
    tables: list[tuple[int, ...]] = []
    for _ in range(draw(st.integers(1, 3))):
        steps = draw(st.lists(st.integers(0, 6), min_size=0, max_size=4))
        table = [draw(st.integers(3, 12))]
        for step in steps:
            table.append(table[-1] + step)
        tables.append(tuple(table))
    planned = [draw(st.integers(1, len(table))) for table in tables]
    arrivals: list[tuple[int, int, int, int]] = []
    at = 0
    for _ in range(draw(st.integers(1, 14))):
        at += draw(st.integers(0, 6))
        model = draw(st.integers(0, len(tables) - 1))
        samples = draw(st.integers(1, planned[model]))
        arrivals.append((at, model, at + draw(st.integers(3, 50)), samples))
    return tables, planned, draw(st.integers(1, 3)), arrivals


@pytest.mark.long
@pytest.mark.parametrize("name", list(EVERY))
@settings(max_examples=60, deadline=None)
@given(case=cases(), slo_us=st.integers(10, 60))
@example(case=BARELY_FILLS, slo_us=34)
def test_every_batch_is_that_of_the_definition(
    name: str,
    case: Case,
    slo_us: int,
) -> None:
    tables, planned, vgpus, arrivals = case
    policy, adjusted, rules = EVERY[name]
    grows = not policy.startswith("turns") or (policy == "turns-window" and len(tables) == 1)
    sizes = [len(table) for table in tables] if grows else planned
    models = [
        Model(table[:size], goal, budget=slo_us)
        for table, size, goal in zip(tables, sizes, planned, strict=True)
    ]
    reference = Reference(models, vgpus, rules)
    reference.run(arrivals)
    plan = shared(tables, vgpus, policy=policy, planned=planned, slo_us=slo_us)
    life = run(plan, arrivals, **adjusted)
    assert life.batches == reference.batches
    assert sorted(life.drops) == sorted(reference.drops)
    done = deque(number for batch in life.batches for number in batch.requests)
    assert sorted([*done, *(number for _, number in life.drops)]) == list(range(len(arrivals)))
    for batch in life.batches:
        took = tables[batch.model][sum(arrivals[n][3] for n in batch.requests) - 1]
        assert all(batch.at + took <= arrivals[n][2] for n in batch.requests)
