"""A plan's answers and times, compared with those of the plan in force before it gets a request.

1. Before anything changes, requests of a fixed seed run through the stages of the plan in force;
   or requests of clients are copied with the answers that they got.
2. When the new workers are ready, the same requests run through every pipeline of the new plan.
3. An answer that differs by more than its type explains, or stages that take longer than planned,
   end the rollout before the swap: the plan in force goes on, and no client was sent there.

Stages run directly, through their nodes, which the scheduler knows nothing of: a batch that is due
on the same worker meanwhile starts at most one run of one sample late. Not here: how requests of
clients are copied (`mirroring`).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from flows.release.rollout.mirroring import mirrored
from flows.release.rollout.options import CLIENTS, RANDOM, RolloutOptions
from flows.release.server.running import ServerState
from triton_backend.contract.errors import InputError, PoolPipeError
from triton_backend.contract.plan import ModelPlan, Pipeline, Plan
from triton_backend.contract.units import US_PER_MS
from triton_backend.runtimes.base import NUMPY_DTYPES
from triton_backend.serve_folder.repository import node_model, used_nodes

Arrays = dict[str, NDArray[np.generic]]
SEED = 44
# Segments and sockets of a direct run, beside the run itself.
DIRECT_RUN_US = 10_000
STAND_IN = "stand-in"
_OF = {
    RANDOM: "random requests",
    CLIENTS: "requests of clients",
    STAND_IN: "random requests (clients sent none with its inputs)",
}


class DifferenceError(PoolPipeError):
    """The new plan answers otherwise than the plan in force, or later than planned."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """Requests of a model, of one sample each, and what the plan in force answers to them.

    Attributes:
        source: random ones, clients', or random ones in place of clients'.
    """

    requests: tuple[Arrays, ...]
    answers: tuple[Arrays, ...]
    source: str = RANDOM


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """One pipeline of the new plan beside the plan in force.

    Attributes:
        model, pipeline: its model's name, and its number there.
        requests, source: how many were compared, and whose they were.
        largest, mean: relative difference of answers, over requests.
        took_us: shortest time of all its stages, one sample.
        planned_us: the same by the plan.
    """

    model: str
    pipeline: int
    requests: int
    source: str
    largest: float
    mean: float
    took_us: int
    planned_us: int

    def __str__(self) -> str:
        return (
            f"{self.model}, pipeline {self.pipeline}: answers to {self.requests}"
            f" {_OF[self.source]} differ by {self.largest:.1e} at most, {self.mean:.1e} on average;"
            f" {self.took_us / US_PER_MS:.1f} ms,"
            f" planned {self.planned_us / US_PER_MS:.1f} ms"
        )


def check_comparable(old: Plan, new: Plan, elsewhere: Mapping[str, str]) -> None:
    """Check that the models of both plans can be compared.

    Args:
        old: the completed plan in force.
        new: the completed plan that is to follow.
        elsewhere: addresses of nodes on other hosts.

    Raises:
        InputError: they cannot; nothing has been touched.
    """
    where = "rollout --compare-requests"
    far = sorted({*used_nodes(old), *used_nodes(new)} & {*elsewhere})
    if far:
        raise InputError(where, f"node {far[0]} is on another host; only one host is compared")
    if old.applications or new.applications:
        raise InputError(where, "a plan has applications; only models are compared")
    pairs = _in_both(old, new)
    if not pairs:
        raise InputError(where, "the plans have no model in common")
    for model in (model for pair in pairs for model in pair):
        if not _whole(model):
            raise InputError(where, f"model {model.name!r} has no pipeline from its first block")
        for _, pipeline in _whole(model):
            if any(stage.artifact is None for stage in pipeline.stages):
                raise InputError(
                    where, f"model {model.name!r} is emulated: its answers mean nothing"
                )
        if any(size < 1 for spec in model.inputs for size in spec.shape[1:]):
            raise InputError(where, f"model {model.name!r} has inputs of open sizes")


def ask_in_force(
    state: ServerState, old: Plan, new: Plan, options: RolloutOptions
) -> dict[str, Expected]:
    """Answers of the plan in force, by model; to be asked before the new plan's generation begins.

    Raises:
        ServerError: a stage does not run.
    """
    from flows.preparation.splitting.running import random_inputs  # noqa: PLC0415

    from_clients = options.compare_from == CLIENTS
    expected = _of_clients(state, old, new, options) if from_clients else {}
    for model, _ in _in_both(old, new):
        if model.name in expected:
            continue
        rng = np.random.default_rng(SEED)
        requests = tuple(
            random_inputs(model.inputs, 1, rng) for _ in range(options.compare_requests)
        )
        number, pipeline = _whole(model)[0]
        runs = [_run(state, old, (model, number, pipeline), one)[0] for one in requests]
        expected[model.name] = Expected(
            requests=requests, answers=tuple(runs), source=STAND_IN if from_clients else RANDOM
        )
    return expected


def _of_clients(
    state: ServerState, old: Plan, new: Plan, options: RolloutOptions
) -> dict[str, Expected]:
    """Requests of clients that bring a model's own inputs; models that got none are left out."""
    models = {model.name: model for model, _ in _in_both(old, new)}
    expected: dict[str, Expected] = {}
    copied = mirrored(state, list(models), options.compare_requests, options.compare_seconds)
    for name, copies in copied.items():
        inputs = {spec.name for spec in models[name].inputs}
        whole = [one for one in copies if {*one.inputs} == inputs]
        if whole:
            expected[name] = Expected(
                requests=tuple(dict(one.inputs) for one in whole),
                answers=tuple(dict(one.outputs) for one in whole),
                source=CLIENTS,
            )
    return expected


def compare(
    state: ServerState, new: Plan, expected: Mapping[str, Expected], options: RolloutOptions
) -> tuple[Compared, ...]:
    """Compare every pipeline of the new plan, whose workers are ready.

    Raises:
        DifferenceError: an answer differs by more than its type explains, or stages take more than
            `compare_latency` times what was planned.
        ServerError: a stage does not run.
    """
    done: list[Compared] = []
    for model in new.models:
        if model.name not in expected:
            continue
        for number, pipeline in _whole(model):
            way = model, number, pipeline
            done.append(_compare(state, new, way, expected[model.name], options.compare_tolerance))
            _check_latency(done[-1], len(pipeline.stages), options)
    return tuple(done)


def _compare(
    state: ServerState,
    new: Plan,
    way: tuple[ModelPlan, int, Pipeline],
    expected: Expected,
    allowed: float,
) -> Compared:
    # onnx and onnxruntime are loaded where something is compared, not for each rollout.
    from flows.preparation.splitting.checking import tolerance  # noqa: PLC0415
    from flows.preparation.splitting.running import relative_error  # noqa: PLC0415

    model, number, pipeline = way
    differences: list[float] = []
    times: list[list[int]] = []
    # Stages pass fp16 on where the plan says so, which is what such an answer may differ by.
    half = any(spec.dtype == "FP16" for stage in pipeline.stages for spec in stage.boundary or ())
    for request, answer in zip(expected.requests, expected.answers, strict=True):
        got, took_us = _run(state, new, way, request)
        times.append(took_us)
        errors = {name: relative_error(got[name], answer[name]) for name in answer}
        for name, error in errors.items():
            if not error <= (most := allowed or tolerance(answer[name].dtype, half=half)):
                raise DifferenceError(
                    f"{model.name}, pipeline {number}: {name!r} differs by {error:.1e} from the"
                    f" plan in force, more than {most:.0e}; compared: {_OF[expected.source]}"
                )
        differences.append(max(errors.values(), default=0.0))
    return Compared(
        model=model.name,
        pipeline=number,
        requests=len(expected.requests),
        source=expected.source,
        largest=max(differences),
        mean=float(np.mean(differences)),
        took_us=sum(map(min, zip(*times, strict=True))),
        planned_us=sum(stage.latency_us_by_batch[0] for stage in pipeline.stages),
    )


def _check_latency(seen: Compared, stages: int, options: RolloutOptions) -> None:
    most_us = options.compare_latency * seen.planned_us + stages * DIRECT_RUN_US
    if seen.took_us > most_us:
        raise DifferenceError(
            f"{seen.model}, pipeline {seen.pipeline}: one sample takes"
            f" {seen.took_us / US_PER_MS:.1f} ms, planned {seen.planned_us / US_PER_MS:.1f} ms,"
            f" at most {most_us / US_PER_MS:.1f} ms"
        )


def _run(
    state: ServerState, plan: Plan, way: tuple[ModelPlan, int, Pipeline], request: Arrays
) -> tuple[Arrays, list[int]]:
    """One request through the stages of a pipeline: the answer, and each stage's µs."""
    model, number, pipeline = way
    tensors: list[dict[str, Any]] = [
        {"name": name, "shape": list(array.shape), "data": array.reshape(-1).tolist()}
        for name, array in request.items()
    ]
    times: list[int] = []
    for index, stage in enumerate(pipeline.stages):
        slot = next(vgpu.slot for vgpu in plan.vgpus() if plan.pools[vgpu.pool].name == stage.pool)
        asked = {"command": "infer", "model": model.name, "pipeline": number, "stage": index}
        node = node_model(plan.cluster.node_name(slot.node))
        made = state.ask(node, {**asked, "inputs": tensors})
        tensors = cast("list[dict[str, Any]]", made["outputs"])
        times.append(int(made["took_us"]))
    answer = {
        one["name"]: np.array(one["data"], NUMPY_DTYPES[one["datatype"]]).reshape(one["shape"])
        for one in tensors
    }
    return answer, times


def _in_both(old: Plan, new: Plan) -> list[tuple[ModelPlan, ModelPlan]]:
    known = {model.name: model for model in new.models}
    return [(model, known[model.name]) for model in old.models if model.name in known]


def _whole(model: ModelPlan) -> list[tuple[int, Pipeline]]:
    """Pipelines from a model's first block, with their numbers."""
    return [(n, p) for n, p in enumerate(model.pipelines) if p.first_block == 0]
