"""Load that GPUs of sub-clusters carry: one free of few, its inverse, its rows."""

import numpy as np
import pytest

from flows.planning.subclusters.free import carried, limits, needed

GPUS = np.arange(1, 41)


@pytest.mark.parametrize("utilisation", [0.5, 0.8, 0.9, 1.0])
def test_what_gpus_carry_needs_those_gpus(utilisation: float) -> None:
    load = carried(GPUS, utilisation)
    assert needed(load, utilisation) == pytest.approx(GPUS)
    assert (load <= utilisation * GPUS).all()
    assert (np.diff(load / GPUS) >= -1e-12).all()


def test_ten_gpus_keep_one_free_and_so_do_six() -> None:
    assert carried(np.array([1, 4, 6, 10, 20]), 0.9) == pytest.approx([0.81, 3.24, 5, 9, 18])


@pytest.mark.parametrize("utilisation", [0.5, 0.9, 1.0])
def test_the_rows_of_a_program_allow_the_same_load(utilisation: float) -> None:
    for gpus in GPUS.tolist():
        most = [
            min(each * gpus + float(more) * one_free for each, more in limits(40, utilisation))
            for one_free in (0, 1)
        ]
        assert max(most) == pytest.approx(carried(gpus, utilisation))
