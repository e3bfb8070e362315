"""A worker's two threads: one polls sockets, the other runs the batch whose instant has come.

Whoever polls and finds a batch due runs it itself, which costs no hand-over, and the other polls on.
So batches that come, and what is to be said about those that ran, are seen to while the next one
runs, and the vGPU does not wait. A short run keeps its thread's turn: it is over before the other
would be of use. Not here: which batch is next (`worker_jobs`), what peers say (`worker`).
"""

import logging
import threading
from collections.abc import Callable

from triton_backend.contract.errors import InputError
from triton_backend.runtimes.clock import Clock
from triton_backend.serving.transport.event_loop import EventLoop
from triton_backend.serving.transport.shared_memory import Segment
from triton_backend.serving.worker.compute import StageCompute
from triton_backend.serving.worker.device import Device
from triton_backend.serving.worker.gateway_time import GatewayTime
from triton_backend.serving.worker.outbox import Errands
from triton_backend.serving.worker.output import OutputSender, OutputTarget
from triton_backend.serving.worker.queue import Job, Jobs

RECONNECT_SECONDS = 0.1
SOON_US = 150
# Waking the other thread costs a tenth of a millisecond of two cores; shorter runs are over before
# it is of use.
GIVE_TURN_US = 3_000
_LOG = logging.getLogger(__name__)


class Turns:
    """Runs batches of one stage until stopped.

    Args:
        segment: where the tensors of `jobs` lie.
        report: called before every poll; whether the scheduler knows this worker.
    """

    def __init__(  # noqa: PLR0913 - what a worker is made of
        self,
        stage: int,
        segment: Segment,
        clock: Clock,
        gateway_time: GatewayTime,
        *,
        loop: EventLoop,
        jobs: Jobs,
        device: Device,
        compute: StageCompute,
        onward: OutputSender,
        report: Callable[[], bool],
    ) -> None:
        self._stage = stage
        self._segment = segment
        self._clock = clock
        self._gateway_time = gateway_time
        self._loop = loop
        self._jobs = jobs
        self._device = device
        self._compute = compute
        self._onward = onward
        self._report = report
        self._errands = Errands()
        self._polling = threading.Lock()
        self._alarming = threading.Lock()
        self._stopping = False

    def stop(self) -> None:
        """Make `run` return soon; from any thread."""
        self._stopping = True
        self._loop.wake()

    def run(self) -> None:
        """Serve until stopped."""
        other = threading.Thread(target=self._serve, name="other turn")
        other.start()
        self._serve()
        other.join()

    def _serve(self) -> None:
        """Poll until a batch is due, run it and those that follow at once, and poll again."""
        try:
            while not self._stopping:
                with self._polling:
                    job = self._await_job()
                    while job is not None and self._is_short(job):
                        self._execute(job)
                        self._jobs.end()
                        job = self._await_job()
                while job is not None:
                    job = self._execute_and_follow(job)
        finally:
            self.stop()  # a thread that ends takes the other with it

    def _await_job(self) -> Job | None:
        """The batch to run now; None when stopped. For the thread whose turn it is to poll."""
        while not self._stopping:
            self._errands.run_unless_begun()
            known = self._report()
            job = self._jobs.begin()
            if job is not None:
                self._note_arrival(job)
                return job
            self._set_alarm()
            self._loop.poll(None if known else RECONNECT_SECONDS)
        return None

    def _set_alarm(self) -> None:
        """Have whoever polls look when a batch becomes due, and soon where errands wait.

        Not at once: the run that begins just now would share its first steps with them. One lock
        around looking and setting, lest the older of two looks wins.
        """
        with self._alarming:
            due_us = self._jobs.next_due_us()
            at_us = None if due_us is None else self._gateway_time.local_us(due_us)
            if self._errands.waiting:
                soon_us = self._clock.now_us() + SOON_US
                at_us = soon_us if at_us is None else min(at_us, soon_us)
            self._loop.timer.set(at_us)

    def _is_short(self, job: Job) -> bool:
        """Whether its thread runs a batch without giving its turn to poll away."""
        return self._device.expected_us(job.body.samples) < GIVE_TURN_US

    def _execute(self, job: Job) -> None:
        """Run a batch, and leave what is to be said of it."""
        way = self._onward.way_of(job, self._errands.run)
        try:
            span_us = self._run_batch(job, way)
        except Exception as error:  # noqa: BLE001  # a runtime may raise anything
            if way is not None:
                way.channel.give_back(way.slot)
            _LOG.exception("batch %d failed", job.batch_id)
            reason = f"stage {self._stage} failed: {type(error).__name__}: {error}"
            self._errands.leave(self._onward.tell_failure, job.batch_id, job.body, reason)
        else:
            self._errands.leave(self._onward.tell_end, job, way, span_us)

    def _execute_and_follow(self, job: Job) -> Job | None:
        """Run a batch while the other thread polls; the one that follows at once, or None."""
        self._set_alarm()  # the other thread may be polling since before errands were left
        self._execute(job)
        following = self._jobs.follow()
        if following is None:
            self._errands.run()
        else:
            self._note_arrival(following)
        return following

    def _note_arrival(self, job: Job) -> None:
        if self._stage:
            self._errands.leave(self._onward.tell_arrival, job)

    def _run_batch(self, job: Job, way: OutputTarget | None) -> tuple[int, int]:
        """When it began and ended.

        Raises:
            InputError: there is nobody to hand its results to; or whatever the runtime raises.
        """
        if way is None:
            raise InputError(f"stage {self._stage}", "the way on is gone or blocked")
        samples = job.body.samples
        inputs = self._segment.views(job.hop.slot, samples)
        outputs = way.channel.views(way.slot, samples)
        return self._device.run(self._compute.run, inputs, outputs, samples)
