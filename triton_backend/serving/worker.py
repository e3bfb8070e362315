"""A stage worker: one process per vGPU that runs batches in their reserved order.

A batch starts when its tensors are here and its reserved start has come, so that batches reserved
earlier are not overtaken; its results go into the next worker's slot, or the front's after the last
stage. Two threads take turns: one polls sockets; when a batch's instant has come it runs that batch
itself, which costs no hand-over, and the other polls on. So batches that come, and what is to be
said about those that ran, are seen to while the next one runs, and the vGPU does not wait. A short
run keeps its thread's turn: it is over before the other would be of use. A third thread only writes
the heartbeat. The process ends with the node process that started it.

Started as `python -m triton_backend.serving.worker SETTINGS GENERATION VGPU PARENT_PID`.
"""

import logging
import sys
import threading
from functools import partial
from pathlib import Path
from typing import Any

from triton_backend.core.errors import InputError, PoolPipeError
from triton_backend.engines.base import Runtime
from triton_backend.engines.clock import Clock, SystemClock
from triton_backend.serving.deaths import end_with_parent
from triton_backend.serving.direct import answer_try
from triton_backend.serving.gateway_time import GatewayTime
from triton_backend.serving.health import HealthBoard
from triton_backend.serving.hub import Hub
from triton_backend.serving.hub_connection import Connection
from triton_backend.serving.memory import Segment
from triton_backend.serving.runtimes import nothing_for, open_runtime
from triton_backend.serving.settings import MIN_SLOTS, Deployment, ServeSettings
from triton_backend.serving.slices import ask_for_exact_timers, ask_for_short_slices
from triton_backend.serving.wire import FrameError, Header, Kind, frame, pack_json, unpack_json
from triton_backend.serving.wire_bodies import TimesBody, pack_times, unpack_batch
from triton_backend.serving.worker_compute import StageCompute
from triton_backend.serving.worker_device import Device
from triton_backend.serving.worker_errands import Errands
from triton_backend.serving.worker_jobs import Job, Jobs
from triton_backend.serving.worker_onward import Onward, WayOn

RECONNECT_SECONDS = 0.1
SOON_US = 150
# Waking the other thread costs a tenth of a millisecond of two cores; shorter runs are over before
# it is of use.
GIVE_TURN_US = 3_000
FROM_SCHEDULER = frozenset({Kind.ABORT, Kind.RETIRE, Kind.TRIAL, Kind.BEAT})
_LOG = logging.getLogger(__name__)


class StageWorker:
    """One vGPU's worker.

    Args:
        runtime: the stage, loaded.
        board: where the node looks whether this worker is alive and how long it has been busy.
    """

    def __init__(
        self, deployment: Deployment, vgpu: int, runtime: Runtime, board: HealthBoard, clock: Clock
    ) -> None:
        self._deployment = deployment
        self._settings: ServeSettings = deployment.settings
        self._vgpu = vgpu
        stage = deployment.stage_of(vgpu)
        self._place = deployment.vgpus[vgpu]
        self._node = deployment.node_name_of(vgpu)
        self._runtime = runtime
        self._segment = Segment.create(
            deployment.worker_segment(vgpu),
            deployment.worker_layout(vgpu),
            deployment.worker_slots(vgpu),
        )
        self._let_runtime_pin()
        name = f"stage {stage.blocks}"
        given, wanted = deployment.inputs_of(vgpu), deployment.outputs_of(vgpu)
        self._compute = StageCompute(runtime, given, wanted, self._segment.layout.batch, name)
        self._hub = Hub(self)
        self._onward = Onward(self._hub, deployment, vgpu)
        self._scheduler: Connection | None = None
        self._gateway_time = GatewayTime(clock)
        self._jobs = Jobs(deployment, vgpu, self._segment, self._gateway_time.now_us)
        self._errands = Errands()
        self._polling = threading.Lock()
        self._alarming = threading.Lock()
        self._clock = clock
        latencies_us = stage.latency_us_by_batch
        self._device = Device(vgpu, latencies_us, board, clock, self._gateway_time)
        self._stopping = False
        self._reported = False

    def _let_runtime_pin(self) -> None:
        """Slots freed last are granted first, so nearly all batches lie in the first few.

        Pinned pages are taken at once: all slots would be memory that is seldom used.
        """
        try:
            self._runtime.register(self._segment.first_slots(MIN_SLOTS))
        except PoolPipeError as error:
            _LOG.warning("inputs are copied once more on their way to the GPU: %s", error)

    def listen(self) -> None:
        """Take batches from now on."""
        self._hub.listen(self._deployment.worker_address(self._vgpu, same_host=True))
        if self._settings.hosts:
            self._hub.listen(self._deployment.worker_address(self._vgpu, same_host=False))

    def stop(self) -> None:
        """Make `run` return soon; from any thread."""
        self._stopping = True
        self._hub.wake()

    def run(self) -> None:
        """Serve until stopped."""
        other = threading.Thread(target=self._serve, name="other turn")
        other.start()
        self._serve()
        other.join()
        self._onward.close()
        self._hub.close()
        self._runtime.close()  # may still have the segment pinned
        self._segment.remove()

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
            if not self._reported and self._jobs.idle:
                self._report()
            job = self._jobs.begin()
            if job is not None:
                self._note_arrival(job)
                return job
            self._set_alarm()
            self._hub.poll(None if self._reported else RECONNECT_SECONDS)
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
            self._hub.alarm.set(at_us)

    def _report(self) -> None:
        """Say HELLO to the scheduler, when idle: it takes a reporter for idle.

        From another host, only when its beats have told what time it is there.
        """
        if self._scheduler is None:
            self._scheduler = self._hub.connect(self._settings.scheduler_address_from(self._node))
        if self._scheduler is None:
            return
        if self._node in self._settings.hosts and not self._gateway_time.known:
            return
        self._reported = True
        hello = {
            "role": "worker",
            "generation": self._deployment.generation,
            "vgpu": self._vgpu,
            "token": self._settings.token,
        }
        self._scheduler.send(frame(Kind.HELLO, pack_json(hello)))

    def _run_on_nothing(self, scheduler: Connection) -> None:
        """Show how fast this process is, while it is drained or others of its pool are slow."""
        batch = self._segment.layout.batch
        try:
            inputs, outputs = nothing_for(self._runtime, batch)
            times = self._device.run(self._runtime.run, inputs, outputs, batch)
        except Exception:  # noqa: BLE001  # a runtime may raise anything
            _LOG.exception("a trial failed")  # without an answer the process is soon renewed
            return
        body = pack_times(TimesBody(self._vgpu, *times))
        scheduler.send(frame(Kind.TRIAL_DONE, body, plan_tag=self._deployment.tag))

    # Owner of the hub

    def on_frame(self, connection: Connection, header: Header, body: bytes) -> None:
        """Batches from fronts and workers, direct runs from the node, orders from the scheduler.

        Raises:
            FrameError: nobody may say this to a worker.
        """
        if header.kind in FROM_SCHEDULER:
            self._obey(connection, header, body)
            return
        if not connection.trusted and header.kind is not Kind.HELLO:
            raise FrameError(f"{header.kind.name} before HELLO")
        match header.kind:
            case Kind.BATCH:
                self._jobs.take(header, unpack_batch(body))
            case Kind.HELLO:
                if unpack_json(body).get("token") != self._settings.token:
                    raise FrameError("HELLO without the token")
                connection.trusted = True
            case Kind.TRY:
                run = partial(self._device.run, self._compute.run)
                done = answer_try(self._deployment, self._vgpu, run, body)
                connection.send(frame(Kind.TRIED, pack_json(done)))
            case _:
                raise FrameError(f"a worker takes no {header.kind.name}")

    def _obey(self, connection: Connection, header: Header, body: bytes) -> None:
        if connection is not self._scheduler:
            raise FrameError(f"{header.kind.name} from somebody who is not the scheduler")
        match header.kind:
            case Kind.ABORT:
                self._jobs.drop(header.batch_id)
            case Kind.TRIAL:
                self._run_on_nothing(connection)
            case Kind.RETIRE:
                _LOG.warning("told to retire: this process is slow or silent")
                self._stopping = True
            case _:
                self._hear_beat(unpack_json(body))

    def payload_target(
        self, connection: Connection, header: Header, body: bytes
    ) -> list[memoryview]:
        """Tensors from another host go into the slot granted."""
        if not connection.trusted or header.kind is not Kind.BATCH:
            raise FrameError(f"{header.kind.name} with tensors from {connection.name}")
        batch = unpack_batch(body)
        hop = self._jobs.check(header, batch)
        return self._segment.pieces(hop.slot, batch.samples)

    def on_close(self, connection: Connection, reason: str) -> None:
        """A peer is gone, or was refused."""
        if reason.startswith("refused"):
            _LOG.warning("%s: %s", connection.name, reason)
        if connection is self._scheduler:
            self._scheduler = None
            self._reported = False
            self._gateway_time.forget()
        self._onward.forget(connection)

    def _hear_beat(self, data: dict[str, Any]) -> None:
        if self._node in self._settings.hosts:
            self._gateway_time.hear(int(data["now_us"]))

    def _is_short(self, job: Job) -> bool:
        """Whether its thread runs a batch without giving its turn to poll away."""
        return self._device.expected_us(job.body.samples) < GIVE_TURN_US

    def _execute(self, job: Job) -> None:
        """Run a batch, and leave what is to be said of it."""
        way, stage = self._onward.way_of(job), self._place.stage
        try:
            span_us = self._run_batch(job, way)
        except Exception as error:  # noqa: BLE001  # a runtime may raise anything
            _LOG.exception("batch %d failed", job.batch_id)
            reason = f"stage {stage} failed: {type(error).__name__}: {error}"
            self._errands.leave(self._onward.tell_failure, self._scheduler, job, reason)
        else:
            self._errands.leave(self._onward.tell_end, self._scheduler, job, way, span_us)
        if way is None or not way.road.shared:
            # Another host's road has one buffer: no batch may begin before it has been sent.
            self._errands.run()

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
        if self._place.stage:
            self._errands.leave(self._onward.tell_arrival, self._scheduler, job)

    def _run_batch(self, job: Job, way: WayOn | None) -> tuple[int, int]:
        """When it began and ended.

        Raises:
            InputError: there is nobody to hand its results to; or whatever the runtime raises.
        """
        if way is None:
            raise InputError(f"stage {self._place.stage}", "the way on is gone")
        samples = job.body.samples
        inputs = self._segment.views(job.hop.slot, samples)
        outputs = way.road.views(way.slot, samples)
        return self._device.run(self._compute.run, inputs, outputs, samples)


def main(arguments: list[str]) -> None:
    """Run one worker until it is killed."""
    settings_path, generation, vgpu, parent = arguments
    logging.basicConfig(
        format=f"%(asctime)s %(levelname)s worker {vgpu}: %(message)s", level=logging.INFO
    )
    end_with_parent(int(parent))
    ask_for_short_slices()
    ask_for_exact_timers()
    try:
        deployment = Deployment.read(ServeSettings.read(Path(settings_path)), int(generation))
        serve(deployment, int(vgpu))
    except PoolPipeError as error:
        _LOG.error("%s", error)
        sys.exit(1)


def serve(deployment: Deployment, vgpu: int) -> None:
    """Load the stage, warm it up, serve."""
    clock = SystemClock()
    board = HealthBoard.open(deployment, deployment.node_name_of(vgpu))
    runtime = open_runtime(deployment, vgpu, clock)
    worker = StageWorker(deployment, vgpu, runtime, board, clock)
    worker.listen()
    stop = threading.Event()
    threading.Thread(target=board.keep_beating, args=(vgpu, clock, stop), daemon=True).start()
    worker.run()


if __name__ == "__main__":
    main(sys.argv[1:])
