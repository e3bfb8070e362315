"""What workers report of batches: boundaries that arrived, stages that ended, runs that failed.

Every report of a batch in flight becomes an event of the core, in the order of the batch's stages.
Not here: what is done about workers that are slow (`driver_care`).
"""

from triton_backend.contract.events import StageDone, TransferDone
from triton_backend.serving.gateway.care import WorkerCare
from triton_backend.serving.gateway.counters import GatewayCounters
from triton_backend.serving.gateway.state import Batch, Books
from triton_backend.serving.transport.wire import TimesBody


class Reports:
    """Reports of the generation served, its batches numbered from `epoch` on."""

    def __init__(
        self, books: Books, counters: GatewayCounters, care: WorkerCare, epoch: int
    ) -> None:
        self._books = books
        self._counters = counters
        self._epoch = epoch
        self.use(care)

    def use(self, care: WorkerCare) -> None:
        """From now on workers are in this care."""
        self._care = care

    def transfer_done(self, batch: int, stage: int, times: TimesBody, now_us: int) -> None:
        """A boundary arrived at a worker."""
        number = batch - self._epoch
        known = self._books.batches.get(number)
        if known is not None and stage > 0 and known.expects(stage):
            now_us = self._books.at(now_us)
            start_us, end_us = _past(times, now_us)
            self._books.tell(
                TransferDone(
                    now_us=now_us, batch_id=number, stage=stage, start_us=start_us, end_us=end_us
                )
            )

    def stage_done(self, batch: int, stage: int, times: TimesBody, now_us: int) -> None:
        """A batch left a stage: its slot there is free again."""
        books, vgpu = self._books, times.vgpu
        number = batch - self._epoch
        known = books.batches.get(number)
        if known is None:
            return  # aborted, or of another life of the scheduler
        if stage != known.done or known.dispatch.hops[stage].vgpu != vgpu:
            _keep(known, stage, times)
            return
        known.done = stage + 1
        books.slots.give(vgpu, known.slots[stage])
        self._counters.busy(vgpu, times.end_us - times.start_us)
        now_us = books.at(now_us)
        start_us, end_us = _past(times, now_us)
        books.tell(
            StageDone(now_us=now_us, batch_id=number, stage=stage, start_us=start_us, end_us=end_us)
        )
        if known.done == len(known.slots):
            books.end(number)
        if self._care.watch.ended(known, vgpu, end_us - start_us, now_us):
            self._care.was_slow(vgpu, now_us)
        if known.early:
            self._catch_up(batch, known, now_us)

    def _catch_up(self, batch: int, known: Batch, now_us: int) -> None:
        """Hear what the next stage said before its turn."""
        if known.done not in known.early:
            return
        times = known.early.pop(known.done)
        if times is None:
            self.batch_failed(batch, known.done, now_us)
        else:
            self.stage_done(batch, known.done, times, now_us)

    def batch_failed(self, batch: int, stage: int, now_us: int) -> None:
        """A runtime could not run a batch: its requests are answered by the front as failed."""
        known = self._books.batches.get(batch - self._epoch)
        if known is None or not known.expects(stage):
            return
        if stage > known.done:
            known.early[stage] = None
            return
        known.early.clear()
        self._counters.batches_failed += 1
        for later in range(stage, len(known.slots)):
            # As if every stage that is left had taken no time: all that was reserved is free.
            times = TimesBody(known.dispatch.hops[later].vgpu, now_us, now_us)
            self.transfer_done(batch, later, times, now_us)
            self.stage_done(batch, later, times, now_us)


def _keep(known: Batch, stage: int, times: TimesBody) -> None:
    """A report that is not the next, from the worker of a later stage: for when its turn comes.

    Two workers' sockets are read in any order where this process was kept waiting.
    """
    later = known.done < stage < len(known.slots)
    if later and known.dispatch.hops[stage].vgpu == times.vgpu:
        known.early[stage] = times


def _past(times: TimesBody, now_us: int) -> tuple[int, int]:
    """Times of another host may be a little ahead of ours; nothing ended after it was told."""
    end_us = min(times.end_us, now_us)
    return min(times.start_us, end_us), end_us
