"""A stage worker: one process per vGPU that runs batches in their reserved order.

One thread polls sockets, waits for the next batch's instant, runs it and passes the result on: into
the next worker's slot, or the front's after the last stage. A batch starts when its tensors are
here and its reserved start has come, so that batches reserved earlier are not overtaken. Another
thread only writes the heartbeat. The process ends with the node process that started it.

Started as `python -m triton_backend.serving.worker SETTINGS GENERATION VGPU PARENT_PID`.
"""

import ctypes
import logging
import os
import signal
import sys
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from triton_backend.core.errors import InputError, PoolPipeError
from triton_backend.core.units import transfer_us
from triton_backend.engines.base import NUMPY_DTYPES, Runtime
from triton_backend.engines.clock import Clock, SystemClock
from triton_backend.serving.gateway_time import GatewayTime
from triton_backend.serving.health import HealthBoard
from triton_backend.serving.hub import Connection, Hub
from triton_backend.serving.links import Links
from triton_backend.serving.memory import Arrays, Segment
from triton_backend.serving.outbound import Outbound, Road, checksum_of
from triton_backend.serving.runtimes import open_runtime
from triton_backend.serving.settings import Deployment, ServeSettings
from triton_backend.serving.wire import (
    AnswerBody,
    BatchBody,
    FrameError,
    Header,
    HopGrant,
    Kind,
    TimesBody,
    frame,
    pack_answer,
    pack_batch,
    pack_json,
    pack_times,
    unpack_batch,
    unpack_json,
)

RECONNECT_SECONDS = 0.1
FROM_SCHEDULER = frozenset({Kind.ABORT, Kind.RETIRE, Kind.BEAT})
_PR_SET_PDEATHSIG = 1
_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Job:
    batch_id: int
    body: BatchBody
    hop: HopGrant

    @property
    def due_us(self) -> int:
        return max(self.hop.start_us, self.body.available_us)


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
        self._place = deployment.vgpus[vgpu]
        self._stage = deployment.stage_of(vgpu)
        self._node = deployment.node_name_of(vgpu)
        self._runtime = runtime
        self._board = board
        self._clock = clock
        self._segment = Segment.create(
            deployment.worker_segment(vgpu),
            deployment.worker_layout(vgpu),
            deployment.worker_slots(vgpu),
        )
        self._hub = Hub(self)
        self._outbound = Outbound(self._hub, self._settings, self._node)
        self._links = self._open_links()
        self._scheduler: Connection | None = None
        self._jobs: dict[int, _Job] = {}
        self._gateway_time = GatewayTime(clock)
        self._stopping = False
        self._reported = False
        self._scratch = _Scratch(self._segment.layout.batch)

    def _open_links(self) -> Links | None:
        if not self._settings.emulate_links:
            return None
        return Links(
            f"{self._settings.segment_prefix}links", self._deployment.plan.cluster.node_count
        )

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
        while not self._stopping:
            self._report()
            job = self._next_job()
            now_us = self._gateway_time.now_us()
            if job is not None and job.due_us <= now_us:
                self._hub.poll(0)
                job = self._next_job()
                if job is not None and job.due_us <= now_us:
                    self._execute(job)
                continue
            self._hub.alarm.set(None if job is None else self._gateway_time.local_us(job.due_us))
            self._hub.poll(None if self._reported else RECONNECT_SECONDS)
        self._outbound.close()
        self._hub.close()
        self._segment.remove()
        self._runtime.close()

    def _report(self) -> None:
        """Say HELLO to the scheduler.

        Only when idle, because it takes a reporter for idle; from another host, only when its beats
        have told what time it is there.
        """
        if self._reported or self._jobs:
            return
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

    def _next_job(self) -> _Job | None:
        """The due batch reserved first, else the batch that is due first."""
        if not self._jobs:
            return None
        now_us = self._gateway_time.now_us()
        due = [job for job in self._jobs.values() if job.due_us <= now_us]
        if due:
            return min(due, key=lambda job: (job.hop.start_us, job.batch_id))
        return min(self._jobs.values(), key=lambda job: (job.due_us, job.batch_id))

    # Owner of the hub

    def on_frame(self, connection: Connection, header: Header, body: bytes) -> None:
        """Batches from fronts and workers, aborts and beats from the scheduler.

        Raises:
            FrameError: nobody may say this to a worker.
        """
        if header.kind in FROM_SCHEDULER and connection is not self._scheduler:
            raise FrameError(f"{header.kind.name} from somebody who is not the scheduler")
        if not connection.trusted and header.kind is not Kind.HELLO:
            raise FrameError(f"{header.kind.name} before HELLO")
        match header.kind:
            case Kind.BATCH:
                self._take(header, unpack_batch(body))
            case Kind.ABORT:
                self._jobs.pop(header.batch_id, None)
            case Kind.HELLO:
                if unpack_json(body).get("token") != self._settings.token:
                    raise FrameError("HELLO without the token")
                connection.trusted = True
            case Kind.RETIRE:
                _LOG.warning("told to retire: this process is slow")
                self._stopping = True
            case Kind.BEAT:
                self._hear_beat(unpack_json(body))
            case _:
                raise FrameError(f"a worker takes no {header.kind.name}")

    def payload_target(
        self, connection: Connection, header: Header, body: bytes
    ) -> list[memoryview]:
        """Tensors from another host go into the slot granted."""
        if not connection.trusted or header.kind is not Kind.BATCH:
            raise FrameError(f"{header.kind.name} with tensors from {connection.name}")
        batch = unpack_batch(body)
        hop = self._check(header, batch)
        return self._segment.pieces(hop.slot, batch.samples)

    def on_close(self, connection: Connection, reason: str) -> None:
        """A peer is gone, or was refused."""
        if reason.startswith("refused"):
            _LOG.warning("%s: %s", connection.name, reason)
        if connection is self._scheduler:
            self._scheduler = None
            self._reported = False
            self._gateway_time.forget()
        self._outbound.forget(connection)

    def _hear_beat(self, data: dict[str, Any]) -> None:
        if self._node in self._settings.hosts:
            self._gateway_time.hear(int(data["now_us"]))

    # Batches

    def _check(self, header: Header, batch: BatchBody) -> HopGrant:
        """This worker's hop, if the frame is of this plan, this worker and the right size."""
        if header.plan_tag != self._deployment.tag:
            raise FrameError(
                f"a batch of plan {header.plan_tag:016x}, not {self._deployment.tag:016x}"
            )
        stage = self._place.stage
        if header.stage != stage or len(batch.hops) <= stage:
            raise FrameError(f"a batch for stage {header.stage} at a worker of stage {stage}")
        hop = batch.hops[stage]
        if hop.vgpu != self._vgpu or batch.model != self._place.model:
            raise FrameError(f"a batch for vGPU {hop.vgpu} at vGPU {self._vgpu}")
        if not 0 <= hop.slot < self._segment.slots:
            raise FrameError(f"slot {hop.slot} of {self._segment.slots}")
        layout = self._segment.layout
        if not 1 <= batch.samples <= layout.batch:
            raise FrameError(f"{batch.samples} samples, at most {layout.batch} fit")
        if header.payload_bytes != layout.payload_bytes(batch.samples):
            raise FrameError(
                f"{header.payload_bytes} bytes, not {layout.payload_bytes(batch.samples)}"
            )
        return hop

    def _take(self, header: Header, batch: BatchBody) -> None:
        hop = self._check(header, batch)
        if batch.payload_checksum and batch.payload_checksum != checksum_of(
            self._segment, hop.slot, batch.samples
        ):
            raise FrameError(f"tensors of batch {header.batch_id} do not match their checksum")
        if len(self._jobs) >= self._segment.slots:
            raise FrameError(f"more than {self._segment.slots} batches")
        self._jobs[header.batch_id] = _Job(header.batch_id, batch, hop)

    def _execute(self, job: _Job) -> None:
        del self._jobs[job.batch_id]
        stage, body = self._place.stage, job.body
        if stage:
            arrived = max(body.available_us, body.transfer_start_us)
            self._tell_times(Kind.TRANSFER_DONE, job, body.transfer_start_us, arrived)
        last = stage == len(body.hops) - 1
        road = (
            self._outbound.to_front(self._deployment, body.model)
            if last
            else self._outbound.to_worker(self._deployment, body.hops[stage + 1].vgpu)
        )
        slot = body.answer_slot if last else body.hops[stage + 1].slot
        if road is None:
            self._fail(job, f"the way on from stage {stage} is gone")
            return
        start_us = self._gateway_time.now_us()
        self._board.busy(
            self._vgpu, self._clock.now_us(), self._stage.latency_us_by_batch[body.samples - 1]
        )
        try:
            self._compute(job, road.views(slot, body.samples))
        except Exception as error:  # noqa: BLE001  # a runtime may raise anything
            _LOG.exception("batch %d failed", job.batch_id)
            self._fail(job, f"stage {stage} failed: {type(error).__name__}: {error}")
            return
        finally:
            self._board.idle(self._vgpu)
        end_us = self._gateway_time.now_us()
        # Told before the next worker can tell of its transfer.
        self._tell_times(Kind.STAGE_DONE, job, start_us, end_us)
        if last:
            self._send_answer(job, road)
        else:
            self._send_on(job, road, end_us)

    def _compute(self, job: _Job, outputs: Arrays) -> None:
        """Run the stage from this worker's slot into `outputs`, converting where types differ."""
        samples = job.body.samples
        inputs = self._segment.views(job.hop.slot, samples)
        given = {
            spec.name: inputs[spec.name].astype(NUMPY_DTYPES[spec.dtype], copy=False)
            for spec in self._runtime.inputs
        }
        into = {
            spec.name: outputs[spec.name]
            if spec.name in outputs and outputs[spec.name].dtype == NUMPY_DTYPES[spec.dtype]
            else self._scratch.array(spec, samples)
            for spec in self._runtime.outputs
        }
        self._runtime.run(given, into)
        for name, output in outputs.items():
            # A tensor that the stage only hands on is not among the runtime's outputs.
            made = into.get(name, inputs.get(name))
            if made is None:
                raise InputError(f"stage {self._stage.blocks}", f"gives no tensor {name!r}")
            if made is not output:
                np.copyto(output, made, casting="same_kind")

    def _send_on(self, job: _Job, road: Road, end_us: int) -> None:
        body, stage = job.body, self._place.stage + 1
        hop = body.hops[stage]
        size = road.segment.layout.payload_bytes(body.samples)
        begin_us, available_us = self._transfer(hop, size, end_us)
        checksum = road.checksum(hop.slot, body.samples, self._settings.checksum_up_to_bytes)
        onward = body._replace(
            payload_checksum=checksum, transfer_start_us=begin_us, available_us=available_us
        )
        data = frame(
            Kind.BATCH,
            pack_batch(onward),
            batch_id=job.batch_id,
            stage=stage,
            plan_tag=self._deployment.tag,
            payload_bytes=size,
        )
        road.send(data, hop.slot, body.samples)

    def _transfer(self, hop: HopGrant, size: int, end_us: int) -> tuple[int, int]:
        """When the move to the next stage begins and ends; real links just take their time."""
        if self._links is None:
            return end_us, end_us
        cluster = self._deployment.plan.cluster
        here, there = self._place.slot.node, self._deployment.vgpus[hop.vgpu].slot.node
        rate = min(cluster.node_group_of(n).nic_gbps for n in (here, there))
        duration_us = round(transfer_us(size, rate) * self._settings.time_stretch)
        begin_us = self._links.take(here, there, max(end_us, hop.transfer_start_us), duration_us)
        return begin_us, begin_us + duration_us

    def _send_answer(self, job: _Job, road: Road) -> None:
        body = job.body
        checksum = road.checksum(
            body.answer_slot, body.samples, self._settings.checksum_up_to_bytes
        )
        data = frame(
            Kind.ANSWER,
            pack_answer(AnswerBody(body.answer_slot, body.samples, checksum)),
            batch_id=job.batch_id,
            stage=self._place.stage,
            plan_tag=self._deployment.tag,
            payload_bytes=road.segment.layout.payload_bytes(body.samples),
        )
        road.send(data, body.answer_slot, body.samples)

    def _tell_times(self, kind: Kind, job: _Job, start_us: int, end_us: int) -> None:
        if self._scheduler is not None:
            self._scheduler.send(
                frame(
                    kind,
                    pack_times(TimesBody(self._vgpu, start_us, end_us)),
                    batch_id=job.batch_id,
                    stage=self._place.stage,
                    plan_tag=self._deployment.tag,
                )
            )

    def _fail(self, job: _Job, reason: str) -> None:
        data = frame(
            Kind.FAILED,
            pack_json({"reason": reason}),
            batch_id=job.batch_id,
            stage=self._place.stage,
            plan_tag=self._deployment.tag,
        )
        road = self._outbound.to_front(self._deployment, job.body.model)
        for connection in (self._scheduler, None if road is None else road.connection):
            if connection is not None:
                connection.send(data)


class _Scratch:
    """Memory for outputs that cannot be written in place."""

    def __init__(self, batch: int) -> None:
        self._batch = batch
        self._arrays: dict[str, Any] = {}

    def array(self, spec: Any, samples: int) -> Any:
        """An array for one tensor of a batch."""
        if spec.name not in self._arrays:
            shape = (self._batch, *spec.shape[1:])
            self._arrays[spec.name] = np.empty(shape, NUMPY_DTYPES[spec.dtype])
        return self._arrays[spec.name][:samples]


def main(arguments: list[str]) -> None:
    """Run one worker until it is killed."""
    settings_path, generation, vgpu, parent = arguments
    logging.basicConfig(
        format=f"%(asctime)s %(levelname)s worker {vgpu}: %(message)s", level=logging.INFO
    )
    end_with_parent(int(parent))
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


def end_with_parent(parent: int) -> None:
    """Have the kernel kill this process when the node process is gone."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        sys.exit(0)


if __name__ == "__main__":
    main(sys.argv[1:])
