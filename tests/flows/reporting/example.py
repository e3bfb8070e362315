"""A small plan with everything a picture must cope with: sizes, classes, three stages, markup."""

import json
from typing import Any

import numpy as np

from flows.progress import Step
from flows.reporting.data import BlockRow, ModelOutcome, Outcomes, ReportData, Uses
from triton_backend.contract.plan import Plan

LONG_NAME = "segmentation_network_r101-d8_4xb2-40k_cityscapes-512x1024_aa-advprop_in1k_v2"


def pool(name: str, vgpus: str) -> dict[str, Any]:
    """`vgpus` as "3 1/2 fast @ node" or "2 20% fast node slot": count, size, class, first place.

    Parts of 1/v fill GPU after GPU; percents take one slot (0 unless given) of each GPU.
    """
    count, size, gpu_class, node, *slot = vgpus.split()
    if size.endswith("%"):
        share = {"vgpu_percent": int(size[:-1])}
        places = [(i, int(slot[0]) if slot else 0) for i in range(int(count))]
    else:
        share = {"vgpu_divisor": int(size.split("/")[1])}
        places = [divmod(i, share["vgpu_divisor"]) for i in range(int(count))]
    placement = [{"node": node, "gpu": gpu, "slot": at} for gpu, at in places]
    return {
        "name": name,
        "gpu_class": gpu_class,
        "vgpus": int(count),
        "placement": placement,
    } | share


def stage(blocks: tuple[int, int], pool: str, latency_ms: float, **more: Any) -> dict[str, Any]:
    return {
        "blocks": list(blocks), "pool": pool,
        "latency_us": int(latency_ms * 1000), "transfer_us": 0, "boundary_bytes_per_sample": 0,
        "latency_us_by_batch": [int(latency_ms * 500), int(latency_ms * 1000)],
    } | more  # fmt: skip


def example_plan(**changes: Any) -> Plan:
    """Two models, two classes: `<b>` in a text must never become markup."""
    first = {"transfer_us": 2_000, "boundary_bytes_per_sample": 1_250_000}
    pipelines = [
        {"batch": 2, "throughput_rps": 100.0, "latency_us": 32_000, "stages": [
            stage((0, 4), "fast-0", 20, **first), stage((4, 10), "slow-0", 10)]},
    ]  # fmt: skip
    long = [
        {"batch": 1, "throughput_rps": 40.0, "latency_us": 60_000, "stages": [
            stage((0, 1), "slow-1", 20), stage((1, 2), "fast-1", 20), stage((2, 3), "slow-2", 20)]},
    ]  # fmt: skip
    data: dict[str, Any] = {
        "format": 2, "plan_id": "p1", "planner": "pool", "options": {}, "solver": "highs",
        "solve_seconds": 0.25,
        "objective": {"name": "throughput", "value": 100.0, "upper_bound": 100.05, "gap": 0.0005},
        "cluster": {
            "name": "<b>test</b>", "gpu_classes": {"fast": {"vgpu_divisors": [1, 2]}, "slow": {}},
            "nodes": [
                {"count": 1, "gpu_class": "fast", "gpus": 2, "nic_gbps": 10},
                {"count": 1, "gpu_class": "fast", "gpus": 1, "nic_gbps": 10},
                {"count": 1, "gpu_class": "slow", "gpus": 2, "nic_gbps": 10},
                {"count": 1, "gpu_class": "slow", "gpus": 1, "nic_gbps": 10},
                {"count": 1, "gpu_class": "slow", "gpus": 1, "nic_gbps": 10}]},
        "workload": {"models": [
            {"name": "resnet", "slo_ms": 100.0, "batch_building_rate_rps": 130.0},
            {"name": LONG_NAME, "slo_ms": 150.0}]},
        "gpus_used": {"fast": 3, "slow": 4},
        "pools": [
            pool("fast-0", "3 1/2 fast fast"), pool("slow-0", "2 1/1 slow slow"),
            pool("slow-1", "1 1/1 slow slow.1"), pool("fast-1", "1 1/1 fast fast.1"),
            pool("slow-2", "1 1/1 slow slow.2")],
        "models": [
            {"name": "resnet", "slo_us": 100_000, "throughput_rps": 100.0,
             "pipelines": pipelines},
            {"name": LONG_NAME, "slo_us": 150_000, "throughput_rps": 40.0, "pipelines": long}],
    }  # fmt: skip
    return Plan.from_dict(json.loads(json.dumps(data | changes)))


def shared_plan() -> Plan:
    """Two GPUs cut 80/20: models `a` and `b` share the large parts, a tail of `b` has the small."""
    models = [
        {"name": "a", "slo_us": 100_000, "throughput_rps": 60.0, "pipelines": [
            {"batch": 2, "throughput_rps": 60.0, "latency_us": 20_000, "stages": [
                stage((0, 4), "large", 20)]}]},
        {"name": "b", "slo_us": 100_000, "throughput_rps": 20.0, "pipelines": [
            {"batch": 2, "throughput_rps": 20.0, "latency_us": 40_000, "stages": [
                stage((0, 2), "large", 20), stage((2, 3), "small", 20)]}]},
    ]  # fmt: skip
    return example_plan(
        cluster={
            "name": "shared", "gpu_classes": {"big": {"vgpu_percents": [20, 80]}},
            "nodes": [{"count": 1, "gpu_class": "big", "gpus": 2, "nic_gbps": 10}]},
        workload={"models": [{"name": name, "slo_ms": 100.0} for name in ("a", "b")]},
        gpus_used={"big": 2},
        pools=[pool("large", "2 80% big big"), pool("small", "2 20% big big 1")],
        models=models,
    )  # fmt: skip


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
        model=numbers % len(plan.models),
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
            "resnet": [
                BlockRow(block=0, first_node="conv<1>", nodes=3, share=0.6, boundary_bytes=100),
                BlockRow(block=1, first_node="conv2", nodes=4, share=0.4),
            ]
        },
        machine={"cores": "2"},
        versions={"python": "3.11"},
        notes=["engines were built without a GPU"],
    )
