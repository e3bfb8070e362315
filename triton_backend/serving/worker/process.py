"""A worker: one process per vGPU that runs batches of its pool's stages in their reserved order.

A batch starts when its tensors are here and its reserved start has come, so that batches reserved
earlier are not overtaken; its results go into the next worker's slot, or the front's after the last
stage. Two threads take turns at polling and running (`executor`); a third one only writes the
heartbeat. While it loads, the process ends with the node process that started it; then with
tritonserver.

Here: what a worker is made of, and what its peers may say to it. Not here: when and how a batch
runs.

Started as `python -m triton_backend.serving.worker.process SETTINGS GENERATION VGPU PARENT_PID`.
"""

import contextlib
import logging
import sys
import threading
from collections.abc import Iterable, Sequence
from functools import lru_cache, partial
from pathlib import Path

from triton_backend.contract.errors import PoolPipeError
from triton_backend.contract.transition.workers import MIN_SLOTS
from triton_backend.runtimes.clock import Clock, SystemClock
from triton_backend.serve_folder.repository import read_node_generations
from triton_backend.serve_folder.settings import OVERLAP, ServeSettings
from triton_backend.serving.deployment import Deployment
from triton_backend.serving.liveness.ends import OwnerWatch, end_with_parent, name_process
from triton_backend.serving.liveness.workers import HealthBoard, HealthRow
from triton_backend.serving.transport.authentication import transport_key
from triton_backend.serving.transport.channel import Channels
from triton_backend.serving.transport.connection import CloseReason, Connection
from triton_backend.serving.transport.event_loop import EventLoop
from triton_backend.serving.transport.fetching import Fetches, answer_fetch
from triton_backend.serving.transport.retained import RetainedSegments
from triton_backend.serving.transport.sched_tuning import (
    ask_for_exact_timers,
    ask_for_short_slices,
    turn_to_load,
)
from triton_backend.serving.transport.shared_memory import Segment
from triton_backend.serving.transport.wire import (
    NONE,
    BatchBody,
    FrameError,
    Header,
    Kind,
    RowSlice,
    frame,
    pack_stage_result,
    unpack_adopt,
    unpack_batch,
    unpack_fetch,
    unpack_gather,
    unpack_heartbeat,
    unpack_run_stage,
    unpack_shared_batch,
)
from triton_backend.serving.worker.executor import LeaderFollowers
from triton_backend.serving.worker.input import InputGatherer
from triton_backend.serving.worker.output import BatchHeader, OutputSender
from triton_backend.serving.worker.queue import BatchQueue
from triton_backend.serving.worker.scheduler_link import GatewayTime, SchedulerLink
from triton_backend.serving.worker.stage import Loaded, LoadedStages, open_runtimes, pin
from triton_backend.serving.worker.stage_probe import answer_run_stage

FROM_SCHEDULER = frozenset(
    {Kind.ABORT, Kind.SHARED_BATCH, Kind.RETIRE, Kind.PACE_PROBE, Kind.ADOPT, Kind.HEARTBEAT}
)
_LOG = logging.getLogger(__name__)


class StageWorker:
    """One vGPU's worker.

    Args:
        loaded: every stage of the vGPU's pool.
        health: where the node looks whether this worker is alive and how long it has been busy.
        neighbours: what runs on its GPU beside it, which `loaded` look at.
    """

    def __init__(
        self,
        deployment: Deployment,
        vgpu: int,
        loaded: Iterable[Loaded],
        health: HealthRow,
        clock: Clock,
        neighbours: "Neighbours | None" = None,
    ) -> None:
        self._deployment = deployment
        self._settings: ServeSettings = deployment.settings
        self._vgpu = vgpu
        self._clock = clock
        self._neighbours = neighbours or Neighbours()
        self._served: list[
            tuple[Deployment, int]
        ] = []  # with this vGPU's number, the last at the end
        self._adopting = {deployment.generation}  # served, or soon
        self._one_load = threading.Lock()
        self._receiving: dict[Connection, int] = {}  # batches whose tensors come over them
        self._segment = Segment.create(
            deployment.worker_segment(vgpu),
            deployment.worker_layout(vgpu),
            deployment.segment_slots(vgpu),
        )
        time = GatewayTime(clock)
        self._stages = LoadedStages(loaded, health, time)
        self._pinned_slots = MIN_SLOTS * deployment.slot_sets
        if deployment.computes(vgpu):
            self._segment.take_pages(self._pinned_slots)
        pin(self._stages.loaded, self._segment, self._pinned_slots)
        self._loop = EventLoop(self, clock, transport_key(self._settings.token))
        self._scheduler = SchedulerLink(self._loop, deployment, vgpu, time)
        node = deployment.node_name_of(vgpu)
        channels, retained = (
            Channels(self._loop, self._settings, node),
            RetainedSegments(self._settings),
        )
        self._fetches = Fetches(self._loop)
        self._inputs = InputGatherer(node, channels, retained, self._fetches)
        self._outputs = OutputSender(deployment, channels, retained, self._scheduler)
        self._queue = BatchQueue(self._segment, time.now_us)
        self._threads = LeaderFollowers(
            self._loop, self._queue, self._stages, self._outputs, self._scheduler, time
        )

        self._parts = (self._stages, self._queue, self._inputs, self._outputs, self._scheduler)
        self._serve(deployment, vgpu)

    @property
    def loaded(self) -> tuple[Loaded, ...]:
        """The stages that this worker holds."""
        return self._stages.loaded

    def adopt(self, generation: int) -> None:
        """Serve a later generation too, which this worker goes on in.

        Harmless where it does already. Where stages must be loaded for it, it is served when they
        are, and the others meanwhile.
        """
        if generation in self._adopting:
            return
        try:
            deployment = Deployment.read(self._settings, generation)
            vgpu = deployment.number_of(self._deployment.origins[self._vgpu])
            if vgpu is None:
                return  # which goes on without this worker
            self._adopting.add(generation)
            if self._stages.lacks(deployment, vgpu):
                self._stages.begin_load()
                arguments = deployment, vgpu
                threading.Thread(target=self._load, args=arguments, daemon=True).start()
            else:
                self._serve(deployment, vgpu)
        except PoolPipeError as error:
            self._not_served(generation, error)

    def _not_served(self, generation: int, error: Exception) -> None:
        """A generation is tried again where the scheduler asks once more."""
        _LOG.error("generation %d is not served: %s", generation, error)
        self._adopting.discard(generation)

    def _load(self, deployment: Deployment, vgpu: int) -> None:
        """Load what a later generation has more, while batches of the others run."""
        with self._one_load:
            try:
                pressing = self._neighbours.pressing
                held = self._stages.loaded
                loaded = open_runtimes(deployment, vgpu, self._clock, held, pressing)
                pin(loaded, self._segment, self._pinned_slots)
            except Exception as error:  # noqa: BLE001  # a runtime may raise anything; the others go on
                self._threads.call_soon(self._serve_with, error, deployment, vgpu)
            else:
                self._threads.call_soon(self._serve_with, loaded, deployment, vgpu)

    def _serve_with(
        self, loaded: list[Loaded] | Exception, deployment: Deployment, vgpu: int
    ) -> None:
        """Use what was loaded, or report why it could not be."""
        if isinstance(loaded, Exception):
            self._stages.end_load(())
            self._not_served(deployment.generation, loaded)
        else:
            self._stages.end_load(loaded)
            if deployment.generation in self._adopting:  # else it was taken back meanwhile
                try:
                    self._serve(deployment, vgpu)
                except PoolPipeError as error:
                    self._not_served(deployment.generation, error)
        self._stages.forget_unused()

    def forget_others(self, oldest: int, latest: int) -> None:
        """Generations before and after these are over: ended, or taken back."""
        self._adopting = {one for one in self._adopting if oldest <= one <= latest}
        for former, _ in self._served:
            if former.generation not in self._adopting:
                self._forget(former)
        self._served = [one for one in self._served if one[0].generation in self._adopting]
        self._outputs.forget_before(oldest)

    def _forget(self, deployment: Deployment) -> None:
        for part in reversed(self._parts):  # stages last: what is queued needs them
            part.forget(deployment.tag)

    def _serve(self, deployment: Deployment, vgpu: int) -> None:
        """Serve a generation, in which this vGPU has a number of its own; wholly, or not at all.

        Raises:
            InputError: a stage is not loaded, or shared memory has no room.
            InvariantError: its batches have no room in the slots.
        """
        try:
            for part in self._parts:
                part.serve(deployment, vgpu)
            self._neighbours.serve(deployment, vgpu)
        except BaseException:
            self._forget(deployment)
            raise
        self._served.append((deployment, vgpu))
        if deployment.computes(vgpu):
            own = deployment, vgpu
            taking = threading.Thread(target=self._outputs.take_pages, args=own, daemon=True)
            taking.start()
            if len(self._served) == 1:  # else batches run meanwhile
                taking.join()

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

    def _probe_pace(self, tag: int) -> None:
        """Show how fast this process runs a plan's stage.

        It is drained, or others of its pool are slow.
        """
        try:
            times_us = self._stages.run_on_zeros(tag)
        except Exception:  # noqa: BLE001  # a runtime may raise anything
            _LOG.exception("a pace probe failed")  # without an answer the process is soon renewed
            return
        self._scheduler.send_pace(tag, times_us)

    # Handler of the event loop

    def on_frame(self, connection: Connection, header: Header, body: bytes) -> None:
        """Batches from fronts, workers and scheduler, runs for the node, scheduler's orders.

        Raises:
            FrameError: no peer may send this to a worker.
        """
        if header.kind in FROM_SCHEDULER:
            self._obey(connection, header, body)
            return
        match header.kind:
            case Kind.BATCH:
                self._add(connection, header, unpack_batch(body))
            case Kind.GATHER:
                self._add(connection, header, *unpack_gather(body))
            case Kind.FETCH:
                answer_fetch(connection, header, unpack_fetch(body), self._inputs.rows)
            case Kind.FETCHED:
                self._fetches.fetched(connection, header, body)
            case Kind.RUN_STAGE:
                deployment, vgpu = self._served[-1]
                question = unpack_run_stage(body)
                error = answer_run_stage(deployment, vgpu, self._stages.run, question)
                connection.send(frame(Kind.STAGE_RESULT, pack_stage_result(error)))
            case _:
                raise FrameError(f"a worker takes no {header.kind.name}")

    def _add(
        self,
        connection: Connection,
        header: Header,
        batch: BatchBody,
        pieces: Sequence[RowSlice] = (),
    ) -> None:
        """Accept a batch; its tensors are in its slot, or are copied there now."""
        self._end_receiving(connection)
        # Not refused: what else came over this connection would be lost with it.
        if self._queue.is_over(header.plan_tag):
            _LOG.warning("batch %d is not run: its plan is over", header.batch_id)
            return
        if self._queue.is_aborted(header.batch_id):
            which = BatchHeader(header.batch_id, header.plan_tag, header.stage)
            self._outputs.report_not_gathered(which, "it was aborted")
            return
        if batch.express == NONE or header.stage:
            self._queue.add(header, batch)
            return
        if not self._scheduler.is_peer_of(connection):
            raise FrameError("an express request from a peer that is not the scheduler")
        self._scheduler.check_life(header.batch_id)
        inputs, slot = self._queue.written_by(header, batch)
        into = inputs.views(slot, batch.samples)
        which = BatchHeader(header.batch_id, header.plan_tag, header.stage)
        try:
            if not pieces:
                self._inputs.copy_express(header.plan_tag, batch, into)
            elif not self._inputs.gather(
                which[:2], batch, pieces, into, partial(self._gathered, header, batch)
            ):
                return
            moved = self._inputs.bytes_moved(header.plan_tag, batch, pieces, into)
            self._queue.add(header, self._outputs.moved_in(header.plan_tag, batch, moved), slot)
        except FrameError as error:  # the front's doing, and no reason to leave the scheduler
            _LOG.warning("batch %d is not run: %s", header.batch_id, error)
            self._outputs.report_failure(which, batch, str(error))

    def _gathered(self, header: Header, batch: BatchBody, missing: str) -> None:
        """The rows of a batch of modules are in its slot, or cannot be had now."""
        if not missing:
            self._queue.add(header, batch)
            return
        _LOG.warning("batch %d is not run: %s", header.batch_id, missing)
        which = BatchHeader(header.batch_id, header.plan_tag, header.stage)
        self._outputs.report_not_gathered(which, missing)

    def _obey(self, connection: Connection, header: Header, body: bytes) -> None:
        if not self._scheduler.is_peer_of(connection):
            raise FrameError(f"{header.kind.name} from a peer that is not the scheduler")
        match header.kind:
            case Kind.ABORT:
                self._inputs.remove(header.batch_id)
                self._queue.remove(header.batch_id, header.plan_tag)
            case Kind.SHARED_BATCH:
                self._queue.shared_batch(header.batch_id, unpack_shared_batch(body))
            case Kind.PACE_PROBE:
                self._probe_pace(header.plan_tag)
            case Kind.ADOPT:
                message = unpack_adopt(body)
                self.adopt(message.generation)
                self.forget_others(message.oldest, message.generation)
            case Kind.RETIRE:
                _LOG.warning("ordered to retire: this process is slow or silent")
                self.stop()
            case _:
                self._scheduler.heartbeat(unpack_heartbeat(body).now_us)

    def payload_target(
        self, connection: Connection, header: Header, body: bytes
    ) -> list[memoryview]:
        """Tensors from another host go into the slot granted.

        Rows that were asked for are kept apart.
        """
        if header.kind is Kind.FETCHED:
            return self._fetches.target(connection, header)
        if header.kind is not Kind.BATCH:
            raise FrameError(f"{header.kind.name} with tensors from {connection.name}")
        if self._queue.is_over(header.plan_tag) or self._queue.is_aborted(header.batch_id):
            return self._queue.nowhere(header)
        batch = unpack_batch(body)
        inputs, slot = self._queue.written_by(header, batch)
        self._receiving[connection] = header.batch_id
        self._queue.begin_receiving(header.batch_id)
        return inputs.pieces(slot, batch.samples)

    def _end_receiving(self, connection: Connection) -> None:
        """The tensors have come that were on their way, or will not."""
        batch_id = self._receiving.pop(connection, None)
        if batch_id is not None:
            self._queue.end_receiving(batch_id)

    def on_close(self, connection: Connection, reason: CloseReason) -> None:
        """A peer is gone, or was refused."""
        del reason
        self._end_receiving(connection)
        if self._scheduler.closed(connection):
            self._inputs.remove_all()
            self._queue.forget_retained()
        self._outputs.closed(connection)
        self._fetches.closed(connection)


def main(arguments: list[str]) -> None:
    """Run one worker until it is killed."""
    settings_path, generation, vgpu, parent = arguments
    logging.basicConfig(
        format=f"%(asctime)s %(levelname)s worker {vgpu}: %(message)s", level=logging.INFO
    )
    end_with_parent(int(parent))
    name_process(f"worker-{generation}-{vgpu}")
    ask_for_exact_timers()
    try:
        serve(Path(settings_path), int(generation), int(vgpu), int(parent))
    except PoolPipeError as error:
        _LOG.error("%s", error)
        sys.exit(1)


@lru_cache(maxsize=1)
def _read(settings_path: Path, generation: int) -> Deployment:
    return Deployment.read(ServeSettings.read(settings_path), generation)


def read_ahead(arguments: list[str]) -> None:
    """Read what the workers of a generation begin with, before they are forked.

    4 ms of a processor each.

    Raises:
        InputError: as a worker would.
    """
    settings_path, generation, *_ = arguments
    _read(Path(settings_path), int(generation))


def serve(settings_path: Path, generation: int, vgpu: int, parent: int) -> None:
    """Load the stages, warm them up, serve."""
    clock, owners = SystemClock(), OwnerWatch(parent)

    def owned_by(pid: int) -> None:
        with contextlib.suppress(OSError):  # it is gone already
            owners.add(pid)

    deployment = _read(settings_path, generation)
    with turn_to_load(deployment.settings.socket_folder):
        health = health_row(deployment, vgpu)
        neighbours = Neighbours()
        loaded = open_runtimes(deployment, vgpu, clock, pressing=neighbours.pressing)
        worker = StageWorker(deployment, vgpu, loaded, health, clock, neighbours)
        for later in later_generations(deployment, vgpu):
            worker.adopt(later)
        ask_for_short_slices(like=parent)  # its node may have had it load at a lower priority
        worker.listen()
    stop = threading.Event()
    threading.Thread(target=health.keep_beating, args=(clock, stop, owned_by), daemon=True).start()
    worker.run()


def health_row(deployment: Deployment, vgpu: int) -> HealthRow:
    """Of a worker: on the board of the generation that it was started for."""
    origin, number = deployment.origin_of(vgpu)
    return HealthBoard.open(origin, deployment.node_name_of(vgpu)).row(number)


class Neighbours:
    """Runs on the other vGPUs of a worker's GPU, of its latest generation.

    Seen where interference is emulated; else nothing ever runs there.
    """

    def __init__(self) -> None:
        self._rows: tuple[HealthRow, ...] = ()

    def serve(self, deployment: Deployment, vgpu: int) -> None:
        """Look at a generation's vGPUs from now on."""
        emulated = deployment.settings.interference == OVERLAP
        others = deployment.beside(vgpu) if emulated else ()
        self._rows = tuple(health_row(deployment, other) for other in others)

    def pressing(self) -> float | None:
        """The sum of pressures; None where nothing runs there."""
        running = [p for row in self._rows if (p := row.pressing()) is not None]
        return sum(running) if running else None


def later_generations(deployment: Deployment, vgpu: int) -> list[int]:
    """Generations after a worker's that its node has: served, prepared, or about to go."""
    node = deployment.node_name_of(vgpu)
    generations = read_node_generations(deployment.settings.place, node)
    return [number for number in generations if number > deployment.generation]


if __name__ == "__main__":
    main(sys.argv[1:])
