"""Shared batches: their members as last decided, and what their workers know of them."""

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence

from triton_backend.contract.decisions import Dispatch, SharedBatch
from triton_backend.contract.errors import InvariantError
from triton_backend.serving.gateway.batches.generation import Generation
from triton_backend.serving.gateway.batches.in_flight import BatchInFlight, SharedBatchInFlight
from triton_backend.serving.gateway.peers.addresses import Send, WorkerAddress
from triton_backend.serving.transport.wire import (
    Kind,
    SharedBatchBody,
    TimesBody,
    frame,
    pack_shared_batch,
)


class SharedBatches:
    """Shared batches that are not over, by the core's numbers.

    Args:
        first_batch: added to the core's numbers on the wire.
        batches: those that were sent and have not ended, by the core's numbers.
    """

    def __init__(self, first_batch: int, batches: Mapping[int, BatchInFlight], send: Send) -> None:
        self._first_batch = first_batch
        self._batches = batches
        self._send = send
        self._by_number: dict[int, SharedBatchInFlight] = {}
        self._that_ran: list[int] = []
        self._unsaid: dict[int, None] = {}  # workers do not know yet how these are

    def __len__(self) -> int:
        return len(self._by_number)

    def members(self, shared_batch: SharedBatchInFlight) -> list[BatchInFlight]:
        """Members that were sent."""
        places = shared_batch.decision.members
        return [self._batches[s.batch_id] for s in places if s.batch_id in self._batches]

    def ends_us(self) -> dict[tuple[int, int], int]:
        """When the stages of members end, by batch and stage."""
        return {
            place[:2]: shared_batch.decision.end_us
            for shared_batch in self._by_number.values()
            for place in shared_batch.decision.members
        }

    def ran(
        self, shared_batch_id: int, aboard: Iterable[int], times: TimesBody, now_us: int
    ) -> bool:
        """Note a joint run; False for one of another life, or where all members were aborted."""
        number = shared_batch_id - self._first_batch
        shared_batch = self._by_number.get(number)
        if shared_batch is None or shared_batch.vgpu != times.vgpu or shared_batch.done is not None:
            return False
        shared_batch.done = times, frozenset(one - self._first_batch for one in aboard)
        for batch in self.members(shared_batch):
            batch.heard_us = now_us
        self._that_ran.append(number)
        return True

    def that_ran(self) -> Iterator[tuple[int, SharedBatchInFlight, TimesBody, frozenset[int]]]:
        """Those that ran and are not over: number, times, and the batches that were aboard."""
        for number in list(self._that_ran):
            shared_batch = self._by_number.get(number)
            if shared_batch is None or shared_batch.done is None:
                self._that_ran.remove(number)
            else:
                yield number, shared_batch, *shared_batch.done

    def end(self, number: int) -> None:
        """All members of one that ran have reported the stages before."""
        self._that_ran.remove(number)
        del self._by_number[number]

    def note(
        self,
        decisions: Iterable[SharedBatch],
        waiting: deque[tuple[Generation, Dispatch]],
        now_us: int,
    ) -> None:
        """Shared batches are opened, other than they were, or over."""
        for decision in decisions:
            number = decision.shared_batch_id
            shared_batch = self._by_number.get(number)
            if shared_batch is None and decision.members:
                shared_batch = self._by_number[number] = self._opened(decision, waiting)
            if shared_batch is None:
                continue  # opened and dissolved at once
            shared_batch.decision = decision
            if decision.members:
                self._unsaid[number] = None
            else:
                del self._by_number[number]
                self._tell(shared_batch, (), now_us)

    def send_changed(self, now_us: int) -> None:
        """Tell workers of shared batches that changed.

        Of members without a slot yet, once they have been sent.
        """
        for number in list(self._unsaid):
            shared_batch = self._by_number.get(number)
            places = () if shared_batch is None else shared_batch.decision.members
            sent = [place.batch_id for place in places if place.batch_id in self._batches]
            if shared_batch is not None and sent:
                self._tell(shared_batch, sent, now_us)
            if len(sent) == len(places):
                del self._unsaid[number]

    def _tell(self, shared_batch: SharedBatchInFlight, batches: Sequence[int], now_us: int) -> None:
        """Tell the worker of a shared batch its members and its start."""
        deployment, start_us = shared_batch.generation.deployment, shared_batch.decision.start_us
        patience_us = max(deployment.longest_slos_us)
        numbers = tuple(self._first_batch + batch for batch in batches)
        body = SharedBatchBody(start_us, max(start_us, now_us) + patience_us, numbers)
        number = self._first_batch + shared_batch.decision.shared_batch_id
        data = frame(
            Kind.SHARED_BATCH, pack_shared_batch(body), batch_id=number, plan_tag=deployment.tag
        )
        self._send(WorkerAddress(deployment.generation, shared_batch.vgpu), data)

    def _opened(
        self, decision: SharedBatch, waiting: deque[tuple[Generation, Dispatch]]
    ) -> SharedBatchInFlight:
        """A shared batch of batches dispatched by the same event, or earlier and in other ones."""
        places = {place.batch_id: place for place in decision.members}
        for generation, dispatch in reversed(waiting):
            if place := places.get(dispatch.batch_id):
                return SharedBatchInFlight(generation, dispatch.hops[place.stage].vgpu, decision)
        for number, place in places.items():
            if batch := self._batches.get(number):
                vgpu = batch.dispatch.hops[place.stage].vgpu
                return SharedBatchInFlight(batch.generation, vgpu, decision)
        raise InvariantError(
            f"shared batch {decision.shared_batch_id} of batches {list(places)}, not dispatched"
        )
