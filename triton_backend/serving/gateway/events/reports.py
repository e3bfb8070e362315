"""Reports of workers and fronts on batches, by the batch's number on the wire.

`Reports` puts them in the order of the batch's stages and makes them events of the core. It frees
slots, shows runs to the supervisor of workers, ends shared batches, fails batches that could not be
run, and gives up those that cannot be brought to a worker or are silent for too long.

Not here: batches before they are sent (`batches.dispatched`), workers as such (`workers`).
"""

from collections.abc import Sequence

from triton_backend.contract.decisions import FIRST_TASK, DropReason, Hop
from triton_backend.contract.errors import InputError
from triton_backend.contract.events import (
    BatchLost,
    Emitted,
    JobCancel,
    SharedBatchDone,
    SharedBatchStarted,
    StageDone,
    TransferDone,
)
from triton_backend.contract.plan import StagePlace
from triton_backend.serving.gateway.applications.job import RetainedOutputSlot
from triton_backend.serving.gateway.batches.in_flight import BatchInFlight, SharedBatchInFlight
from triton_backend.serving.gateway.events.workers import Workers
from triton_backend.serving.gateway.hub import Hub
from triton_backend.serving.gateway.peers.addresses import Address
from triton_backend.serving.liveness.supervisor import Awaited
from triton_backend.serving.transport.wire import TimesBody

# So long after its reserved end a batch of an earlier generation is given up, at least.
FORMER_BATCH_PATIENCE_US = 2_000_000


class Reports:
    """Takes in reports; owns those of batches that cannot be reached, until the next look."""

    def __init__(self, hub: Hub, workers: Workers) -> None:
        self._hub = hub
        self._workers = workers
        self._generations = hub.generations
        self._batches = hub.batches
        self._sent = hub.batches.sent
        self._jobs = hub.jobs
        self._counters = hub.counters
        self._lost: dict[int, int] = {}  # by batch, the stage that it cannot be brought to

    def transfer_done(self, batch_id: int, stage: int, times: TimesBody, now_us: int) -> None:
        """A boundary arrived at a worker."""
        number = batch_id - self._batches.first_number
        batch = self._sent.get(number)
        if batch is None or stage <= 0 or not batch.expects(stage):
            return
        batch.heard_us = now_us = self._hub.at(now_us)
        start_us, end_us = _past(times, now_us)
        dispatch = batch.dispatch
        if batch.generation is self._generations.served:
            batch.generation.supervisor.transfer_done(
                batch.place(stage), dispatch.hops, dispatch.samples, start_us, end_us
            )
        self._moved(number, stage, start_us, end_us)

    def stage_done(self, batch_id: int, stage: int, times: TimesBody, now_us: int) -> None:
        """A batch left a stage: its slot there is free again."""
        number = batch_id - self._batches.first_number
        batch = self._sent.get(number)
        if batch is None:
            return  # aborted, or of another life of the scheduler
        hops = batch.dispatch.hops
        if stage != batch.reported or hops[stage].vgpu != times.vgpu:
            batch.keep_early(stage, times, self._hub.at(now_us))
            return
        batch.heard_us = now_us = self._hub.at(now_us)
        if self._fail_without_rows(number, stage):
            return
        start_us, end_us = _past(times, now_us)
        if not stage:
            self._input_arrived(number, hops[0], start_us)
        place = batch.place(stage)
        batch.generation.runs[place].ran(batch.dispatch.samples, times.end_us - times.start_us)
        last = stage == len(hops) - 1
        if last and batch.output_slot is None:  # fronts count what is late of jobs
            self._count_late(number, batch, end_us)
        self._end_stage(number, batch, start_us, end_us)
        served = self._generations.served
        if batch.generation is served:
            if not batch.low:  # the time of low ones is there for others
                served.use.ran(hops[stage].vgpu, end_us - start_us)
            if served.loads is not None and end_us > start_us:  # no time at all: it failed
                served.loads.ran(place, hops[stage].vgpu)
            self._show_run(place, hops[stage], batch.dispatch.samples, (start_us, end_us))
        if batch.early:
            self._catch_up(batch_id, batch, now_us)
        self.end_shared_batches()

    def _input_arrived(self, number: int, hop: Hop, start_us: int) -> None:
        """Rows of modules before had come when a batch began: their links are free.

        Workers fetch rows by themselves and do not report it.
        """
        if hop.transfer_end_us > hop.transfer_start_us:
            began_us, end_us = hop.transfer_start_us, min(hop.transfer_end_us, start_us)
            self._moved(number, 0, min(began_us, start_us), end_us)

    def _moved(self, number: int, stage: int, start_us: int, end_us: int) -> None:
        now_us = self._hub.now_us
        self._hub.apply(
            TransferDone(
                now_us=now_us, batch_id=number, stage=stage, start_us=start_us, end_us=end_us
            )
        )

    def _show_run(
        self, place: StagePlace, hop: Hop, samples: int, span_us: tuple[int, int]
    ) -> None:
        """Tell the watch of workers of a run under the plan served."""
        took_us = span_us[1] - span_us[0]
        actions = self._generations.served.supervisor.stage_done(
            place, hop, samples, took_us, self._hub.now_us, self._generations.up_served()
        )
        self._workers.take(actions)

    def shared_batch_done(
        self, shared_batch_id: int, aboard: Sequence[int], times: TimesBody, now_us: int
    ) -> None:
        """A joint run is over; a member that was not in it runs again."""
        if self._batches.shared.ran(shared_batch_id, aboard, times, self._hub.at(now_us)):
            self.end_shared_batches()

    def end_shared_batches(self) -> None:
        """End shared batches that ran and whose members have all reported the stages before."""
        for number, shared_batch, times, aboard in self._batches.shared.that_ran():
            if any(place.batch_id not in aboard for place in shared_batch.decision.members):
                self._hub.apply(SharedBatchStarted(now_us=self._hub.now_us, shared_batch_id=number))
            while left := [s for s in shared_batch.decision.members if s.batch_id not in aboard]:
                self._counters.batches_lost += 1
                self._hub.apply(BatchLost(now_us=self._hub.now_us, batch_id=left[0].batch_id))
            for place in shared_batch.decision.members:
                self._fail_without_rows(place.batch_id, place.stage)
            places = shared_batch.decision.members
            waits = any(self._sent[s.batch_id].reported < s.stage for s in places)
            if places and not waits:
                self._batches.shared.end(number)
                self._end_shared_batch(shared_batch, times)

    def _end_shared_batch(self, shared_batch: SharedBatchInFlight, times: TimesBody) -> None:
        """The stage of all members of a shared batch is over."""
        decision, generation = shared_batch.decision, shared_batch.generation
        batches = self._batches.shared.members(shared_batch)
        start_us, end_us = span_us = _past(times, self._hub.now_us)
        stage = decision.members[0].stage
        place = batches[0].place(stage)
        model = generation.deployment.plan.models[place[0]]
        pipelines = [model.pipelines[batch.dispatch.pipeline] for batch in batches]
        samples = sum(member.rows for member in decision.members)
        generation.runs[place].ran(samples, times.end_us - times.start_us)
        entries = len({pipeline.entry for pipeline in pipelines})
        self._counters.ran_together(
            model.name, batches=len(batches), samples=samples, entries=entries
        )
        hop = batches[0].dispatch.hops[stage]._replace(end_us=decision.end_us)
        for member, batch in zip(decision.members, batches, strict=True):
            if batch.reported + 1 == len(batch.slots) and batch.output_slot is None:
                self._count_late(member.batch_id, batch, end_us)
            self._leave_stage(member.batch_id, batch)
        number = decision.shared_batch_id
        self._hub.apply(
            SharedBatchDone(
                now_us=self._hub.now_us, shared_batch_id=number, start_us=start_us, end_us=end_us
            )
        )
        for batch in batches:
            self._answer_jobs(batch)
        if generation is self._generations.served:
            generation.use.ran(hop.vgpu, span_us[1] - span_us[0])
            self._show_run(place, hop, samples, span_us)

    def emitted(self, batch_id: int, rows: tuple[tuple[int, ...], ...]) -> None:
        """How many rows each sample of a batch gave, for every count of its model.

        Then the place of each one's shape, for every choice of sizes. Its last stage has ended.

        Raises:
            InputError: the model gives no such rows.
        """
        batch = self._sent.get(batch_id - self._batches.first_number)
        if batch is None or batch.output_slot is None:
            return
        deployment, dispatch = batch.generation.deployment, batch.dispatch
        name = deployment.plan.models[dispatch.model].name
        most = dict.fromkeys(deployment.applications.row_groups(name), 0)
        for counts, rows_of_sample, _ in deployment.applications.drawn_rows(name).values():
            most[counts] = rows_of_sample
        most |= {
            name: len(known) - 1 for name, known in deployment.applications.choices(name).items()
        }
        fits = len(rows) == len(most) and all(
            len(counts) == dispatch.samples and max(counts) <= allowed
            for counts, allowed in zip(rows, most.values(), strict=False)
        )
        if not fits:
            raise InputError(f"batch {batch_id}", f"gave rows {rows}, at most {most} each")
        batch.given = rows

    def _fail_without_rows(self, number: int, stage: int) -> bool:
        """Fail a batch of modules that ended without a report of its number of rows."""
        batch = self._sent[number]
        last = stage == len(batch.slots) - 1 == batch.reported
        if not last or batch.output_slot is None or batch.complete():
            return False
        reason = "no worker says how many rows it gave"
        self.failed(self._batches.first_number + number, stage, self._hub.now_us, reason)
        return True

    def _end_stage(self, number: int, batch: BatchInFlight, start_us: int, end_us: int) -> None:
        """The next stage of a batch is over, and with the last one the batch."""
        stage, now_us = batch.reported, self._hub.now_us
        self._leave_stage(number, batch)
        self._hub.apply(
            StageDone(now_us=now_us, batch_id=number, stage=stage, start_us=start_us, end_us=end_us)
        )
        self._answer_jobs(batch)

    def _leave_stage(self, number: int, batch: BatchInFlight) -> None:
        """Free the slot granted for the next stage of a batch.

        The core has yet to hear of its end.
        """
        stage = batch.reported
        batch.reported = stage + 1
        batch.generation.slots.give(batch.dispatch.hops[stage].vgpu, batch.slots[stage])
        self._batches.may_send = True
        if batch.reported == len(batch.slots):
            del self._sent[number]
            if batch.output_slot is not None and not batch.failed:
                deployment = batch.generation.deployment
                ended = self._jobs.ended(deployment, batch.dispatch, batch.output_slot, batch.given)
                for task, rows in ended:
                    self._hub.apply(Emitted(now_us=self._hub.now_us, request_id=task, rows=rows))

    def _answer_jobs(self, batch: BatchInFlight) -> None:
        """Have fronts answer the jobs of an ended batch whose module ran alone."""
        ended = batch.reported == len(batch.slots) and not batch.failed
        if ended and batch.output_slot is not None:
            for request in batch.dispatch.request_ids:
                if request < FIRST_TASK:
                    self._hub.answer_job(request)

    def _count_late(self, number: int, batch: BatchInFlight, end_us: int) -> None:
        """Count the requests of a batch that ended beyond what their clients allow."""
        model = batch.generation.deployment.plan.models[batch.dispatch.model].name
        guard_us = self._hub.fronts.guards_us.get(model, 0)
        self._counters.bad[model] += self._hub.core.late_requests(number, end_us - guard_us)

    def _catch_up(self, batch_id: int, batch: BatchInFlight, now_us: int) -> None:
        """Take in what the next stage reported before its turn."""
        if batch.reported not in batch.early:
            return
        times = batch.early.pop(batch.reported)
        if times is None:
            self.failed(batch_id, batch.reported, now_us)
        else:
            self.stage_done(batch_id, batch.reported, times, now_us)

    def failed(self, batch_id: int, stage: int, now_us: int, reason: str = "") -> None:
        """A batch could not be run at a stage: its requests are answered by the front as failed."""
        number = batch_id - self._batches.first_number
        batch = self._sent.get(number)
        if batch is None or not batch.expects(stage):
            return
        if stage > batch.reported:
            batch.early[stage] = None
            return
        batch.early.clear()
        self._counters.batches_failed += 1
        model = batch.generation.deployment.plan.models[batch.dispatch.model]
        self._counters.bad[model.name] += self._hub.core.usual_requests(batch.dispatch.request_ids)
        now_us = self._hub.at(now_us)
        if batch.output_slot is not None:
            self._fail_jobs(batch, batch.output_slot, reason)
        for later in range(stage, len(batch.slots)):
            # As if every stage that is left had taken no time: all that was reserved is free.
            if number not in self._sent:
                return  # too late for a shared batch, and aborted
            if later:
                self._moved(number, later, now_us, now_us)
            if number in self._sent:
                self._end_stage(number, batch, now_us, now_us)

    def _fail_jobs(
        self, batch: BatchInFlight, output_slot: RetainedOutputSlot, reason: str
    ) -> None:
        """Have the jobs of a batch answered as failed; the core knows that they are not wanted."""
        batch.failed = True
        for number, module in self._jobs.failed(batch.dispatch, output_slot):
            self._hub.fail_job(number, f"module {module!r}: {reason}")
            if number not in batch.dispatch.request_ids:  # which end with the batch
                failed = DropReason.FAILED
                self._hub.apply(JobCancel(now_us=self._hub.now_us, job_id=number, reason=failed))

    def lost(self, batch_id: int, stage: int) -> None:
        """A batch cannot be brought to the worker of a stage: with the next look it runs again.

        Not at once: a worker that cannot be reached now cannot be in the next millisecond.
        """
        number = batch_id - self._batches.first_number
        if number in self._sent:
            self._lost[number] = stage

    def let_go(self, names: Sequence[Address], batch_id: int) -> None:
        """A front or worker, by its names, writes nothing of a batch any more that was aborted."""
        self._batches.let_go(names, batch_id)
        self._batches.send_waiting(self._hub.now_us)

    def give_up_unreachable(self, now_us: int) -> None:
        """Give up batches that cannot be brought to a worker, which is to rest."""
        lost, self._lost = self._lost, {}
        for number, stage in lost.items():
            batch = self._sent.get(number)
            if batch is None:
                continue
            served, up = self._generations.served, self._generations.up_served()
            if batch.generation is served and 0 <= stage < len(batch.slots):
                # First, lest its requests are sent there again.
                vgpu = batch.dispatch.hops[stage].vgpu
                self._workers.take(served.supervisor.unreachable(vgpu, now_us, up))
            self._hub.run_again(number)

    def give_up_former(self, now_us: int) -> None:
        """Give up batches of earlier generations that should have ended long ago."""
        for number, batch in list(self._sent.items()):
            slo_us = batch.generation.deployment.longest_slos_us[batch.dispatch.model]
            last_us = max(batch.dispatch.hops[batch.reported].end_us, batch.heard_us)
            late = now_us - last_us > max(slo_us, FORMER_BATCH_PATIENCE_US)
            if late and batch.generation is not self._generations.served:
                self._hub.run_again(number)

    def show_awaited(self, now_us: int) -> None:
        """Show the supervisor which stages are to report, and take its actions."""
        served, ends_us = self._generations.served, self._batches.shared.ends_us()
        awaited = [
            Awaited(
                number,
                b.place(b.reported),
                hop._replace(end_us=ends_us.get((number, b.reported), hop.end_us)),
                b.heard_us,
            )
            for number, b in self._sent.items()
            if b.generation is served
            for hop in (b.dispatch.hops[b.reported],)
        ]
        up = self._generations.up_served()
        self._workers.take(served.supervisor.look(awaited, now_us, up))


def _past(times: TimesBody, now_us: int) -> tuple[int, int]:
    """Times of another host may be a little ahead of ours; nothing ended after it was reported."""
    end_us = min(times.end_us, now_us)
    return min(times.start_us, end_us), end_us
