"""The grouping is exact: compared with every grouping there is."""

from itertools import combinations, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flows.preparation.splitting.grouping import TOLERANCES, group_layers
from triton_backend.contract.errors import InputError


def all_groupings(layers: int, cuts: list[int], blocks: int) -> list[tuple[int, ...]]:
    return [(0, *chosen, layers) for chosen in combinations(cuts, blocks - 1)]


def deviation(times: list[int], grouping: tuple[int, ...]) -> tuple[float, float]:
    """How far blocks are above and below an equal share."""
    share = sum(times) / (len(grouping) - 1)
    parts = [sum(times[a:b]) / share for a, b in pairwise(grouping)]
    return max(parts) - 1, 1 - min(parts)


@st.composite
def problems(draw: st.DrawFn) -> tuple[list[int], dict[int, int], int]:
    times = draw(st.lists(st.integers(1, 50), min_size=2, max_size=9))
    positions = draw(st.sets(st.integers(1, len(times) - 1)))
    sizes = {p: draw(st.integers(0, 5)) for p in sorted(positions)}
    return times, sizes, draw(st.integers(1, 6))


@given(problems())
def test_no_grouping_within_the_tolerances_has_fewer_bytes(
    problem: tuple[list[int], dict[int, int], int],
) -> None:
    times, sizes, blocks = problem
    found = group_layers(times, sizes, blocks)
    count = min(blocks, len(sizes) + 1)
    groupings = all_groupings(len(times), sorted(sizes), count)
    near = 1e-9
    above, below = deviation(times, found.cuts)
    assert above <= found.tolerance + near
    assert below <= found.tolerance_below + near
    fitting = [
        g
        for g in groupings
        if deviation(times, g)[0] <= found.tolerance + near
        and deviation(times, g)[1] <= found.tolerance_below + near
    ]
    least = min(sum(sizes[p] for p in g[1:-1]) for g in fitting)
    assert found.boundary_bytes == least == sum(sizes[p] for p in found.cuts[1:-1])


@given(problems())
def test_tolerances_grow_only_where_nothing_fits(
    problem: tuple[list[int], dict[int, int], int],
) -> None:
    times, sizes, blocks = problem
    found = group_layers(times, sizes, blocks)
    count = min(blocks, len(sizes) + 1)
    deviations = [deviation(times, g) for g in all_groupings(len(times), sorted(sizes), count)]
    near = 1e-9
    for smaller in (t for t in TOLERANCES if t < found.tolerance):
        assert not any(a <= smaller + near and b <= min(smaller, 1) + near for a, b in deviations)
    for smaller in (t for t in TOLERANCES if t < found.tolerance_below):
        assert not any(a <= found.tolerance + near and b <= smaller + near for a, b in deviations)


def test_ties_go_to_cuts_outside_fused_layers_then_to_even_blocks() -> None:
    sizes = dict.fromkeys(range(1, 6), 8)
    # Layer 3 runs fused with layer 2 (it takes no time of its own).
    assert group_layers([10, 10, 10, 0, 20, 10], sizes, 2).cuts == (0, 4, 6)
    assert group_layers([10] * 6, sizes, 3).cuts == (0, 2, 4, 6)


def test_one_long_layer_does_not_make_the_other_blocks_uneven() -> None:
    sizes = dict.fromkeys(range(1, 8), 1)
    found = group_layers([10, 10, 10, 100, 10, 10, 10, 10], sizes, 4)
    times = [10, 10, 10, 100, 10, 10, 10, 10]
    assert sorted(sum(times[a:b]) for a, b in pairwise(found.cuts)) == [20, 20, 30, 100]


def test_fewer_cuts_than_asked_for_give_fewer_blocks() -> None:
    assert group_layers([1, 1, 1], {2: 4}, 10).cuts == (0, 2, 3)
    assert group_layers([1, 1, 1], {}, 10).cuts == (0, 3)


def test_less_than_one_block_is_refused() -> None:
    with pytest.raises(InputError, match="0 is not a positive number of blocks"):
        group_layers([1, 1], {1: 1}, 0)
