"""Any plan, any order of events: nothing overlaps, nothing is lost, nothing runs on the dead."""

from dataclasses import dataclass, field

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.fakes.plans import Own, Way, make_boarding_plan, make_plan
from triton_backend.contract.decisions import Abort, Decision, Dispatch, Drop, SetTimer, SharedBatch
from triton_backend.contract.events import (
    Arrival,
    BatchLost,
    Cancel,
    Event,
    LinkPaceChanged,
    PaceChanged,
    Pause,
    PlanChanged,
    Resume,
    SharedBatchDone,
    StageDone,
    Timer,
    TransferDone,
    WorkerBack,
    WorkerLost,
)
from triton_backend.contract.plan import Plan
from triton_backend.contract.transition.workers import inherited_vgpus
from triton_backend.scheduler.policies.registry import EARLY_POLICIES, POLICIES
from triton_backend.scheduler.scheduler import Scheduler

SLO_US = 60_000


@dataclass
class Shell:
    """Carries decisions out, at times that `lateness` bends, and keeps account of requests."""

    scheduler: Scheduler
    plan: Plan
    others: tuple[Plan, ...] = ()
    now_us: int = 0
    timer_us: int | None = None
    steps: dict[int, list[tuple[str, int, int, int]]] = field(
        default_factory=dict[int, list[tuple[str, int, int, int]]]
    )
    members: dict[int, tuple[int, ...]] = field(default_factory=dict[int, tuple[int, ...]])
    shared_batches: dict[int, SharedBatch] = field(default_factory=dict[int, SharedBatch])
    open: set[int] = field(default_factory=set[int])
    served: set[int] = field(default_factory=set[int])
    dropped: set[int] = field(default_factory=set[int])
    lost: set[int] = field(default_factory=set[int])
    vgpus: dict[int, set[int]] = field(default_factory=dict[int, set[int]])  # of every plan so far
    came: int = 0

    def tell(self, event: Event) -> None:
        self.now_us = event.now_us
        for decision in self.scheduler.handle(event):
            self.obey(decision)
        assert sum(self.scheduler.queue_lengths()) + sum(map(len, self.members.values())) == len(
            self.open
        )
        assert self.scheduler.in_flight() == len(self.members)

    def obey(self, decision: Decision) -> None:
        match decision:
            case Dispatch():
                assert not self.lost & {hop.vgpu for hop in decision.hops}
                assert decision.hops[0].start_us >= self.now_us
                self.members[decision.batch_id] = decision.request_ids
                self.steps[decision.batch_id] = []
                for stage, hop in enumerate(decision.hops):
                    if hop.transfer_end_us > hop.transfer_start_us:
                        self.steps[decision.batch_id].append(
                            ("move", stage, hop.transfer_start_us, hop.transfer_end_us)
                        )
                    self.steps[decision.batch_id].append(("run", stage, hop.start_us, hop.end_us))
            case Drop():
                self.open.remove(decision.request_id)
                self.dropped.add(decision.request_id)
            case SharedBatch():
                self.shared_batches[decision.shared_batch_id] = decision
                if not decision.members:
                    del self.shared_batches[decision.shared_batch_id]
            case Abort():
                del self.members[decision.batch_id], self.steps[decision.batch_id]
            case SetTimer():
                assert decision.at_us > self.now_us
                self.timer_us = decision.at_us
            case _:
                raise AssertionError(decision)

    def arrive(self, model: int, samples: int, slack_us: int) -> None:
        self.open.add(self.came)
        self.came += 1
        self.tell(
            Arrival(
                now_us=self.now_us,
                request_id=self.came - 1,
                model=model % len(self.plan.models),
                entry=model % len(self.plan.models[model % len(self.plan.models)].queues),
                deadline_us=self.now_us + slack_us,
                samples=samples,
            )
        )

    def finish_step(self, which: int, lateness: int) -> None:
        """The next step of some batch or shared batch ends `lateness` µs after its reserved end."""
        members = {
            place[:2]: shared_batch
            for shared_batch, capacity in self.shared_batches.items()
            for place in capacity.members
        }
        able = [
            number
            for number, steps in self.steps.items()
            if steps[0][0] == "move" or (number, steps[0][1]) not in members
        ]
        able += [
            number
            for number, shared_batch in self.shared_batches.items()
            if all(self.steps[m.batch_id][0][:2] == ("run", m.stage) for m in shared_batch.members)
        ]
        if not able:
            return
        batch_id = sorted(able)[which % len(able)]
        if batch_id in self.shared_batches:
            self.finish_shared_batch(self.shared_batches.pop(batch_id), lateness)
            return
        kind, stage, start_us, end_us = self.steps[batch_id][0]
        end_us = max(start_us, end_us + lateness)
        now_us = max(self.now_us, end_us)
        self.step_over(batch_id)
        told = StageDone if kind == "run" else TransferDone
        self.tell(
            told(now_us=now_us, batch_id=batch_id, stage=stage, start_us=start_us, end_us=end_us)
        )

    def step_over(self, batch_id: int) -> None:
        self.steps[batch_id].pop(0)
        if not self.steps[batch_id]:
            del self.steps[batch_id]
            for request_id in self.members.pop(batch_id):
                self.open.remove(request_id)
                self.served.add(request_id)

    def finish_shared_batch(self, shared_batch: SharedBatch, lateness: int) -> None:
        """A joint run ends for all who sit in it."""
        end_us = max(shared_batch.start_us, shared_batch.end_us + lateness)
        for place in shared_batch.members:
            self.step_over(place.batch_id)
        self.tell(
            SharedBatchDone(
                now_us=max(self.now_us, end_us),
                shared_batch_id=shared_batch.shared_batch_id,
                start_us=shared_batch.start_us,
                end_us=end_us,
            )
        )

    def wait(self, us: int) -> None:
        """Time passes; a timer that comes meanwhile is told."""
        if self.timer_us is not None and self.timer_us <= self.now_us + us:
            at_us, self.timer_us = self.timer_us, None
            self.tell(Timer(now_us=max(at_us, self.now_us)))
        else:
            self.now_us += us

    def change_pace(self, vgpu: int, percent: int) -> None:
        pool = self.plan.vgpus()[vgpu].pool
        place = next(row for row in self.plan.stage_rows() if row.pool == pool)
        self.tell(
            PaceChanged(
                now_us=self.now_us,
                model=place.model,
                pipeline=place.pipeline,
                stage=place.stage,
                percent=percent,
            )
        )

    def change_plan(self, a: int, b: int) -> None:
        """Another plan, or the same; some of its vGPUs are not up."""
        if self.others:
            before, self.plan = self.plan, self.others[a % len(self.others)]
            held = {other for _, other in inherited_vgpus(before, self.plan)}
            self.vgpus[self.scheduler.plan_number] = set(range(len(before.vgpus()))) - {
                one for one, _ in inherited_vgpus(before, self.plan)
            } or {0}
        else:
            held = set[int]()
        new = set(range(len(self.plan.vgpus()))) - held
        self.lost = {vgpu for vgpu in new if (vgpu + b) % 3 == 0}
        self.tell(PlanChanged(now_us=self.now_us, plan=self.plan, lost=tuple(sorted(self.lost))))

    def act(self, action: tuple[str, int, int]) -> None:  # noqa: C901, PLR0912 - a case per event
        name, a, b = action
        vgpu = a % len(self.plan.vgpus())
        match name:
            case "arrive":
                self.arrive(a, 1 + b % 3, SLO_US if a % 4 else 1 + b * 30)
            case "finish":
                self.finish_step(a, b - 500)
            case "wait":
                self.wait(b * 10)
            case "lose":
                self.lost.add(vgpu)
                self.tell(WorkerLost(now_us=self.now_us, vgpu=vgpu))
            case "back":
                idle_us = self.now_us + b * 10 if vgpu in self.lost else 0
                self.lost.discard(vgpu)
                self.tell(WorkerBack(now_us=self.now_us, vgpu=vgpu, idle_us=idle_us))
            case "pace":
                self.change_pace(vgpu, 50 + b % 400)
            case "link":
                self.tell(
                    LinkPaceChanged(
                        now_us=self.now_us,
                        node=a % self.plan.cluster.node_count,
                        uplink_percent=50 + b % 400,
                        downlink_percent=50 + a % 400,
                    )
                )
            case "mislay" if self.members:
                known = sorted([*self.members, *self.shared_batches])
                batch_id = known[a % len(known)]
                self.tell(BatchLost(now_us=self.now_us, batch_id=batch_id))
            case "cancel" if self.open:
                request_id = sorted(self.open)[a % len(self.open)]
                self.tell(Cancel(now_us=self.now_us, request_id=request_id))
            case "pause" | "resume":
                self.tell((Pause if name == "pause" else Resume)(now_us=self.now_us))
            case "change":
                self.change_plan(a, b)
            case "lose_old":
                number = a % (self.scheduler.plan_number + 1)
                old = self.vgpus.get(number, {0})
                if number < self.scheduler.plan_number:
                    lost = sorted(old)[b % len(old)]
                    self.tell(WorkerLost(now_us=self.now_us, vgpu=lost, plan=number))
            case _:
                pass

    def finish_everything(self) -> None:
        self.tell(Resume(now_us=self.now_us))
        for vgpu in range(len(self.plan.vgpus())):
            self.lost.discard(vgpu)
            self.tell(WorkerBack(now_us=self.now_us, vgpu=vgpu))
        while self.open:
            self.finish_step(0, 0)
            self.wait(SLO_US)


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    return make_plan(*draw(models_of_plans()), slo_us=SLO_US)


@st.composite
def plans_in_turn(draw: st.DrawFn) -> tuple[Plan, ...]:
    """Plans that begin alike, so that some vGPUs go on and others do not; models come and go."""
    models = draw(models_of_plans())
    found = [make_plan(*models, slo_us=SLO_US)]
    for number in range(2):
        kept = draw(st.integers(0, len(models)))
        more = draw(models_of_plans())
        changed = [*models[:kept], *more][: max(kept, 1) + number]
        names = [f"m{k}" if k < kept else f"m{k + number}" for k in range(len(changed))]
        found.append(make_plan(*changed, slo_us=SLO_US, names=names, plan_id=f"after-{number}"))
    return tuple(found)


@st.composite
def models_of_plans(draw: st.DrawFn) -> list[list[list[Own]]]:
    def pool(batch: int, *, last: bool) -> Own:
        first = draw(st.integers(200, 8_000))
        more = draw(st.integers(0, 2_000))
        return Own(
            latency_us=tuple(first + more * n for n in range(batch)),
            gpus=2 * draw(st.integers(1, 2)),
            gpus_per_node=draw(st.integers(1, 2)),
            divisor=draw(st.integers(1, 2)),
            bytes_out=0 if last else draw(st.sampled_from([0, 10_000, 2_000_000])),
        )

    models: list[list[list[Own]]] = []
    for _ in range(draw(st.integers(1, 2))):
        pipelines: list[list[Own]] = []
        for _ in range(draw(st.integers(1, 2))):
            stages, batch = draw(st.integers(1, 3)), draw(st.integers(1, 4))
            pipelines.append([pool(batch, last=s == stages - 1) for s in range(stages)])
        models.append(pipelines)
    return models


@st.composite
def boarding_plans(draw: st.DrawFn, plan_id: str = "boarding") -> Plan:
    """Entries of one model that meet at one block or at two.

    Some pools may be one entry's alone.
    """

    def pool(first: int, last: int) -> tuple[tuple[int, int], Own]:
        base, more = draw(st.integers(200, 8_000)), draw(st.integers(0, 2_000))
        sizes = draw(st.integers(1, 5))
        own = Own(
            latency_us=tuple(base + more * n for n in range(sizes)),
            gpus=draw(st.integers(1, 3)),
            bytes_out=draw(st.sampled_from([0, 10_000, 2_000_000])) if last < 4 else 0,
        )
        return (first, last), own

    pools = [pool(3, 4), pool(2, 3)]
    ways: list[Way] = []
    for _ in range(draw(st.integers(2, 4))):
        block = draw(st.integers(0, 3))
        tail = (0,) if block == 3 else (1, 0) if draw(st.booleans()) or block == 2 else None
        if tail is None:  # past the first junction, to the second alone
            pools.append(pool(block, 3))
            tail = (len(pools) - 1, 0)
        elif block < 2:
            pools.append(pool(block, 2))
            tail = (len(pools) - 1, *tail)
        ways.append(Way(pools=tail, budget_us=SLO_US, rate_rps=draw(st.sampled_from([1.0, 20.0]))))
    if not any(1 in way.pools for way in ways):
        ways.append(Way(pools=(1, 0), budget_us=SLO_US, rate_rps=1.0))
    policy = draw(st.sampled_from(EARLY_POLICIES))
    return make_boarding_plan(pools, *ways, policy=policy, plan_id=plan_id)


ACTIONS = st.tuples(
    st.sampled_from(
        ["arrive"] * 10
        + ["finish"] * 8
        + ["wait"] * 4
        + [
            "lose",
            "back",
            "back",
            "pace",
            "link",
            "mislay",
            "cancel",
            "pause",
            "resume",
            "resume",
            "change",
            "change",
            "lose_old",
        ]
    ),
    st.integers(0, 1_000),
    st.integers(0, 1_000),
)


@pytest.mark.long
@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True
)
@given(
    plans=plans_in_turn(),
    policy=st.sampled_from([name for name in POLICIES if not name.startswith("turns")]),
    nic=st.sampled_from(["shared", "isolated"]),
    actions=st.lists(ACTIONS, max_size=80),
)
def test_every_state_survives_every_event_and_every_request_has_one_end(
    plans: tuple[Plan, ...], policy: str, nic: str, actions: list[tuple[str, int, int]]
) -> None:
    shell = Shell(Scheduler(plans[0], policy=policy, nic=nic), plans[0], plans)
    for number, action in enumerate(actions):
        shell.act(action)
        if number % 8 == 0:
            shell.scheduler.check_invariants()
    shell.finish_everything()
    shell.scheduler.check_invariants()
    assert not shell.served & shell.dropped
    assert shell.served | shell.dropped == set(range(shell.came))
    assert shell.scheduler.queue_lengths() == (0,) * len(shell.plan.models)


@pytest.mark.long
@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True
)
@given(
    plans=st.tuples(boarding_plans(), boarding_plans("after-0"), plans()),
    nic=st.sampled_from(["shared", "isolated"]),
    actions=st.lists(ACTIONS, max_size=100),
)
def test_shared_batches_survive_every_event_and_every_request_has_one_end(
    plans: tuple[Plan, ...], nic: str, actions: list[tuple[str, int, int]]
) -> None:
    shell = Shell(Scheduler(plans[0], nic=nic), plans[0], plans)
    for action in actions:
        shell.act(action)
        shell.scheduler.check_invariants()
    shell.finish_everything()
    shell.scheduler.check_invariants()
    assert not shell.shared_batches
    assert not shell.served & shell.dropped
    assert shell.served | shell.dropped == set(range(shell.came))


@settings(max_examples=40, deadline=None, derandomize=True)
@given(
    plan=plans(),
    policy=st.sampled_from([name for name in POLICIES if not name.startswith("turns")]),
    gaps=st.lists(st.integers(0, 3_000), min_size=1, max_size=120),
)
def test_whoever_is_dispatched_is_promised_an_end_by_the_deadline(
    plan: Plan, policy: str, gaps: list[int]
) -> None:
    scheduler = Scheduler(plan, policy=policy)
    now_us, deadlines = 0, dict[int, int]()
    for number, gap in enumerate(gaps):
        now_us += gap
        deadlines[number] = now_us + SLO_US
        decided = scheduler.handle(
            Arrival(now_us=now_us, request_id=number, model=0, deadline_us=now_us + SLO_US)
        )
        for decision in decided:
            if isinstance(decision, Dispatch):
                end_us = decision.hops[-1].end_us
                assert end_us <= min(deadlines[r] for r in decision.request_ids)
