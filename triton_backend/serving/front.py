"""The front of one model: takes requests, gathers batches, gives every client its answer.

Three kinds of thread: the caller's (`submit`: bounds, one frame to the scheduler), one that polls
sockets (dispatches, drops, answers, deadlines, cancellations), and a few that send replies, because
Triton's `send` blocks its caller. A request is answered exactly once: whoever takes it out of
`_requests` answers it.

Here: the life of a request on the gateway. Not here: Triton's API (`triton_models`), decisions.
"""

import json
import logging
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import Any

from triton_backend.core.decisions import DropReason
from triton_backend.core.plan import ModelPlan
from triton_backend.core.units import us_to_ms
from triton_backend.engines.clock import Clock
from triton_backend.serving.front_counters import FrontCounters
from triton_backend.serving.hub import Connection, Hub
from triton_backend.serving.memory import Arrays, Segment, SlotPool
from triton_backend.serving.outbound import Outbound, checksum_of
from triton_backend.serving.rolling import RollingLines
from triton_backend.serving.settings import Deployment, ServeSettings, short_name
from triton_backend.serving.wire import (
    DROP_REASONS,
    AnswerBody,
    ArrivalBody,
    BatchBody,
    DispatchBody,
    DropBody,
    FrameError,
    Header,
    Kind,
    frame,
    pack_arrival,
    pack_batch,
    pack_json,
    pack_request,
    unpack_answer,
    unpack_dispatch,
    unpack_drop,
    unpack_json,
)

REPLY_THREADS = 6
TICK_US = 15_000
# No client waits longer than its deadline and 100 ms; sending the answer takes some of that.
GRACE_US = 50_000
# A batch that neither answered nor was aborted (its scheduler died) gives its slot back after this.
FORGET_BATCH_US = 10_000_000
_CANCEL_CHECKS_PER_TICK = 16
FROM_SCHEDULER = frozenset({Kind.DISPATCH, Kind.DROP, Kind.ABORT, Kind.PLAN, Kind.BEAT})
_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Refusal:
    """A request that is answered with an error: Triton's status name and the text."""

    status: str
    message: str


@dataclass(slots=True, eq=False)
class Request:
    """One request as the front holds it; `reply` is called once, from a reply thread."""

    tensors: Arrays
    samples: int
    arrival_us: int
    deadline_us: int
    reply: Callable[[Arrays | Refusal], None]
    is_cancelled: Callable[[], bool]
    client_id: str = ""
    trace: str = ""  # W3C traceparent
    number: int = 0
    batch_id: int | None = None


@dataclass(slots=True, eq=False)
class _Batch:
    requests: list[Request]
    samples: int
    generation: "_Generation"
    slot: int
    dispatched_us: int
    unsent: int = 0


@dataclass(slots=True, eq=False)
class _Generation:
    deployment: Deployment
    model: int
    segment: Segment
    slots: SlotPool
    held: deque[tuple[Header, DispatchBody]] = field(
        default_factory=deque[tuple[Header, DispatchBody]]
    )


class FrontService:
    """Runs between `start` and `stop`."""

    def __init__(
        self, settings: ServeSettings, deployment: Deployment, model: str, clock: Clock
    ) -> None:
        self.model = model
        self.counters = FrontCounters()
        self._settings = settings
        self._clock = clock
        self._generations: dict[int, _Generation] = {}
        self._plan_now = deployment.plan.model(model)
        self._max_waiting = deployment.max_waiting(self._plan_now)
        self._current: Deployment = deployment
        self._log = RollingLines(
            settings.folder / "logs", f"requests-{short_name(model)}", clock.now_us()
        )
        self._requests: dict[int, Request] = {}
        self._batches: dict[int, _Batch] = {}
        self._next_number = 0
        self._hub = Hub(self)
        self._outbound = Outbound(self._hub, settings, None)
        self._scheduler: Connection | None = None
        self._replies: SimpleQueue[tuple[Request, Arrays | Refusal, _Batch | None] | None] = (
            SimpleQueue()
        )
        self._free_slots: SimpleQueue[_Batch] = SimpleQueue()
        self._sent_lock = threading.Lock()
        self._stopping = False
        self._threads = [
            threading.Thread(target=self._run, name=f"front-{model}", daemon=True),
            *(
                threading.Thread(target=self._reply_loop, name=f"reply-{i}", daemon=True)
                for i in range(REPLY_THREADS)
            ),
        ]
        self._add_generation(deployment)

    def start(self) -> None:
        """Listen for answers and connect to the scheduler."""
        self._hub.listen(self._settings.front_address(self.model))
        if self._settings.hosts:
            port = self._current.front_port(self.model)
            self._hub.listen(f"tcp:{self._settings.gateway_host}:{port}")
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Refuse what is left, end the threads, remove the segments."""
        for number in list(self._requests):
            self._refuse(number, "UNAVAILABLE", f"the front of {self.model!r} is shutting down")
        self._stopping = True
        self._hub.wake()
        self._threads[0].join(timeout=5)
        for _ in self._threads[1:]:
            self._replies.put(None)
        for thread in self._threads[1:]:
            thread.join(timeout=5)
        for generation in self._generations.values():
            generation.segment.remove()

    @property
    def plan(self) -> ModelPlan:
        """The model in the generation being served (the last one that had it)."""
        return self._plan_now

    # The caller's thread

    def submit(self, request: Request) -> None:
        """Take a request; it is answered through `request.reply`, sooner or later, once."""
        self.counters.offered += 1
        if len(self._requests) >= self._max_waiting:
            self.counters.dropped["queue_full"] += 1
            self._note(request, "queue_full")
            self._replies.put((request, self._full(), None))
            return
        self._next_number += 1
        request.number = self._next_number
        self._requests[request.number] = request
        self._announce(request)

    def _full(self) -> Refusal:
        return Refusal(
            "UNAVAILABLE",
            f"model {self.model!r}: {self._max_waiting} requests are waiting, no more are taken",
        )

    def _note(self, request: Request, outcome: str, message: str = "") -> None:
        """Log a request that was not served in time, or that is traced by its client."""
        self._log.write(
            json.dumps(
                {
                    "wall_us": self._clock.wall_us(),
                    "model": self.model,
                    "request": request.number,
                    "request_id": request.client_id,
                    "traceparent": request.trace,
                    "batch": request.batch_id,
                    "samples": request.samples,
                    "arrival_us": request.arrival_us,
                    "deadline_us": request.deadline_us,
                    "answered_us": self._clock.now_us(),
                    "outcome": outcome,
                    "message": message,
                }
            )
        )

    def _announce(self, request: Request) -> None:
        scheduler = self._scheduler
        if scheduler is not None:
            # The scheduler fills batches to the last moment; the guard is our own time on the way.
            allowed_us = request.deadline_us - request.arrival_us
            deadline_us = request.deadline_us - self._settings.guard_us(allowed_us)
            body = ArrivalBody(request.number, deadline_us, request.samples)
            scheduler.send(frame(Kind.ARRIVAL, pack_arrival(body)))

    # The polling thread

    def _run(self) -> None:
        next_tick_us = self._clock.now_us()
        while not self._stopping:
            try:
                now_us = self._clock.now_us()
                self._hub.poll(max(next_tick_us - now_us, 0) / 1e6)
                self._take_back_slots()
                now_us = self._clock.now_us()
                if now_us >= next_tick_us:
                    next_tick_us = now_us + TICK_US
                    self._tick(now_us)
            except Exception:  # noqa: BLE001  # one bad request or batch must not end all others
                _LOG.exception("the front of %s goes on", self.model)
        self._log.close()
        self._outbound.close()
        self._hub.close()

    def _tick(self, now_us: int) -> None:
        self._log.flush()
        if self._scheduler is None:
            self._connect()
        checks = _CANCEL_CHECKS_PER_TICK
        for number, request in list(self._requests.items()):
            if now_us > request.deadline_us + GRACE_US:
                self._expire(number, request)
            elif request.batch_id is None and checks and now_us - request.arrival_us > TICK_US:
                checks -= 1
                if request.is_cancelled():
                    self._cancel(number)
        for batch_id, batch in list(self._batches.items()):
            if now_us - batch.dispatched_us > FORGET_BATCH_US and not batch.unsent:
                del self._batches[batch_id]
                self._free(batch)
        self._retire_generations()

    def _connect(self) -> None:
        connection = self._hub.connect(self._settings.scheduler_address())
        if connection is None:
            return
        hello = {"role": "front", "model": self.model}
        connection.send(frame(Kind.HELLO, pack_json(hello)))
        self._scheduler = connection
        # Told again by number, so that one already told is not counted twice.
        for request in list(self._requests.values()):
            if request.batch_id is None:
                self._announce(request)

    def _expire(self, number: int, request: Request) -> None:
        self._cancel(number)
        late_ms = us_to_ms(self._clock.now_us() - request.deadline_us)
        state = "in flight" if request.batch_id is not None else "waiting"
        self._refuse(
            number,
            "UNAVAILABLE",
            f"model {self.model!r}: no answer {late_ms:.0f} ms after the deadline,"
            f" the request is still {state}",
        )

    def _cancel(self, number: int) -> None:
        if self._scheduler is not None:
            self._scheduler.send(frame(Kind.CANCEL, pack_request(number)))

    def _refuse(self, number: int, status: str, message: str) -> None:
        request = self._requests.pop(number, None)
        if request is not None:
            self.counters.failed += 1
            self._note(request, "failed", message)
            self._replies.put((request, Refusal(status, message), None))

    # Owner of the hub

    def on_frame(self, connection: Connection, header: Header, body: bytes) -> None:
        """What the scheduler decides and what workers answer.

        Raises:
            FrameError: nobody may say this to a front.
        """
        self._check_sender(connection, header.kind)
        match header.kind:
            case Kind.DISPATCH:
                self._dispatch(header, unpack_dispatch(body))
            case Kind.ANSWER:
                self._answer(header, unpack_answer(body))
            case Kind.DROP:
                self._dropped(unpack_drop(body))
            case Kind.ABORT:
                self._abort(header.batch_id)
            case Kind.FAILED:
                self._failed(header.batch_id, unpack_json(body))
            case Kind.PLAN:
                self._plan(unpack_json(body))
            case Kind.HELLO:
                self._trust(connection, unpack_json(body))
            case Kind.BEAT:
                pass
            case _:
                raise FrameError(f"a front takes no {header.kind.name}")

    def _check_sender(self, connection: Connection, kind: Kind) -> None:
        if kind in FROM_SCHEDULER and connection is not self._scheduler:
            raise FrameError(f"{kind.name} from somebody who is not the scheduler")
        if not connection.trusted and kind is not Kind.HELLO:
            raise FrameError(f"{kind.name} before HELLO")

    def on_close(self, connection: Connection, reason: str) -> None:
        """The scheduler or a worker is gone, or was refused."""
        if reason.startswith("refused"):
            self.counters.frames_refused += 1
            _LOG.warning("%s: %s", connection.name, reason)
        if connection is self._scheduler:
            self._scheduler = None
        self._outbound.forget(connection)

    def payload_target(
        self, connection: Connection, header: Header, body: bytes
    ) -> list[memoryview]:
        """Outputs from another host go into the answer slot of their batch."""
        if not connection.trusted or header.kind is not Kind.ANSWER:
            raise FrameError(f"{header.kind.name} with tensors from {connection.name}")
        answer = unpack_answer(body)
        batch = self._batches.get(header.batch_id)
        if batch is None or not _fits(batch, header, answer):
            raise FrameError(f"an answer to batch {header.batch_id}, which is not in flight")
        return batch.generation.segment.pieces(batch.slot, batch.samples)

    def _trust(self, connection: Connection, data: dict[str, Any]) -> None:
        if data.get("token") != self._settings.token:
            raise FrameError("HELLO without the token")
        connection.trusted = True

    # Batches

    def _plan(self, data: dict[str, Any]) -> None:
        generation = int(data["generation"])
        known = {g.deployment.generation: g.deployment for g in self._generations.values()}
        deployment = known.get(generation) or Deployment.read(self._settings, generation)
        if generation not in known:
            self._add_generation(deployment)
        if not data.get("prepared"):
            self._use(deployment)

    def _add_generation(self, deployment: Deployment) -> None:
        models = {model.name: i for i, model in enumerate(deployment.plan.models)}
        if self.model not in models:
            return
        model = models[self.model]
        plan = deployment.plan.models[model]
        slots = deployment.front_slots(model)
        segment = Segment.create(
            deployment.front_segment(self.model), deployment.front_layout(plan), slots
        )
        self._generations[deployment.tag] = _Generation(deployment, model, segment, SlotPool(slots))

    def _use(self, deployment: Deployment) -> None:
        self._current = deployment
        for model in deployment.plan.models:
            if model.name == self.model:
                self._plan_now = model
                self._max_waiting = deployment.max_waiting(model)

    def _retire_generations(self) -> None:
        """Remove the segment of a generation that is over, once nothing of it is in flight."""
        for tag, generation in list(self._generations.items()):
            older = generation.deployment.generation < self._current.generation
            busy = any(batch.generation is generation for batch in self._batches.values())
            if older and not busy:
                generation.segment.remove()
                del self._generations[tag]

    def _dispatch(self, header: Header, body: DispatchBody) -> None:
        generation = self._generations.get(header.plan_tag)
        if generation is None:
            raise FrameError(f"a dispatch of plan {header.plan_tag:016x}, which is not known here")
        if generation.slots.free and not generation.held:
            self._gather(generation, header, body)
        else:
            generation.held.append((header, body))

    def _gather(self, generation: _Generation, header: Header, body: DispatchBody) -> None:
        """Write the requests' tensors into the first worker's slot, one after the other."""
        requests = [r for n in body.requests if (r := self._requests.get(n)) is not None]
        samples = sum(request.samples for request in requests)
        first = body.hops[0]
        road = self._outbound.to_worker(generation.deployment, first.vgpu)
        if road is None or not samples:
            self._unusable(header, road is None)
            return
        slot = generation.slots.take()
        assert slot is not None
        now_us = self._clock.now_us()
        self._batches[header.batch_id] = _Batch(requests, samples, generation, slot, now_us)
        views = road.views(first.slot, samples)
        at = 0
        for request in requests:
            request.batch_id = header.batch_id
            for name, tensor in request.tensors.items():
                views[name][at : at + request.samples] = tensor
            at += request.samples
        checksum = road.checksum(first.slot, samples, self._settings.checksum_up_to_bytes)
        batch = BatchBody(
            generation.model,
            body.pipeline,
            samples,
            slot,
            checksum,
            now_us,
            now_us,
            body.hops,
        )
        data = frame(
            Kind.BATCH,
            pack_batch(batch),
            batch_id=header.batch_id,
            plan_tag=header.plan_tag,
            payload_bytes=road.segment.layout.payload_bytes(samples),
        )
        road.send(data, first.slot, samples)

    def _unusable(self, header: Header, worker_gone: bool) -> None:  # noqa: FBT001
        """Nobody to send to (the scheduler will hear of it), or nobody waits for it any more."""
        if worker_gone or self._scheduler is None:
            return
        reason = pack_json({"reason": "its requests were answered before it was dispatched"})
        self._scheduler.send(
            frame(Kind.FAILED, reason, batch_id=header.batch_id, plan_tag=header.plan_tag)
        )

    def _answer(self, header: Header, body: AnswerBody) -> None:
        batch = self._batches.get(header.batch_id)
        if batch is None:
            return  # aborted and run again, or forgotten
        if not _fits(batch, header, body):
            raise FrameError(f"an answer to batch {header.batch_id} that does not fit it")
        segment = batch.generation.segment
        if body.payload_checksum and body.payload_checksum != checksum_of(
            segment, batch.slot, batch.samples
        ):
            raise FrameError(f"outputs of batch {header.batch_id} do not match their checksum")
        del self._batches[header.batch_id]
        views = segment.views(batch.slot, batch.samples)
        now_us = self._clock.now_us()
        live: list[tuple[Request, Arrays]] = []
        at = 0
        for request in batch.requests:
            end = at + request.samples
            if self._requests.pop(request.number, None) is not None:
                live.append((request, {name: view[at:end] for name, view in views.items()}))
                late = now_us > request.deadline_us
                self.counters.answered(now_us - request.arrival_us, late)
                if late or request.trace:
                    self._note(request, "late" if late else "served")
            at = end
        batch.unsent = len(live)
        if not live:
            self._free(batch)
        for request, outputs in live:
            self._replies.put((request, outputs, batch))

    def _take_back_slots(self) -> None:
        while not self._free_slots.empty():
            self._free(self._free_slots.get())

    def _free(self, batch: _Batch) -> None:
        generation = batch.generation
        generation.slots.give(batch.slot)
        while generation.held and generation.slots.free:
            self._gather(generation, *generation.held.popleft())

    def _abort(self, batch_id: int) -> None:
        """Its requests wait again; the scheduler has queued or dropped them."""
        batch = self._batches.pop(batch_id, None)
        for generation in self._generations.values():
            kept = [item for item in generation.held if item[0].batch_id != batch_id]
            generation.held = deque(kept)
        if batch is None:
            return
        for request in batch.requests:
            request.batch_id = None
        self._free(batch)

    def _failed(self, batch_id: int, data: dict[str, Any]) -> None:
        batch = self._batches.pop(batch_id, None)
        if batch is None:
            return
        for request in batch.requests:
            self._refuse(request.number, "INTERNAL", f"model {self.model!r}: {data.get('reason')}")
        self._free(batch)

    def _dropped(self, body: DropBody) -> None:
        request = self._requests.pop(body.request, None)
        if request is None:
            return
        reason = DROP_REASONS[body.reason]
        self.counters.dropped[str(reason)] += 1
        self._note(request, str(reason))
        refusal = self._explain(request, body, reason)
        self._replies.put((request, refusal, None))

    def _explain(self, request: Request, body: DropBody, reason: DropReason) -> Refusal:
        model = f"model {self.model!r}"
        if reason is DropReason.CANCELLED:
            return Refusal("CANCELLED", f"{model}: the client cancelled the request")
        if reason is DropReason.TOO_LARGE:
            return Refusal(
                "INVALID_ARG",
                f"{model}: {request.samples} samples in one request, more than any batch planned",
            )
        if reason is DropReason.MODEL_REMOVED:
            return Refusal("UNAVAILABLE", f"{model} is not in the plan being served")
        slo_ms = us_to_ms(request.deadline_us - request.arrival_us)
        best = "none"
        if body.best_finish_us:
            best = f"{us_to_ms(body.best_finish_us - request.arrival_us):.1f} ms"
        what = (
            "its worker died" if reason is DropReason.WORKER_LOST else "the deadline cannot be met"
        )
        return Refusal(
            "UNAVAILABLE",
            f"{model}: {what}: deadline {slo_ms:.1f} ms after arrival, best possible finish {best},"
            f" queue position {body.queue_position}",
        )

    # Reply threads

    def _reply_loop(self) -> None:
        while (item := self._replies.get()) is not None:
            request, result, batch = item
            try:
                request.reply(result)
            except Exception:  # noqa: BLE001  # Triton's may be any; the thread goes on
                _LOG.exception("a reply of %s was not sent", self.model)
            if batch is not None:
                with self._sent_lock:
                    batch.unsent -= 1
                    last = not batch.unsent
                if last:
                    self._free_slots.put(batch)
                    self._hub.wake()


def _fits(batch: _Batch, header: Header, body: AnswerBody) -> bool:
    layout = batch.generation.segment.layout
    return (
        header.plan_tag == batch.generation.deployment.tag
        and body.answer_slot == batch.slot
        and body.samples == batch.samples
        and header.payload_bytes == layout.payload_bytes(batch.samples)
    )
