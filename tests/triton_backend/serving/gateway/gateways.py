"""A gateway that keeps what it sends, for tests that call it by hand."""

from typing import NamedTuple

from tests.triton_backend.serving.small_plans import BATCH, SLO_US
from triton_backend.serving.deployment import Deployment
from triton_backend.serving.gateway.batches.generation import ThreadsOf
from triton_backend.serving.gateway.hub import Observer
from triton_backend.serving.gateway.peers.addresses import Address, FrontAddress, WorkerAddress
from triton_backend.serving.gateway.state import Gateway
from triton_backend.serving.liveness.supervisor import STALL_US
from triton_backend.serving.transport.wire import (
    HEADER_BYTES,
    ArrivalBody,
    DispatchBody,
    DropBody,
    Kind,
    TimesBody,
    parse_header,
    unpack_dispatch,
    unpack_drop,
)

PAIR = FrontAddress("pair")
EPOCH = 7


class SentFrame(NamedTuple):
    """A frame for a process."""

    to: Address
    data: bytes


class HeldGateway(Gateway):
    """Its frames lie here until they are taken."""

    def __init__(
        self,
        deployment: Deployment,
        *,
        epoch: int = 1,
        observe: Observer = lambda _event, _decisions: None,
        slots_free_us: int = 0,
        threads_of: ThreadsOf = lambda _worker: {},
    ) -> None:
        self._frames: list[SentFrame] = []
        super().__init__(
            deployment,
            epoch=epoch,
            now_us=0,
            observe=observe,
            send=self._keep,
            slots_free_us=slots_free_us,
            threads_of=threads_of,
        )

    def _keep(self, to: Address, data: bytes) -> None:
        self._frames.append(SentFrame(to, data))

    def frames(self) -> list[SentFrame]:
        """Take what was sent."""
        frames, self._frames = self._frames, []
        return frames


def serving(deployment: Deployment, threads_of: ThreadsOf = lambda _worker: {}) -> HeldGateway:
    """A gateway whose workers are all up."""
    made = HeldGateway(deployment, epoch=EPOCH, threads_of=threads_of)
    for vgpu in deployment.vgpus:
        made.workers.up(WorkerAddress(deployment.generation, vgpu.index), 0)
    made.frames()
    return made


def look_until(gateway: HeldGateway, from_us: int, till_us: int) -> list[SentFrame]:
    """Look now and then from the first instant on, and at the last; what was sent."""
    for now_us in (*range(from_us, till_us, STALL_US // 5), till_us):
        gateway.look(now_us)
    return gateway.frames()


def arrive(
    gateway: HeldGateway,
    *numbers: int,
    now_us: int = 10,
    samples: int = 1,
    guard_us: int = 0,
) -> None:
    """Requests of the model `pair` with its SLO, of which the front keeps so much back."""
    for number in numbers:
        body = ArrivalBody(number, now_us + SLO_US, samples, guard_us=guard_us)
        gateway.requests.arrival(PAIR, body, now_us)


def kinds(frames: list[SentFrame]) -> list[Kind]:
    """The sent frames."""
    return [parse_header(sent.data).kind for sent in frames]


def dispatches(frames: list[SentFrame]) -> list[tuple[int, DispatchBody]]:
    """Batches sent to fronts: number and body."""
    return [
        (parse_header(sent.data).batch_id, unpack_dispatch(sent.data[HEADER_BYTES:]))
        for sent in frames
        if parse_header(sent.data).kind is Kind.DISPATCH
    ]


def drops(frames: list[SentFrame]) -> list[DropBody]:
    """Requests that were dropped."""
    return [
        unpack_drop(sent.data[HEADER_BYTES:])
        for sent in frames
        if parse_header(sent.data).kind is Kind.DROP
    ]


def finish(gateway: HeldGateway, batch: int, body: DispatchBody, now_us: int) -> None:
    """Report every move and stage of a batch, all at one instant."""
    for stage, hop in enumerate(body.hops):
        if stage:
            gateway.reports.transfer_done(batch, stage, TimesBody(hop.vgpu, now_us, now_us), now_us)
        gateway.reports.stage_done(batch, stage, TimesBody(hop.vgpu, now_us, now_us), now_us)


def run_full_batch(
    gateway: HeldGateway, first: int, slow_vgpu: int, factor: int
) -> list[SentFrame]:
    """Serve a batch and answer pace probes.

    A stage takes 5 ms, on one vGPU `factor` times as long.
    """
    now_us = first * 10**6
    arrive(gateway, *range(first, first + BATCH), now_us=now_us)
    frames = gateway.frames()
    for batch, body in dispatches(frames):
        for stage, hop in enumerate(body.hops):
            took_us = 5_000 * (factor if hop.vgpu == slow_vgpu else 1)
            if stage:
                gateway.reports.transfer_done(
                    batch, stage, TimesBody(hop.vgpu, now_us, now_us), now_us
                )
            now_us += took_us
            gateway.reports.stage_done(
                batch, stage, TimesBody(hop.vgpu, now_us - took_us, now_us), now_us
            )
    gateway.look(now_us)
    frames = gateway.frames()
    for sent in frames:
        if parse_header(sent.data).kind is Kind.PACE_PROBE and isinstance(sent.to, WorkerAddress):
            took_us = 5_000 * (factor if sent.to.vgpu == slow_vgpu else 1)
            times = TimesBody(sent.to.vgpu, now_us - took_us, now_us)
            gateway.workers.pace_result(sent.to, times, now_us)
    return frames
