"""The books of the gateway: which requests and batches the core's numbers stand for.

Every event goes to the core through `Books.tell`, which turns the decisions into letters: a batch
dispatched waits here for its slots, a request dropped is told to its front, a batch aborted to
its front and workers. Not here: what frames and workers' reports mean (`driver`).
"""

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from triton_backend.core.decisions import Abort, Decision, Dispatch, Drop, SetTimer
from triton_backend.core.events import Event
from triton_backend.core.scheduler import Scheduler
from triton_backend.serving.counters import GatewayCounters
from triton_backend.serving.driver_letters import (
    Front,
    Letter,
    Worker,
    dispatch_frame,
    drop_frame,
    granted_hops,
)
from triton_backend.serving.driver_slots import WorkerSlots
from triton_backend.serving.overload import Refused
from triton_backend.serving.settings import Deployment
from triton_backend.serving.wire import Kind, TimesBody, frame

# A slot granted to an aborted batch may still be written by its sender for this long.
HELD_BACK_SLOS = 2

Watcher = Callable[[Event | Decision | Refused], None]


@dataclass(slots=True)
class _Request:
    front: Front
    local: int


@dataclass(slots=True)
class Batch:
    """A batch in flight.

    Attributes:
        requests: their numbers in the core.
        path: (vGPU, slot) of every stage.
        ends_us: reserved end of every stage.
        done: stages that have reported.
        early: reports of stages whose stage before has not reported yet; None: it failed there.
    """

    front: Front
    requests: tuple[int, ...]
    samples: int
    path: tuple[tuple[int, int], ...]
    ends_us: tuple[int, ...]
    done: int = 0
    early: dict[int, TimesBody | None] = field(default_factory=dict[int, TimesBody | None])

    @property
    def ended(self) -> bool:
        """Whether all stages have reported."""
        return self.done == len(self.path)

    def expects(self, stage: int) -> bool:
        """Whether a stage exists and has not reported."""
        return self.done <= stage < len(self.path)


class Books:
    """Requests, batches and slots around the core.

    Args:
        epoch: added to batch numbers, so that those of two lives of the scheduler never meet.
        watch: told every event and decision of the core, in order.
    """

    def __init__(
        self, deployment: Deployment, *, epoch: int, watch: Watcher, counters: GatewayCounters
    ) -> None:
        self.timer_us: int | None = None
        self.expiry_us = 0
        self.watch = watch
        self._epoch = epoch
        self._counters = counters
        self._last_us = 0
        settings = deployment.settings
        self._core = Scheduler(deployment.plan, policy=settings.policy, nic=settings.nic)
        self._requests: dict[int, _Request] = {}
        self._numbers: dict[tuple[Front, int], int] = {}
        self._batches: dict[int, Batch] = {}
        self._held: deque[Dispatch] = deque()
        self._outbox: list[Letter] = []
        self.use(deployment)

    def use(self, deployment: Deployment) -> None:
        """From now on batches are of this generation; nothing is in flight."""
        self._deployment = deployment
        self.slots = WorkerSlots(deployment)
        self._slack_us = min(
            deployment.settings.guard_us(model.slo_us) for model in deployment.plan.models
        )

    # What is known

    @property
    def in_flight(self) -> int:
        """Batches dispatched and not ended, those that wait for a slot included."""
        return len(self._batches) + len(self._held)

    @property
    def batches(self) -> Mapping[int, Batch]:
        """Batches sent and not ended, by the core's number."""
        return self._batches

    def queue_lengths(self) -> tuple[int, ...]:
        """Requests waiting, by model."""
        return self._core.queue_lengths()

    def number_of(self, front: Front, local: int) -> int | None:
        """The core's number of a front's request."""
        return self._numbers.get((front, local))

    def numbers_of(self, front: Front) -> list[int]:
        """The core's numbers of all that a front has."""
        return [number for number, r in self._requests.items() if r.front == front]

    def at(self, now_us: int) -> int:
        """The instant as the core may be told it: instants never go back."""
        self._last_us = max(self._last_us, now_us)
        return self._last_us

    # What happens

    def enter(self, number: int, front: Front, local: int) -> None:
        """A request that the core is about to be told."""
        self._requests[number] = _Request(front, local)
        self._numbers[front, local] = number

    def post(self, to: Front | Worker, data: bytes) -> None:
        """Leave a letter."""
        self._outbox.append(Letter(to, data))

    def letters(self) -> list[Letter]:
        """Take what is to be posted."""
        outbox, self._outbox = self._outbox, []
        return outbox

    def tell(self, event: Event) -> None:
        """Tell the core, and carry out what it decides."""
        self.watch(event)
        for decision in self._core.handle(event):
            self.watch(decision)
            match decision:
                case Dispatch():
                    self._held.append(decision)
                case Drop():
                    self._drop(decision)
                case Abort():
                    self._abort(decision.batch_id, event.now_us)
                case SetTimer():
                    self.expiry_us = decision.at_us
                    self.timer_us = decision.at_us - self._slack_us
        self.send_held()

    def send_held(self) -> None:
        """Send what was dispatched, first come first served, as far as slots are free."""
        self.slots.release(self._last_us)
        while self._held:
            slots = self.slots.grant([hop.vgpu for hop in self._held[0].hops])
            if slots is None:
                return
            self._send(self._held.popleft(), slots)

    def _send(self, dispatch: Dispatch, slots: list[int]) -> None:
        hops = granted_hops(dispatch, slots)
        requests = [self._requests[number] for number in dispatch.request_ids]
        front = requests[0].front
        self._batches[dispatch.batch_id] = Batch(
            front,
            dispatch.request_ids,
            dispatch.samples,
            tuple((hop.vgpu, hop.slot) for hop in hops),
            tuple(hop.end_us for hop in hops),
        )
        self._counters.dispatched(front.model, dispatch.samples)
        locals_ = tuple(r.local for r in requests)
        tag = self._deployment.tag
        self.post(front, dispatch_frame(dispatch, hops, locals_, tag, self._epoch))

    def end(self, number: int) -> None:
        """A batch has left its last stage; its front answers its requests."""
        for request_id in self._batches.pop(number).requests:
            self._forget(request_id)

    def _forget(self, number: int) -> _Request | None:
        request = self._requests.pop(number, None)
        if request is not None:
            del self._numbers[request.front, request.local]
        return request

    def _drop(self, decision: Drop) -> None:
        request = self._forget(decision.request_id)
        if request is None:
            return
        self._counters.dropped[request.front.model, decision.reason] += 1
        dropped = drop_frame(
            request.local,
            decision.reason,
            decision.deadline_us,
            best_finish_us=decision.best_finish_us or 0,
            queue_position=decision.queue_position,
        )
        self.post(request.front, dropped)

    def _abort(self, batch_id: int, now_us: int) -> None:
        known = self._batches.pop(batch_id, None)
        if known is None:
            self._held = deque(d for d in self._held if d.batch_id != batch_id)
            return
        deployment, left = self._deployment, known.path[known.done :]
        notice = frame(Kind.ABORT, batch_id=self._epoch + batch_id, plan_tag=deployment.tag)
        self.post(known.front, notice)
        for vgpu, _ in left:
            self.post(Worker(deployment.generation, vgpu), notice)
        slo_us = deployment.model_of(known.path[0][0]).slo_us
        self.slots.hold_back(left, now_us + HELD_BACK_SLOS * slo_us)
