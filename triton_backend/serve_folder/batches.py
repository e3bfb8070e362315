"""How large the batches of a plan may be: worked out once, when a generation is written.

The policies of the scheduler decide that. A process that asks them loads their kernels and the
compiler of those, which takes a second of a processor; a change of plan starts a process per new
vGPU and node, beside those that serve. So fronts, nodes and workers read the answer from a file.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple, Self

from triton_backend.contract.errors import InputError
from triton_backend.contract.plan import Plan

BATCHES_NAME = "batches.json"


class ModelBatches(NamedTuple):
    """Of the pipelines of a model.

    Attributes:
        late: whether batches stay open until they are sent.
        largest: by pipeline, most samples of a batch.
        rows: by pipeline and stage, most samples of a joint run; 0 where each batch runs alone.
    """

    late: bool
    largest: tuple[int, ...]
    capacities: tuple[tuple[int, ...], ...]

    @classmethod
    def from_list(cls, data: list[Any]) -> Self:
        """Inverse of what the file has."""
        late, largest, capacities = data
        return cls(
            bool(late), tuple(map(int, largest)), tuple(tuple(map(int, s)) for s in capacities)
        )


def plan_batches(plan: Plan, policy: str | None) -> dict[str, ModelBatches]:
    """By model, as the policies of a plan have it, or one policy for all models.

    Raises:
        InputError: there is no such policy, or a model's pipelines cannot be run by it.
    """
    # Imported here, because most processes only read what was worked out.
    from triton_backend.scheduler.plan_rows import capacity_of  # noqa: PLC0415
    from triton_backend.scheduler.policies.registry import (  # noqa: PLC0415
        largest_batches,
        queue_policies,
    )

    largest = largest_batches(plan, policy)
    return {
        model.name: ModelBatches(
            late=of_model.rules is not None,
            largest=largest[model.name],
            capacities=tuple(
                tuple(capacity_of(stage, pipeline, of_model) for stage in pipeline.stages)
                for pipeline in model.pipelines
            ),
        )
        for model, of_model in zip(plan.models, queue_policies(plan, policy), strict=True)
    }


def batches_text(plan: Plan) -> str:
    """The batching of a generation's file, for the plan's own policies."""
    return json.dumps(plan_batches(plan, None)) + "\n"


def read_batches(folder: Path, generation: int) -> Mapping[str, ModelBatches]:
    """The file of a generation.

    Raises:
        InputError: it is not there.
    """
    path = folder / "generations" / str(generation) / BATCHES_NAME
    try:
        data: dict[str, list[Any]] = json.loads(path.read_text())
        return {model: ModelBatches.from_list(of_model) for model, of_model in data.items()}
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise InputError(str(path), f"not the sizes of batches: {error}") from error
