"""Comparison policies are loaded on demand only."""

import pytest

from tests.interpreters import printed_by

PROGRAM = """
import sys
from tests.fakes.plans import two_stages
from triton_backend.simulator.goodput import goodput_report
from triton_backend.simulator.run import simulate
from triton_backend.simulator.scenario import SimOptions


def loaded(**options):
    result = simulate(two_stages(), SimOptions(duration_s=0.1, load_factor=0.5, **options))
    assert result.models[0].offered > 0
    above = "triton_backend.simulator."
    names = sorted(name for name in sys.modules if name.startswith(f"{above}papers"))
    print(*(name.removeprefix(above) for name in names))


loaded()
loaded(policy="deferred")
loaded(policy="deferred", heads="head")
loaded(policy="reactive")
"""


@pytest.mark.slow
def test_a_plain_simulation_loads_nothing_of_papers() -> None:
    plain, late, ablation, reactive = printed_by(PROGRAM, compiled=False).split("\n")[:4]
    assert (plain, late) == ("", "")
    assert ablation == ""
    assert reactive == "papers papers.reactive papers.unreserved"
