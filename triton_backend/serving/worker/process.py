"""A stage worker: one process per vGPU that runs batches in their reserved order.

A batch starts when its tensors are here and its reserved start has come, so that batches reserved
earlier are not overtaken; its results go into the next worker's slot, or the front's after the last
stage. Two threads take turns polling and running (`worker_turns`); a third one only writes the
heartbeat. The process ends with the node process that started it.

Here: who a worker is, and what its peers say to it. Not here: when and how a batch runs.

Started as `python -m triton_backend.serving.worker.process SETTINGS GENERATION VGPU PARENT_PID`.
"""

import logging
import sys
import threading
from functools import partial
from pathlib import Path
from typing import Any

from triton_backend.contract.errors import PoolPipeError
from triton_backend.runtimes.base import Runtime
from triton_backend.runtimes.clock import Clock, SystemClock
from triton_backend.serve_folder.settings import ServeSettings
from triton_backend.serving.deployment import MIN_SLOTS, Deployment
from triton_backend.serving.liveness.health import HealthBoard
from triton_backend.serving.liveness.process_exit import end_with_parent
from triton_backend.serving.transport.connection import CloseReason, Connection
from triton_backend.serving.transport.event_loop import EventLoop
from triton_backend.serving.transport.sched_tuning import ask_for_exact_timers, ask_for_short_slices
from triton_backend.serving.transport.shared_memory import Segment
from triton_backend.serving.transport.wire import (
    NONE,
    BatchBody,
    FrameError,
    Header,
    Kind,
    TimesBody,
    frame,
    pack_json,
    pack_times,
    unpack_batch,
    unpack_json,
)
from triton_backend.serving.worker.compute import StageCompute
from triton_backend.serving.worker.device import Device
from triton_backend.serving.worker.executor import Turns
from triton_backend.serving.worker.gateway_time import GatewayTime
from triton_backend.serving.worker.output import OutputSender
from triton_backend.serving.worker.queue import Jobs
from triton_backend.serving.worker.stage_probe import answer_try
from triton_backend.serving.worker.stage_runtime import nothing_for, open_runtime

FROM_SCHEDULER = frozenset({Kind.ABORT, Kind.RETIRE, Kind.PACE_PROBE, Kind.HEARTBEAT})
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
        self._loop = EventLoop(self)
        self._onward = OutputSender(self._loop, deployment, vgpu)
        self._gateway_time = GatewayTime(clock)
        self._jobs = Jobs(deployment, vgpu, self._segment, self._gateway_time.now_us)
        latencies_us = stage.latency_us_by_batch
        self._device = Device(vgpu, latencies_us, board, clock, self._gateway_time)
        self._reported = False
        self._turns = Turns(
            self._place.stage,
            self._segment,
            clock,
            self._gateway_time,
            loop=self._loop,
            jobs=self._jobs,
            device=self._device,
            compute=self._compute,
            onward=self._onward,
            report=self._report,
        )

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
        self._loop.listen(self._deployment.worker_address(self._vgpu, same_host=True))
        if self._settings.hosts:
            self._loop.listen(self._deployment.worker_address(self._vgpu, same_host=False))

    def stop(self) -> None:
        """Make `run` return soon; from any thread."""
        self._turns.stop()

    def run(self) -> None:
        """Serve until stopped."""
        self._turns.run()
        self._onward.close()
        self._loop.close()
        self._runtime.close()  # may still have the segment pinned
        self._segment.remove()

    def _report(self) -> bool:
        """Say HELLO to the scheduler, when idle: it takes a reporter for idle.

        From another host, only when its beats have told what time it is there.
        """
        if self._reported or not self._jobs.idle:
            return self._reported
        scheduler = self._onward.scheduler
        if scheduler is None:
            address = self._settings.scheduler_address_from(self._node)
            scheduler = self._onward.scheduler = self._loop.connect(address)
        if scheduler is None or (
            self._node in self._settings.hosts and not self._gateway_time.known
        ):
            return False
        self._reported = True
        hello = {
            "role": "worker",
            "generation": self._deployment.generation,
            "vgpu": self._vgpu,
            "token": self._settings.token,
        }
        scheduler.send(frame(Kind.HELLO, pack_json(hello)))
        return True

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
        scheduler.send(frame(Kind.PACE_RESULT, body, plan_tag=self._deployment.tag))

    # Handler of the event loop

    def on_frame(self, connection: Connection, header: Header, body: bytes) -> None:
        """Batches from fronts, workers and the scheduler, direct runs from the node, orders from the scheduler.

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
                self._take(connection, header, unpack_batch(body))
            case Kind.HELLO:
                if unpack_json(body).get("token") != self._settings.token:
                    raise FrameError("HELLO without the token")
                connection.trusted = True
            case Kind.RUN_STAGE:
                run = partial(self._device.run, self._compute.run)
                done = answer_try(self._deployment, self._vgpu, run, body)
                connection.send(frame(Kind.STAGE_RESULT, pack_json(done)))
            case _:
                raise FrameError(f"a worker takes no {header.kind.name}")

    def _take(self, connection: Connection, header: Header, batch: BatchBody) -> None:
        if batch.express == NONE or header.stage:
            self._jobs.take(header, batch)
            return
        if connection is not self._onward.scheduler:
            raise FrameError("an express request from somebody who is not the scheduler")
        hop = self._jobs.check(header, batch)
        try:
            self._onward.fetch(batch, self._segment.views(hop.slot, batch.samples))
            self._jobs.take(header, batch)
        except FrameError as error:  # the front's doing, and no reason to leave the scheduler
            _LOG.warning("batch %d is not run: %s", header.batch_id, error)
            self._onward.tell_failure(header.batch_id, batch, str(error))

    def _obey(self, connection: Connection, header: Header, body: bytes) -> None:
        if connection is not self._onward.scheduler:
            raise FrameError(f"{header.kind.name} from somebody who is not the scheduler")
        match header.kind:
            case Kind.ABORT:
                self._jobs.drop(header.batch_id)
            case Kind.PACE_PROBE:
                self._run_on_nothing(connection)
            case Kind.RETIRE:
                _LOG.warning("told to retire: this process is slow or silent")
                self.stop()
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

    def on_close(self, connection: Connection, reason: CloseReason, detail: str) -> None:
        """A peer is gone, or was refused."""
        if reason is CloseReason.REFUSED:
            _LOG.warning("%s: %s: %s", connection.name, reason, detail)
        if connection is self._onward.scheduler:
            self._onward.scheduler = None
            self._reported = False
            self._gateway_time.forget()
        self._onward.forget(connection)

    def _hear_beat(self, data: dict[str, Any]) -> None:
        if self._node in self._settings.hosts:
            self._gateway_time.hear(int(data["now_us"]))


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
