"""The interference model's numbers, and what a plan states of it."""

import numpy as np
import pytest

from triton_backend.contract.errors import InputError
from triton_backend.contract.fields import Fields
from triton_backend.contract.plan import PoolInterference, SeatInterference
from triton_backend.contract.profiles import InterferenceModel

MODEL = InterferenceModel(
    c1_l2_self=0.1,
    c2_l2_other=0.5,
    c3_dram_self=0.3,
    c4_dram_other=-0.2,
    c5=0.9,
    residuals=(-0.01, 0.02, 0.05, 0.07, 0.1, 0.2),
)


def test_susceptibility_and_pressure_split_the_linear_model() -> None:
    assert MODEL.susceptibility(0.5, 0.2) == pytest.approx(0.05 + 0.06 + 0.9)
    assert MODEL.pressure([0.5, 0.0], [0.2, 0.9]) == pytest.approx(np.array([0.21, 0.0]))


def test_the_reserve_is_the_least_known_quantile_not_below_the_one_asked_for() -> None:
    known = [MODEL.inflation(q) for q in (0.3, 0.9, 0.93, 0.95, 1.0)]
    assert known == pytest.approx([1.0, 1.05, 1.07, 1.07, 1.2])
    bare = InterferenceModel(c1_l2_self=0, c2_l2_other=0, c3_dram_self=0, c4_dram_other=0, c5=1)
    assert bare.inflation(0.95) == 1.0


def test_what_a_plan_states_survives_its_plain_form() -> None:
    stated = PoolInterference(
        pressure=0.2,
        felt=0.1,
        inflation=1.05,
        seats=(SeatInterference(susceptibility=0.95, pressure=0.2, factor=1.1),),
    )
    assert PoolInterference.read(Fields(stated.to_dict())) == stated


def test_numbers_that_cannot_be_are_refused() -> None:
    with pytest.raises(InputError, match="c5: nan is no finite number"):
        InterferenceModel(
            c1_l2_self=0, c2_l2_other=0, c3_dram_self=0, c4_dram_other=0, c5=float("nan")
        )
    with pytest.raises(InputError, match=r"factor 0\.5 is too small"):
        SeatInterference(susceptibility=0.9, pressure=0.1, factor=0.5)
