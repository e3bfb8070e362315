"""A request goes to the front of its size; one of no size is refused with the list."""

from functools import partial
from pathlib import Path

import numpy as np
import pytest

from tests.triton_backend.serving.front.test_service_incoming import Incoming
from tests.triton_backend.serving.one_name.sized_plans import NAME, SIZES, sized_plan
from tests.triton_backend.serving.small_plans import BATCH
from tests.triton_backend.serving.system import LocalSystem, wait_for
from triton_backend.contract.errors import InputError
from triton_backend.serving.front.replies import Refusal, Result
from triton_backend.serving.front.sizes import SizeTable


def request(*shape: int, name: str = "x") -> Incoming:
    return Incoming({name: np.ones(shape, np.float32)})


def front_of(table: SizeTable[str], *shape: int, name: str = "x") -> str:
    return table.front_of({name: partial(np.ones, shape, np.float32)}, bool)


def sized_table() -> SizeTable[str]:
    return SizeTable(NAME, SIZES, sized_plan().models)


def test_the_shape_of_a_sample_tells_the_size() -> None:
    table = sized_table()
    assert tuple(front_of(table, 7, 3, width) for width in (32, 64)) == SIZES
    assert front_of(table, 1, 5, name="other") == SIZES[0]  # which complains


@pytest.mark.parametrize("shape", [(1, 3, 48), (1, 4, 32), (1, 3), (3,), ()])
def test_another_size_is_refused_with_the_list(shape: tuple[int, ...]) -> None:
    given = "x".join(map(str, shape[1:]))
    with pytest.raises(InputError) as refused:
        front_of(sized_table(), *shape)
    assert str(refused.value) == (
        f"model 'reader': x={given} is none of the sizes served: x=3x32; x=3x64"
    )


def test_the_last_size_that_is_left_refuses_others_with_the_list() -> None:
    table = SizeTable(NAME, SIZES[:1], sized_plan().models[:1])
    assert front_of(table, 2, 3, 32) == SIZES[0]
    with pytest.raises(InputError, match="x=3x64 is none of the sizes served: x=3x32"):
        front_of(table, 1, 3, 64)


@pytest.mark.slow
def test_every_size_answers_its_own_requests_and_no_batch_mixes_them(tmp_path: Path) -> None:
    system = LocalSystem(tmp_path, sized_plan())
    group = system.groups[NAME]
    try:
        widths = [32, 64, 64, 32, 64, 32, 32, 64] * BATCH
        answers: list[list[Result]] = [[] for _ in widths]
        for width, answer in zip(widths, answers, strict=True):
            group.take(request(1, 3, width), answer.append)
        refused: list[Result] = []
        group.take(request(1, 3, 48), refused.append)
        broken: list[Result] = []
        group.take(Incoming({"x": lambda: 1 / 0}), broken.append)
        wait_for(lambda: all(answers))
        for width, answer in zip(widths, answers, strict=True):
            (given,) = answer
            assert not isinstance(given, Refusal), given
            assert given["y"].shape == (1, width // 4)
        assert [type(one) for one in (*refused, *broken)] == [Refusal, Refusal]
        assert group.refused == 2
        counters = system.scheduler.gateway.counters
        assert dict(counters.samples) == dict.fromkeys(SIZES, len(widths) // 2)
    finally:
        system.stop()
