"""The gateway called by hand: no socket, no clock."""

from tests.triton_backend.serving.gateway.gateways import (
    EPOCH,
    HeldGateway,
    arrive,
    dispatches,
    finish,
)
from tests.triton_backend.serving.small_plans import BATCH


def test_a_full_batch_goes_to_its_front_with_a_path_and_slots(gateway: HeldGateway) -> None:
    arrive(gateway, 1, 2, 3, 4)
    ((batch, body),) = dispatches(gateway.frames())
    assert batch >> 32 == EPOCH
    assert (body.samples, body.requests) == (BATCH, (1, 2, 3, 4))
    assert [hop.vgpu for hop in body.hops] == [0, 1]
    assert gateway.in_flight == 1
    finish(gateway, batch, body, 50_000)
    assert gateway.in_flight == 0
    assert gateway.status()["counters"]["stage_runs"] == {
        "pair/0/FAST/0/fast-0.0.0+0": 1,
        "pair/0/SLOW/1/slow-1.0.0+0": 1,
    }
