"""Packing parts of any shares.

Against all ways to share them out, and where the bound is not met.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flows.planning import packing
from flows.planning.packing import Part, cuts_of, fits_gpu, pack
from flows.planning.watch import Watch
from triton_backend.contract.cluster import GpuClass
from triton_backend.contract.errors import InputError

PERCENTS = (20, 30, 40, 50, 60, 80, 100)


def gpu_class(
    most: int = 5,
    memory_gib: float | None = None,
    partitions: tuple[tuple[int, ...], ...] = (),
) -> GpuClass:
    return GpuClass(
        name="G",
        vgpu_divisors=(),
        vgpu_percents=PERCENTS,
        max_vgpus_per_gpu=most,
        memory_gib=memory_gib,
        partitions=partitions,
    )


def parts_of(*percents: int, memory_gib: float = 0.0) -> list[Part]:
    return [Part(share=3 * percent, memory_gib=memory_gib) for percent in percents]


def shared_out(count: int) -> Iterator[list[list[int]]]:
    """Every way to share out parts among GPUs that look alike."""
    if not count:
        yield []
        return
    for before in shared_out(count - 1):
        for number in range(len(before)):
            yield [[*g, count - 1] if n == number else g for n, g in enumerate(before)]
        yield [*before, [count - 1]]


def holds(given: GpuClass, parts: Sequence[Part]) -> bool:
    """True if one GPU can hold these, from the rules as written."""
    percents = sorted(part.share // 3 for part in parts)
    room = 1e9 if given.memory_gib is None else given.memory_gib
    if sum(percents) > 100 or len(parts) > (given.max_vgpus_per_gpu or 2):
        return False
    if sum(part.memory_gib for part in parts) > room + 1e-9:
        return False
    allowed = [list(cut) for cut in given.partitions] or [percents]
    return any(all(percents.count(p) <= cut.count(p) for p in percents) for cut in allowed)


@st.composite
def problems(draw: st.DrawFn) -> tuple[GpuClass, list[Part]]:
    memory = draw(st.sampled_from([None, 8.0]))
    cuts = draw(st.sampled_from([(), ((20, 80), (50, 50), (40, 60), (100,), (30, 30, 40))]))
    most = draw(st.integers(1, 4))
    chosen = draw(st.lists(st.sampled_from(PERCENTS), min_size=1, max_size=6))
    memories = [draw(st.sampled_from([0.5, 3.0, 4.0])) for _ in chosen]
    parts = [Part(share=3 * p, memory_gib=m) for p, m in zip(chosen, memories, strict=True)]
    return gpu_class(most, memory, cuts), parts


@pytest.mark.long
@settings(max_examples=150, deadline=None)
@given(problem=problems())
def test_no_way_to_share_them_out_takes_fewer_gpus(problem: tuple[GpuClass, list[Part]]) -> None:
    given_class, parts = problem
    found, least = pack(given_class, parts)
    assert sorted(part for gpu in found for part in gpu) == list(range(len(parts)))
    assert all(holds(given_class, [parts[i] for i in gpu]) for gpu in found)
    best = min(
        len(ways)
        for ways in shared_out(len(parts))
        if all(holds(given_class, [parts[i] for i in gpu]) for gpu in ways)
    )
    assert (len(found), least) == (best, best)


def test_the_largest_first_is_not_always_best() -> None:
    # One by one 50 + 50, 50 + 30 + 20, 30 + 30 + 30, 30 + 30 + 20 + 20 and so on leave gaps of 10
    # percent.
    parts = parts_of(*[50] * 3, *[30] * 6, *[20] * 6)
    found, least = pack(gpu_class(), parts)
    assert len(found) == least == 5  # 450 percent


def test_many_parts_of_few_sizes_are_packed_exactly() -> None:
    found, least = pack(gpu_class(), parts_of(*[60] * 40, *[40] * 30, *[30] * 50, *[20] * 20))
    assert len(found) == least


def test_with_too_many_cuts_a_bound_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    parts = [Part(share=3 * 30, memory_gib=5.0 + i / 100) for i in range(9)]
    monkeypatch.setattr(packing, "MOST_CUTS", 10)
    found, least = pack(gpu_class(memory_gib=16.0), parts)
    assert least <= len(found) <= least + 1
    assert all(sum(parts[i].memory_gib for i in gpu) <= 16.0 for gpu in found)


def test_a_hundred_sizes_are_cut_without_trying_what_did_not_fit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tried: list[int] = []

    def counted(given: GpuClass, parts: Sequence[Part]) -> bool:
        tried.append(len(parts))
        return fits_gpu(given, parts)

    monkeypatch.setattr(packing, "fits_gpu", counted)
    kinds = parts_of(*range(100, 0, -1))
    assert cuts_of(gpu_class(100), kinds, [100] * 100, Watch()) is None
    assert len(tried) < 10 * packing.MOST_CUTS


def test_parts_are_packed_one_by_one_once_the_time_is_over() -> None:
    parts = parts_of(*[40] * 3, *[30] * 6)
    kinds, watch = parts_of(40, 30), Watch()
    assert cuts_of(gpu_class(), kinds, [3, 6], watch) == [(2, 0), (1, 2), (0, 3)]
    assert len(pack(gpu_class(), parts, watch)[0]) == 3
    watch.stop()
    assert cuts_of(gpu_class(), kinds, [3, 6], watch) is None
    assert len(pack(gpu_class(), parts, watch)[0]) == 4


def test_a_part_that_fits_no_gpu_is_named() -> None:
    with pytest.raises(InputError, match=r"class G: a vGPU of 40 % with 9\.000 GiB fits no GPU"):
        pack(gpu_class(memory_gib=8.0), parts_of(40, memory_gib=9.0))
    with pytest.raises(InputError, match=r"class G: a vGPU of 40 % with 9\.000 GiB fits no GPU"):
        pack(replace(gpu_class(memory_gib=16.0), taken_gib=8.0), parts_of(40, memory_gib=9.0))
