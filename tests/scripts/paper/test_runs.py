"""The load factor of the benchmarks is that of `simulate --find-goodput`, found with fewer runs."""

import pytest

from scripts.paper.runs import Run, beyond_vgpus, highest_load
from tests.fakes.plans import Own, make_plan
from triton_backend.simulator.goodput import GRID, find_goodput
from triton_backend.simulator.offered import Gamma
from triton_backend.simulator.scenario import SimOptions

WEAK = make_plan([[Own(latency_us=(4_000, 6_000), gpus=2)]], slo_us=30_000)
STRONG = make_plan([[Own(latency_us=(4_000, 6_000), gpus=5)]], slo_us=30_000)


@pytest.mark.long
@pytest.mark.parametrize("shape", [1.0, 0.3])
def test_loads_beyond_the_vgpus_are_left_out_without_changing_what_is_found(shape: float) -> None:
    options = SimOptions(arrivals=Gamma(shape=shape), reference=STRONG, duration_s=10)
    run = Run(plan=WEAK, options=options)
    assert [beyond_vgpus(run.at(load)) for load in (1.0, 0.4)] == [True, False]
    found = highest_load(run)
    assert found.load_factor == find_goodput(WEAK, options).load_factor < max(GRID)
    assert found.offered > 0
    assert found.late == 0
