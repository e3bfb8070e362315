"""Batches last as long as who runs beside them makes them.

By hand, and against the runs themselves.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from tests.fakes.plans import hand_model, hand_pipeline, hand_plan, hand_stage
from triton_backend.contract.cluster import NodeGroup
from triton_backend.contract.errors import InputError
from triton_backend.contract.plan import PlacementRun, Plan, PoolInterference, SeatInterference
from triton_backend.simulator.offered import Instant
from triton_backend.simulator.results import SimResult
from triton_backend.simulator.run import simulate
from triton_backend.simulator.scenario import PlanChange, SimOptions

SUSCEPTIBILITY, PRESSURE = (1.0, 1.0, 0.875), (0.5, 1.0, 0.25)


def gpus_in_parts(solo_us: Sequence[Sequence[int]], gpus: int = 1, slo_us: int = 10**6) -> Plan:
    """A model on a part of its own each, of GPUs cut in as many parts.

    Factors count all neighbours.
    """
    parts = len(solo_us)
    factors = [
        max(1.0, SUSCEPTIBILITY[i] + sum(PRESSURE[:parts]) - PRESSURE[i]) for i in range(parts)
    ]
    models = [
        hand_model(
            f"m{i}",
            hand_pipeline(
                hand_stage(
                    (0, 1),
                    "GPU",
                    PlacementRun(node=0, gpu=0, slot=i, gpus=gpus),
                    [int(np.ceil(us * factors[i])) for us in own],
                    vgpu_divisor=parts,
                ),
                batch=len(own),
            ),
            slo_us=slo_us,
            policy="turns",
        )
        for i, own in enumerate(solo_us)
    ]
    node = NodeGroup(count=1, gpu_class="GPU", gpus=gpus, nic_gbps=10.0)
    plan = hand_plan(*models, nodes=[node])
    stated = [
        PoolInterference(
            pressure=PRESSURE[i],
            felt=sum(PRESSURE[:parts]) - PRESSURE[i],
            inflation=1.0,
            seats=(
                SeatInterference(
                    susceptibility=SUSCEPTIBILITY[i], pressure=PRESSURE[i], factor=factors[i]
                ),
            ),
        )
        for i in range(parts)
    ]
    pools = [replace(p, interference=s) for p, s in zip(plan.pools, stated, strict=True)]
    return replace(plan, pools=tuple(pools))


def run(plan: Plan, arrivals: Mapping[str, Sequence[int]], mode: str, **more: Any) -> SimResult:
    instants = Instant(by_model={name: np.asarray(at) for name, at in arrivals.items()})
    return simulate(plan, SimOptions(arrivals=instants, interference=mode, **more))


@pytest.mark.parametrize(
    ("mode", "finish"),
    [
        ("planned", {"m0": 60 + 200, "m1": 450}),
        ("off", {"m0": 60 + 100, "m1": 300}),
        # m1 is alone for 60 µs; beside m0 it does 200 / 1.5 of what is left in 200 µs, then the
        # rest alone.
        ("overlap", {"m0": 60 + 200, "m1": 260 + 107}),
    ],
)
def test_two_runs_end_as_computed_by_hand(mode: str, finish: dict[str, int]) -> None:
    result = run(gpus_in_parts([[100], [300]]), {"m0": [60], "m1": [0]}, mode)
    names = [result.plan.models[int(m)].name for m in result.requests["model"]]
    assert dict(zip(names, result.requests["finish_us"].tolist(), strict=True)) == finish


def test_the_next_batch_and_the_end_of_the_last_change_who_is_beside() -> None:
    # m0 runs 0-200, 200-400 beside m1 (factor 2), whose 300 are done at 1 / 1.5 in 450; m0's third:
    # 50 µs at half speed do 25, then it is alone.
    result = run(gpus_in_parts([[100], [300]]), {"m0": [0, 1, 2], "m1": [0]}, "overlap")
    by_model = {m: result.requests["finish_us"][result.requests["model"] == m] for m in (0, 1)}
    assert by_model[0].tolist() == [200, 400, 450 + 75]
    assert by_model[1].tolist() == [450]


def work_done(result: SimResult) -> list[tuple[float, int]]:
    """Of every run: its time divided by the factor of those beside it, piece by piece.

    Its model.
    """
    uses = result.uses
    found: list[tuple[float, int]] = []
    gpus = [v.slot.gpu for v in result.plan.vgpus()]
    for use in uses:
        edges = {int(use["start_us"]), int(use["end_us"])}
        near = [
            u for u in uses if u["vgpu"] != use["vgpu"] and gpus[u["vgpu"]] == gpus[use["vgpu"]]
        ]
        for other in near:
            edges |= {int(other["start_us"]), int(other["end_us"])}
        at = sorted(e for e in edges if use["start_us"] <= e <= use["end_us"])
        work = 0.0
        for begin, end in pairwise(at):
            pressed = [
                PRESSURE[u["model"]] for u in near if u["start_us"] <= begin and u["end_us"] >= end
            ]
            own = max(1.0, SUSCEPTIBILITY[use["model"]] + sum(pressed)) if pressed else 1.0
            work += (end - begin) / own
        found.append((work, int(use["model"])))
    return found


@pytest.mark.parametrize(("gpus", "change"), [(1, False), (2, False), (2, True)])
def test_every_run_does_the_work_it_has_alone(gpus: int, change: bool) -> None:
    solo = [[200, 310], [500, 700], [90, 130, 150]]
    plan = gpus_in_parts(solo, gpus)
    random = np.random.default_rng(3)
    arrivals = {
        f"m{i}": np.cumsum(random.exponential(solo[i][-1] / len(solo[i]) / gpus, 150)).astype(int)
        for i in range(3)
    }
    options = SimOptions(
        arrivals=Instant(by_model=arrivals),
        interference="overlap",
        changes=(PlanChange(at_s=0.005, plan=replace(plan, plan_id="other")),) if change else (),
    )
    result = simulate(plan, options)
    assert len(result.uses) > 150
    for (work, model), use in zip(work_done(result), result.uses, strict=True):
        assert work == pytest.approx(solo[model][int(use["samples"]) - 1], abs=2.0)


def test_noise_is_of_the_size_asked_for() -> None:
    plan = gpus_in_parts([[10_000], [1]])
    at = (np.arange(400) * 30_000).tolist()
    result = run(plan, {"m0": at, "m1": []}, "overlap", interference_noise=0.1)
    took = (result.uses["end_us"] - result.uses["start_us"]) / 10_000 - 1
    assert np.quantile(took, 0.9) == pytest.approx(0.1, abs=0.02)
    assert np.quantile(took, 0.5) == pytest.approx(0.0, abs=0.02)


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"interference": "some"}, "interference: 'some' is none of planned, overlap, off"),
        ({"interference_noise": 0.1}, "interference_noise: is of interference overlap"),
        ({"interference": "off", "policy": "reactive"}, "not simulated under the policy reactive"),
    ],
)
def test_options_that_do_not_fit_are_named(options: dict[str, Any], complaint: str) -> None:
    with pytest.raises(InputError, match=complaint):
        SimOptions(**options)
