"""Plans at the edges: up to six stages, several models, applications.

Few and many rows and vGPUs, bursts, losses. Kernels that check indices (`scripts/test --bounds`)
and plain Python raise where one is beyond its array.
"""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.fakes.applications import hand_application, hand_module, with_applications
from tests.fakes.plans import Own, Way, make_boarding_plan, make_plan
from triton_backend.contract.decisions import Abort, Dispatch, SharedBatch
from triton_backend.contract.events import (
    Arrival,
    BatchLost,
    Event,
    JobArrival,
    PlanChanged,
    WorkerLost,
)
from triton_backend.contract.plan import Plan
from triton_backend.scheduler.policies.registry import EARLY_POLICIES, POLICIES
from triton_backend.scheduler.scheduler import Scheduler

STAGES = 6
LONG_US = 1_000_000


def edge_pool(capacity: int, first: int, more: int, gpus: int, divisor: int, moved: int) -> Own:
    return Own(
        latency_us=tuple(first + more * n for n in range(capacity)),
        gpus=gpus,
        divisor=divisor,
        bytes_out=moved,
    )


@st.composite
def edge_plans(draw: st.DrawFn) -> Plan:
    """One to six stages of any share, batch and number of vGPUs.

    With two entries all of them board.
    """
    pools = draw(
        st.lists(
            st.builds(
                edge_pool,
                st.sampled_from([1, 2, 7, 64]),
                st.integers(1, 4_000),
                st.sampled_from([0, 1, 100]),
                st.integers(1, 3),
                st.integers(1, 4),
                st.sampled_from([0, 1_000, 100_000]),
            ),
            min_size=1,
            max_size=STAGES,
        )
    )
    ends = [*range(1, len(pools)), STAGES]
    stages = [((k, end), pool) for k, (end, pool) in enumerate(zip(ends, pools, strict=True))]
    way = Way(pools=tuple(range(len(pools))))
    return make_boarding_plan(stages, *[way] * draw(st.integers(1, 2)))


@st.composite
def plans_of_models(draw: st.DrawFn) -> Plan:
    """One to four models of one or two pipelines, and an application over several of them."""
    pools = st.builds(
        edge_pool,
        st.sampled_from([1, 2, 64]),
        st.integers(1, 4_000),
        st.sampled_from([0, 1, 100]),
        st.integers(1, 3),
        st.integers(1, 4),
        st.sampled_from([0, 100_000]),
    )
    stages = draw(st.integers(1, 4))
    pipelines = st.lists(st.lists(pools, min_size=1, max_size=stages), min_size=1, max_size=2)
    plan = make_plan(*draw(st.lists(pipelines, min_size=1, max_size=4)))
    names = [model.name for model in plan.models]
    modules = [hand_module("first", names[0])]
    for name in names[1:]:
        parent = draw(st.sampled_from(modules))
        rows = draw(st.sampled_from([0.5, 1.0, 8.0]))
        optional = parent.optional or draw(st.booleans())
        modules.append(
            hand_module(name, name, parent.name, rows=rows, max_rows=64, optional=optional)
        )
    return with_applications(plan, hand_application("app", modules))


class Filled:
    """A scheduler none of whose batches ends, and what is in flight."""

    def __init__(self, plan: Plan, policy: str | None) -> None:
        self.scheduler = Scheduler(plan, policy=policy)
        self.batches: set[int] = set()

    def tell(self, event: Event) -> None:
        for decision in self.scheduler.handle(event):
            if isinstance(decision, Dispatch):
                self.batches.add(decision.batch_id)
            elif isinstance(decision, Abort):
                self.batches.discard(decision.batch_id)
            elif isinstance(decision, SharedBatch) and decision.members:
                self.batches.add(decision.shared_batch_id)
            elif isinstance(decision, SharedBatch):
                self.batches.discard(decision.shared_batch_id)


@pytest.mark.long
@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True
)
@given(
    plans=st.tuples(edge_plans(), edge_plans()),
    policy=st.sampled_from([None, *EARLY_POLICIES]),
    slacks_us=st.lists(st.sampled_from([1, 3_000, 60_000, LONG_US]), min_size=1, max_size=4),
    count=st.integers(1, 60),
    lost=st.lists(st.integers(0, 1_000), max_size=4),
)
def test_no_plan_and_no_loss_leads_past_an_array(
    plans: tuple[Plan, Plan], policy: str | None, slacks_us: list[int], count: int, lost: list[int]
) -> None:
    filled = Filled(plans[0], policy)
    entries = len(plans[0].models[0].queues)
    for number in range(count):
        slack_us = slacks_us[number % len(slacks_us)]
        arrival = Arrival(
            now_us=number,
            request_id=number,
            model=0,
            entry=number % entries,
            deadline_us=number + slack_us,
        )
        filled.tell(arrival)
    for number in lost:
        if filled.batches:
            gone = sorted(filled.batches)[number % len(filled.batches)]
            filled.tell(BatchLost(now_us=count, batch_id=gone))
        filled.tell(WorkerLost(now_us=count, vgpu=number % len(plans[0].vgpus())))
    filled.scheduler.check_invariants()
    filled.tell(PlanChanged(now_us=count, plan=plans[1], lost=(0,)))
    filled.scheduler.check_invariants()


@pytest.mark.long
@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True
)
@given(
    plans=st.tuples(plans_of_models(), plans_of_models()),
    policy=st.sampled_from([name for name in POLICIES if "turns" not in name]),
    slacks_us=st.lists(st.sampled_from([1, 3_000, 60_000, LONG_US]), min_size=1, max_size=4),
    count=st.integers(1, 60),
    lost=st.lists(st.integers(0, 1_000), max_size=4),
)
def test_several_models_and_jobs_lead_past_no_array_under_any_policy(
    plans: tuple[Plan, Plan], policy: str, slacks_us: list[int], count: int, lost: list[int]
) -> None:
    filled = Filled(plans[0], policy)
    models = len(plans[0].models)
    for number in range(count):
        until_us = number + slacks_us[number % len(slacks_us)]
        arrival: Event = Arrival(
            now_us=number, request_id=number, model=number % models, deadline_us=until_us
        )
        if number % (models + 1) == models:
            arrival = JobArrival(now_us=number, job_id=number, application=0, deadline_us=until_us)
        filled.tell(arrival)
    for number in lost:
        if filled.batches:
            gone = sorted(filled.batches)[number % len(filled.batches)]
            filled.tell(BatchLost(now_us=count, batch_id=gone))
        filled.tell(WorkerLost(now_us=count, vgpu=number % len(plans[0].vgpus())))
    filled.scheduler.check_invariants()
    filled.tell(PlanChanged(now_us=count, plan=plans[1], lost=(0,)))
    filled.scheduler.check_invariants()
