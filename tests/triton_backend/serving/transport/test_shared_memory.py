import platform
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.triton_backend.serving.small_plans import tensor
from triton_backend.contract.errors import InputError, InvariantError
from triton_backend.serving.layout import SlotLayout
from triton_backend.serving.transport import shared_memory
from triton_backend.serving.transport.emulated_links import MOVES, EmulatedLinks
from triton_backend.serving.transport.shared_memory import (
    SHARED_FOLDER,
    Segment,
    SlotPool,
    remove_segments,
)

PREFIX = "poolpipe-test-memory-"
LAYOUT = SlotLayout(specs=(tensor("a", 3), tensor("b", 5, dtype="UINT8")), batch=4)


@pytest.fixture(autouse=True)
def clean() -> Iterator[None]:
    yield
    remove_segments(PREFIX)


def test_what_a_sender_writes_the_owner_reads_and_slots_do_not_touch() -> None:
    owner = Segment.create(f"{PREFIX}1", LAYOUT, 3)
    sender = Segment.attach(f"{PREFIX}1", LAYOUT)
    for slot in range(3):
        views = sender.views(slot, 4)
        views["a"][:] = slot
        views["b"][:] = 10 + slot
    for slot in range(3):
        views = owner.views(slot, 2)
        assert views["a"].shape == (2, 3)
        assert np.all(views["a"] == slot)
        assert np.all(views["b"] == 10 + slot)
    assert [len(piece) for piece in owner.pieces(0, 2)] == [24, 10]
    assert LAYOUT.payload_bytes(2) == 34


@pytest.mark.parametrize(("slot", "samples"), [(-1, 1), (3, 1), (0, 0), (0, 5)])
def test_views_outside_a_segment_are_refused(slot: int, samples: int) -> None:
    segment = Segment.create(f"{PREFIX}2", LAYOUT, 3)
    with pytest.raises(InvariantError, match="slot"):
        segment.views(slot, samples)


def test_a_segment_of_another_layout_is_not_mapped() -> None:
    Segment.create(f"{PREFIX}3", LAYOUT, 3)
    with pytest.raises(InputError, match="are no slots of"):
        Segment.attach(f"{PREFIX}3", SlotLayout(specs=(tensor("a", 77),), batch=4))
    with pytest.raises(InputError, match="cannot be mapped"):
        Segment.attach(f"{PREFIX}none", LAYOUT)


def test_segments_larger_than_shared_memory_are_refused() -> None:
    layout = SlotLayout(specs=(tensor("a", 1 << 40),), batch=1000)
    with pytest.raises(InputError, match="bytes free"):
        Segment.create(f"{PREFIX}4", layout, 2)


@given(st.lists(st.booleans(), max_size=60))
def test_a_pool_never_gives_a_slot_twice(takes: list[bool]) -> None:
    pool = SlotPool(range(5))
    taken: list[int] = []
    for take in takes:
        if take:
            slot = pool.take()
            assert (slot is None) == (len(taken) == 5)
            if slot is not None:
                assert slot not in taken
                taken.append(slot)
        elif taken:
            pool.give(taken.pop())
        assert pool.free == 5 - len(taken)


def test_a_slot_is_given_back_once() -> None:
    pool = SlotPool(range(2))
    slot = pool.take()
    assert slot is not None
    pool.give(slot)
    with pytest.raises(InvariantError, match="is not taken"):
        pool.give(slot)


def test_transfers_wait_for_both_ends_of_their_links() -> None:
    links = EmulatedLinks(f"{PREFIX}links", nodes=3)
    other = EmulatedLinks(f"{PREFIX}links", nodes=3)
    assert links.take(0, 1, earliest_us=100, duration_us=50) == 100
    assert other.take(0, 2, earliest_us=100, duration_us=10) == 150
    assert links.take(2, 1, earliest_us=100, duration_us=10) == 150
    assert other.take(1, 0, earliest_us=100, duration_us=10) == 100
    links.close()
    other.close()


def test_a_transfer_takes_a_gap_that_those_taken_before_it_leave() -> None:
    links = EmulatedLinks(f"{PREFIX}links", nodes=3)
    taken = [
        links.take(0, receiver, earliest_us, 10)
        for receiver, earliest_us in ((1, 150), (2, 100), (1, 145), (2, 100), (1, 141))
    ]
    assert taken == [150, 100, 160, 110, 170]
    links.close()


def test_a_link_that_is_taken_for_long_forgets_no_move_to_come() -> None:
    links = EmulatedLinks(f"{PREFIX}links", nodes=2)
    taken = [links.take(0, 1, earliest_us=100, duration_us=10) for _ in range(3 * MOVES)]
    assert taken == [100 + 10 * n for n in range(3 * MOVES)]
    links.close()


def test_segments_are_found_by_their_prefix() -> None:
    Segment.create(f"{PREFIX}5", LAYOUT, 1)
    assert remove_segments(PREFIX) == 1
    assert not list(SHARED_FOLDER.glob(f"{PREFIX}*"))


PAGE = 4096
PAGED = SlotLayout(specs=(tensor("a", PAGE, dtype="UINT8"),), batch=2)


def pages_taken(name: str) -> int:
    return (SHARED_FOLDER / name).stat().st_blocks * 512 // PAGE


@pytest.mark.skipif(
    tuple(map(int, platform.release().split(".")[:2])) < (5, 14),
    reason="pages cannot be taken ahead before Linux 5.14",
)
def test_pages_of_the_first_slots_are_taken_and_what_lies_there_stays(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    name = f"{PREFIX}pages"
    segment = Segment.create(name, PAGED, 6)
    assert pages_taken(name) == 0
    segment.views(0, 2)["a"][:] = 7
    segment.take_pages(0)
    assert pages_taken(name) == 2
    segment.take_pages(2)
    assert pages_taken(name) == 4
    assert np.all(segment.views(0, 2)["a"] == 7)
    monkeypatch.setattr(shared_memory, "MOST_TAKEN_BYTES", 6 * PAGE)
    segment.take_pages(6)
    assert pages_taken(name) == 6
    monkeypatch.undo()
    segment.take_pages(60)  # of all there are
    assert pages_taken(name) == 12


def test_pages_are_taken_when_written_where_the_kernel_takes_none_ahead(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    segment = Segment.create(f"{PREFIX}old", PAGED, 2)
    monkeypatch.setattr(shared_memory, "_MADV_POPULATE_WRITE", 1 << 20)
    segment.take_pages(2)
    assert pages_taken(f"{PREFIX}old") == 0
    segment.views(1, 2)["a"][:] = 7
    assert pages_taken(f"{PREFIX}old") == 2
