"""A worker's two threads, leader and follower: one polls sockets, the other runs a batch.

The thread that polls and finds a batch due runs it itself, which costs no hand-over, and the other
polls on (the leader/followers pattern). So batches that come, and reports on those that ran, are
seen to while the next one runs, and the vGPU does not wait. The other is woken when the run begins,
not before: until then the two would only keep one interpreter from each other. During a short run
its thread goes on leading: the run is over before the other thread would be of use.

Frames about a batch that has ended are written after the next one has begun, where one is due: at
10 ms a batch, the half millisecond that writing takes is a twentieth of the vGPU's rate. They wait
in the `Outbox`, for whichever thread has the time.

Here: which thread does what. Not here: which batch is next (`queue`), what peers say (`process`),
what is sent (`output`).
"""

import logging
import threading
from collections import deque
from collections.abc import Callable
from typing import Self

import numpy as np

from triton_backend.contract.errors import InvariantError
from triton_backend.serving.transport.backoff import Backoff
from triton_backend.serving.transport.event_loop import EventLoop
from triton_backend.serving.transport.shared_memory import Arrays
from triton_backend.serving.transport.wire import RETAINED
from triton_backend.serving.worker.output import (
    BatchHeader,
    OutputSender,
    OutputTarget,
    ReceiverGoneError,
)
from triton_backend.serving.worker.queue import BatchQueue, QueuedBatch, QueuedSharedBatch
from triton_backend.serving.worker.scheduler_link import GatewayTime, SchedulerLink
from triton_backend.serving.worker.stage import LoadedStages

RECONNECT_SECONDS = 0.02
SOON_US = 150
# Waking the other thread costs a tenth of a millisecond of two cores; shorter runs are over before
# it is of use.
FOLLOWER_LEADS_FROM_US = 3_000
# A worker whose rounds fail so often in a row ends; its node starts a new process.
MOST_FAILURES = 10
_LOG = logging.getLogger(__name__)


class Outbox:
    """Calls that send something: made once each, in the order in which they were enqueued."""

    def __init__(self) -> None:
        self._waiting: deque[tuple[Callable[..., object], tuple[object, ...]]] = deque()
        self._one_at_a_time = threading.Lock()

    @property
    def waiting(self) -> bool:
        """True if any is left."""
        return bool(self._waiting)

    def enqueue(self, send: Callable[..., object], *arguments: object) -> None:
        """For the next `flush`; from any thread."""
        self._waiting.append((send, arguments))

    def flush(self) -> None:
        """Make all calls that wait; what another thread has begun has ended then, too."""
        with self._one_at_a_time:
            self._send_waiting()

    def flush_unless_begun(self) -> None:
        """Make all calls that wait, unless another thread does so just now."""
        if self._waiting and self._one_at_a_time.acquire(blocking=False):
            try:
                self._send_waiting()
            finally:
                self._one_at_a_time.release()

    def _send_waiting(self) -> None:
        while self._waiting:
            send, arguments = self._waiting.popleft()
            send(*arguments)


class _Lead:
    """The right to poll while the context lasts, or until it is handed to the other thread."""

    def __init__(self, leading: threading.Lock) -> None:
        self._leading = leading
        self._own = False

    def __enter__(self) -> Self:
        self._leading.acquire()
        self._own = True
        return self

    def hand_over(self) -> None:
        """Let the other thread lead; harmless when it does."""
        if self._own:
            self._own = False
            self._leading.release()

    def __exit__(self, *_: object) -> None:
        self.hand_over()


class LeaderFollowers:
    """Runs the batches of one vGPU until stopped."""

    def __init__(
        self,
        loop: EventLoop,
        queue: BatchQueue,
        stages: LoadedStages,
        outputs: OutputSender,
        scheduler: SchedulerLink,
        time: GatewayTime,
    ) -> None:
        self._loop = loop
        self._queue = queue
        self._stages = stages
        self._outputs = outputs
        self._scheduler = scheduler
        self._time = time
        self._outbox = Outbox()
        self._leading = threading.Lock()
        self._timing = threading.Lock()
        self._backoff = Backoff()
        self._pause = threading.Event()
        self._failure: Exception | None = None

    @property
    def _stopping(self) -> bool:
        return self._pause.is_set()

    def stop(self) -> None:
        """Make `run` return soon; from any thread."""
        self._pause.set()
        self._loop.wake()

    def call_soon(self, function: Callable[..., object], *arguments: object) -> None:
        """Have one of the two threads call something between batches; from any thread."""
        self._outbox.enqueue(function, *arguments)
        self._loop.wake()

    def run(self) -> None:
        """Serve until stopped.

        Raises:
            InvariantError: rounds failed so often that a new process had better take over.
        """
        other = threading.Thread(target=self._serve, name="second thread")
        other.start()
        self._serve()
        other.join()
        if self._failure is not None:
            raise InvariantError(f"rounds failed {MOST_FAILURES} times") from self._failure

    def _serve(self) -> None:
        """Lead until a batch is due, run it and those that follow at once, and lead again."""
        try:
            while not self._stopping:
                with _Lead(self._leading) as lead:
                    batch = self._await_batch()
                    while batch is not None and self._is_short(batch):
                        self._execute(batch)
                        self._queue.end()
                        batch = self._await_batch()
                    if batch is not None:
                        batch = self._execute_and_follow(batch, lead)
                while batch is not None:
                    batch = self._execute_and_follow(batch)
        finally:
            self.stop()  # a thread that ends takes the other with it

    def _await_batch(self) -> QueuedBatch | QueuedSharedBatch | None:
        """The batch or shared batch to run now; None when stopped. For the thread that leads."""
        while not self._stopping:
            try:
                batch = self._round()
            except Exception as error:  # noqa: BLE001  # one bad frame or report must not end all others
                self._failed(error)
            else:
                self._backoff.succeeded()
                if batch is not None:
                    return batch
        return None

    def _round(self) -> QueuedBatch | QueuedSharedBatch | None:
        """Send what waits; the batch or shared batch that is due, or None after a poll."""
        self._report_arrivals()
        self._report_let_go()
        self._outbox.flush_unless_begun()
        known = self._scheduler.report(self._idle_us)
        batch = self._queue.begin()
        if batch is not None:
            self._begun(batch)
            return batch
        self._set_timer()
        self._loop.poll(None if known else RECONNECT_SECONDS)
        return None

    def _idle_us(self) -> int:
        """When all that runs and waits here will have run, as planned (gateway's time).

        0: it has.
        """
        if self._queue.idle:
            return 0
        ends_us = (self._time.now_us(), self._stages.ends_us, self._queue.reserved_until_us)
        return max(ends_us)

    def _report_arrivals(self) -> None:
        for batch in self._queue.arrived():
            self._outbox.enqueue(self._outputs.report_transfer, batch)

    def _report_let_go(self) -> None:
        for let_go in self._queue.take_let_go():
            self._outbox.enqueue(self._outputs.report_let_go, *let_go)

    def _begun(self, batch: QueuedBatch | QueuedSharedBatch) -> None:
        """Report when a batch's tensors came; members of a shared batch reported before."""
        if isinstance(batch, QueuedBatch):
            self._outbox.enqueue(self._outputs.report_transfer, batch)
        else:
            self._report_arrivals()

    def _failed(self, error: Exception) -> None:
        _LOG.exception("a round failed")
        pause_seconds = self._backoff.failed()
        if self._backoff.failures >= MOST_FAILURES:
            self._failure = error
            self.stop()
        self._pause.wait(pause_seconds)

    def _set_timer(self) -> None:
        """Have the leader look when a batch becomes due, and soon where the outbox is not empty.

        Not at once: the run that begins just now would share its first steps with them. One lock
        around looking and setting, lest the older of two looks wins.
        """
        with self._timing:
            due_us = self._queue.next_due_us()
            at_us = None if due_us is None else self._time.local_us(due_us)
            if self._outbox.waiting:
                soon_us = self._time.local_now_us() + SOON_US
                at_us = soon_us if at_us is None else min(at_us, soon_us)
            self._loop.timer.set(at_us)

    def _is_short(self, batch: QueuedBatch | QueuedSharedBatch) -> bool:
        """True if its thread goes on leading while it runs a batch or shared batch."""
        return self._stages.expected_us(batch.place, batch.samples) < FOLLOWER_LEADS_FROM_US

    def _execute_and_follow(
        self, batch: QueuedBatch | QueuedSharedBatch, lead: _Lead | None = None
    ) -> QueuedBatch | QueuedSharedBatch | None:
        """Run a batch, shared or not, while the other thread leads; the one that follows, or None.

        With `lead`, that thread has it from when the run begins, or before where that may have to
        wait for another host.
        """
        if lead is None:
            self._set_timer()  # the other thread may be polling since before the outbox was filled
        elif not self._outputs.all_here:
            lead.hand_over()
        self._execute(batch, None if lead is None else lead.hand_over)
        if lead is not None:
            lead.hand_over()  # it was not run
        following = self._queue.end_and_begin()
        self._report_let_go()
        if following is None:
            self._flush_outbox()
        else:
            self._begun(following)
        return following

    def _flush_outbox(self) -> None:
        try:
            self._outbox.flush()
        except Exception:  # noqa: BLE001  # the leader sends the rest
            _LOG.exception("what a batch came to could not be sent")

    def _execute(
        self, batch: QueuedBatch | QueuedSharedBatch, begins: Callable[[], None] | None = None
    ) -> None:
        """Run a batch or shared batch, and enqueue what is to be sent of it.

        `begins` is called right before the run.
        """
        if isinstance(batch, QueuedSharedBatch):
            if begins is not None:
                begins()
            self._execute_shared_batch(batch)
            return
        target: OutputTarget | None = None
        samples, losses = batch.samples, self._scheduler.losses
        try:
            target = self._outputs.target_of(batch, self._outbox.flush)
            inputs, outputs = self._queue.inputs_of(batch), target.views(samples)
            if begins is not None:
                begins()
            span_us = self._stages.run(batch.place, inputs, outputs, samples)
        except ReceiverGoneError as error:
            self._lost(batch, error)
        except Exception as error:  # noqa: BLE001  # a runtime may raise anything
            if target is not None:
                target.release()
            _LOG.exception("batch %d failed", batch.batch_id)
            self._report_failure(batch, error)
        else:
            if batch.body.express == RETAINED and losses != self._scheduler.losses:
                target.release()  # its result has no reader
                return
            self._outbox.enqueue(self._outputs.send_result, batch, target, span_us)

    def _execute_shared_batch(self, shared_batch: QueuedSharedBatch) -> None:
        """Run batches together; then each goes on by itself, to its own receiver."""
        aboard = list(shared_batch.members)
        try:
            given = [self._queue.inputs_of(batch) for batch in aboard]
            made, span_us = self._stages.run_together(
                shared_batch.place, given, shared_batch.samples
            )
        except Exception as error:  # noqa: BLE001  # a runtime may raise anything
            _LOG.exception("shared batch %d failed", shared_batch.shared_batch_id)
            for batch in aboard:
                self._report_failure(batch, error)
            now_us = self._time.now_us()
            self._outbox.enqueue(
                self._outputs.report_shared_batch, shared_batch, (), (now_us, now_us)
            )
            return
        if not shared_batch.last:  # before the next worker can report of its transfer
            self._outbox.enqueue(self._outputs.report_shared_batch, shared_batch, aboard, span_us)
        at = 0
        for batch in shared_batch.members:
            end = at + batch.samples
            rows = {name: array[at:end] for name, array in made.items()}
            if not self._pass_on(batch, rows, span_us[1]):
                aboard.remove(batch)
            at = end
        if shared_batch.last:  # clients wait for the answers, none for the report
            self._outbox.enqueue(self._outputs.report_shared_batch, shared_batch, aboard, span_us)

    def _pass_on(self, batch: QueuedBatch, rows: Arrays, end_us: int) -> bool:
        """Send a member of a shared batch its rows of the results; False if they are not taken."""
        target: OutputTarget | None = None
        try:
            target = self._outputs.target_of(batch, self._outbox.flush)
            for name, view in target.views(batch.samples).items():
                np.copyto(view, rows[name], casting="same_kind")
        except ReceiverGoneError as error:
            self._lost(batch, error)
            return False
        except Exception as error:  # noqa: BLE001  # the others' results are well
            if target is not None:
                target.release()
            _LOG.exception("batch %d failed", batch.batch_id)
            self._report_failure(batch, error)
        else:
            self._outbox.enqueue(self._outputs.pass_on, batch, target, end_us)
        return True

    def _lost(self, batch: QueuedBatch, error: ReceiverGoneError) -> None:
        _LOG.warning("batch %d is not run: %s", batch.batch_id, error)
        self._outbox.enqueue(self._outputs.report_lost, batch, str(error))

    def _report_failure(self, batch: QueuedBatch, error: Exception) -> None:
        reason = f"{type(error).__name__}: {error}"
        header = BatchHeader(batch.batch_id, batch.tag, batch.stage)
        self._outbox.enqueue(self._outputs.report_failure, header, batch.body, reason)
