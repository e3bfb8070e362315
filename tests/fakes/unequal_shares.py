"""A plan of format 2 as a user may write it.

Unequal shares, a shared pool, an entry, two policies.
"""

from typing import Any

LATENCIES = [1_000, 1_500, 2_000, 2_500]


def stage(pool: str, first: int, last: int, **more: Any) -> dict[str, Any]:
    return {
        "blocks": [first, last],
        "pool": pool,
        "latency_us": 2_500,
        "transfer_us": 0,
        "latency_us_by_batch": LATENCIES,
        "boundary_bytes_per_sample": 64,
        **more,
    }


def pipeline(*stages: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {
        "batch": 4,
        "throughput_rps": 100.0,
        "latency_us": 2_500,
        "stages": list(stages),
        **more,
    }


def example() -> dict[str, Any]:
    """Three models on two GPUs cut 20/80 and 40/60.

    `a` is split over two pools and has an entry at block 4; `b` and `c` share the pool of 80 %.
    """
    entries: list[dict[str, Any]] = [
        {"name": "whole", "block": 0, "rate_rps": 100},
        {"name": "tail", "block": 4, "rate_rps": 100},
    ]
    budgets_ms = {"whole": 50, "tail": 20}
    asked = [e | {"budget_ms": budgets_ms[e["name"]]} for e in entries]
    return {
        "format": 2,
        "plan_id": "by-hand",
        "planner": "by-hand",
        "objective": {"name": "throughput", "value": 1.0, "upper_bound": 1.0, "gap": 0.0},
        "cluster": {
            "name": "two",
            "gpu_classes": {
                "A100": {
                    "vgpu_percents": [20, 40, 60, 80],
                    "partitions": [[20, 80], [40, 60]],
                    "memory_gib": 4,
                    "process_memory_gib": 0.5,
                }
            },
            "nodes": [{"count": 1, "gpu_class": "A100", "gpus": 2, "nic_gbps": 10, "name": "n"}],
        },
        "workload": {
            "models": [
                {"name": "a", "slo_ms": 50, "entries": asked},
                {"name": "b", "slo_ms": 50, "rate_rps": 100},
                {"name": "c", "slo_ms": 50, "rate_rps": 100},
            ]
        },
        "gpus_used": {"A100": 2},
        "pools": [
            pool("p20", 20, 0, 0),
            pool("p80", 80, 0, 1),
            pool("p40", 40, 1, 0),
            pool("p60", 60, 1, 1),
        ],
        "models": [
            {
                "name": "a",
                "slo_us": 50_000,
                "throughput_rps": 200.0,
                "policy": "reservation",
                "entries": [e | {"budget_us": 1_000 * budgets_ms[e["name"]]} for e in entries],
                "pipelines": [
                    pipeline(
                        stage("p20", 0, 4, transfer_us=1),
                        stage("p40", 4, 10),
                        entry="whole",
                        latency_us=5_001,
                    ),
                    pipeline(stage("p60", 4, 10), entry="tail"),
                ],
            },
            {
                "name": "b",
                "slo_us": 50_000,
                "throughput_rps": 100.0,
                "policy": "deferred",
                "pipelines": [pipeline(stage("p80", 0, 6, memory_bytes=memory(1 << 30, 1 << 29)))],
            },
            {
                "name": "c",
                "slo_us": 50_000,
                "throughput_rps": 100.0,
                "policy": "deferred",
                "pipelines": [pipeline(stage("p80", 0, 3, memory_bytes=memory(1 << 30, 1 << 28)))],
            },
        ],
    }


def pool(name: str, percent: int, gpu: int, slot: int) -> dict[str, Any]:
    return {
        "name": name,
        "gpu_class": "A100",
        "vgpu_percent": percent,
        "vgpus": 1,
        "placement": [{"node": "n", "gpu": gpu, "slot": slot}],
    }


def memory(static: int, dynamic: int) -> dict[str, int]:
    return {"static": static, "dynamic": dynamic}
