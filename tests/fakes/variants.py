"""Plans in which several models answer for one name, on GPUs that they share."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from flows.planning import PlanOptions, make_plan
from triton_backend.contract.cluster import Cluster, GpuClass, NodeGroup
from triton_backend.contract.plan import Plan
from triton_backend.contract.profiles import ModelProfile, loaded
from triton_backend.contract.workload import Workload

NAME, CHEAP = "net", "net-small"
ACCURACY = {NAME: 0.8, CHEAP: 0.7}
GPU, SLO_MS, BATCHES = "GPU", 100.0, 32
BASE_US, EACH_US = 2_000, 1_000  # latency of a batch of b: BASE + b EACH


def variant_profile(name: str, part: float) -> ModelProfile:
    """A model that takes this part of the time of `NAME`."""
    latency_us = part * (BASE_US + EACH_US * np.arange(1, BATCHES + 1))
    return ModelProfile(
        name=name, boundary_bytes=(), tables=loaded({(GPU, 1): latency_us[None, :]})
    )


def variant_profiles(**parts: float) -> dict[str, ModelProfile]:
    """Of models by name, `_` for `-`; without any, of `NAME` and one of half its time."""
    given = {name.replace("_", "-"): part for name, part in parts.items()} or {CHEAP: 0.5}
    return {name: variant_profile(name, part) for name, part in {NAME: 1.0, **given}.items()}


def variant_workload(
    variants: Sequence[Mapping[str, object]] = ({"name": CHEAP, "accuracy": ACCURACY[CHEAP]},),
    **more: object,
) -> Workload:
    """`NAME` with these variants, or alone where there is none."""
    own: dict[str, object] = {"name": NAME, "slo_ms": SLO_MS, **more}
    if variants:
        own |= {"accuracy": ACCURACY[NAME], "variants": list(variants)}
    return Workload.from_dict({"models": [own]})


def gpus(count: int = 4) -> Cluster:
    """So many GPUs of one class."""
    return Cluster(
        name="variants",
        gpu_classes=(GpuClass(name=GPU, vgpu_divisors=(1,), hourly_cost=1.0),),
        nodes=(NodeGroup(count=1, gpu_class=GPU, gpus=count, nic_gbps=10),),
    )


def variant_plan(count: int = 4, **parts: float) -> Plan:
    """All that so many GPUs carry of `NAME`, which other models answer too."""
    profiles = variant_profiles(**parts)
    others = [
        {"name": name, "accuracy": round(ACCURACY[NAME] - 0.1 * at, 9)}
        for at, name in enumerate(list(profiles)[1:], 1)
    ]
    workload = variant_workload(others, weight=1.0)
    return make_plan(profiles, gpus(count), workload, PlanOptions(planner="subclusters"))


def plain_plan(count: int = 4) -> Plan:
    """The same GPUs, and `NAME` alone."""
    workload = variant_workload((), weight=1.0)
    options = PlanOptions(planner="subclusters")
    return make_plan(variant_profiles(), gpus(count), workload, options)


def with_rates(plan: Plan, *rates_rps: float) -> Plan:
    """The plan with other planned rates of its models, of one pipeline each, in their order."""
    models = tuple(
        replace(
            model,
            throughput_rps=rate,
            pipelines=tuple(replace(p, throughput_rps=rate) for p in model.pipelines),
        )
        for model, rate in zip(plan.models, rates_rps, strict=True)
    )
    return replace(plan, models=models)
