"""One compiled call per event: numbers of events, the layout of the answer, what needs room."""

from typing import get_args

import numpy as np
import pytest

from tests.fakes.plans import Own, make_plan, two_stages
from triton_backend.contract.decisions import Dispatch, Drop, DropReason, Hop
from triton_backend.contract.events import (
    Emitted,
    Event,
    LinkPaceChanged,
    PaceChanged,
    PlanChanged,
    SharedBatchStarted,
)
from triton_backend.scheduler import kernel_api
from triton_backend.scheduler.kernel_api import (
    ARRIVAL,
    HEAD,
    HOP,
    STAGE_DONE,
    TIMER,
    TRANSFER_DONE,
    WORKER_LOST,
    answer_length,
    decode_dispatch,
    decode_drop,
    handle_event,
)
from triton_backend.scheduler.plan_rows import build_topology
from triton_backend.scheduler.tables import (
    ABORT,
    BATCH_DONE,
    DISPATCH,
    DROP,
    MAKE_ROOM,
    NEEDS_ROOM,
    OUT_ROWS,
    SET_TIMER,
    SETTLED,
    Tables,
    addresses,
    new_tables,
)

BY_SETTLING = {
    PaceChanged,
    LinkPaceChanged,
    PlanChanged,
    Emitted,
    SharedBatchStarted,
}  # Python changes arrays, and settles where that may let something be sent


class Kernels:
    """Tables of two stages and the call of one event."""

    def __init__(self, tables: Tables) -> None:
        self.tables = tables
        words = [*addresses(tables), *([0] * answer_length(tables))]
        self.memory = np.array(words, dtype=np.int64)

    def __call__(self, event: int, now_us: int, *numbers: int) -> list[list[int]]:
        """The items of the answer, each with its length where its end stands."""
        padded = [*numbers, 0, 0, 0, 0][:4]
        length = handle_event(self.memory, event, now_us, *padded)
        first = len(addresses(self.tables))
        answer: list[int] = self.memory[first : first + length].tolist()
        items: list[list[int]] = []
        at = 0
        while at < length:
            kind, end, *rest = answer[at : answer[at + 1]]
            items.append([kind, end - at, *rest])
            at = end
        return items


def test_an_answer_has_room_for_a_dispatch_of_the_longest_path_in_every_row() -> None:
    tables = kernels().tables
    assert answer_length(tables) >= OUT_ROWS * (HEAD + HOP * tables.offers.shape[1])


def kernels(batches: int = 256, requests: int = 1024) -> Kernels:
    topology = build_topology(two_stages())
    return Kernels(new_tables(topology, batches=batches, requests=requests))


def arrive(kernels: Kernels, *ids: int) -> list[list[int]]:
    """The answer to the last of these."""
    return [kernels(ARRIVAL, 0, 0, number, 100_000, 1) for number in ids][-1]


def test_every_event_has_a_number_of_its_own_under_its_own_name() -> None:
    names = [
        "".join(f"_{c}" if c.isupper() else c for c in kind.__name__).strip("_").upper()
        for kind in get_args(Event)
        if kind not in BY_SETTLING
    ]
    numbers = [getattr(kernel_api, name) for name in names]
    assert (
        len(names)
        == len({*numbers, kernel_api.SETTLE}) - 1
        == len(get_args(Event)) - len(BY_SETTLING)
    )


def test_a_dispatch_lies_in_the_answer_as_drawn() -> None:
    (item,) = arrive(kernels(), 10, 11, 12, 13)
    ids, hops = [10, 11, 12, 13], [[0, 0, 0, 0, 8_000], [4, 8_000, 12_000, 12_000, 16_000]]
    end = HEAD + len(ids) + sum(map(len, hops))
    assert item == [DISPATCH, end, 0, 0, 0, 0, 4, 4, *ids, *hops[0], *hops[1]]
    assert decode_dispatch([9, 9, *item], 2, 2 + end) == Dispatch(
        batch_id=0,
        model=0,
        pipeline=0,
        request_ids=(10, 11, 12, 13),
        samples=4,
        hops=tuple(
            Hop(vgpu=v, transfer_start_us=a, transfer_end_us=b, start_us=c, end_us=d)
            for v, a, b, c, d in hops
        ),
    )


def test_a_counter_without_a_queue_that_was_touched_ends_the_call() -> None:
    call = kernels()
    call.tables.counts[0]["unsettled"] = 1
    assert call(kernel_api.SETTLE, 0) == []
    (dispatch,) = arrive(call, 10, 11, 12, 13)
    assert dispatch[0] == DISPATCH


def test_a_drop_and_a_timer_lie_in_the_answer_as_drawn() -> None:
    call = kernels()
    (drop,) = call(ARRIVAL, 0, 0, 5, 1, 1)
    assert drop == [DROP, HEAD, 5, 0, 1, DropReason.DEADLINE, 16_000, 0]
    assert decode_drop(drop, 0) == Drop(
        request_id=5, model=0, reason=DropReason.DEADLINE, deadline_us=1, best_finish_us=16_000
    )
    (timer,) = call(ARRIVAL, 0, 0, 6, 100_000, 1)
    assert timer == [SET_TIMER, 3, 100_000 - 9_700 + 1]
    assert call(TIMER, 10) == [timer], "one that came early is set again"


def test_the_last_report_of_a_batch_ends_it() -> None:
    call = kernels()
    arrive(call, 0, 1, 2, 3)
    assert call(STAGE_DONE, 8_000, 0, 0, 8_000) == []
    assert call(TRANSFER_DONE, 12_000, 0, 1, 12_000) == []
    assert call(STAGE_DONE, 16_000, 0, 1, 16_000) == [[BATCH_DONE, 3, 0]]


def test_aborts_come_before_what_is_decided_because_of_them() -> None:
    call = kernels()
    arrive(call, 0, 1, 2, 3)
    abort, dispatch = call(WORKER_LOST, 10, 0)
    assert abort == [ABORT, 3, 0]
    assert dispatch[0] == DISPATCH


@pytest.mark.parametrize(
    ("batches", "requests", "status"), [(256, 1, SETTLED), (1, 1024, NEEDS_ROOM)]
)
def test_the_answer_says_when_slots_are_short(batches: int, requests: int, status: int) -> None:
    call = kernels(batches, requests)
    wanted = 1 if requests == 1 else 5  # the fifth request finds no batch slot
    assert arrive(call, *range(wanted))[-1] == [MAKE_ROOM, 3, status]


@pytest.mark.long
def test_the_longest_answer_fits_behind_the_addresses() -> None:
    pool = Own(latency_us=(1_000,), gpus=250)
    tables = new_tables(build_topology(make_plan([[pool]])), batches=250)
    call = Kernels(tables)
    for number in range(250):
        call(ARRIVAL, 0, 0, number, 1_000, 1)
    answers = [call(WORKER_LOST, 1, vgpu) for vgpu in range(250)]
    assert [[item[0] for item in answer] for answer in answers] == [[ABORT, DROP]] * 250
