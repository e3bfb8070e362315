"""Stages of a worker that are loaded when they run, and evicted for others."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.fakes.clock import VirtualClock
from tests.fakes.on_demand import MIB, load_us, on_demand_plan
from tests.triton_backend.serving.small_plans import tensor
from tests.triton_backend.serving.system import deploy
from triton_backend.contract.errors import InputError, InvariantError
from triton_backend.contract.plan import Plan
from triton_backend.runtimes.base import Runtime, Tensors
from triton_backend.serve_folder.settings import ServeOptions
from triton_backend.serving.worker.on_demand import OnDemandRuntime, Residents
from triton_backend.serving.worker.stage import open_runtimes

X = {"x": np.zeros((1, 3), np.float32)}


class Counted:
    """A runtime that counts its runs; `closed` once it was evicted."""

    inputs = outputs = (tensor("x", 3),)

    def __init__(self) -> None:
        self.runs = 0
        self.closed = False
        self.registered = False

    def run(self, inputs: Tensors, out: Tensors) -> None:
        del inputs, out
        assert not self.closed
        self.runs += 1

    def register(self, memory: object) -> None:
        del memory
        self.registered = True

    def close(self) -> None:
        self.closed = True


def stages(
    sizes: list[int], room: int, open_it: Callable[[], Runtime] = Counted
) -> tuple[Residents, list[OnDemandRuntime]]:
    residents = Residents()
    residents.serve(0, room)
    specs = (Counted.inputs, Counted.outputs)
    return residents, [OnDemandRuntime(residents, size, specs, open_it) for size in sizes]


def test_a_run_loads_what_is_not_there_and_evicts_the_least_recently_used() -> None:
    opened: list[Counted] = []

    def open_it() -> Runtime:
        opened.append(Counted())
        return opened[-1]

    residents, (a, b, c) = stages([10, 10, 10], 20, open_it)
    for stage in (a, b, a, c):
        stage.run(X, X)
    assert [one.runs for one in opened] == [2, 1, 1]
    assert [one.closed for one in opened] == [False, True, False]
    assert residents.present == (a, c)
    assert (residents.loads, residents.bytes_held) == (3, 20)


def test_memory_of_batches_is_made_known_to_whatever_is_loaded() -> None:
    opened: list[Counted] = []

    def open_it() -> Runtime:
        opened.append(Counted())
        return opened[-1]

    _, (a, b) = stages([10, 10], 10, open_it)
    a.register(np.zeros(4, np.uint8))
    for stage in (a, b, a):
        stage.run(X, X)
    assert [one.registered for one in opened] == [True, False, True]


def test_a_failed_load_leaves_the_stage_out_and_the_next_run_tries_again() -> None:
    broken = [True]

    def open_it() -> Runtime:
        if broken[0]:
            raise InputError("artifact x", "is gone")
        return Counted()

    residents, (a,) = stages([10], 10, open_it)
    with pytest.raises(InputError, match="artifact x: is gone"):
        a.run(X, X)
    assert (residents.present, residents.loads) == ((), 0)
    broken[0] = False
    a.run(X, X)
    assert residents.present == (a,)


def test_two_generations_share_the_less_of_both_rooms() -> None:
    residents, (a, b, c) = stages([10, 10, 10], 30)
    for stage in (a, b, c):
        stage.run(X, X)
    residents.serve(1, 20)
    c.run(X, X)
    assert residents.present == (b, c)
    residents.forget(1)
    a.run(X, X)
    assert residents.present == (a, b, c)


def test_a_closed_stage_leaves_its_room_to_others() -> None:
    residents, (a, b) = stages([10, 10], 10)
    a.run(X, X)
    a.close()
    assert residents.present == ()
    b.run(X, X)
    assert residents.present == (b,)


def test_a_stage_larger_than_the_room_is_not_loaded() -> None:
    _, (a,) = stages([11], 10)
    with pytest.raises(InvariantError, match="11 bytes finds no room in 10"):
        a.run(X, X)


# Opened by a plan


def tensors(plan: Plan) -> Plan:
    models = tuple(
        replace(m, inputs=(tensor("x", 3),), outputs=(tensor("y", 3),)) for m in plan.models
    )
    return replace(plan, models=models)


@pytest.mark.parametrize("stretch", [1.0, 3.0])
def test_emulated_stages_take_their_load_and_then_the_rest_of_their_latency(
    tmp_path: Path, stretch: float
) -> None:
    plan = tensors(on_demand_plan([100, 100, 100], 150, pinned=(2,)))
    options = ServeOptions(time_stretch=stretch)
    deployment = deploy(tmp_path / "serve", plan, options)
    clock = VirtualClock()
    loaded = open_runtimes(deployment, 0, clock)
    assert clock.now_us() == 0  # nothing is loaded yet
    took: list[float] = []
    for at in (0, 0, 1, 0, 2):
        runtime = loaded[at].runtime
        if isinstance(runtime, OnDemandRuntime):
            runtime.residents.serve(deployment.tag, plan.room_bytes(0))
        before = clock.now_us()
        runtime.run(X, {"y": np.zeros((1, 3), np.float32)})
        took.append((clock.now_us() - before) / stretch)
    load = load_us(100)
    assert took == [load + 5_000, 5_000, load + 5_000, load + 5_000, 5_000]
    assert plan.room_bytes(0) == 150 * MIB
