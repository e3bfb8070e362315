"""The front of one model or application.

Takes requests, has them gathered into batches, answers every client. Four kinds of thread: the
caller's (`submit`: bounds, the tensors of an express request into their slot, one frame to the
scheduler), a few of which one at a time polls the sockets (dispatches, drops, answers), one that
watches deadlines (`deadlines`), and a few that send replies (`replies`). A request is answered
exactly once (`pending`).

The thread that polls and reads the answer to a single request sends the reply itself, which would
otherwise wait for another thread to wake up. `send` blocks for half a millisecond, in which others'
dispatches and answers would wait: another thread polls meanwhile. Where no other request is held,
there is nothing to poll for, and two threads would only keep one interpreter from each other: then
another one polls only once a request comes (`_let_poll`).

Here: the life of a request on the gateway. Not here: Triton's API (`server.triton_models`), tensors
and slots of batches (`batches`), decisions.
"""

import logging
import threading
from collections import deque
from functools import partial
from typing import TYPE_CHECKING

from triton_backend.contract.decisions import DropReason
from triton_backend.runtimes.clock import Clock
from triton_backend.scheduler.measured.guard import Guard
from triton_backend.serve_folder.settings import ServeSettings
from triton_backend.serving.deployment import Deployment
from triton_backend.serving.front.batches import Batch, FrontBatches
from triton_backend.serving.front.counters import FrontCounters, latency_bounds_s
from triton_backend.serving.front.deadlines import GRACE_US, DeadlineWatch
from triton_backend.serving.front.jobs import FrontJobs
from triton_backend.serving.front.mirror import Mirror
from triton_backend.serving.front.quotas import Quotas
from triton_backend.serving.front.replies import Refusal, Reply, Respond
from triton_backend.serving.front.requests.pending import PendingRequests, arrival_frame
from triton_backend.serving.front.requests.reading import IncomingRequest, RequestReader
from triton_backend.serving.front.requests.refusals import full, over_quota, unreadable
from triton_backend.serving.front.requests.request import Request
from triton_backend.serving.front.texts import SeenOutputs
from triton_backend.serving.transport.authentication import transport_key
from triton_backend.serving.transport.backoff import Backoff
from triton_backend.serving.transport.channel import Channels
from triton_backend.serving.transport.connection import REFUSALS, CloseReason, Connection
from triton_backend.serving.transport.event_loop import EventLoop
from triton_backend.serving.transport.fetching import Fetches, answer_fetch
from triton_backend.serving.transport.shared_memory import Arrays
from triton_backend.serving.transport.wire import (
    NONE,
    AnswerBody,
    DropBody,
    FailureBody,
    FrameError,
    FrontHello,
    Header,
    JobDoneBody,
    JobFailedBody,
    Kind,
    PlanBody,
    frame,
    life_of,
    pack_failure,
    pack_hello,
    pack_request,
    unpack_answer,
    unpack_dispatch,
    unpack_drop,
    unpack_failure,
    unpack_fetch,
    unpack_heartbeat,
    unpack_job_done,
    unpack_job_failed,
    unpack_plan,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

TICK_US = 15_000
# Of a front at rest: no request waits, no slot is in use, no plan before the one served is known.
REST_TICK_US = 1_000_000
# And of one without a scheduler for longer than a standby takes: that is being loaded.
ALONE_US, ALONE_TICK_US = 2_000_000, 100_000
# A larger answer takes long to send, and the thread that sends it does not poll.
SENT_AT_ONCE_BYTES = 1 << 16
POLLERS = 3
# Longer than tensors for a host that does not take them are waited for (`transport.connection`).
POLL_PATIENCE_US = 7_000_000
FROM_SCHEDULER = frozenset(
    {
        Kind.DISPATCH,
        Kind.DROP,
        Kind.ABORT,
        Kind.PLAN,
        Kind.HEARTBEAT,
        Kind.JOB_DONE,
        Kind.JOB_FAILED,
    }
)
_LOG = logging.getLogger(__name__)


class FrontService:
    """Runs between `start` and `stop`.

    `quotas`: of the name that clients ask for, where that is not the model's.

    Attributes:
        follow: called when it was notified of a plan, in the thread that polls; with True, where
            that is prepared, not in force.
        successor: the front that takes a request over where the plan in force does not have the
            model; None: none does.
    """

    def __init__(
        self,
        settings: ServeSettings,
        deployment: Deployment,
        model: str,
        clock: Clock,
        quotas: Quotas | None = None,
    ) -> None:
        self.model = model
        self._settings = settings
        self._clock = clock
        self.plan = deployment.served_model(model)  # in the last generation served that has it
        self.port = deployment.front_ports.get(model)
        self._reader = RequestReader(deployment, self.plan)
        self.counters = FrontCounters(latency_bounds_s(self.plan.slo_us))
        self.quotas = quotas or Quotas.of(settings, model, clock.now_us())
        self.follow: Callable[[Deployment, bool], None] = _nothing
        self.successor: Callable[[Request], FrontService | None] = _nothing
        self._max_waiting = deployment.max_waiting(self.plan)
        self._current: Deployment = deployment
        self._known: dict[int, Deployment] = {}  # by generation
        self._pending = PendingRequests(model, settings.folder / "logs", clock, self.counters)
        self._pending.outputs = SeenOutputs(self.plan)
        self.mirror = self._pending.mirror = Mirror(model, settings, clock)
        self._loop = EventLoop(self, clock, transport_key(settings.token))
        self._channels = Channels(self._loop, settings, None)
        self._guard = Guard(settings.guard_fraction)
        self._batches = FrontBatches(
            model,
            self._channels,
            self._pending,
            self._report,
            checksum_up_to_bytes=settings.checksum_up_to_bytes,
        )
        self._fetches = Fetches(self._loop)
        self.jobs = FrontJobs(model, settings, self._pending, self._fetches)
        self._guard.least_us = deployment.least_us(model)
        self._add(deployment)
        self._use(deployment)
        self._scheduler: Connection | None = None
        self.lost: Mapping[str, int] = {}  # vGPUs by pool, as the scheduler said last
        give_up_us = self._give_up_us
        self._watch = DeadlineWatch(self._pending, clock, self.counters, self._cancel, give_up_us)
        self._life = 0  # of the scheduler, the newest heard of
        self._polled_us = self._round_us = self._next_tick_us = clock.now_us()
        self._alone_us = self._polled_us
        self._stopping = threading.Event()
        self._backoff = Backoff()
        self._leading = threading.Lock()  # the holder polls and runs the callbacks
        self._waiting: deque[None] = deque()  # one for every thread that waits to lead
        self._taken: Reply | None = None
        # One while the leader sends a reply: the lead is then for the first that takes it.
        self._lead_offered: deque[None] = deque()
        self._threads = [
            threading.Thread(target=self._run, name=f"front-{i}", daemon=True)
            for i in range(POLLERS)
        ]

    def _add(self, deployment: Deployment) -> None:
        self._known[deployment.generation] = deployment
        self._batches.add(deployment)
        self.jobs.add(deployment)

    def _use(self, deployment: Deployment) -> None:
        self._current = deployment
        for former in [number for number in self._known if number < deployment.generation]:
            del self._known[former]
        self._batches.use(deployment)
        self.jobs.use(deployment)
        self._guard.measured = not deployment.boards
        self._count_guard()

    def start(self) -> None:
        """Listen for answers and connect to the scheduler."""
        self._loop.listen(self._settings.front_address(self.model, self._settings.gateway))
        if self._settings.hosts:
            self._loop.listen(f"tcp:{self._settings.gateway_host}:{self.port}")
        for thread in self._threads:
            thread.start()
        self._pending.start()
        self._watch.start()

    def stop(self) -> None:
        """Refuse what is left, end the threads, remove the segments; once."""
        if self._stopping.is_set():
            return
        leaving = f"the front of {self.model!r} is shutting down"
        for request in self._pending.all():
            self._pending.refuse(request.number, Refusal("UNAVAILABLE", leaving))
        self._stopping.set()
        self._watch.stop()
        self._loop.wake()
        for thread in self._threads:
            thread.join(timeout=5)
        self._channels.close()
        self._loop.close()
        self._pending.stop()
        self._batches.close()
        self.jobs.close()

    def alive_us(self) -> int:
        """When both its loops last succeeded.

        The one that polls may wait for a host that is cut off.
        """
        if self._clock.now_us() - self._round_us > POLL_PATIENCE_US:
            return self._round_us
        return self._watch.looked_us

    @property
    def deployment(self) -> Deployment:
        """In force."""
        return self._current

    @property
    def unanswered(self) -> int:
        """Requests taken and not answered yet."""
        return len(self._pending.all())

    # The caller's thread

    def take(self, incoming: IncomingRequest, reply: Respond) -> None:
        """Take a request of Triton's, or refuse it; whatever it holds, nothing is raised."""
        try:
            request = self._reader.read(incoming, self._clock.now_us(), reply)
        except Exception as error:  # noqa: BLE001  # Triton's objects may raise any
            refusal = unreadable(self.model, error)
        else:
            self.submit(request)
            return
        self.counters.refused += 1
        self._pending.send(Reply(reply, refusal))

    def submit(self, request: Request) -> None:
        """Take a request; it is answered through `request.reply`, sooner or later, once."""
        if self.quotas.is_over(request.client, request.arrival_us, low=request.low):
            if self.quotas.refuses or self._reader.all_usual:
                refusal = over_quota(self.model, request.client)
                self._pending.turn_away(request, DropReason.QUOTA, refusal)
                return
            request.low = True
        if self._pending.admit(request, self._max_waiting):
            self._announce(request, express=True)
            self._watch.look_soon()
            self._let_poll()

    def take_over(self, request: Request) -> None:
        """Take a request that another front had taken, whose plan is over; also from its thread."""
        request.batch_id = None
        request.announced = request.express = request.cancel_sent = False
        if self._pending.admit(request, self._max_waiting):
            self._announce(request, express=True)
            self._watch.look_soon()
            self._let_poll()

    def _announce(self, request: Request, *, express: bool) -> None:
        """Send ARRIVAL, where the scheduler is there."""
        try:
            if self.jobs.used:
                ticket = self.jobs.write(request)
                if ticket is None:
                    self._pending.refuse(request.number, full(self.model, self._max_waiting))
                    return
            else:
                ticket = self._batches.write_express(request) if express else None
            scheduler = self._scheduler
            if scheduler is not None:
                request.announced = True
                scheduler.send(arrival_frame(request, self._guard, ticket))
            else:
                self._loop.wake()
        except Exception:  # noqa: BLE001  # else it would wait for ever
            _LOG.exception("request %d of %s", request.number, self.model)
            failure = Refusal("INTERNAL", f"model {self.model!r}: the request cannot be announced")
            self._pending.refuse(request.number, failure)

    # The threads that poll, one at a time

    def _run(self) -> None:
        while not self._stopping.is_set():
            self._waiting.append(None)
            self._leading.acquire()
            self._waiting.pop()
            while self._lead():
                pass

    def _lead(self) -> bool:
        """Poll until a reply is taken, and send it; True where the thread leads on.

        It holds no batch in memory, nor the plan of one, when it has returned.
        """
        while self._taken is None and not self._stopping.is_set():
            self._round_or_pause()
        reply, self._taken = self._taken, None
        if reply is None:
            self._leading.release()
            return False
        self._lead_offered.append(None)
        self._pending.send(reply, self._let_poll_if_needed)
        return self._take_lead()

    def _let_poll_if_needed(self) -> None:
        if self._pending.any:
            self._let_poll()

    def _let_poll(self) -> None:
        """Have another thread poll while the one that leads sends a reply; from any thread."""
        if self._lead_offered and self._take_lead():
            self._leading.release()

    def _take_lead(self) -> bool:
        """Take the lead that is offered; False where another has taken it."""
        try:
            self._lead_offered.pop()
        except IndexError:
            return False
        return True

    def _round_or_pause(self) -> None:
        try:
            self._round()
        except Exception:  # noqa: BLE001  # one bad request or batch must not end all others
            self.counters.internal_errors += 1
            pause_seconds = self._backoff.failed()
            _LOG.exception("the front of %s goes on in %.2f s", self.model, pause_seconds)
            self._stopping.wait(pause_seconds)
        else:
            self._round_us = self._polled_us
            self._backoff.succeeded()

    def _round(self) -> None:
        self._loop.poll(max(self._next_tick_us - self._polled_us, 0) / 1e6)
        self._polled_us = now_us = self._clock.now_us()
        self._batches.free_replied(now_us)
        if now_us < self._next_tick_us:  # something came: it rests no more
            self._next_tick_us = min(self._next_tick_us, now_us + TICK_US)
            return
        self._next_tick_us = now_us + TICK_US
        self._tick(now_us)
        self._next_tick_us = now_us + self._until_tick_us(now_us)

    def _until_tick_us(self, now_us: int) -> int:
        """The time until the next tick, if no frame comes before."""
        if not (self._pending.is_empty and self._batches.at_rest and self.jobs.at_rest):
            return TICK_US
        if self._scheduler is not None:
            return REST_TICK_US
        return TICK_US if now_us - self._alone_us < ALONE_US else ALONE_TICK_US

    def _take_reply(self, reply: Reply) -> bool:
        """Keep a reply to send after this round, where another thread can poll meanwhile."""
        if self._taken is not None or not self._waiting:
            return False
        self._taken = reply
        return True

    def _tick(self, now_us: int) -> None:
        self._pending.flush_log()
        if self._scheduler is None:
            self._connect()
        self._batches.look(now_us)
        self.jobs.look(self._current.generation, now_us)
        self._batches.retire_before(self._current.generation, now_us)

    def _connect(self) -> None:
        connection = self._loop.connect(self._settings.scheduler_address())
        if connection is None:
            return
        connection.send(
            frame(Kind.HELLO, pack_hello(FrontHello(self.model, self._settings.gateway)))
        )
        self._scheduler = connection
        # Announced again by number, so that one already known is not counted twice. An express
        # request may be in flight since the last scheduler's life, and runs twice then.
        for request in self._pending.all():
            if request.batch_id is None:
                self._announce(request, express=False)

    def _give_up_us(self, request: Request) -> int:
        """When a request without an answer is given up.

        While there is no scheduler nothing is dispatched, and the next one begins every job again:
        then as soon as that is too late, lest many answers wait for one another while Triton loads
        a scheduler.
        """
        may_be_in_flight = request.batch_id is not None or (request.express and request.announced)
        if self._scheduler is None and (self.jobs.used or not may_be_in_flight):
            return request.deadline_us - self._guard.least_us
        return request.deadline_us + GRACE_US

    def _cancel(self, number: int) -> None:
        """A request is left by its client, or given up; the thread that polls frees its slot."""
        if self._scheduler is not None:
            self._scheduler.send(frame(Kind.CANCEL, pack_request(number)))
        self._loop.wake()

    # Handler of the event loop

    def on_frame(self, connection: Connection, header: Header, body: bytes) -> None:
        """Handle decisions of the scheduler and answers of workers.

        Raises:
            FrameError: no peer may send this to a front.
        """
        self._check_sender(connection, header.kind)
        match header.kind:
            case Kind.DISPATCH:
                self._check_life(header.batch_id)
                self._batches.dispatch(header, unpack_dispatch(body), self._clock.now_us())
            case Kind.ANSWER:
                self._answer(header, unpack_answer(body))
            case Kind.DROP:
                self._drop(unpack_drop(body))
            case Kind.ABORT:
                self._batches.abort(header.batch_id, self._clock.now_us())
                # The batches that it had to gather were dispatched before, and are gathered.
                connection.send(frame(Kind.LET_GO, batch_id=header.batch_id))
            case Kind.BATCH_FAILED:
                self._failed(header, unpack_failure(body))
            case Kind.JOB_DONE | Kind.JOB_FAILED | Kind.FETCH | Kind.FETCHED:
                self._on_job(connection, header, body)
            case Kind.PLAN:
                self._plan(unpack_plan(body))
            case Kind.HEARTBEAT:
                self.lost = unpack_heartbeat(body).lost
            case _:
                raise FrameError(f"a front takes no {header.kind.name}")

    def _on_job(self, connection: Connection, header: Header, body: bytes) -> None:
        """Handle the outcome of a job.

        Its rows that another host needs of this one, or that were asked for.
        """
        match header.kind:
            case Kind.JOB_DONE:
                self._job_done(header, unpack_job_done(body))
            case Kind.JOB_FAILED:
                self._job_failed(unpack_job_failed(body))
            case Kind.FETCH:
                answer_fetch(connection, header, unpack_fetch(body), self.jobs.rows)
            case _:
                self._fetches.fetched(connection, header, body)

    def _check_sender(self, connection: Connection, kind: Kind) -> None:
        if kind in FROM_SCHEDULER and connection is not self._scheduler:
            raise FrameError(f"{kind.name} from a peer that is not the scheduler")

    def _check_life(self, batch_id: int) -> None:
        """Refuse a dispatch of a scheduler whose place another has taken."""
        life = life_of(batch_id)
        if life < self._life:
            raise FrameError(f"a dispatch of life {life} of the scheduler, not {self._life}")
        self._life = life

    def on_close(self, connection: Connection, reason: CloseReason) -> None:
        """The scheduler or a worker is gone, or was refused."""
        if reason in REFUSALS:
            self.counters.frames_refused += 1
        elif reason is CloseReason.INTERNAL_ERROR:
            self.counters.internal_errors += 1
        if connection is self._scheduler:
            self._scheduler = None
            self._alone_us = self._clock.now_us()
            self._batches.forget_waiting()
        self._channels.closed(connection)
        self._fetches.closed(connection)

    def payload_target(
        self, connection: Connection, header: Header, body: bytes
    ) -> list[memoryview]:
        """Outputs from another host go into the answer slot of their batch.

        Rows that were asked for, apart.
        """
        if header.kind is Kind.FETCHED:
            return self._fetches.target(connection, header)
        if header.kind is not Kind.ANSWER:
            raise FrameError(f"{header.kind.name} with tensors from {connection.name}")
        answer = unpack_answer(body)
        batch = self._batches.get(header, answer)
        if batch is None or not batch.fits(header, answer):
            raise FrameError(f"an answer to batch {header.batch_id}, which is not in flight")
        return batch.pieces()

    # Outcomes of requests

    def _plan(self, message: PlanBody) -> None:
        deployment = self._known.get(message.generation)
        if deployment is None:
            deployment = Deployment.read(self._settings, message.generation)
            self._add(deployment)
        if message.prepared:
            self.follow(deployment, True)  # noqa: FBT003 - as in PLAN
            return
        self._use(deployment)
        model = deployment.served.get(self.model)
        if model is not None:
            self.plan = model
            self._reader = RequestReader(deployment, model)
            self._pending.outputs = SeenOutputs(model)
            self._guard.least_us = deployment.least_us(self.model)
            self._max_waiting = deployment.max_waiting(model)
        self.follow(deployment, False)  # noqa: FBT003 - as in PLAN

    def _drop(self, drop: DropBody) -> None:
        """Answer a request that is dropped, or have another front take it."""
        request = self._pending.get(drop.request)
        if request is not None and drop.reason is DropReason.MODEL_REMOVED:
            successor = self.successor(request)
            if successor is not None:
                if self._pending.take_out(request):
                    successor.take_over(request)
                return
        self._pending.drop(drop, self.jobs.module_name(drop.module))

    def _report(self, kind: Kind, header: Header, reason: str) -> None:
        """Tell the scheduler of a dispatch that is not carried out."""
        if self._scheduler is not None:
            body = pack_failure(FailureBody(reason, NONE, NONE))
            data = frame(kind, body, batch_id=header.batch_id, plan_tag=header.plan_tag)
            self._scheduler.send(data)

    def _answer(self, header: Header, body: AnswerBody) -> None:
        now_us = self._clock.now_us()
        batch = self._batches.answered(header, body, now_us)
        if batch is None:
            return
        self._guard.answered(body.planned_end_us, now_us)
        self._count_guard()
        sent = partial(self._sent, batch)
        if len(batch.requests) > 1:
            self._pending.answer_all(batch.outputs(), sent)
        else:
            small = batch.payload_bytes <= SENT_AT_ONCE_BYTES
            take = self._take_reply if small else None
            self._pending.answer_one(batch.requests[0], batch.views(), take, sent)

    def _count_guard(self) -> None:
        self.counters.guard_us = self._guard.guard_us(self.plan.slo_us)

    def _job_done(self, header: Header, body: JobDoneBody) -> None:
        """Answer a request from retained outputs, and say when they are read."""
        read = partial(self._job_read, body.request)
        request = self._pending.get(body.request)
        if request is None:
            read()
            return
        self.jobs.answer(header.plan_tag, body, partial(self._job_taken, body.request))

    def _job_taken(self, number: int, outputs: Arrays | None) -> None:
        """Answer a request whose outputs are here.

        Where their host is gone, have its job run again.
        """
        request = self._pending.get(number)
        read = partial(self._job_read, number)
        if request is None:
            read()
        elif outputs is None:
            read()
            self._announce(request, express=False)
        else:
            small = sum(output.nbytes for output in outputs.values()) <= SENT_AT_ONCE_BYTES
            self._pending.answer_one(request, outputs, self._take_reply if small else None, read)

    def _job_read(self, number: int) -> None:
        """The outputs of a job are read and no longer retained for it; from any thread."""
        if self._scheduler is not None:
            self._scheduler.send(frame(Kind.JOB_READ, pack_request(number)))

    def _job_failed(self, body: JobFailedBody) -> None:
        failure = Refusal("INTERNAL", f"application {self.model!r}: {body.reason}")
        self._pending.refuse(body.request, failure)

    def _sent(self, batch: Batch) -> None:
        """All replies from the slot of a batch have left it; from any thread."""
        if self._batches.replied(batch):
            self._loop.wake()

    def _failed(self, header: Header, message: FailureBody) -> None:
        batch = self._batches.failed(header, message, self._clock.now_us())
        if batch is None:
            return
        failure = Refusal("INTERNAL", f"model {self.model!r}: {message.reason}")
        for request in batch.requests:
            self._pending.refuse(request.number, failure)


def _nothing(*_: object) -> None:
    """Of a front by itself."""
