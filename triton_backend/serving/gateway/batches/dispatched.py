"""Batches that the core dispatched: on their way to slots, through the workers, or given up.

    dispatched --> waits for slots --> sent --> ended (`events`)
                        |               |
                        +---------------+--> aborted --> its slots are held

Here: which batches are where, slots granted and held, and the frames that send and abort them. Not
here: what workers say of them (`events`), when one is dispatched or aborted (`hub`).
"""

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from functools import partial

from triton_backend.contract.decisions import Dispatch, SharedBatch
from triton_backend.scheduler.scheduler import Scheduler
from triton_backend.serving.gateway.applications.job import RetainedOutputSlot
from triton_backend.serving.gateway.applications.jobs import Jobs
from triton_backend.serving.gateway.batches.generation import Generation
from triton_backend.serving.gateway.batches.held_slots import HeldSlot, HeldSlots
from triton_backend.serving.gateway.batches.in_flight import BatchInFlight
from triton_backend.serving.gateway.batches.shared import SharedBatches
from triton_backend.serving.gateway.counters import GatewayCounters
from triton_backend.serving.gateway.peers.addresses import Address, Send, WorkerAddress
from triton_backend.serving.gateway.peers.fronts import Fronts
from triton_backend.serving.liveness.limits import written_until_us
from triton_backend.serving.transport.wire import (
    LOCALS,
    RETAINED,
    BatchBody,
    Kind,
    frame,
    pack_dispatch,
    pack_gather,
)


class DispatchedBatches:
    """Batches that were dispatched and have not ended, by the core's numbers.

    Attributes:
        first_number: of this life; added to the core's numbers on the wire.
        sent: those that were sent.
        shared: which of them run together.
        may_send: True if any that waits might have its slots now.
    """

    def __init__(
        self,
        core: Scheduler,
        jobs: Jobs,
        fronts: Fronts,
        counters: GatewayCounters,
        *,
        first_number: int,
        send: Send,
    ) -> None:
        self._core = core
        self._jobs = jobs
        self._fronts = fronts
        self._counters = counters
        self._send = send
        self.first_number = first_number
        self.sent: dict[int, BatchInFlight] = {}
        self.shared = SharedBatches(first_number, self.sent, send)
        self.may_send = False
        self._waiting: deque[tuple[Generation, Dispatch]] = deque()
        self._held = HeldSlots()

    def generations(self) -> set[int]:
        """Those whose batches wait or were sent, or whose slots are held."""
        found = {generation.deployment.generation for generation, _ in self._waiting}
        found |= {batch.generation.deployment.generation for batch in self.sent.values()}
        return found | self._held.generations()

    def of_others(self, generation: Generation) -> int:
        """How many are of another generation."""
        sent = sum(batch.generation is not generation for batch in self.sent.values())
        return sent + sum(other is not generation for other, _ in self._waiting)

    def add(self, generation: Generation, dispatch: Dispatch) -> None:
        """One was dispatched, by the plan of a generation."""
        if generation.retained_models[dispatch.model]:
            self._jobs.dispatched(dispatch)
        self._waiting.append((generation, dispatch))
        self.may_send = True

    def share(self, decisions: Iterable[SharedBatch], now_us: int) -> None:
        """Shared batches are opened, other than they were, or over."""
        self.shared.note(decisions, self._waiting, now_us)

    def send(self, now_us: int) -> None:
        """Send what has its slots, and what workers do not know yet of shared batches."""
        if self.may_send:
            self.send_waiting(now_us)
        self.shared.send_changed(now_us)

    def release(self, generations: Iterable[Generation], now_us: int) -> None:
        """Free slots that were held or held back long enough."""
        for generation in generations:
            self.may_send |= generation.slots.release(now_us)
        self.may_send |= self._held.release(now_us)

    def send_waiting(self, now_us: int) -> None:
        """Send what was dispatched, in this order, where slots are free at all of its stages.

        A batch that waits for a slot holds up later ones that share a vGPU with it, so that none of
        them runs there before it. It holds up no others, because its worker may be cut off.
        """
        if not self.may_send:
            return
        self.may_send = False
        held_up: set[tuple[int, int]] = set()  # generations and vGPUs
        for _ in range(len(self._waiting)):
            generation, dispatch = self._waiting.popleft()
            number = generation.deployment.generation
            places = [(number, hop.vgpu) for hop in dispatch.hops]
            free = not held_up or held_up.isdisjoint(places)
            slots = generation.slots.grant(dispatch.hops) if free else None
            output_slot = None
            if slots is not None and generation.retained_models[dispatch.model]:
                output_slot = generation.retained.grant(dispatch.hops[-1].vgpu)
                if output_slot is None:
                    generation.slots.give_all(dispatch.hops, slots)
                    slots = None
            if slots is None:
                held_up.update(places)
                self._waiting.append((generation, dispatch))
            elif output_slot is None:
                self._send_batch(generation, dispatch, slots, now_us)
            else:
                self._send_tasks(generation, dispatch, slots, output_slot, now_us)

    def _send_tasks(
        self,
        served: Generation,
        dispatch: Dispatch,
        slots: list[int],
        output_slot: RetainedOutputSlot,
        now_us: int,
    ) -> None:
        """To its first worker, which gathers it from where the rows lie."""
        number, deployment = dispatch.batch_id, served.deployment
        low = not self._core.usual_requests(dispatch.request_ids)
        batch = BatchInFlight(served, dispatch, slots, now_us, output_slot=output_slot)
        batch.low = low
        self.sent[number] = batch
        model = deployment.plan.models[dispatch.model]
        self._counters.dispatched(model.name, dispatch.samples)
        body = BatchBody(
            dispatch.model,
            dispatch.pipeline,
            dispatch.samples,
            output_slot.slot,
            0,
            now_us,
            now_us,
            RETAINED,
            dispatch.hops,
            tuple(slots),
        )
        pieces = self._jobs.pieces(deployment, dispatch)
        data = frame(
            Kind.GATHER,
            pack_gather(body, pieces),
            batch_id=self.first_number + number,
            plan_tag=deployment.tag,
        )
        self._send(WorkerAddress(deployment.generation, dispatch.hops[0].vgpu), data)

    def _send_batch(
        self, served: Generation, dispatch: Dispatch, slots: list[int], now_us: int
    ) -> None:
        """To the front that gathers it, or, an express request, to its first worker."""
        number = dispatch.batch_id
        low = not self._core.usual_requests(dispatch.request_ids)
        self.sent[number] = BatchInFlight(served, dispatch, slots, now_us, low=low)
        front = self._fronts.front_of(dispatch.request_ids[0])
        self._counters.dispatched(front.model, dispatch.samples)
        number += self.first_number
        express = served.express.batch_frame(dispatch, slots, number, now_us)
        if express is not None:
            worker = WorkerAddress(served.deployment.generation, dispatch.hops[0].vgpu)
            self._send(worker, express)
            return
        requests = [request % LOCALS for request in dispatch.request_ids]
        body = pack_dispatch(dispatch.pipeline, dispatch.samples, dispatch.hops, slots, requests)
        tag = served.deployment.tag
        self._send(front, frame(Kind.DISPATCH, body, batch_id=number, plan_tag=tag))

    def abort(self, batch_id: int, now_us: int) -> None:
        """Have front and workers forget a batch.

        Its slots are held until no process can write there.
        """
        batch = self.sent.pop(batch_id, None)
        if batch is None:
            for generation, dispatch in self._waiting:
                if dispatch.batch_id == batch_id and generation.retained_models[dispatch.model]:
                    self._jobs.aborted(dispatch)
            kept = [item for item in self._waiting if item[1].batch_id != batch_id]
            self._waiting = deque(kept)
            self.may_send = True  # those it held up
            return
        deployment, dispatch = batch.generation.deployment, batch.dispatch
        number = self.first_number + batch_id
        notice = frame(Kind.ABORT, batch_id=number, plan_tag=deployment.tag)
        path: list[Address] = [WorkerAddress(deployment.generation, h.vgpu) for h in dispatch.hops]
        if batch.output_slot is None:
            path.insert(0, self._fronts.front_of(dispatch.request_ids[0]))
        else:
            path.insert(0, path[0])  # which gathers it
            self._jobs.aborted(dispatch)
        stages = deployment.plan.models[dispatch.model].pipelines[dispatch.pipeline].stages
        self._held.hold(
            batch_id,
            deployment.generation,
            notice,
            [*self._held_slots(batch, path)],
            written_until_us(
                now_us,
                dispatch.hops[-1].end_us,
                slo_us=max(deployment.longest_slos_us),
                latency_us=max(stage.latency_us for stage in stages),
            ),
        )
        # A front forgets its batch in any case, and a worker may still hand on what it has
        # reported.
        for peer in {path[0]: None, **dict.fromkeys(path[batch.reported :])}:
            self._send(peer, notice)

    def _held_slots(self, batch: BatchInFlight, path: Sequence[Address]) -> Iterator[HeldSlot]:
        """Slots of a batch that stages to come may still write.

        `path`: its sender, and its workers.
        """
        hops = batch.dispatch.hops
        for stage in range(batch.reported, len(hops)):
            pool, slot = batch.generation.slots.of(hops[stage].vgpu), batch.slots[stage]
            pool.hold(slot)
            yield HeldSlot(frozenset(path[stage : stage + 2]), partial(pool.give, slot))
        if batch.output_slot is not None:
            yield HeldSlot(frozenset(path[-1:]), batch.output_slot.release)

    def let_go(self, names: Sequence[Address], batch_id: int) -> None:
        """A front or worker, by its names, writes nothing of a batch any more that was aborted."""
        self.may_send |= self._held.let_go(batch_id - self.first_number, names)

    def to_let_go(self, peer: Address) -> list[bytes]:
        """ABORT of every batch not let go of yet, for a front or worker that comes back."""
        return self._held.notices(peer)
