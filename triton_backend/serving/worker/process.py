"""A worker: one process per vGPU that runs batches of its pool's stages in their reserved order.

A batch starts when its tensors are here and its reserved start has come, so that batches reserved
earlier are not overtaken; its results go into the next worker's slot, or the front's after the last
stage. Two threads take turns at polling and running (`executor`); a third one only writes the
heartbeat. The process ends with the node process that started it.

Here: what a worker is made of, and what its peers may say to it. Not here: when and how a batch runs.

Started as `python -m triton_backend.serving.worker.process SETTINGS GENERATION VGPU PARENT_PID`.
"""

import logging
import sys
import threading
from collections.abc import Mapping
from pathlib import Path

from triton_backend.contract.errors import PoolPipeError
from triton_backend.contract.plan import StageRow
from triton_backend.runtimes.base import Runtime
from triton_backend.runtimes.clock import Clock, SystemClock
from triton_backend.serve_folder.settings import ServeSettings
from triton_backend.serving.deployment import Deployment
from triton_backend.serving.liveness.processes import HealthBoard, end_with_parent
from triton_backend.serving.transport.authentication import transport_key
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
    frame,
    pack_stage_result,
    unpack_batch,
    unpack_heartbeat,
    unpack_run_stage,
)
from triton_backend.serving.worker.executor import LeaderFollowers
from triton_backend.serving.worker.output import OutputSender
from triton_backend.serving.worker.queue import BatchQueue
from triton_backend.serving.worker.scheduler_link import GatewayTime, SchedulerLink
from triton_backend.serving.worker.stage import LoadedStages, open_runtimes
from triton_backend.serving.worker.stage_probe import answer_run_stage

FROM_SCHEDULER = frozenset({Kind.ABORT, Kind.RETIRE, Kind.PACE_PROBE, Kind.HEARTBEAT})
_LOG = logging.getLogger(__name__)


class StageWorker:
    """One vGPU's worker.

    Args:
        runtimes: every stage of the vGPU's pool, loaded.
        board: where the node looks whether this worker is alive and how long it has been busy.
    """

    def __init__(
        self,
        deployment: Deployment,
        vgpu: int,
        runtimes: Mapping[StageRow, Runtime],
        board: HealthBoard,
        clock: Clock,
    ) -> None:
        self._deployment = deployment
        self._settings: ServeSettings = deployment.settings
        self._vgpu = vgpu
        self._segment = Segment.create(
            deployment.worker_segment(vgpu),
            deployment.worker_layout(vgpu),
            deployment.worker_slots(vgpu),
        )
        time = GatewayTime(clock)
        self._stages = LoadedStages(deployment, vgpu, runtimes, board, time)
        self._stages.pin(self._segment)
        self._loop = EventLoop(self, clock, transport_key(self._settings.token))
        self._scheduler = SchedulerLink(self._loop, deployment, vgpu, time)
        self._outputs = OutputSender(self._loop, deployment, vgpu, self._scheduler)
        self._queue = BatchQueue(deployment, vgpu, self._segment, time.now_us)
        self._threads = LeaderFollowers(
            self._loop, self._queue, self._stages, self._outputs, self._scheduler, time
        )

    def listen(self) -> None:
        """Accept batches from now on."""
        self._loop.listen(self._deployment.worker_address(self._vgpu, same_host=True))
        if self._settings.hosts:
            self._loop.listen(self._deployment.worker_address(self._vgpu, same_host=False))

    def stop(self) -> None:
        """Make `run` return soon; from any thread."""
        self._threads.stop()

    def run(self) -> None:
        """Serve until stopped.

        Raises:
            InvariantError: something of ours fails again and again.
        """
        try:
            self._threads.run()
        finally:
            self._outputs.close()
            self._loop.close()
            self._stages.close()  # may still have the segment pinned
            self._segment.remove()

    def _probe_pace(self) -> None:
        """Show how fast this process is, while it is drained or others of its pool are slow."""
        try:
            times_us = self._stages.run_on_zeros()
        except Exception:  # noqa: BLE001  # a runtime may raise anything
            _LOG.exception("a pace probe failed")  # without an answer the process is soon renewed
            return
        self._scheduler.send_times(Kind.PACE_RESULT, times_us)

    # Handler of the event loop

    def on_frame(self, connection: Connection, header: Header, body: bytes) -> None:
        """Batches from fronts, workers and the scheduler, runs for the node, orders of the scheduler.

        Raises:
            FrameError: nobody may say this to a worker.
        """
        if header.kind in FROM_SCHEDULER:
            self._obey(connection, header, body)
            return
        match header.kind:
            case Kind.BATCH:
                self._add(connection, header, unpack_batch(body))
            case Kind.RUN_STAGE:
                error = answer_run_stage(
                    self._deployment, self._vgpu, self._stages.run, unpack_run_stage(body)
                )
                connection.send(frame(Kind.STAGE_RESULT, pack_stage_result(error)))
            case _:
                raise FrameError(f"a worker takes no {header.kind.name}")

    def _add(self, connection: Connection, header: Header, batch: BatchBody) -> None:
        if batch.express == NONE or header.stage:
            self._queue.add(header, batch)
            return
        if not self._scheduler.is_peer_of(connection):
            raise FrameError("an express request from somebody who is not the scheduler")
        inputs, slot = self._queue.written_by(header, batch)
        try:
            self._outputs.copy_express(batch, inputs.views(slot, batch.samples))
            self._queue.add(header, batch)
        except FrameError as error:  # the front's doing, and no reason to leave the scheduler
            _LOG.warning("batch %d is not run: %s", header.batch_id, error)
            self._outputs.report_failure(header.batch_id, header.stage, batch, str(error))

    def _obey(self, connection: Connection, header: Header, body: bytes) -> None:
        if not self._scheduler.is_peer_of(connection):
            raise FrameError(f"{header.kind.name} from somebody who is not the scheduler")
        match header.kind:
            case Kind.ABORT:
                self._queue.remove(header.batch_id)
            case Kind.PACE_PROBE:
                self._probe_pace()
            case Kind.RETIRE:
                _LOG.warning("ordered to retire: this process is slow or silent")
                self.stop()
            case _:
                self._scheduler.heartbeat(unpack_heartbeat(body))

    def payload_target(
        self, connection: Connection, header: Header, body: bytes
    ) -> list[memoryview]:
        """Tensors from another host go into the slot granted."""
        if header.kind is not Kind.BATCH:
            raise FrameError(f"{header.kind.name} with tensors from {connection.name}")
        batch = unpack_batch(body)
        inputs, slot = self._queue.written_by(header, batch)
        return inputs.pieces(slot, batch.samples)

    def on_close(self, connection: Connection, reason: CloseReason) -> None:
        """A peer is gone, or was refused."""
        del reason
        self._scheduler.closed(connection)
        self._outputs.closed(connection)


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
    """Load the stages, warm them up, serve."""
    clock = SystemClock()
    board = HealthBoard.open(deployment, deployment.node_name_of(vgpu))
    runtimes = open_runtimes(deployment, vgpu, clock)
    worker = StageWorker(deployment, vgpu, runtimes, board, clock)
    worker.listen()
    stop = threading.Event()
    threading.Thread(target=board.keep_beating, args=(vgpu, clock, stop), daemon=True).start()
    worker.run()


if __name__ == "__main__":
    main(sys.argv[1:])
