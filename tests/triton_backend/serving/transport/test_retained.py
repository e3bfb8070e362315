from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.triton_backend.serving import served_applications, small_plans
from tests.triton_backend.serving.served_applications import application, module, one_stage
from tests.triton_backend.serving.system import deploy
from triton_backend.serving.deployment import Deployment
from triton_backend.serving.transport.retained import (
    RetainedSegments,
    put_corner,
    remove_retained,
)
from triton_backend.serving.transport.shared_memory import remove_segments
from triton_backend.serving.transport.wire import FrameError, RowSlice

PIECE = RowSlice(0, 2, 0, 1, 0, 0, generation=1, vgpu=0, slot=3, row=1)


@pytest.fixture
def deployment(tmp_path: Path) -> Iterator[Deployment]:
    chain = application("chain", module("a"), module("b", "a"))
    models = small_plans.plan(one_stage("m_a"), one_stage("m_b"))
    made = deploy(tmp_path, served_applications.with_applications(models, chain))
    yield made
    remove_segments(made.settings.segment_prefix)


def made(deployment: Deployment) -> RetainedSegments:
    retained = RetainedSegments(deployment.settings)
    retained.add(deployment)
    retained.make(deployment, 0)
    return retained


def test_outputs_that_a_worker_retained_are_there_for_a_later_reader(
    deployment: Deployment,
) -> None:
    first = made(deployment)
    slots = first.of_model(deployment, 0, "m_a")
    rows = np.arange(small_plans.BATCH, dtype=np.uint8)[:, None]
    slots.views(3, small_plans.BATCH)["output"][...] = rows
    first.close()  # its process dies
    again, reader = made(deployment), RetainedSegments(deployment.settings)
    for retained in (again, reader):
        np.testing.assert_array_equal(retained.tensors("chain", PIECE)["output"][:, 0], [1, 2])
    reader.close()
    remove_retained(deployment, [0])
    with pytest.raises(FrameError, match="is nowhere"):
        RetainedSegments(deployment.settings).tensors("chain", PIECE)


@pytest.mark.parametrize(
    "wrong",
    [
        {"row": small_plans.BATCH - 1},
        {"slot": 10**6},
        {"slot": -1},
        {"vgpu": 9},
        {"vgpu": 1},
        {"producer": 7},
        {"generation": 2},
    ],
)
def test_rows_that_are_not_retained_are_refused(
    deployment: Deployment, wrong: dict[str, int]
) -> None:
    with pytest.raises(FrameError, match=r"is nowhere|ends beyond"):
        made(deployment).tensors("chain", PIECE._replace(**wrong))


def test_generations_that_only_pieces_named_go_with_those_before_one_in_force(
    deployment: Deployment,
) -> None:
    writer, reader = made(deployment), RetainedSegments(deployment.settings)
    reader.tensors("chain", PIECE)
    reader.forget_before(1)
    remove_retained(deployment, [0])
    assert len(reader.tensors("chain", PIECE)["output"]) == PIECE.rows  # still mapped
    reader.forget_before(2)
    with pytest.raises(FrameError, match="is nowhere"):
        reader.tensors("chain", PIECE)
    writer.close()


def test_rows_of_another_size_lie_at_the_beginning_and_lack_zeros() -> None:
    wide, narrow = np.full((2, 2, 3), 9), np.full((2, 2, 2), 9)
    put_corner(wide, np.arange(8).reshape(2, 2, 2))
    assert wide.tolist() == [[[0, 1, 0], [2, 3, 0]], [[4, 5, 0], [6, 7, 0]]]
    put_corner(narrow, np.arange(12).reshape(2, 2, 3))
    assert narrow.tolist() == [[[0, 1], [3, 4]], [[6, 7], [9, 10]]]
