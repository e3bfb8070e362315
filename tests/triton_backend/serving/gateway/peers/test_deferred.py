"""Frames that nothing waits for."""

from triton_backend.serving.gateway.peers.addresses import Address, WorkerAddress
from triton_backend.serving.gateway.peers.deferred import (
    DEFERRED_TURNS,
    UNHURRIED_EVERY_US,
    DeferredFrames,
)

WORKERS = [WorkerAddress(1, vgpu) for vgpu in range(DEFERRED_TURNS + 1)]


def test_frames_leave_one_after_the_other_and_the_newer_counts() -> None:
    sent: list[tuple[Address, bytes]] = []
    deferred = DeferredFrames(lambda to, data: sent.append((to, data)), now_us=7)
    assert deferred.due_us is None
    for number in range(3):
        deferred.put(WORKERS[number], b"old")
    deferred.put(WORKERS[0], b"new")
    deferred.forget(WORKERS[1])
    deferred.forget(WORKERS[9])  # nothing waits for it
    deferred.send(6)
    assert not sent
    deferred.send(7)
    assert sent == [(WORKERS[0], b"new")]
    assert deferred.due_us == 7 + UNHURRIED_EVERY_US
    deferred.send(deferred.due_us - 1)
    assert len(sent) == 1
    deferred.send(deferred.due_us)
    assert sent[1:] == [(WORKERS[2], b"old")]
    assert deferred.due_us is None


def test_many_leave_several_at_once_until_all_have_left() -> None:
    sent: list[Address] = []
    deferred = DeferredFrames(lambda to, _data: sent.append(to), now_us=0)
    for worker in WORKERS:
        deferred.put(worker, b"plan")
    turns = 0
    while (due_us := deferred.due_us) is not None:
        deferred.send(due_us)
        turns += 1
    assert sent == WORKERS
    assert turns <= DEFERRED_TURNS
    deferred.put(WORKERS[0], b"plan")
    deferred.put(WORKERS[1], b"plan")
    deferred.send(turns * UNHURRIED_EVERY_US)
    assert len(sent) == len(WORKERS) + 1  # one at a time again
