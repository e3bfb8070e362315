"""The books of the gateway: which requests and batches the core's numbers stand for.

Every event goes to the core through `Books.tell`, which turns the decisions into frames: a batch
dispatched waits here for its slots, a request dropped is told to its front, a batch aborted to
its front and workers. Not here: what frames and workers' reports mean (`driver`).
"""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from triton_backend.contract.decisions import Abort, Decision, Dispatch, Drop, SetTimer
from triton_backend.contract.errors import InputError
from triton_backend.contract.events import Event
from triton_backend.scheduler.scheduler import Scheduler
from triton_backend.serving.deployment import Deployment
from triton_backend.serving.gateway.addresses import (
    Front,
    Post,
    Worker,
    dispatch_frame,
    drop_frame,
)
from triton_backend.serving.gateway.admission import Refused
from triton_backend.serving.gateway.counters import GatewayCounters
from triton_backend.serving.gateway.express import ExpressOffers
from triton_backend.serving.gateway.slots import WorkerSlots
from triton_backend.serving.transport.wire import LOCAL_BITS, LOCALS, Kind, TimesBody, frame

# A slot granted to an aborted batch may still be written by its sender for this long.
HELD_BACK_SLOS = 2

Watcher = Callable[[Event | Refused, Sequence[Decision]], None]
"""Told every event and what the core decided on it."""


@dataclass(slots=True)
class Batch:
    """A batch in flight.

    Attributes:
        slots: granted at every stage.
        early: reports of stages whose stage before has not reported yet; None: it failed there.
        done: stages that have reported.
    """

    dispatch: Dispatch
    slots: list[int]
    early: dict[int, TimesBody | None]
    done: int = 0

    @property
    def ended(self) -> bool:
        """Whether all stages have reported."""
        return self.done == len(self.slots)

    def expects(self, stage: int) -> bool:
        """Whether a stage exists and has not reported."""
        return self.done <= stage < len(self.slots)


class Books:
    """Requests, batches and slots around the core.

    Attributes:
        batches: sent and not ended, by the core's number.
        requests: the core's numbers of those it has, queued or in flight.
        timer_us: when the core wants to be told `Timer`, a little before `expiry_us`.

    Args:
        epoch: added to batch numbers, so that those of two lives of the scheduler never meet.
    """

    def __init__(
        self,
        deployment: Deployment,
        *,
        epoch: int,
        watch: Watcher,
        post: Post,
        counters: GatewayCounters,
    ) -> None:
        self.timer_us: int | None = None
        self.expiry_us = 0
        self.watch = watch
        self.post = post
        self.batches: dict[int, Batch] = {}
        self.requests: set[int] = set()
        self._epoch = epoch
        self._counters = counters
        self._last_us = 0
        settings = deployment.settings
        self._core = Scheduler(deployment.plan, policy=settings.policy, nic=settings.nic)
        self._fronts: list[Front] = []  # of every plan of this life
        self._held: deque[Dispatch] = deque()
        self.use(deployment)

    def use(self, deployment: Deployment) -> None:
        """From now on batches are of this generation; nothing is in flight."""
        self._deployment = deployment
        self.slots = WorkerSlots(deployment)
        self.express = ExpressOffers(deployment)
        models = deployment.plan.models
        self._slack_us = min(deployment.settings.guard_us(model.slo_us) for model in models)
        planned = dict.fromkeys(Front(model.name) for model in models)
        self._fronts += [front for front in planned if front not in self._fronts]
        self._first_numbers = {front: n << LOCAL_BITS for n, front in enumerate(self._fronts)}

    # What is known

    @property
    def in_flight(self) -> int:
        """Batches dispatched and not ended, those that wait for a slot included."""
        return len(self.batches) + len(self._held)

    def queue_lengths(self) -> tuple[int, ...]:
        """Requests waiting, by model."""
        return self._core.queue_lengths()

    def number_of(self, front: Front, local: int) -> int:
        """The core's number of a front's request; negative for a front that no plan has had.

        Raises:
            InputError: fronts do not count so far.
        """
        if not 0 <= local < LOCALS:
            raise InputError(f"request {local}", f"fronts count from 0 to {LOCALS - 1}")
        return self._first_numbers.get(front, -LOCALS) + local

    def numbers_of(self, front: Front) -> list[int]:
        """The core's numbers of all that a front has."""
        return sorted(n for n in self.requests if self._fronts[n >> LOCAL_BITS] == front)

    def at(self, now_us: int) -> int:
        """The instant as the core may be told it: instants never go back."""
        self._last_us = max(self._last_us, now_us)
        return self._last_us

    # What happens

    def tell(self, event: Event) -> None:
        """Tell the core, and carry out what it decides."""
        decisions = self._core.handle(event)
        self.watch(event, decisions)
        for decision in decisions:
            match decision:
                case Dispatch():
                    self._held.append(decision)
                case SetTimer():
                    self.expiry_us = decision.at_us
                    self.timer_us = decision.at_us - self._slack_us
                case Drop():
                    self._drop(decision)
                case Abort():
                    self._abort(decision.batch_id, event.now_us)
        if self._held:
            self._send_held()

    def _send_held(self) -> None:
        """Send what was dispatched, first come first served, to whom slots are free.

        Who waits for a slot keeps nobody else waiting: its worker may be cut off, with all of its own.
        """
        for _ in range(len(self._held)):
            dispatch = self._held.popleft()
            slots = self.slots.grant(dispatch.hops, self._last_us)
            if slots is None:
                self._held.append(dispatch)
            else:
                self._send(dispatch, slots)

    def _send(self, dispatch: Dispatch, slots: list[int]) -> None:
        """To the front that gathers it, or, an express request, to its first worker."""
        self.batches[dispatch.batch_id] = Batch(dispatch, slots, {})
        front = self._fronts[dispatch.request_ids[0] >> LOCAL_BITS]
        self._counters.dispatched(front.model, dispatch.samples)
        express = self.express.batch_frame(dispatch, slots, self._epoch, self._last_us)
        if express is None:
            self.post(front, dispatch_frame(dispatch, slots, self._deployment.tag, self._epoch))
        else:
            self.post(Worker(self._deployment.generation, dispatch.hops[0].vgpu), express)

    def end(self, number: int) -> None:
        """A batch has left its last stage; its front answers its requests."""
        self.requests.difference_update(self.batches.pop(number).dispatch.request_ids)

    def _drop(self, decision: Drop) -> None:
        number = decision.request_id
        self.requests.discard(number)
        self.express.forget(number)
        front = self._fronts[number >> LOCAL_BITS]
        self._counters.dropped[front.model, decision.reason.text] += 1
        dropped = drop_frame(
            number % LOCALS,
            decision.reason,
            decision.deadline_us,
            best_finish_us=decision.best_finish_us or 0,
            queue_position=decision.queue_position,
        )
        self.post(front, dropped)

    def _abort(self, batch_id: int, now_us: int) -> None:
        known = self.batches.pop(batch_id, None)
        if known is None:
            self._held = deque(d for d in self._held if d.batch_id != batch_id)
            return
        deployment, hops = self._deployment, known.dispatch.hops[known.done :]
        notice = frame(Kind.ABORT, batch_id=self._epoch + batch_id, plan_tag=deployment.tag)
        self.post(self._fronts[known.dispatch.request_ids[0] >> LOCAL_BITS], notice)
        for hop in hops:
            self.post(Worker(deployment.generation, hop.vgpu), notice)
        left = [(hop.vgpu, slot) for hop, slot in zip(hops, known.slots[known.done :], strict=True)]
        slo_us = deployment.plan.models[known.dispatch.model].slo_us
        self.slots.hold_back(left, now_us + HELD_BACK_SLOS * slo_us)
