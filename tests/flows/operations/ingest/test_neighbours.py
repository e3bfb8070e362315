"""Runs side by side: which count beside which, and that cutting the log changes nothing."""

from dataclasses import replace
from pathlib import Path

import pytest

from flows.operations.ingest import reader as module
from flows.operations.ingest.reader import ingest
from tests.fakes.plans import hand_model, hand_pipeline, hand_plan, hand_stage
from tests.flows.operations.fake_gateway import SLO_US, Log, table, workspace_of
from triton_backend.contract.cluster import GpuClass, NodeGroup
from triton_backend.contract.plan import PlacementRun, Plan

COLUMNS = "gpu_class, model, batch, share, beside_model, beside_batch, beside_share, runs, busy_us"


def cut_plan() -> Plan:
    """GPU 0 is cut into 40 % for `a` and 60 % for `b`; `c` has 40 % of GPU 1 alone."""
    shares = {"a": (0, 0, 120), "b": (0, 1, 180), "c": (1, 0, 120)}
    models = []
    for name, (gpu, slot, _) in shares.items():
        place = PlacementRun(node=0, gpu=gpu, slot=slot)
        stage = hand_stage((0, 4), "G", place, (900, 1_000), vgpu_divisor=2)
        pipeline = hand_pipeline(stage, batch=2, rate_rps=10.0)
        models.append(hand_model(name, pipeline, slo_us=SLO_US))
    node = NodeGroup(count=1, gpu_class="G", gpus=2, nic_gbps=10.0)
    plan = hand_plan(*models, nodes=[node], plan_id="cut")
    gpu_class = GpuClass(name="G", vgpu_divisors=(), vgpu_percents=(40, 60))
    pools = tuple(
        replace(pool, share=share)
        for pool, (_, _, share) in zip(plan.pools, shares.values(), strict=True)
    )
    return replace(plan, pools=pools, cluster=replace(plan.cluster, gpu_classes=(gpu_class,)))


def log_of(*runs: tuple[int, int, int, int]) -> Log:
    """Runs (model, samples, start, end), logged when they end.

    Models have the numbers of their vGPUs.
    """
    log = Log()
    log.plan("cut", 1)
    for model, samples, start_us, end_us in sorted(runs, key=lambda run: run[3]):
        ids = tuple(log.arrive(start_us, model) for _ in range(samples))
        log.done(log.dispatch(ids, (model,), model=model), 0, start_us, end_us)
    return log


RUNS = (
    (0, 2, 0, 1_000),  # within the first of b
    (1, 1, 0, 2_500),  # a of 2 and of 1 beside it: of two kinds
    (0, 1, 1_000, 2_000),  # within the first of b
    (0, 2, 2_000, 3_000),  # across two of b, of one kind
    (1, 1, 2_500, 4_000),  # a to 3,000, then nothing
    (0, 2, 5_000, 6_000),  # b ran for its last half alone
    (1, 2, 5_500, 6_500),
    (1, 2, 7_000, 8_000),  # a had 95 % of it
    (0, 2, 7_050, 8_100),
    (2, 2, 0, 1_000),  # the only one on its GPU
    (1, 2, 9_000, 9_900),
)
EXPECTED = [
    ("G", "a", 1, 120, "b", 1, 180, 1, 1_000),
    ("G", "a", 2, 120, "b", 1, 180, 2, 2_000),
    ("G", "b", 2, 180, "a", 2, 120, 1, 1_000),
]


@pytest.mark.long
@pytest.mark.parametrize("piece", [1, 1 << 20])
def test_a_run_counts_beside_the_one_kind_that_kept_its_neighbour_busy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, piece: int
) -> None:
    monkeypatch.setattr(module, "PIECE_BYTES", piece)  # 1: the cursor is kept after every line
    work = workspace_of(tmp_path, cut_plan())
    log_of(*RUNS).write(work)
    ingest(work)
    assert table(work, "neighbour_minutes", COLUMNS) == EXPECTED
    ingest(work)
    assert table(work, "neighbour_minutes", COLUMNS) == EXPECTED


def test_a_change_of_plan_parts_runs_from_those_before(tmp_path: Path) -> None:
    work = workspace_of(tmp_path, cut_plan(), replace(cut_plan(), plan_id="later"))
    log = log_of((0, 2, 0, 1_000))
    log.plan("later", 2, at_us=1_100, rollout=True)
    log.done(log.dispatch((log.arrive(1_200, 1),), (1,), model=1), 0, 0, 2_000)
    log.write(work)
    ingest(work)
    assert table(work, "neighbour_minutes", COLUMNS) == []
