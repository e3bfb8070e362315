"""The format of `plan.json`, and plans of format 1 read as one of it."""

from collections.abc import Mapping
from typing import Any

from triton_backend.contract.fields import Fields
from triton_backend.contract.plan.pools import next_pool_name
from triton_backend.contract.units import ms_to_us, us_to_ms

FORMAT = 2


def upgrade_format_1(data: Mapping[str, Any]) -> dict[str, Any]:
    """A plan of format 1 (every stage its own pool, times in ms) as one of format 2.

    Raises:
        InputError: a field of it is missing or of the wrong type.
    """
    pools: list[dict[str, Any]] = []
    models: list[dict[str, Any]] = []
    counts: dict[str, int] = {}

    def stage_of(fields: Fields) -> dict[str, Any]:
        gpu_class = fields.text("gpu_class")
        given = fields.plain()
        name = next_pool_name(gpu_class, counts)
        own = ("gpu_class", "vgpu_divisor", "vgpus", "placement")
        pools.append({"name": name} | {key: given[key] for key in own if key in given})
        rest = {k: v for k, v in given.items() if k not in {*own, "latency_ms", "transfer_ms"}}
        times = {
            "latency_us": ms_to_us(fields.number("latency_ms", least=0)),
            "transfer_us": ms_to_us(fields.number("transfer_ms", least=0)),
        }
        return {"pool": name, **rest, **times}

    for model in Fields(data).items("models"):
        pipelines = [
            pipeline.plain()
            | {
                "latency_us": ms_to_us(pipeline.number("latency_ms", least=0)),
                "stages": [stage_of(stage) for stage in pipeline.items("stages")],
            }
            for pipeline in model.items("pipelines")
        ]
        slo_us = ms_to_us(model.number("slo_ms", least=us_to_ms(1)))
        models.append(model.plain() | {"slo_us": slo_us, "pipelines": pipelines})
    return dict(data) | {"format": FORMAT, "pools": pools, "models": models}
