"""A gateway that keeps what it posts, for tests that tell it things by hand."""

from typing import NamedTuple

from tests.triton_backend.serving.plans import BATCH, SLO_US
from triton_backend.serving.deployment import Deployment
from triton_backend.serving.gateway.addresses import Front, Worker
from triton_backend.serving.gateway.gateway import Gateway
from triton_backend.serving.gateway.state import Watcher
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

PAIR = Front("pair")
EPOCH = 7


class Letter(NamedTuple):
    """A frame for somebody."""

    to: Front | Worker
    data: bytes


class HeldGateway(Gateway):
    """Its letters lie here until they are taken."""

    def __init__(
        self,
        deployment: Deployment,
        *,
        epoch: int = 1,
        watch: Watcher = lambda _event, _decisions: None,
    ) -> None:
        self._letters: list[Letter] = []
        super().__init__(deployment, epoch=epoch, now_us=0, watch=watch, post=self._keep)

    def _keep(self, to: Front | Worker, data: bytes) -> None:
        self._letters.append(Letter(to, data))

    def letters(self) -> list[Letter]:
        """Take what was posted."""
        letters, self._letters = self._letters, []
        return letters


def serving(deployment: Deployment) -> HeldGateway:
    """A gateway whose workers are all up."""
    made = HeldGateway(deployment, epoch=EPOCH)
    for vgpu in deployment.vgpus:
        made.worker_up(Worker(deployment.generation, vgpu.index), 0)
    made.letters()
    return made


def arrive(gateway: HeldGateway, *numbers: int, now_us: int = 10, samples: int = 1) -> None:
    """Requests of the model `pair`, with its SLO."""
    for number in numbers:
        gateway.intake.arrival(PAIR, ArrivalBody(number, now_us + SLO_US, samples), now_us)


def kinds(letters: list[Letter]) -> list[Kind]:
    """What was posted."""
    return [parse_header(letter.data).kind for letter in letters]


def dispatches(letters: list[Letter]) -> list[tuple[int, DispatchBody]]:
    """Batches sent to fronts: number and body."""
    return [
        (parse_header(letter.data).batch_id, unpack_dispatch(letter.data[HEADER_BYTES:]))
        for letter in letters
        if parse_header(letter.data).kind is Kind.DISPATCH
    ]


def drops(letters: list[Letter]) -> list[DropBody]:
    """Requests whose fronts were told that they are dropped."""
    return [
        unpack_drop(letter.data[HEADER_BYTES:])
        for letter in letters
        if parse_header(letter.data).kind is Kind.DROP
    ]


def finish(gateway: HeldGateway, batch: int, body: DispatchBody, now_us: int) -> None:
    """Report every move and stage of a batch, all at one instant."""
    for stage, hop in enumerate(body.hops):
        if stage:
            gateway.reports.transfer_done(batch, stage, TimesBody(hop.vgpu, now_us, now_us), now_us)
        gateway.reports.stage_done(batch, stage, TimesBody(hop.vgpu, now_us, now_us), now_us)


def run_full_batch(gateway: HeldGateway, first: int, slow_vgpu: int, factor: int) -> list[Letter]:
    """Serve a batch and answer trials; a stage takes 5 ms, on one vGPU `factor` times as long."""
    now_us = first * 10**6
    arrive(gateway, *range(first, first + BATCH), now_us=now_us)
    letters = gateway.letters()
    for batch, body in dispatches(letters):
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
    letters = gateway.letters()
    for letter in letters:
        if parse_header(letter.data).kind is Kind.PACE_PROBE and isinstance(letter.to, Worker):
            took_us = 5_000 * (factor if letter.to.vgpu == slow_vgpu else 1)
            times = TimesBody(letter.to.vgpu, now_us - took_us, now_us)
            gateway.trial_done(letter.to, times, now_us)
    return letters
