"""A worker that is taken for lost while it writes: its late outputs are in no other answer."""

import threading
from pathlib import Path

import numpy as np

from tests.triton_backend.serving.small_plans import alone, model, plan, stage, tensor
from tests.triton_backend.serving.system import WAIT_SECONDS, Answer, LocalSystem, wait_for
from triton_backend.contract.tensors import TensorSpec
from triton_backend.runtimes.base import Tensors
from triton_backend.serve_folder.settings import ServeOptions
from triton_backend.serving.front.replies import Refusal
from triton_backend.serving.front.requests.request import Request
from triton_backend.serving.gateway.peers.addresses import WorkerAddress
from triton_backend.serving.transport.shared_memory import Arrays
from triton_backend.serving.worker.process import StageWorker, health_row
from triton_backend.serving.worker.stage import Loaded

WIDTH = 25_000  # 100 KB: such outputs carry no checksum
PATIENT_US = 5_000_000
LATER = (2.0, 3.0, 4.0)
X, Y = tensor("x", WIDTH), tensor("y", WIDTH)  # too large for an express slot
MIDDLE = tensor("middle", WIDTH)
SHORT_US = 50_000


class Fill:
    """Fills its output with its input.

    The first run of all waits in the middle until it is let go.
    """

    inputs: tuple[TensorSpec, ...] = (X,)
    outputs: tuple[TensorSpec, ...] = (Y,)
    first = threading.Lock()

    def __init__(self) -> None:
        self.slow, self.go_on, self.done = threading.Event(), threading.Event(), threading.Event()

    def run(self, inputs: Tensors, out: Tensors) -> None:
        out["y"][...] = inputs["x"]
        if self.first.acquire(blocking=False):
            self.slow.set()
            assert self.go_on.wait(WAIT_SECONDS)
            out["y"][...] = inputs["x"]
            self.done.set()

    def register(self, memory: object) -> None: ...

    def close(self) -> None: ...


class Slow(Fill):
    """The same as a first stage."""

    outputs = (MIDDLE,)
    first = threading.Lock()

    def run(self, inputs: Tensors, out: Tensors) -> None:
        super().run(inputs, {"y": out["middle"]})


class Last:
    """Has a slow first stage write its boundary to the end before it reads its own."""

    inputs: tuple[TensorSpec, ...] = (MIDDLE,)
    outputs: tuple[TensorSpec, ...] = (Y,)

    def __init__(self, firsts: list[Slow]) -> None:
        self._firsts = firsts
        self.waits = False
        self.ran: list[float] = []

    def run(self, inputs: Tensors, out: Tensors) -> None:
        for first in self._firsts:
            if self.waits and first.slow.is_set():
                first.go_on.set()
                assert first.done.wait(WAIT_SECONDS)
        self.ran.append(float(inputs["middle"][0, 0]))
        out["y"][...] = inputs["middle"]

    def register(self, memory: object) -> None: ...

    def close(self) -> None: ...


def values(answer: Answer) -> set[float]:
    assert not isinstance(answer, Refusal), answer.message
    return set(answer["y"].reshape(-1).tolist())


def x(value: float) -> Arrays:
    return {"x": np.full((1, WIDTH), value, np.float32)}


def test_what_a_lost_worker_writes_late_is_in_no_other_answer(tmp_path: Path) -> None:
    wide = model("wide", (stage((0, 10), "SLOW", 1, vgpus=2),), inputs=(X,), outputs=(Y,))
    system = LocalSystem(tmp_path / "serve", plan(alone(wide)))
    runtimes = [Fill(), Fill()]
    for vgpu, runtime in enumerate(runtimes):
        system.stop_worker(1, vgpu)
        health = health_row(system.deployment, vgpu)
        (row,) = system.deployment.rows_of(vgpu)
        loaded = [Loaded.of(system.deployment, row, runtime)]
        worker = StageWorker(system.deployment, vgpu, loaded, health, system.clock)
        system.run_worker(worker, 1, vgpu)
    wait_for(lambda: system.status()["counters"]["workers_lost"] == 2)
    wait_for(lambda: system.status()["workers"]["up"] == 2)

    once = system.ask("wide", x(1), PATIENT_US)
    wait_for(lambda: any(runtime.slow.is_set() for runtime in runtimes))
    vgpu, slow = next((i, runtime) for i, runtime in enumerate(runtimes) if runtime.slow.is_set())
    now_us = system.clock.now_us()
    lost = WorkerAddress(1, vgpu)
    system.scheduler.call(lambda: system.scheduler.gateway.workers.lost(lost, now_us))
    assert values(once()) == {1.0}  # by the other worker

    answers: dict[float, set[float]] = {}
    all_here = threading.Barrier(len(LATER))

    def ask(value: float) -> threading.Event:
        answered = threading.Event()

        def reply(answer: Answer) -> None:
            all_here.wait(WAIT_SECONDS)  # in slots of their own
            slow.go_on.set()  # the lost worker goes on writing before any of them is read
            assert slow.done.wait(WAIT_SECONDS)
            answers[value] = values(answer)
            answered.set()

        now_us = system.clock.now_us()
        request = Request(x(value), 1, now_us, now_us + PATIENT_US, reply, lambda: False)
        system.fronts["wide"].submit(request)
        return answered

    assert all(answered.wait(WAIT_SECONDS) for answered in [ask(value) for value in LATER])
    assert answers == {value: {value} for value in LATER}
    assert values(system.ask("wide", x(9), PATIENT_US)()) == {9.0}
    system.stop()


def test_what_a_lost_first_worker_writes_late_is_in_no_other_batch(tmp_path: Path) -> None:
    """Its objective is short: many times that have passed when the worker goes on."""
    bytes_per_sample = 4 * WIDTH
    stages = (
        stage(
            (0, 5),
            "FAST",
            0,
            vgpus=2,
            boundary=(MIDDLE,),
            boundary_bytes_per_sample=bytes_per_sample,
        ),
        stage((5, 10), "SLOW", 1),
    )
    wide = model("wide", stages, slo_us=SHORT_US, inputs=(X,), outputs=(Y,))
    system = LocalSystem(tmp_path / "serve", plan(alone(wide)), ServeOptions(emulate_links=False))
    firsts = [Slow(), Slow()]
    last = Last(firsts)
    for vgpu, runtime in enumerate((*firsts, last)):
        system.stop_worker(1, vgpu)
        health = health_row(system.deployment, vgpu)
        (row,) = system.deployment.rows_of(vgpu)
        loaded = [Loaded.of(system.deployment, row, runtime)]
        worker = StageWorker(system.deployment, vgpu, loaded, health, system.clock)
        system.run_worker(worker, 1, vgpu)
    wait_for(lambda: system.status()["counters"]["workers_lost"] == 3)
    wait_for(lambda: system.status()["workers"]["up"] == 3)

    once = system.ask("wide", x(1), PATIENT_US)
    wait_for(lambda: any(first.slow.is_set() for first in firsts))
    vgpu = next(i for i, first in enumerate(firsts) if first.slow.is_set())
    lost_us = system.clock.now_us()
    lost = WorkerAddress(1, vgpu)
    system.scheduler.call(lambda: system.scheduler.gateway.workers.lost(lost, lost_us))
    assert values(once()) == {1.0}  # by the other worker
    wait_for(lambda: system.clock.now_us() > lost_us + 4 * SHORT_US)

    last.waits = True
    for value in LATER:
        assert values(system.ask("wide", x(value), PATIENT_US)()) == {value}
    assert firsts[vgpu].done.is_set()
    wait_for(lambda: not system.scheduler.gateway.batches.to_let_go(lost))
    assert last.ran == [1.0, *LATER]  # and not what the lost worker has sent late
    system.stop()
