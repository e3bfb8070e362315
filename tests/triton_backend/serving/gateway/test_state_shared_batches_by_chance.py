"""Gateway and workers' queues over messages that are slow, lost with workers, or cross."""

import heapq
import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.triton_backend.serving.gateway.gateways import HeldGateway, SentFrame
from tests.triton_backend.serving.shared.shared_plans import with_tail
from tests.triton_backend.serving.small_plans import plan
from tests.triton_backend.serving.system import deploy
from triton_backend.serve_folder.settings import ServeOptions
from triton_backend.serving.deployment import Deployment
from triton_backend.serving.gateway.peers.addresses import FrontAddress, WorkerAddress
from triton_backend.serving.transport.shared_memory import Segment, remove_segments
from triton_backend.serving.transport.wire import (
    HEADER_BYTES,
    NONE,
    ArrivalBody,
    BatchBody,
    Header,
    Kind,
    TimesBody,
    parse_header,
    unpack_dispatch,
    unpack_drop,
    unpack_shared_batch,
)
from triton_backend.serving.worker.queue import BatchQueue, QueuedBatch, QueuedSharedBatch

CUT = FrontAddress("cut")
PREFIX = "poolpipe-test-chance-"
LOOK_US = 50_000
LONG_US = 3_000_000
REQUESTS = 250


class World:
    """Virtual time: one thing after another, each at its instant."""

    def __init__(self, deployment: Deployment, seed: int) -> None:
        self.random = random.Random(seed)
        self.now_us = 0
        self._things: list[tuple[int, int, Callable[[], None]]] = []
        self._count = 0
        self._last_us: dict[object, int] = {}  # by connection: frames keep their order
        self.gateway = HeldGateway(deployment)
        self.deployment = deployment
        self.workers = [Worker(self, vgpu.index) for vgpu in deployment.vgpus]
        self.batches: dict[int, tuple[int, ...]] = {}  # at the front, with their requests
        self.ends: dict[int, str] = {}  # the first of each request: its front answers once
        self.shared_batches = self.full = 0
        for worker in self.workers:
            self.gateway.workers.up(WorkerAddress(1, worker.vgpu), 0)
        self.sent()

    def at(self, at_us: int, thing: Callable[[], None]) -> None:
        self._count += 1
        heapq.heappush(self._things, (max(at_us, self.now_us), self._count, thing))

    def deliver(self, connection: object, thing: Callable[[], None]) -> None:
        """After a while, and after what was sent on the connection before."""
        slow = self.random.random() < 0.05
        way_us = self.random.randint(50, 20_000 if slow else 1_500)
        at_us = max(self.now_us + way_us, self._last_us.get(connection, 0))
        self._last_us[connection] = at_us
        self.at(at_us, thing)

    def tell(self, worker: "Worker", call: Callable[[int], None]) -> None:
        """A worker reports, if it lives when its frame is read."""
        life = worker.life

        def read() -> None:
            if worker.life == life:
                call(self.now_us)
                self.sent()

        self.deliver(("reports", worker.vgpu, life), read)

    def run(self, until_us: int) -> None:
        while self.now_us < until_us:
            timer_us = self.gateway.hub.timer_us
            next_us = self._things[0][0] if self._things else until_us
            if timer_us is not None and timer_us < next_us:
                self.now_us = max(self.now_us, timer_us)
                self.gateway.hub.timer(self.now_us)
                self.sent()
            elif not self._things:
                return
            else:
                self.now_us, _, thing = heapq.heappop(self._things)
                thing()

    def look(self) -> None:
        self.gateway.look(self.now_us)
        self.gateway.hub.core.check_invariants()
        self.sent()
        self.at(self.now_us + LOOK_US, self.look)

    def sent(self) -> None:
        """Put on their way what the gateway has sent."""
        for frame in self.gateway.frames():
            if isinstance(frame.to, WorkerAddress):
                self.workers[frame.to.vgpu].hear(frame)
            else:
                self.deliver("front", lambda frame=frame: self.front(frame))

    def front(self, sent: SentFrame) -> None:
        header, body = parse_header(sent.data), sent.data[HEADER_BYTES:]
        if header.kind is Kind.DISPATCH:
            batch = unpack_dispatch(body)
            if all(request in self.ends for request in batch.requests):
                self.gateway.reports.failed(header.batch_id, 0, self.now_us)
                self.sent()
                return
            self.batches[header.batch_id] = batch.requests
            made = BatchBody(
                0,
                batch.pipeline,
                batch.samples,
                0,
                0,
                self.now_us,
                self.now_us,
                NONE,
                batch.hops,
                batch.slots,
            )
            self.workers[batch.hops[0].vgpu].receive("front", header.batch_id, 0, made)
        elif header.kind is Kind.ABORT:
            self.batches.pop(header.batch_id, None)
            self.gateway.reports.let_go((CUT,), header.batch_id)
            self.sent()
        elif header.kind is Kind.DROP:
            drop = unpack_drop(body)
            self.ends.setdefault(drop.request, "dropped")

    def answer(self, batch_id: int) -> None:
        """The last worker's answer; an aborted batch has no listener."""
        for request in self.batches.pop(batch_id, ()):
            self.ends.setdefault(request, "answered")

    def ask(self, number: int, entry: int, samples: int) -> None:
        deadline_us = self.now_us + self.random.randint(60_000, 300_000)
        self.gateway.requests.arrival(
            CUT, ArrivalBody(number, deadline_us, samples, entry), self.now_us
        )
        self.sent()


class Worker:
    """A worker's queue, whose runs take some time."""

    def __init__(self, world: World, vgpu: int) -> None:
        self.world, self.vgpu, self.life = world, vgpu, 0
        self._wakes_us = 0
        deployment = world.deployment
        self._segment = Segment.create(
            f"{PREFIX}{vgpu}", deployment.worker_layout(vgpu), deployment.segment_slots(vgpu)
        )
        self._begin()

    def _begin(self) -> None:
        self.queue = BatchQueue(self._segment, lambda: self.world.now_us)
        self.queue.serve(self.world.deployment, self.vgpu)

    def die(self) -> None:
        """Its connections end; it is back after a while."""
        world, address = self.world, WorkerAddress(1, self.vgpu)
        self.life += 1
        self._begin()
        world.gateway.workers.lost(address, world.now_us)
        world.sent()

        def back() -> None:
            for notice in world.gateway.batches.to_let_go(address):
                self.hear(SentFrame(address, notice))
            world.gateway.workers.up(address, world.now_us)
            world.sent()

        world.at(world.now_us + 30_000, back)

    def receive(self, sender: object, batch_id: int, stage: int, body: BatchBody) -> None:
        """A batch is on its way here."""
        life = self.life

        def add() -> None:
            if self.life == life:
                deployment = self.world.deployment
                row = deployment.row_of(0, body.pipeline, stage)
                size = deployment.layout_of(row, self.vgpu).payload_bytes(body.samples)
                header = Header(Kind.BATCH, stage, 0, 0, batch_id, deployment.tag, size)
                here = body._replace(available_us=self.world.now_us)
                self.queue.add(header, here)
                self.work()

        self.world.deliver((sender, self.vgpu, life), add)

    def hear(self, sent: SentFrame) -> None:
        life = self.life

        def read() -> None:
            header = parse_header(sent.data)
            if self.life == life and header.kind is Kind.ABORT:
                self.queue.remove(header.batch_id)
            elif self.life == life and header.kind is Kind.SHARED_BATCH:
                self.queue.shared_batch(
                    header.batch_id, unpack_shared_batch(sent.data[HEADER_BYTES:])
                )
            self.work()

        self.world.deliver(("scheduler", self.vgpu, life), read)

    def work(self) -> None:
        """Do what is due, and come back when something will be."""
        for batch in self.queue.arrived():
            self._arrived(batch)
        for batch_id, _ in self.queue.take_let_go():
            self._let_go(batch_id)
        run = self.queue.begin()
        if run is None:
            due_us = self.queue.next_due_us()
            if due_us is not None:
                self._wake(max(due_us, self.world.now_us + 1))
            return
        if isinstance(run, QueuedBatch) and run.stage:
            self._arrived(run)
        planned_us = (2_000, 3_000, 4_000, 5_000)[run.samples - 1]
        took_us = round(planned_us * self.world.random.uniform(0.7, 1.3))
        life, begun_us = self.life, self.world.now_us

        def end() -> None:
            if self.life == life:
                self.queue.end()
                self.ended(run, TimesBody(self.vgpu, begun_us, self.world.now_us))
                self.work()

        self.world.at(begun_us + took_us, end)

    def _wake(self, at_us: int) -> None:
        if self.world.now_us < self._wakes_us <= at_us:
            return
        self._wakes_us = at_us

        def wake() -> None:
            if self._wakes_us == at_us:
                self.work()

        self.world.at(at_us, wake)

    def _arrived(self, batch: QueuedBatch) -> None:
        times = TimesBody(self.vgpu, batch.body.transfer_start_us, batch.body.available_us)
        gateway = self.world.gateway
        self.world.tell(
            self, lambda now: gateway.reports.transfer_done(batch.batch_id, batch.stage, times, now)
        )

    def _let_go(self, batch_id: int) -> None:
        names = (WorkerAddress(1, self.vgpu),)
        self.world.tell(self, lambda _: self.world.gateway.reports.let_go(names, batch_id))

    def ended(self, run: QueuedBatch | QueuedSharedBatch, times: TimesBody) -> None:
        gateway = self.world.gateway
        fails = self.world.random.random() < 0.01
        members = (run,) if isinstance(run, QueuedBatch) else run.members
        for one in members:
            if fails:
                self.world.tell(
                    self, lambda now, one=one: gateway.reports.failed(one.batch_id, one.stage, now)
                )
                self.world.deliver(("answers", self.vgpu), lambda one=one: self._failed(one))
        numbers = () if fails else tuple(batch.batch_id for batch in members)
        if isinstance(run, QueuedSharedBatch):
            self.world.shared_batches += 1
            self.world.full += len(members) > 1
            self.world.tell(
                self,
                lambda now: gateway.reports.shared_batch_done(
                    run.shared_batch_id, numbers, times, now
                ),
            )
        elif not fails:
            self.world.tell(
                self, lambda now: gateway.reports.stage_done(run.batch_id, run.stage, times, now)
            )
        for batch in () if fails else members:
            after = batch.stage + 1
            if after == len(batch.body.hops):
                self.world.deliver(
                    ("answers", self.vgpu), lambda batch=batch: self.world.answer(batch.batch_id)
                )
            else:
                body = batch.body._replace(transfer_start_us=self.world.now_us)
                receiver = self.world.workers[body.hops[after].vgpu]
                receiver.receive(self.vgpu, batch.batch_id, after, body)

    def _failed(self, batch: QueuedBatch) -> None:
        for request in self.world.batches.pop(batch.batch_id, ()):
            self.world.ends.setdefault(request, "failed")


@pytest.fixture
def deployment(tmp_path: Path) -> Iterator[Deployment]:
    served = with_tail(tmp_path, boards=True, vgpus=2).replaced(policy="reservation-ahead")
    yield deploy(tmp_path / "serve", plan(served), ServeOptions(artifacts=tmp_path))
    remove_segments(PREFIX)


@pytest.mark.parametrize("seed", range(3))
def test_every_request_ends_whatever_crosses_or_dies(deployment: Deployment, seed: int) -> None:
    world = World(deployment, seed)
    world.at(0, world.look)
    at_us = 0
    for number in range(REQUESTS):
        at_us += world.random.randint(0, 6_000)
        entry, samples = world.random.randint(0, 1), world.random.randint(1, 2)
        world.at(at_us, lambda n=number, e=entry, s=samples: world.ask(n, e, s))
        if number % 40 == 20:
            world.at(at_us, lambda n=number: world.gateway.requests.cancel(CUT, n, world.now_us))
    for death_us in range(200_000, at_us, 250_000):
        victim = world.random.choice(world.workers)
        world.at(death_us, victim.die)
    world.run(at_us + LONG_US)
    assert sorted(world.ends) == list(range(REQUESTS))
    assert list(world.ends.values()).count("answered") > 0.6 * REQUESTS
    assert world.full > 20
    gateway = world.gateway
    assert (gateway.in_flight, gateway.batches.sent, len(gateway.batches.shared)) == (0, {}, 0)
    assert [gateway.generations.served.slots.of(v.index).taken for v in deployment.vgpus] == [
        0,
        0,
        0,
    ]
    for worker in world.workers:  # heartbeats wake them, four times a second
        worker.work()
        assert worker.queue.idle
    assert gateway.counters.internal_errors == 0
