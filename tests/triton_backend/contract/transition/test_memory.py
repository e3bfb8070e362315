"""Memory of GPUs while old and new are there together."""

from dataclasses import replace

from tests.triton_backend.contract.transition.full_gpus import ROOM_GIB, full_gpus
from triton_backend.contract.transition.memory import transition


def test_memory_that_others_hold_is_no_room_for_old_and_new() -> None:
    one, two = (full_gpus({name: (0,)}, {name: 4}, plan_id=name) for name in ("a", "b"))
    assert transition(one, two).fits
    (kind,) = one.cluster.gpu_classes
    held = replace(one.cluster, gpu_classes=(replace(kind, taken_gib=2.0),))
    change = transition(replace(one, cluster=held), replace(two, cluster=held))
    assert not change.fits
    assert {gpu.memory_gib for gpu in change.gpus} == {ROOM_GIB - 2.0}
