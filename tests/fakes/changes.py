"""Random runs with changes of plan: plans that have much in common, load, policy, noise, failures.

`random_run(seed)` is always the same run; `check_run` simulates it and says what is wrong with it.
It finds out by itself which vGPUs of two plans are one worker, by their places and what stands
there.
"""

from collections import defaultdict
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from tests.fakes.plans import BLOCKS, HandPipeline, hand_model, hand_pipeline, hand_plan, hand_stage
from triton_backend.contract.cluster import NodeGroup
from triton_backend.contract.plan import PlacementRun, Plan
from triton_backend.scheduler.policies.registry import POLICIES
from triton_backend.simulator.failures import Failure
from triton_backend.simulator.results import SimResult
from triton_backend.simulator.run import simulate
from triton_backend.simulator.scenario import PlanChange, SimOptions
from triton_backend.simulator.world import DROPPED, LATE, SERVED

NODES = [NodeGroup(count=4, gpu_class="GPU", gpus=2, nic_gbps=8.0, name="n")]
GPUS = [(node, gpu) for node in range(4) for gpu in range(2)]
NAMES = ("a", "b", "c")
MOVED_BYTES = (0, 20_000, 600_000)
SECONDS = 0.6
EARLY = ("reservation", "reservation-ahead")

Draw = np.random.Generator
Models = dict[str, list[HandPipeline]]


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangingRun:
    """A plan and how it is simulated; `exact`: nothing that is accepted may be late."""

    plan: Plan
    options: SimOptions
    exact: bool

    @property
    def plans(self) -> tuple[Plan, ...]:
        """Every plan of the run in turn."""
        return (self.plan, *(change.plan for change in self.options.changes))


def random_run(seed: int) -> ChangingRun:
    """The run of a seed."""
    draw = np.random.default_rng(seed)
    policies = [name for name in POLICIES if not name.startswith("turns")]
    policy = str(draw.choice(EARLY if draw.random() < 0.5 else policies))
    slo_us = int(draw.integers(20, 80)) * 1_000
    models = _redrawn(draw, {})
    plans = [_plan(models, slo_us, policy, 0)]
    count = int(draw.integers(1, 4))
    for number in range(1, count + 1):
        models = _redrawn(draw, models)
        plans.append(_plan(models, slo_us, policy, number))
    instants = sorted(draw.uniform(0.1, 0.5, count).tolist())
    if draw.random() < 0.3:  # the second before the former batches of the first have ended
        instants = [instants[0] + 0.004 * number for number in range(count)]
    faults = draw.random() < 0.5
    failures = _failures(draw, plans[0]) if faults else ()
    noise = float(draw.choice([0.0, 0.3])) if faults else 0.0
    options = SimOptions(
        policy=policy,
        load_factor=float(draw.uniform(0.2, 1.4)),
        nic=str(draw.choice(["shared", "isolated"])),
        count_io=bool(draw.random() < 0.3),
        admission=bool(draw.random() < 0.2),
        duration_s=SECONDS,
        seed=seed,
        latency_noise_cv=noise,
        failures=failures,
        changes=tuple(
            PlanChange(at_s=at_s, plan=plan, flush=bool(draw.random() < 0.1))
            for at_s, plan in zip(instants, plans[1:], strict=True)
        ),
    )
    return ChangingRun(plan=plans[0], options=options, exact=policy in EARLY and not faults)


def _redrawn(draw: Draw, before: Models) -> Models:
    """Models of the next plan: some as before, some gone, some again on GPUs that are left."""
    kept = {name: before[name] for name in NAMES if name in before and draw.random() < 0.5}
    held = {
        (run.node, run.gpu)
        for pipelines in kept.values()
        for pipeline in pipelines
        for pool in pipeline.pools
        for run in pool.placement
    }
    free = [GPUS[k] for k in draw.permutation(len(GPUS)) if GPUS[k] not in held]
    models = dict(kept)
    for name in NAMES:
        if name in models or (models and draw.random() < 0.3):
            continue
        pipelines: list[HandPipeline] = []
        for _ in range(int(draw.integers(1, 3))):
            stages = min(int(draw.integers(1, 4)), len(free))
            if stages:
                pipelines.append(_pipeline(draw, [free.pop() for _ in range(stages)]))
        if pipelines:
            models[name] = pipelines
    return {name: models[name] for name in draw.permutation(list(models)).tolist()}


def _pipeline(draw: Draw, gpus: list[tuple[int, int]]) -> HandPipeline:
    batch = int(draw.integers(1, 5))
    stages = [
        hand_stage(
            (number, BLOCKS if number == len(gpus) - 1 else number + 1),
            "GPU",
            PlacementRun(node=node, gpu=gpu, slot=0, slots=divisor),
            [int(size) * 1_000 for size in np.cumsum(draw.integers(1, 5, batch))],
            vgpu_divisor=divisor,
            boundary_bytes_per_sample=int(draw.choice(MOVED_BYTES)),
        )
        for number, (node, gpu) in enumerate(gpus)
        for divisor in [int(draw.integers(1, 4))]
    ]
    return hand_pipeline(*stages, batch=batch)


def _plan(models: Models, slo_us: int, policy: str, number: int) -> Plan:
    made = [
        hand_model(name, *pipelines, slo_us=slo_us, policy=policy)
        for name, pipelines in models.items()
    ]
    return hand_plan(*made, nodes=NODES, plan_id=f"plan-{number}")


def _failures(draw: Draw, plan: Plan) -> tuple[Failure, ...]:
    found: list[Failure] = []
    for _ in range(int(draw.integers(0, 4))):
        start_s, lasts_s = draw.uniform(0.0, 0.5), draw.uniform(0.01, 0.3)
        end_s = None if draw.random() < 0.2 else float(start_s + lasts_s)
        if draw.random() < 0.5:
            vgpu = int(draw.integers(0, len(plan.vgpus())))
            found.append(Failure(start_s=float(start_s), end_s=end_s, vgpu=vgpu))
        else:
            node, gpu = GPUS[int(draw.integers(0, len(GPUS)))]
            found.append(Failure(start_s=float(start_s), end_s=end_s, node=f"n-{node}", gpu=gpu))
    return tuple(found)


def check_run(run: ChangingRun) -> tuple[SimResult, list[str]]:
    """Simulate a run, its tables checked after every change and at the end; what is wrong."""
    result = simulate(run.plan, run.options)
    rows = result.requests
    wrong: list[str] = []
    ended = np.isin(rows["outcome"], [SERVED, LATE, DROPPED])
    if not ended.all():
        wrong.append(f"{int((~ended).sum())} requests have no end")
    late = int((rows["outcome"] == LATE).sum())
    if run.exact and late:
        wrong.append(f"{late} accepted requests are late")
    for worker, uses in _by_worker(run, result).items():
        uses.sort()
        for (_, end_us), (start_us, _) in pairwise(uses):
            if start_us < end_us:
                wrong.append(f"worker {worker} runs two batches at {start_us}")
    return result, wrong


def _by_worker(run: ChangingRun, result: SimResult) -> dict[int, list[tuple[int, int]]]:
    """When every worker ran something; a worker is one process, whatever its vGPU's numbers."""
    workers: list[list[int]] = []
    count = 0
    before: dict[tuple[object, ...], int] = {}
    flushed = [change.flush for change in run.options.changes]
    for number, plan in enumerate(run.plans):
        own: list[int] = []
        at: dict[tuple[object, ...], int] = {}
        for vgpu in plan.vgpus():
            pool = plan.pools[vgpu.pool]
            # Pools of these plans have one stage each.
            ((model, stage),) = [(m.name, s) for m, _, s, p in plan.placed_stages() if p is pool]
            key = (vgpu.slot, pool.share, model, stage.blocks, stage.latency_us_by_batch)
            goes_on = number > 0 and not flushed[number - 1] and key in before
            own.append(before[key] if goes_on else count)
            count += not goes_on
            at[key] = own[-1]
        workers.append(own)
        before = at
    found: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for use in result.uses:
        worker = workers[int(use["plan"])][int(use["vgpu"])]
        found[worker].append((int(use["start_us"]), int(use["end_us"])))
    return found
