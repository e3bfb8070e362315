"""Sizes of vGPUs, and what fits a card that MIG divides."""

from itertools import combinations_with_replacement, product

import pytest

from triton_backend.contract.errors import InputError
from triton_backend.contract.fields import Fields
from triton_backend.contract.shares import (
    MIG_CARDS,
    MIG_COMPUTE,
    WHOLE_GPU,
    Mig,
    MigCell,
    check_share,
    divisor_of,
    fits_card,
    mig_cell,
    mig_share,
    read_share,
    runs_beside,
    share_text,
    share_to_dict,
)

CELLS = [MigCell(compute, count) for compute in MIG_COMPUTE for count in range(1, 5)]


def test_parts_of_slices_have_shares_of_their_own() -> None:
    shares = {cell: mig_share(cell) for cell in CELLS}
    assert len(set(shares.values())) == len(CELLS)
    for cell, share in shares.items():
        assert divisor_of(share) is None
        assert share % 3  # no whole percents
        assert share * cell.processes <= WHOLE_GPU * cell.compute / 7 < (share + 6) * cell.processes
        assert mig_cell(share) == cell
        check_share("here", share)
        assert read_share(Fields(share_to_dict(share))) == share
    assert share_to_dict(shares[MigCell(3, 1)]) == {"vgpu_mig": "3g"}
    assert share_text(shares[MigCell(7, 4)]) == "7g/4"


def test_whole_parts_are_one_to_four() -> None:
    found = {share: divisor_of(share) for share in (300, 150, 100, 75, 60, 299)}
    assert found == {300: 1, 150: 2, 100: 3, 75: 4, 60: None, 299: None}


def test_shares_of_other_sizes_are_no_slices() -> None:
    for share in (300, 150, 100, 75, 60, 3):
        assert mig_cell(share) is None


def test_a_whole_gpu_and_a_whole_slice_run_beside_nobody() -> None:
    slices = mig_share(MigCell(3, 1)), mig_share(MigCell(3, 2))
    shares = (WHOLE_GPU, WHOLE_GPU // 2, *slices)
    assert [runs_beside(share) for share in shares] == [False, True, False, True]


@pytest.mark.parametrize(
    ("data", "match"),
    [
        ({"vgpu_mig": "5g"}, "'5g' is none of 1g, 2g, 3g, 4g, 7g"),
        ({"vgpu_mig": "1g/5"}, "with /2 to /4"),
        ({"vgpu_mig": "1g", "vgpu_percent": 20}, "vgpu_mig: stands beside another size"),
        ({"vgpu_mig": 1}, "1 is not a text"),
    ],
)
def test_a_part_of_no_slice_is_refused(data: dict[str, object], match: str) -> None:
    with pytest.raises(InputError, match=match):
        read_share(Fields(data))


@pytest.mark.parametrize("card", MIG_CARDS)
def test_slices_fit_where_they_can_be_placed_without_overlap(card: str) -> None:
    profiles = MIG_CARDS[card]

    def placed(cut: tuple[str, ...]) -> bool:
        for starts in product(*(profiles[name].starts for name in cut)):
            taken = [
                eighth
                for name, start in zip(cut, starts, strict=True)
                for eighth in range(start, start + profiles[name].eighths)
            ]
            if len(taken) == len(set(taken)):
                return True
        return False

    for count in (1, 2, 3, 4):
        for cut in combinations_with_replacement(profiles, count):
            assert fits_card(card, cut) == placed(cut), cut


@pytest.mark.parametrize("card", MIG_CARDS)
def test_every_slice_of_a_card_lies_within_its_eight_eighths_of_memory(card: str) -> None:
    for one in MIG_CARDS[card].values():
        assert one.eighths in {1, 2, 4, 8}, one
        places = range(0, 9 - one.eighths, one.eighths)
        assert len(set(one.starts)) == len(one.starts), one
        assert set(one.starts) <= set(places), one
    assert MIG_CARDS[card][max(MIG_CARDS[card])].eighths == 8


def test_divisions_of_an_a100() -> None:
    assert Mig(card="A100-40GB").cuts == (
        (1, 1, 1, 1, 1, 1, 1),
        (1, 1, 1, 1, 1, 2),
        (1, 1, 1, 1, 3),
        (1, 1, 1, 2, 2),
        (1, 1, 1, 4),
        (1, 1, 2, 3),
        (1, 2, 2, 2),
        (1, 2, 4),
        (2, 2, 3),
        (3, 3),
        (3, 4),
        (7,),
    )
    assert Mig(card="A100-40GB", profiles=("1g.10gb", "3g.20gb")).cuts == (
        (1, 1, 1, 1),
        (1, 1, 3),
        (3, 3),
    )
    listed = (("3g.20gb", "2g.10gb"), ("3g.20gb",))
    assert Mig(card="A100-40GB", geometries=listed).cuts == ((2, 3),)


def test_processes_fill_slices_in_the_order_of_slots() -> None:
    mig = Mig(card="A100-40GB", processes=2)
    half, whole, small = (mig_share(MigCell(*cell)) for cell in ((2, 2), (2, 1), (1, 1)))
    vgpus = [(0, 0, small), (0, 1, half), (0, 2, half), (0, 3, half), (1, 0, whole)]
    assert mig.slices_of(s for g, _, s in vgpus if g == 0) == ("2g.10gb", "2g.10gb", "1g.5gb")
    assert mig.lies(vgpus) == (2, 0, 0, 1, 0)
    # A share that is no slice lies alone.
    assert mig.lies([(0, 0, WHOLE_GPU // 2), (0, 1, WHOLE_GPU // 2)]) == (0, 1)
    assert mig.room_gib(half) == pytest.approx(9.75 / 2)
    assert mig.refuses([half] * 6) is None
    assert mig.refuses([half] * 7) == (
        "cut into ['2g.10gb', '2g.10gb', '2g.10gb', '2g.10gb'], which do not fit a A100-40GB "
        "together"
    )
