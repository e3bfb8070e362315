"""Which stages are there: least recently used go first, and the room is never exceeded."""

from hypothesis import given
from hypothesis import strategies as st

from triton_backend.runtimes.residency import ABSENT, admit


def present(used: list[int]) -> list[int]:
    return [stage for stage, last in enumerate(used) if last != ABSENT]


def test_the_least_recently_used_stage_makes_room() -> None:
    used, sizes = [ABSENT] * 3, [10, 10, 10]
    assert [admit(used, sizes, 20, stage) for stage in (0, 1, 0)] == [True, True, False]
    assert admit(used, sizes, 20, 2)
    assert present(used) == [0, 2]


def test_a_large_stage_evicts_as_many_as_it_needs_and_no_more() -> None:
    used, sizes = [ABSENT] * 4, [10, 10, 10, 20]
    for stage in (2, 0, 1, 3):
        admit(used, sizes, 40, stage)
    assert present(used) == [0, 1, 3]


def test_less_room_evicts_others_but_what_runs() -> None:
    used, sizes = [ABSENT] * 3, [10, 10, 10]
    for stage in (0, 1, 2):
        admit(used, sizes, 30, stage)
    assert not admit(used, sizes, 20, 0)
    assert present(used) == [0, 2]


@given(st.data())
def test_what_is_there_fits_and_are_the_last_that_ran(data: st.DataObject) -> None:
    sizes = data.draw(st.lists(st.integers(1, 9), min_size=1, max_size=6))
    room = data.draw(st.integers(max(sizes), sum(sizes)))
    runs = data.draw(st.lists(st.integers(0, len(sizes) - 1), max_size=40))
    used = [ABSENT] * len(sizes)
    there: list[int] = []  # by last run
    for stage in runs:
        assert admit(used, sizes, room, stage) == (stage not in there)
        there = [other for other in there if other != stage]
        while sum(sizes[other] for other in there) + sizes[stage] > room:
            there.pop(0)
        there.append(stage)
        assert present(used) == sorted(there)
        assert sum(sizes[other] for other in present(used)) <= room
