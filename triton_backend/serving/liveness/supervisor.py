"""Judges the workers, stages and links of one generation by what is reported of their batches.

It is given every report and asked now and then (`look`), and answers with actions for the gateway
to take; it takes none. Which detector acts when, and on what evidence, is drawn in the README here.

Not here: processes that are dead or hung (`processes`), the measures (`pace`).
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import NamedTuple

from triton_backend.contract.decisions import Hop
from triton_backend.contract.events import LinkPaceChanged, PaceChanged
from triton_backend.contract.plan import StagePlace
from triton_backend.contract.units import transfer_us
from triton_backend.scheduler.measured.paces import LOOK_EVERY_US, StagePaces
from triton_backend.serving.deployment import Deployment
from triton_backend.serving.liveness.pace import LinkPaces, WorkerPaces
from triton_backend.serving.liveness.threads import Starvation, ThreadUse
from triton_backend.serving.transport.wire import Kind

# One worker at a time is taken out, lest a machine that is busy loses them all.
TAKE_OUT_EVERY_US = 1_000_000
# A look that comes so long after the one before: this machine stood still, and reports with it.
STALL_US = 500_000

# A worker is overdue when it should have reported long ago, by how late reports are just now.
OVERDUE_FACTOR = 4
OVERDUE_AT_LEAST_US = 150_000
OVERDUE_LATENESS_FACTOR = 10
_WEIGHT_OF_NEWEST = 0.05

PROBE_EVERY_US = 200_000
FIRST_REST_US = 1_000_000
LONGEST_REST_US = 32_000_000
# Back for so long, a worker's former cases are forgotten.
GOOD_AFTER_US = 60_000_000
RENEW_AFTER_US = 10_000_000
# A worker whose processes end twice in so long would lose its next batches too.
TWICE_US = 10_000_000


class TakeOut(NamedTuple):
    """Count a worker as lost from now on; its process is kept."""

    vgpu: int


class Readmit(NamedTuple):
    """Count a worker that was taken out as back."""

    vgpu: int


class Order(NamedTuple):
    """Send a worker an order: PACE_PROBE or RETIRE."""

    vgpu: int
    kind: Kind


class GiveUpBatch(NamedTuple):
    """Count a batch as lost: no report of it will ever come."""

    batch_id: int


Threads = Callable[[int], Mapping[int, ThreadUse]]
"""The threads of a vGPU's process as they are now, by their ids.

None where it is not known, on another host say.
"""

Action = TakeOut | Readmit | Order | GiveUpBatch | PaceChanged | LinkPaceChanged


class Awaited(NamedTuple):
    """A batch in flight: the stage it is to report next, and when it was last heard of."""

    batch_id: int
    stage: StagePlace
    hop: Hop
    heard_us: int


class WorkerSupervisor:
    """Of one generation. Instants never go back; `up` are the vGPUs that take batches.

    `threads` are asked for only of a worker that is late already.
    """

    def __init__(
        self, deployment: Deployment, now_us: int, threads: Threads = lambda _vgpu: {}
    ) -> None:
        self._deployment = deployment
        self._threads = threads
        # Of workers that are late, by vGPU and the instant since when nothing was heard.
        self._starvation: dict[tuple[int, int], Starvation] = {}
        stretch = deployment.settings.time_stretch
        self._pools = [vgpu.pool for vgpu in deployment.vgpus]
        rows = deployment.plan.stage_rows()
        # Profiled times of batches of 1 .. samples, by stage.
        self._expected_us: dict[StagePlace, list[int]] = {
            row.place: [
                max(round(us * stretch), 1) for us in deployment.stage_of(row).latency_us_by_batch
            ]
            for row in rows
        }
        # And of the planned batch.
        self._planned_us: dict[StagePlace, int] = {
            row.place: self._expected_us[row.place][deployment.planned_batch(row) - 1]
            for row in rows
        }
        # The stage that a vGPU runs on zeros.
        self._probed = [deployment.rows_of(vgpu)[0].place for vgpu in range(len(self._pools))]
        self._workers = WorkerPaces(self._pools)
        self._stage_paces = StagePaces(self._planned_us, now_us)
        groups = deployment.plan.cluster.nodes
        self._nics_gbps = [group.nic_gbps for group in groups for _ in range(group.count)]
        self._link_paces = LinkPaces(self._nics_gbps, now_us)
        self._quarantine = Quarantine()
        self._ended_us: dict[int, tuple[int, int]] = {}  # the last two ends of a vGPU's processes
        self._to_probe: set[int] = set()
        self._heard_us = [0] * len(self._pools)
        self._lateness_us = 0.0  # of reports, a moving mean
        self._looked_us = self._awake_us = now_us
        self._judge_us = now_us
        self._taken_out_us = now_us - TAKE_OUT_EVERY_US

    # Reports

    def worker_up(self, vgpu: int, now_us: int, up: AbstractSet[int]) -> bool:
        """A new process stands for a vGPU, or it was readmitted: whether it takes batches.

        Not where its processes have just ended twice and its pool has another: it rests and is
        probed first, as if it were slow.
        """
        self._forget_runs(vgpu)
        self._heard_us[vgpu] = now_us
        before_us, last_us = self._ended_us.get(vgpu, (-TWICE_US, 0))
        on_trial = last_us - before_us < TWICE_US and vgpu not in self._quarantine
        if on_trial and not self._workers.has_recovered(vgpu, up):
            self._quarantine.enter(vgpu, now_us)
            return False
        self._quarantine.readmit(vgpu, now_us)
        return True

    def _forget_runs(self, vgpu: int) -> None:
        self._workers.forget(vgpu)
        self._stage_paces.forget(vgpu)

    def process_ended(self, vgpu: int, now_us: int) -> None:
        """The process of a vGPU ended: whatever was, it is not in quarantine."""
        self._quarantine.forget(vgpu)
        _, last_us = self._ended_us.get(vgpu, (0, now_us - TWICE_US))
        self._ended_us[vgpu] = last_us, now_us

    def stage_done(
        self,
        stage: StagePlace,
        hop: Hop,
        samples: int,
        took_us: int,
        now_us: int,
        up: AbstractSet[int],
    ) -> Sequence[Action]:
        """A vGPU has just reported the end of a stage; `hop` is what was reserved for it."""
        vgpu, expected_us = hop.vgpu, self._expected_us[stage][samples - 1]
        self._heard_us[vgpu] = now_us
        self._stage_paces.ran(stage, vgpu, took_us, expected_us, now_us)
        late_us = max(now_us - hop.end_us, 0)
        self._lateness_us += _WEIGHT_OF_NEWEST * (late_us - self._lateness_us)
        if not self._workers.ran(vgpu, took_us, expected_us):
            return ()
        # An idle worker of the pool shows its pace when it is asked to.
        self._to_probe.update(self._workers.unknown_peers(vgpu, up))
        if self._workers.is_slow(vgpu, up) and self._may_take_out(now_us):
            self._forget_runs(vgpu)
            self._quarantine.enter(vgpu, now_us)
            return (TakeOut(vgpu),)
        return ()

    def transfer_done(
        self, stage: StagePlace, hops: Sequence[Hop], samples: int, start_us: int, end_us: int
    ) -> None:
        """The boundary of a batch moved from the worker of the stage before to that of `stage`."""
        model, pipeline, after = stage
        here, there = (
            self._deployment.vgpus[hop.vgpu].slot.node for hop in hops[after - 1 : after + 1]
        )
        sender = self._deployment.row_of(model, pipeline, after - 1)
        size = samples * self._deployment.stage_of(sender).boundary_bytes_per_sample
        rate_gbps = min(self._nics_gbps[here], self._nics_gbps[there])
        planned_us = round(transfer_us(size, rate_gbps) * self._deployment.settings.time_stretch)
        self._link_paces.moved(here, there, start_us, end_us, planned_us)

    def link_busy_us(self) -> Iterator[tuple[str, str, int]]:
        """Of every node's uplink and downlink: node, `up` or `down`, time that it carried anything.

        Since the generation came into force.
        """
        name = self._deployment.plan.cluster.node_name
        paces = self._link_paces
        for direction, busy_us in (("up", paces.up_busy_us), ("down", paces.down_busy_us)):
            for node, total_us in enumerate(busy_us):
                yield name(node), direction, total_us

    def unreachable(self, vgpu: int, now_us: int, up: AbstractSet[int]) -> Sequence[Action]:
        """A batch could not be brought to a worker that we ourselves hear of.

        It would be chosen again and again; where its pool has another it rests, as if it were slow.
        """
        others = up - {vgpu}
        alone = all(self._pools[other] != self._pools[vgpu] for other in others)
        if vgpu not in up or alone or not self._may_take_out(now_us):
            return ()
        self._forget_runs(vgpu)
        self._quarantine.enter(vgpu, now_us)
        return (TakeOut(vgpu),)

    def pace_result(self, vgpu: int, took_us: int, up: AbstractSet[int]) -> Sequence[Action]:
        """A vGPU ran the planned batch of its first stage on zeros."""
        stage = self._probed[vgpu]
        planned_us = self._planned_us[stage]
        self._workers.probed(vgpu, took_us, planned_us)
        self._stage_paces.probed(stage, vgpu, took_us, planned_us)
        return self._recovered(up)

    # Periodic checks

    def look(
        self, awaited: Sequence[Awaited], now_us: int, up: AbstractSet[int]
    ) -> Iterator[Action]:
        """Actions due by the clock; each is taken before the next is asked for."""
        if now_us - self._looked_us > STALL_US:
            self._awake_us = now_us
        self._looked_us = now_us
        yield from self._overdue_workers(awaited, now_us, up)
        yield from self._lost_batches(awaited, now_us)
        yield from self._quarantine.orders(now_us)
        to_probe, self._to_probe = sorted(self._to_probe), set()
        yield from (Order(vgpu, Kind.PACE_PROBE) for vgpu in to_probe)
        yield from self._recovered(up)
        if now_us >= self._judge_us:
            self._judge_us = now_us + LOOK_EVERY_US
            yield from self._paces(now_us, up)

    def _overdue_workers(
        self, awaited: Iterable[Awaited], now_us: int, up: AbstractSet[int]
    ) -> Iterator[Action]:
        """Workers that should have ended a batch long ago and have said nothing since.

        Only where the pool has another worker: alone, it is left to its node, which sees whether
        its process hangs.
        """
        late: dict[tuple[int, int], float] = {}  # the shortest patience
        for one in awaited:
            vgpu = one.hop.vgpu
            last_us = max(one.hop.end_us, one.heard_us, self._heard_us[vgpu], self._awake_us)
            patience_us = self._patience_us(one.stage)
            if now_us - last_us > patience_us / 2:
                late[vgpu, last_us] = min(patience_us, late.get((vgpu, last_us), patience_us))
        self._starvation = {case: self._starvation.get(case, Starvation()) for case in late}
        overdue = {
            vgpu
            for (vgpu, last_us), patience_us in late.items()
            if now_us - last_us - self._starved_us(vgpu, last_us, now_us) > patience_us
        }
        timely_pools = {self._pools[vgpu] for vgpu in up - overdue}
        for vgpu in sorted(overdue & up):
            if self._pools[vgpu] in timely_pools and self._may_take_out(now_us):
                yield TakeOut(vgpu)
                yield Order(vgpu, Kind.RETIRE)

    def _starved_us(self, vgpu: int, last_us: int, now_us: int) -> int:
        """Time a late worker lacked a processor since it was first seen to be late."""
        return self._starvation[vgpu, last_us].look(self._threads(vgpu), now_us)

    def _lost_batches(self, awaited: Iterable[Awaited], now_us: int) -> Iterator[Action]:
        """Batches of which nothing was reported for an SLO beyond what was reserved.

        Whatever else their workers report: a frame of theirs got lost, and nothing will end them.
        """
        for one in awaited:
            last_us = max(one.hop.end_us, one.heard_us, self._awake_us)
            slo_us = self._deployment.longest_slos_us[one.stage[0]]
            if now_us - last_us > max(self._patience_us(one.stage), slo_us):
                yield GiveUpBatch(one.batch_id)

    def _patience_us(self, stage: StagePlace) -> float:
        """How long after its reserved end a report of a stage is waited for."""
        return max(
            OVERDUE_FACTOR * self._planned_us[stage],
            OVERDUE_AT_LEAST_US,
            OVERDUE_LATENESS_FACTOR * self._lateness_us,
            self._deployment.step_patience_us[stage[0]],
        )

    def _may_take_out(self, now_us: int) -> bool:
        """True if a worker may be taken out; it is taken out then."""
        if now_us - self._taken_out_us < TAKE_OUT_EVERY_US:
            return False
        self._taken_out_us = now_us
        return True

    def _recovered(self, up: AbstractSet[int]) -> list[Action]:
        """Quarantined workers that are fast again, or whose pool has no other."""
        return [Readmit(v) for v in self._quarantine if self._workers.has_recovered(v, up)]

    def _paces(self, now_us: int, up: AbstractSet[int]) -> Iterator[Action]:
        """Stages and links that are slower than planned, or no more."""
        for (model, pipeline, stage), percent in self._stage_paces.changes(now_us, up):
            yield PaceChanged(
                now_us=now_us, model=model, pipeline=pipeline, stage=stage, percent=percent
            )
        for node, up_percent, down_percent in self._link_paces.changes(now_us):
            yield LinkPaceChanged(
                now_us=now_us, node=node, uplink_percent=up_percent, downlink_percent=down_percent
            )


@dataclass(slots=True)
class _Case:
    rest_us: int
    next_us: int
    first_probe_us: int | None = None
    readmitted_us: int | None = None


class Quarantine:
    """Workers that were taken out, or not let in: probed now and then, let back in time.

    One that stayed slow keeps its process: often it is well, and was only kept from its processor.
    After a rest it is ordered to run its stage on zeros, five times a second. While its probes stay
    slow its process is renewed in the end, because then the fault may lie there. One that comes and
    goes rests twice as long each time.
    """

    def __init__(self) -> None:
        self._cases: dict[int, _Case] = {}

    def __iter__(self) -> Iterator[int]:
        """The vGPUs in quarantine."""
        return iter([v for v, case in self._cases.items() if case.readmitted_us is None])

    def enter(self, vgpu: int, now_us: int) -> None:
        """No more batches for this one."""
        former = self._cases.get(vgpu)
        rest_us = FIRST_REST_US
        if former is not None and former.readmitted_us is not None:
            recent = now_us - former.readmitted_us < GOOD_AFTER_US
            rest_us = min(2 * former.rest_us, LONGEST_REST_US) if recent else FIRST_REST_US
        self._cases[vgpu] = _Case(rest_us, now_us + rest_us)

    def readmit(self, vgpu: int, now_us: int) -> None:
        """It takes batches again; harmless where it was not in quarantine."""
        case = self._cases.get(vgpu)
        if case is not None and case.readmitted_us is None:
            case.readmitted_us = now_us

    def forget(self, vgpu: int) -> None:
        """Its process is gone, and its case with it."""
        self._cases.pop(vgpu, None)

    def orders(self, now_us: int) -> Iterator[Order]:
        """Frames to send now."""
        for vgpu in self:
            case = self._cases[vgpu]
            if now_us < case.next_us:
                continue
            case.next_us = now_us + PROBE_EVERY_US
            if case.first_probe_us is None:
                case.first_probe_us = now_us
            renew = now_us - case.first_probe_us > RENEW_AFTER_US
            yield Order(vgpu, Kind.RETIRE if renew else Kind.PACE_PROBE)
