"""Common behaviour of baselines of whole models.

One batch at a time, everybody answered, what is refused.
"""

import numpy as np
import pytest

from tests.fakes.plans import two_stages
from tests.triton_backend.simulator.papers.whole_runs import one_pool, overlapping
from triton_backend.contract.errors import InputError
from triton_backend.simulator.run import simulate
from triton_backend.simulator.scenario import SimOptions
from triton_backend.simulator.world import DROPPED, LATE, SERVED

POLICIES = ("nexus", "round-robin", "shepherd", "triton")


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("load_factor", [300.0, 2_000.0])
def test_a_vgpu_runs_one_batch_at_a_time_and_everybody_is_answered(
    policy: str, load_factor: float
) -> None:
    tables = [(3_000, 5_000, 6_500), (1_000, 1_400)]
    plan = one_pool(tables, [30_000, 12_000], vgpus=2)
    options = SimOptions(
        policy=policy, load_factor=load_factor, duration_s=2, latency_noise_cv=0.2, seed=1
    )
    result = simulate(plan, options)
    assert overlapping(result) == []
    assert len(result.requests) > 1_000
    assert set(result.requests["outcome"].tolist()) <= {SERVED, LATE, DROPPED}
    answered = int((result.requests["outcome"] != DROPPED).sum())
    ended = np.isin(result.uses["batch_id"], result.requests["batch_id"])  # others were broken off
    assert int(result.uses["samples"][ended].sum()) == answered
    again = simulate(plan, options)
    assert again.requests.tobytes() == result.requests.tobytes()


@pytest.mark.parametrize("policy", POLICIES)
def test_stages_links_and_rules_of_late_binding_are_refused(policy: str) -> None:
    with pytest.raises(InputError, match="has several stages"):
        simulate(two_stages(), SimOptions(policy=policy))
    with pytest.raises(InputError, match="knows no links"):
        simulate(one_pool([(10,)], [30]), SimOptions(policy=policy, count_io=True))
    with pytest.raises(
        InputError, match=f"^heads: is of late binding, {policy!r} does not take it"
    ):
        simulate(one_pool([(10,)], [30]), SimOptions(policy=policy, heads="head"))
