"""The scheduler's shell: one thread that owns the `Gateway`, its sockets and its timer.

The thread first waits until this process has the scheduler's seat (`standby`).

Fronts and workers connect and say HELLO; from then on their frames become calls of a part of
`Gateway`, and what it sends goes over their connections. A connection that ends is a worker or
front lost. Control requests come from another thread and are run in this one.

Here: threads, sockets, the real clock. Not here: any decision.
"""

import json
import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, wait
from queue import SimpleQueue
from typing import Any

from triton_backend.contract.errors import InputError, PoolPipeError
from triton_backend.runtimes.clock import Clock
from triton_backend.serve_folder.repository import CONTROL_MODEL
from triton_backend.serve_folder.settings import ServeSettings
from triton_backend.serving.deployment import Deployment
from triton_backend.serving.gateway.event_log import EventLog
from triton_backend.serving.gateway.peers.addresses import (
    Address,
    FrontAddress,
    StandbyAddress,
    WorkerAddress,
)
from triton_backend.serving.gateway.pool_use import advice_document
from triton_backend.serving.gateway.standby import Life, SchedulerLock, Standby
from triton_backend.serving.gateway.state import HELD_BACK_SLOS, Gateway
from triton_backend.serving.gateway.warm_up import warm_up
from triton_backend.serving.liveness.threads import ThreadUse, thread_uses
from triton_backend.serving.transport.authentication import transport_key
from triton_backend.serving.transport.backoff import Backoff
from triton_backend.serving.transport.connection import REFUSALS, CloseReason, Connection
from triton_backend.serving.transport.event_loop import EventLoop
from triton_backend.serving.transport.wire import (
    FrameError,
    FrontHello,
    Header,
    HeartbeatBody,
    Hello,
    Kind,
    StandbyHello,
    WorkerHello,
    frame,
    pack_heartbeat,
    unpack_arrival,
    unpack_failure,
    unpack_hello,
    unpack_request,
    unpack_rows,
    unpack_shared_batch_done,
    unpack_times,
)

HEARTBEAT_US = 250_000
# Of a new life: workers on other hosts need several beats before they know the time here.
FIRST_HEARTBEAT_US = 50_000
FIRST_BEATS_US = 2_000_000
LOOK_US = 50_000
ROLL_CALL_LOOK_US = 5_000
COMMANDS = ("prepare", "flush", "swap", "abort", "status", "advice")
_LOG = logging.getLogger(__name__)


class NotActiveError(PoolPipeError):
    """Another process is the scheduler; this one would take over."""


class SchedulerService:
    """Runs in its own thread between `start` and `stop`.

    Args:
        name: of this process's Triton model.
    """

    def __init__(
        self,
        settings: ServeSettings,
        deployment: Deployment,
        clock: Clock,
        name: str = CONTROL_MODEL,
    ) -> None:
        self._settings = settings
        self._clock = clock
        self._name = name
        longest_us = max(deployment.longest_slos_us)
        self._seat = SchedulerLock(settings.socket_folder, HELD_BACK_SLOS * longest_us)
        self._standby = Standby(deployment, name, clock, self._seat, self._warm_up)
        self._life: Life | None = None
        self._shown: list[bytes] = []  # to the standby, of plans
        self._gateway: Gateway | None = None
        now_us = clock.now_us()
        self._log = EventLog(settings.folder / "events", clock)
        self._peers: dict[Address, Connection] = {}
        self._names: dict[Connection, list[Address]] = {}  # a worker has one per generation
        self._notified: dict[Connection, Mapping[str, int]] = {}  # fronts, of lost vGPUs
        self._read: dict[Address, int] = {}  # by standby, the generation that it would serve
        self._loop = EventLoop(self, clock, transport_key(settings.token))
        self._calls: SimpleQueue[tuple[Callable[[], Any], Future[Any]]] = SimpleQueue()
        self._next_heartbeat_us = now_us
        self._next_look_us = now_us
        self._heard = 0  # frames of this round, the first of them at
        self._heard_us = now_us
        self._polled_us = self._succeeded_us = now_us
        self._backoff = Backoff()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="scheduler", daemon=True)

    def start(self) -> None:
        """Be the scheduler, or wait for the end of the one that is."""
        life = self._standby.take_seat()
        if life is not None:
            self._begin(life)
        self._thread.start()

    @property
    def gateway(self) -> Gateway:
        """The state of the scheduler.

        Raises:
            NotActiveError: this process is not the scheduler.
        """
        if self._gateway is None:
            raise NotActiveError(f"{self._name} is the standby: another process is the scheduler")
        return self._gateway

    @property
    def is_active(self) -> bool:
        """True if this process is the scheduler."""
        return self._gateway is not None

    def alive_us(self) -> int:
        """When its thread last went round its loop without an error."""
        return self._succeeded_us if self.is_active else self._standby.alive_us()

    @property
    def compiles_since_us(self) -> int | None:
        """Since when it compiles the kernels, before it can be the scheduler.

        None while it does not.
        """
        return self._standby.compiles_since_us

    def _warm_up(self, deployment: Deployment) -> None:
        warm_up(deployment.plan, policy=self._settings.policy, nic=self._settings.nic)

    def _begin(self, life: Life) -> None:
        """Be the scheduler from now on."""
        now_us, standby = self._clock.now_us(), self._standby
        self._loop.listen(self._settings.scheduler_address())
        if self._settings.hosts:
            address = f"tcp:{self._settings.gateway_host}:{self._settings.base_port}"
            self._loop.listen(address)
        self._log.begin(standby.served, now_us)
        gateway = Gateway(
            standby.served,
            epoch=life.number,
            now_us=now_us,
            observe=self._log.write,
            send=self._send,
            slots_free_us=life.slots_used_until_us,
            threads_of=self._threads_of,
        )
        if standby.prepared is not None:
            gateway.prepare(standby.prepared)
        self._life = life
        self._polled_us = self._succeeded_us = self._next_heartbeat_us = now_us
        self._gateway = gateway
        standby.close()
        _LOG.info("%s is the scheduler, life %d", self._name, life.number)

    def stop(self) -> None:
        """End the thread and close everything."""
        if self._thread.is_alive():
            self._stopping.set()
            self._loop.wake()
            self._thread.join(timeout=5)

    def call(self, function: Callable[[], Any], timeout_s: float = 5.0) -> Any:
        """Run a function in the scheduler's thread and give its result.

        Raises:
            TimeoutError: it has not ended in time; one that has not begun never does.
        """
        future: Future[Any] = Future()
        self._calls.put((function, future))
        self._loop.wake()
        if not wait([future], timeout_s).done:
            future.cancel()
            raise TimeoutError(f"the scheduler did not answer within {timeout_s:g} s")
        return future.result()

    # Control requests (any thread)

    def control(self, request: str) -> dict[str, Any]:
        """Answer one control request: JSON in, the state reached (or the advice) out.

        Raises:
            InputError: unknown command, wrong plan or generation, or a step out of order.
            NotActiveError: this process is not the scheduler.
        """
        command, plan_id, generation = _control_request(request)
        gateway = self.gateway
        if command == "prepare":
            deployment = Deployment.read(self._settings, generation)
            _check_plan(plan_id, deployment.plan.plan_id)
            self.call(lambda: gateway.prepare(deployment))
        elif command == "flush":
            self.call(lambda: gateway.flush(self._clock.now_us()))
        elif command == "swap":
            self.call(lambda: self._swap(plan_id, generation))
        elif command == "advice":
            return self.call(self._advice)
        elif command == "abort":
            self.call(lambda: gateway.abort(self._clock.now_us()))
        return self.call(self._status)

    def _status(self) -> dict[str, Any]:
        """State for people and flows, once the standby knows of it."""
        self._tell_standby()
        fronts = self.gateway.announcements.expected_fronts()
        missing = sorted({front.model for front in fronts if front not in self._peers})
        return self.gateway.status() | {"missing_fronts": missing, "scheduler": self.place()}

    def place(self) -> dict[str, Any]:
        """Which process is the scheduler, and whether another would take over."""
        standby = "off"
        if self._settings.standby:
            served = None if self._gateway is None else self._gateway.deployment.generation
            standby = "ready" if served in list(self._read.values()) else "not ready"
        life = 0 if self._life is None else self._life.number
        return {"active": self._name, "life": life, "standby": standby}

    def _tell_standby(self) -> None:
        """Tell the standby which generations are served and prepared, where that changed."""
        frames = self.gateway.announcements.plan_frames()
        if frames != self._shown:
            self._shown = frames
            for peer in [peer for peer in self._peers if isinstance(peer, StandbyAddress)]:
                self._send(peer, b"".join(frames))

    def _advice(self) -> dict[str, Any]:
        gateway = self.gateway
        pools = gateway.advice(self._clock.now_us())
        return advice_document(gateway.deployment.plan, pools, gateway.demands())

    def _swap(self, plan_id: str | None, generation: int) -> None:
        served = self.gateway.deployment
        # The same plan may follow itself with other artifacts: then the generation decides.
        if served.generation == generation if generation else served.plan.plan_id == plan_id:
            return  # done before: the answer got lost
        self.gateway.swap(self._clock.now_us())
        self._log.rollout(self.gateway.deployment)
        self._tell_standby()

    # The scheduler's thread

    def _run(self) -> None:
        if self._gateway is None:
            life = self._standby.wait(self._stopping)
            if life is not None:
                self._begin(life)
        while not self._stopping.is_set():
            try:
                self._round()
            except Exception:  # noqa: BLE001  # one bad frame or batch must not end all others
                self.gateway.counters.internal_errors += 1
                pause_seconds = self._backoff.failed()
                _LOG.exception("the scheduler goes on in %.2f s", pause_seconds)
                self._stopping.wait(pause_seconds)
            else:
                # A thread that only ever fails is not alive, and its process is restarted.
                self._succeeded_us = self._polled_us
                self._backoff.succeeded()
        self._loop.close()
        if self._gateway is None:
            self._standby.close()
        self._seat.release()
        self._log.close()

    def _round(self) -> None:
        gateway, timer = self.gateway, self._loop.timer
        due_us = self._next_heartbeat_us
        if gateway.announcements.deferred.due_us is not None:
            due_us = min(due_us, gateway.announcements.deferred.due_us)
        if gateway.workers.calls_roll:
            due_us = min(due_us, self._next_look_us)
        expired = self._loop.poll(max(due_us - self._polled_us, 0) / 1e6)
        self._polled_us = now_us = self._clock.now_us()
        if self._heard:
            gateway.counters.decisions += self._heard
            gateway.counters.decision_us += now_us - self._heard_us
            self._heard = 0
        while not self._calls.empty():
            self._answer_call()
        timer_us = gateway.hub.timer_us
        if expired and timer_us is not None and timer_us <= now_us:
            gateway.hub.timer(now_us)
        if now_us >= self._next_look_us:
            self._next_look_us = now_us + (
                ROLL_CALL_LOOK_US if gateway.workers.calls_roll else LOOK_US
            )
            gateway.look(now_us)
        gateway.announcements.deferred.send(now_us)
        timer_us = gateway.hub.timer_us
        # One that rings too early is set again then: rarer than every change of the instant.
        if timer_us is not None and (timer.at_us is None or timer_us < timer.at_us):
            timer.set(timer_us)
        self._log.settle_some()
        if now_us >= self._next_heartbeat_us:
            assert self._life is not None
            new = now_us - self._life.began_us < FIRST_BEATS_US
            self._next_heartbeat_us = now_us + (FIRST_HEARTBEAT_US if new else HEARTBEAT_US)
            self._send_heartbeats()

    def _answer_call(self) -> None:
        function, future = self._calls.get()
        if not future.set_running_or_notify_cancel():
            return  # its caller has given up
        try:
            future.set_result(function())
        except Exception as error:  # noqa: BLE001  # handed to the calling thread
            future.set_exception(error)

    def _send(self, to: Address, data: bytes) -> None:
        peer = self._peers.get(to)
        if peer is not None:
            peer.send(data)

    def _threads_of(self, worker: WorkerAddress) -> dict[int, ThreadUse]:
        peer = self._peers.get(worker)
        return {} if peer is None else thread_uses(peer.peer_pid())  # 0 on another host

    def _send_heartbeats(self) -> None:
        self._tell_standby()
        self._log.flush()
        beat = HeartbeatBody(self._clock.now_us(), self.gateway.workers.lost_vgpus())
        data = frame(Kind.HEARTBEAT, pack_heartbeat(beat))
        for connection in self._loop.connections:
            if not self._is_front(connection):
                connection.send(data)
            elif self._notified.get(connection) != beat.lost:  # all that it takes from a beat
                self._notified[connection] = beat.lost
                connection.send(data)

    def _is_front(self, connection: Connection) -> bool:
        names = self._names.get(connection)
        return bool(names) and isinstance(names[-1], FrontAddress)

    # Handler of the event loop

    def on_frame(self, connection: Connection, header: Header, body: bytes) -> None:
        """Turn a frame into a call of the gateway.

        Raises:
            FrameError: no peer may send this here, or not before a HELLO.
        """
        now_us = self._clock.now_us()
        if header.kind is Kind.HELLO:
            self._hello(connection, unpack_hello(body), now_us)
            return
        if not self._heard:
            self._heard_us = now_us
        names = self._names.get(connection)
        if names is None:
            raise FrameError(f"{header.kind.name} before HELLO")
        peer = names[-1]
        try:
            if header.kind is Kind.LET_GO:
                self.gateway.reports.let_go(names, header.batch_id)
            elif isinstance(peer, FrontAddress):
                self._from_front(peer, header, body, now_us)
            elif isinstance(peer, StandbyAddress):
                raise FrameError(f"a standby may not say {header.kind.name}")
            else:
                self._from_worker(names, header, body, now_us)
        except InputError as error:
            raise FrameError(str(error)) from error
        self._heard += 1

    def _from_front(self, front: FrontAddress, header: Header, body: bytes, now_us: int) -> None:
        if header.kind is Kind.ARRIVAL:
            self.gateway.requests.arrival(front, unpack_arrival(body), now_us, header.plan_tag)
        elif header.kind is Kind.CANCEL:
            self.gateway.requests.cancel(front, unpack_request(body), now_us)
        elif header.kind is Kind.JOB_READ:
            self.gateway.requests.job_read(front, unpack_request(body))
        elif header.kind is Kind.BATCH_FAILED:
            self.gateway.reports.failed(header.batch_id, 0, now_us)
        elif header.kind is Kind.BATCH_LOST:
            reason = unpack_failure(body).reason
            _LOG.warning("batch %d is lost: %s", header.batch_id, reason)
            self.gateway.reports.lost(header.batch_id, header.stage)
        else:
            raise FrameError(f"a front may not say {header.kind.name}")

    def _from_worker(
        self, names: Sequence[Address], header: Header, body: bytes, now_us: int
    ) -> None:
        gateway, batch, stage = self.gateway, header.batch_id, header.stage
        served = gateway.deployment.generation
        own = [one for one in names if isinstance(one, WorkerAddress)]
        if all(gateway.generations.begun_of(one.generation) is None for one in own):
            return
        worker = next((one for one in own if one.generation == served), own[-1])
        if header.kind is Kind.EMITTED:
            gateway.reports.emitted(batch, unpack_rows(body))
        elif header.kind is Kind.STAGE_DONE:
            gateway.reports.stage_done(batch, stage, unpack_times(body), now_us)
        elif header.kind is Kind.SHARED_BATCH_DONE:
            times, aboard = unpack_shared_batch_done(body)
            gateway.reports.shared_batch_done(batch, aboard, times, now_us)
        elif header.kind is Kind.TRANSFER_DONE:
            gateway.reports.transfer_done(batch, stage, unpack_times(body), now_us)
        elif header.kind is Kind.PACE_RESULT and header.plan_tag != gateway.deployment.tag:
            pass  # asked for before the plan changed
        elif header.kind is Kind.PACE_RESULT:
            gateway.workers.pace_result(worker, unpack_times(body), now_us)
        elif header.kind is Kind.BATCH_FAILED:
            reason = unpack_failure(body).reason
            _LOG.error("batch %d failed: %s", batch, reason)
            gateway.reports.failed(batch, stage, now_us, reason)
        elif header.kind is Kind.BATCH_LOST:
            _LOG.warning("batch %d is lost: %s", batch, unpack_failure(body).reason)
            gateway.reports.lost(batch, stage)
        else:
            raise FrameError(f"a worker may not say {header.kind.name}")

    def _hello(self, connection: Connection, hello: Hello, now_us: int) -> None:
        peer = _address_of(hello)
        old = self._peers.get(peer)
        if old is not None and old is not connection:
            self._loop.drop(old, CloseReason.REPLACED)
        connection.name = str(peer)
        self._peers[peer] = connection
        if isinstance(hello, StandbyHello):  # now: the end of the former connection forgets it
            self._read[peer] = hello.generation
        names = self._names.setdefault(connection, [])
        if isinstance(peer, WorkerAddress):
            self._forget_former(names)
        if peer not in names:
            if names and {type(names[0]), type(peer)} != {WorkerAddress}:
                raise FrameError("a second HELLO, of another peer")
            names.append(peer)
        connection.send(b"".join(self.gateway.batches.to_let_go(peer)))
        if not (isinstance(peer, WorkerAddress) and isinstance(hello, WorkerHello)):
            for plan_frame in self.gateway.announcements.plan_frames():
                connection.send(plan_frame)
        elif hello.idle_us:
            self.gateway.workers.busy(peer, hello.idle_us, now_us)
        else:
            self.gateway.workers.up(peer, now_us)

    def _forget_former(self, names: list[Address]) -> None:
        """Forget what a worker that goes on was called in generations that are over."""
        for name in list(names):
            if isinstance(name, WorkerAddress) and self._is_over(name):
                names.remove(name)
                self._peers.pop(name, None)

    def _is_over(self, worker: WorkerAddress) -> bool:
        """True of a worker of a former generation that has ended: a rollout ends it."""
        known = self.gateway.generations.begun_of(worker.generation)
        return worker.generation < self.gateway.deployment.generation and known is None

    def on_close(self, connection: Connection, reason: CloseReason) -> None:
        """A peer is lost."""
        if reason in REFUSALS:
            self.gateway.counters.frames_refused += 1
        elif reason is CloseReason.INTERNAL_ERROR:
            self.gateway.counters.internal_errors += 1
        now_us = self._clock.now_us()
        self._notified.pop(connection, None)
        for peer in self._names.pop(connection, []):
            if self._peers.get(peer) is not connection:
                continue
            del self._peers[peer]
            self._read.pop(peer, None)
            if isinstance(peer, FrontAddress):
                self.gateway.requests.front_lost(peer, now_us)
            elif isinstance(peer, StandbyAddress):
                _LOG.warning("no standby: %s (%s)", peer.name, reason)
            else:
                if self._is_over(peer):
                    _LOG.info("worker ended: %s (%s)", peer, reason)
                else:
                    _LOG.warning("worker lost: %s (%s)", peer, reason)
                self.gateway.workers.lost(peer, now_us)

    def payload_target(
        self, connection: Connection, header: Header, body: bytes
    ) -> list[memoryview]:
        """The scheduler takes metadata only."""
        raise FrameError(f"{header.kind.name} ({len(body)} bytes) with tensors: {connection.name}")


def _address_of(hello: Hello) -> Address:
    if isinstance(hello, FrontHello):
        return FrontAddress(hello.model, hello.gateway)
    if isinstance(hello, StandbyHello):
        return StandbyAddress(hello.standby)
    return WorkerAddress(hello.generation, hello.vgpu)


def _control_request(text: str) -> tuple[str, str | None, int]:
    """Command, plan id and generation (0 where none is given).

    Raises:
        InputError: it is not a request.
    """
    try:
        data = json.loads(text)
        command, plan_id = data["command"], data.get("plan_id")
        generation = int(data["generation"] if command == "prepare" else data.get("generation", 0))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError("control request", f"not a request: {error!r}") from error
    if command not in COMMANDS:
        raise InputError(
            "control request, command", f"{command!r} is none of {', '.join(COMMANDS)}"
        )
    return command, plan_id, generation


def _check_plan(wanted: str | None, read: str) -> None:
    if wanted is not None and wanted != read:
        raise InputError("control request, plan_id", f"{wanted!r}, but the generation has {read!r}")
