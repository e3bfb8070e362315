"""Which pairs are measured: cuts in two, and every two models in them."""

from itertools import product

import pytest

from flows.preparation.profiling.pairs import PairKey, Side, cuts_in_two, pairs_of
from triton_backend.contract.cluster import GpuClass
from triton_backend.contract.errors import InputError


def cut(*percents: int, partitions: tuple[tuple[int, ...], ...] = (), most: int = 2) -> GpuClass:
    return GpuClass(
        name="G",
        vgpu_divisors=(),
        vgpu_percents=percents,
        partitions=partitions,
        max_vgpus_per_gpu=most,
    )


def test_a_gpu_is_cut_in_two_so_that_neither_part_can_be_larger() -> None:
    assert cuts_in_two(cut(20, 40, 50, 60, 80)) == [(60, 240), (120, 180), (150, 150)]
    assert cuts_in_two(cut(30, 100)) == [(90, 90)]
    assert cuts_in_two(cut(60, 100)) == []


def test_listed_partitions_say_which_parts_meet() -> None:
    gpu_class = cut(20, 30, 50, partitions=((20, 30, 50), (50, 50), (20, 20)), most=3)
    assert cuts_in_two(gpu_class) == [(60, 60), (60, 90), (60, 150), (90, 150), (150, 150)]


def test_every_two_models_meet_once_in_every_cut_and_batch() -> None:
    found = pairs_of(cut(40, 60), ["a", "b"], {"a": (1, 2), "b": (1,)})
    sides = [Side(m, b, s) for m, b in (("a", 1), ("a", 2), ("b", 1)) for s in (120, 180)]
    every = {
        PairKey("G", *sorted((one, other)))
        for one, other in product(sides, sides)
        if one.share + other.share == 300
    }
    assert set(found) == every
    assert len(found) == len(every)


@pytest.mark.parametrize(
    ("gpu_class", "reason"),
    [
        (GpuClass(name="G"), "has no vgpu_percents"),
        (cut(40, 60, most=1), "one vGPU only"),
        (cut(60, 80), "one vGPU only"),
    ],
)
def test_a_class_without_pairs_is_named(gpu_class: GpuClass, reason: str) -> None:
    with pytest.raises(InputError, match=reason):
        pairs_of(gpu_class, ["a"], {"a": (1,)})
