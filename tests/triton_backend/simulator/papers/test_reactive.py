"""The policy `reactive`: one batch at a time on a vGPU, and what it refuses."""

import numpy as np
import pytest

from tests.fakes.plans import two_stages
from triton_backend.contract.errors import InputError
from triton_backend.scheduler.policies.registry import REACTIVE
from triton_backend.simulator.failures import Failure
from triton_backend.simulator.run import simulate
from triton_backend.simulator.scenario import SimOptions


def test_without_reservations_a_stage_still_runs_one_batch_at_a_time() -> None:
    result = simulate(two_stages(), SimOptions(policy=REACTIVE, load_factor=0.9, duration_s=3))
    for vgpu in np.unique(result.uses["vgpu"]):
        rows = np.sort(result.uses[result.uses["vgpu"] == vgpu], order="start_us")
        assert (rows["start_us"][1:] >= rows["end_us"][:-1]).all()


def test_reactive_batching_knows_no_failures() -> None:
    with pytest.raises(InputError, match="failures"):
        simulate(
            two_stages(),
            SimOptions(policy=REACTIVE, failures=(Failure(start_s=0, vgpu=0),)),
        )
