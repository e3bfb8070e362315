"""A small plan with everything a picture must cope with: sizes, classes, three stages, markup."""

import json
from typing import Any

import numpy as np

from flows.progress import Step
from flows.reporting.data import BlockRow, ModelOutcome, Outcomes, ReportData, Uses
from triton_backend.contract.plan import Plan

LONG_NAME = "segmentation_network_r101-d8_4xb2-40k_cityscapes-512x1024_aa-advprop_in1k_v2"


def stage(blocks: tuple[int, int], pool: str, latency_ms: float, **more: Any) -> dict[str, Any]:
    """`pool` as "3 1/2 fast @ node gpu": vGPUs, size, class, first place."""
    vgpus, size, gpu_class, node = pool.split()
    divisor = int(size.split("/")[1])
    count = int(vgpus)
    placement = [{"node": node, "gpu": i // divisor, "slot": i % divisor} for i in range(count)]
    return {
        "blocks": list(blocks), "gpu_class": gpu_class, "vgpu_divisor": divisor, "vgpus": count,
        "latency_ms": latency_ms, "transfer_ms": 0, "boundary_bytes_per_sample": 0,
        "latency_us_by_batch": [int(latency_ms * 500), int(latency_ms * 1000)],
        "placement": placement,
    } | more  # fmt: skip


def example_plan(**changes: Any) -> Plan:
    """Two models, two classes: `<b>` in a name must never become markup."""
    first = {"transfer_ms": 2.0, "boundary_bytes_per_sample": 1_250_000}
    pipelines = [
        {"batch": 2, "throughput_rps": 100.0, "latency_ms": 32.0, "stages": [
            stage((0, 4), "3 1/2 fast fast", 20, **first), stage((4, 10), "2 1/1 slow slow", 10)]},
    ]  # fmt: skip
    long = [
        {"batch": 1, "throughput_rps": 40.0, "latency_ms": 60.0, "stages": [
            stage((0, 1), "1 1/1 slow slow.1", 20), stage((1, 2), "1 1/1 fast fast.1", 20),
            stage((2, 3), "1 1/1 slow slow.2", 20)]},
    ]  # fmt: skip
    data: dict[str, Any] = {
        "plan_id": "p1", "planner": "pool", "options": {}, "solver": "highs",
        "solve_seconds": 0.25,
        "objective": {"name": "throughput", "value": 100.0, "upper_bound": 100.05, "gap": 0.0005},
        "cluster": {
            "name": "test", "gpu_classes": {"fast": {"vgpu_divisors": [1, 2]}, "slow": {}},
            "nodes": [
                {"count": 1, "gpu_class": "fast", "gpus": 2, "nic_gbps": 10},
                {"count": 1, "gpu_class": "fast", "gpus": 1, "nic_gbps": 10},
                {"count": 1, "gpu_class": "slow", "gpus": 2, "nic_gbps": 10},
                {"count": 1, "gpu_class": "slow", "gpus": 1, "nic_gbps": 10},
                {"count": 1, "gpu_class": "slow", "gpus": 1, "nic_gbps": 10}]},
        "workload": {"models": [
            {"name": "<b>resnet</b>", "slo_ms": 100.0, "batch_building_rate_rps": 130.0},
            {"name": LONG_NAME, "slo_ms": 150.0}]},
        "gpus_used": {"fast": 3, "slow": 4},
        "models": [
            {"name": "<b>resnet</b>", "slo_ms": 100.0, "throughput_rps": 100.0,
             "pipelines": pipelines},
            {"name": LONG_NAME, "slo_ms": 150.0, "throughput_rps": 40.0, "pipelines": long}],
    }  # fmt: skip
    return Plan.from_dict(json.loads(json.dumps(data | changes)))


def outcomes(plan: Plan, label: str, *, uses: Uses | None = None) -> Outcomes:
    """Every model offered 1,000 requests, 10 of them late and 10 dropped."""
    rng = np.random.default_rng(0)
    models = {
        model.name: ModelOutcome(
            offered=1_000, served=980, late=10, dropped=10, p50_ms=40.0, p99_ms=90.0,
            latencies_ms=rng.gamma(4, 10, 990), checked=990,
        )
        for model in plan.models
    }  # fmt: skip
    return Outcomes(label=label, duration_s=20, models=models, uses=uses)


def example_uses(plan: Plan, count: int = 50) -> Uses:
    """`count` batches on the plan's vGPUs in turn, back to back."""
    numbers = np.arange(count)
    return Uses(
        vgpu=numbers % len(plan.vgpus()),
        batch_id=numbers,
        start_us=numbers * 1_000,
        end_us=numbers * 1_000 + 900,
        samples=numbers % 2 + 1,
    )


def example_report() -> ReportData:
    """A report with every part."""
    plan = example_plan()
    return ReportData(
        title="A <i>run</i>",
        plan=plan,
        created="2026-01-02 03:04 UTC",
        measured=outcomes(plan, "measured", uses=example_uses(plan)),
        simulated=outcomes(plan, "simulated"),
        steps=[Step(name="split", seconds=1.5, note="reused"), Step(name="plan", seconds=0.2)],
        blocks={
            "<b>resnet</b>": [
                BlockRow(block=0, first_node="conv<1>", nodes=3, share=0.6, boundary_bytes=100),
                BlockRow(block=1, first_node="conv2", nodes=4, share=0.4),
            ]
        },
        machine={"cores": "2"},
        versions={"python": "3.11"},
        notes=["engines were built without a GPU"],
    )
