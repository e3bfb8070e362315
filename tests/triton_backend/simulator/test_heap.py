"""The heap gives events back in the total order."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from triton_backend.simulator.heap import EVENT, remove_first, sift_up


@settings(deadline=None, derandomize=True, max_examples=50)
@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 3)), max_size=60))
def test_events_come_by_time_then_kind_then_sequence(events: list[tuple[int, int]]) -> None:
    heap = np.zeros(len(events) + 1, dtype=EVENT)
    for number, (at_us, kind) in enumerate(events):
        heap[number]["at_us"], heap[number]["kind"] = at_us, kind
        heap[number]["sequence"] = number
        sift_up(heap, number + 1)
    came: list[tuple[int, int, int]] = []
    for left in range(len(events), 0, -1):
        row = heap[0]
        came.append((int(row["at_us"]), int(row["kind"]), int(row["sequence"])))
        remove_first(heap, left)
    assert came == sorted((at, kind, n) for n, (at, kind) in enumerate(events))
