"""The problem of sub-clusters as arrays over models and classes."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from flows.planning.inputs import (
    Problem,
    build_problem,
    gpu_prices,
    limits_us,
    model_bytes,
    require_rates,
    room_gib,
)
from flows.planning.registry import Inputs
from flows.planning.solver.arrays import Floats, Ints
from flows.planning.subclusters.gathering import Curves, curves
from triton_backend.contract.errors import InfeasibleError
from triton_backend.contract.plan import BYTES_PER_GIB, Plan
from triton_backend.contract.shares import WHOLE_GPU
from triton_backend.contract.units import us_to_ms
from triton_backend.contract.workload import Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class Demands:
    """The problem as arrays over m models and k classes.

    Attributes:
        inputs: that it was read from.
        curves: of every class.
        weight: [m] requests/s per unit of the objective.
        least_rps: [m] rates that are kept at least.
        static_bytes, dynamic_bytes: [m].
        room_bytes: [k] of one GPU for models; infinite where not known.
        price: [k] of one GPU in the objective.
        joint: [m] number of the models that share a sub-cluster with each: those of one name.
        before: [m] pool of each model under the plan in force, -1 where it has none.
        pools: names of those pools and their classes.
    """

    inputs: Inputs
    problem: Problem
    curves: tuple[Curves, ...]
    weight: Floats
    least_rps: Floats
    static_bytes: Floats
    dynamic_bytes: Floats
    room_bytes: Floats
    price: Floats
    joint: Ints
    before: Ints
    pools: tuple[tuple[str, int], ...]

    @property
    def utilisation(self) -> float:
        """Share of the time of many GPUs that may be planned."""
        return self.inputs.options.own["utilisation"]

    def rates(self, scale: float) -> Floats:
        """[m] requests/s at a value of the objective."""
        return np.maximum(self.weight * scale, self.least_rps)

    def load(self, rate_rps: Floats) -> Floats:
        """[m, k] GPUs; infinite where a model cannot run."""
        return self._each(lambda k: self.curves[k].gpus(rate_rps))

    def least_load(self, rate_rps: Floats) -> Floats:
        """[m, k] GPUs that these rates and all higher ones need at least."""
        return self._each(lambda k: self.curves[k].least_gpus(rate_rps))

    def _each(self, of: Callable[[int], Floats]) -> Floats:
        load = np.column_stack([of(k) for k in range(len(self.curves))])
        too_big = (self.static_bytes + self.dynamic_bytes)[:, None] > self.room_bytes[None, :]
        return np.where(too_big | (self.problem.gpus == 0)[None, :], np.inf, load)


def read_demands(inputs: Inputs) -> Demands:
    """The inputs as arrays.

    Raises:
        InputError: the inputs do not fit together, or a price or rate is missing.
        InfeasibleError: a model meets its SLO on no class, or fits none.
    """
    cluster, demands, options = inputs.cluster, inputs.workload.models, inputs.options
    require_rates(inputs.workload, options.objective)
    problem = build_problem(inputs, whole_gpus=True)
    limit = limits_us(demands, options)
    static_bytes, dynamic_bytes = model_bytes(inputs.profiles[d.name] for d in demands)
    kinds = range(len(problem.classes))
    asked = Demands(
        inputs=inputs,
        problem=problem,
        curves=tuple(curves(latencies(problem, k), limit) for k in kinds),
        weight=np.array([d.normaliser(options.objective) for d in demands]),
        least_rps=np.array([options.minimum_rps.get(d.name, 0.0) for d in demands]),
        static_bytes=static_bytes,
        dynamic_bytes=dynamic_bytes,
        room_bytes=np.array([room_gib(c, WHOLE_GPU) * BYTES_PER_GIB for c in cluster.gpu_classes]),
        price=gpu_prices(cluster, options.objective),
        joint=_joint(inputs.workload),
        before=np.full(len(demands), -1, dtype=np.int64),
        pools=(),
    )
    _check_possible(asked, limit)
    return asked if options.previous is None else _continued(asked, options.previous)


def _joint(workload: Workload) -> Ints:
    """[m] number of the name for which each model answers, in the order of names."""
    variant_of = workload.variant_of
    names = [variant_of.get(model.name, model.name) for model in workload.models]
    numbers = {name: number for number, name in enumerate(dict.fromkeys(names))}
    return np.array([numbers[name] for name in names], dtype=np.int64)


def latencies(problem: Problem, kind: int) -> Floats:
    """[m, batches] latency of the whole model on a whole GPU of a class, infinite where unknown."""
    most = max(model.batches for model in problem.models)
    out = np.full((len(problem.models), most), np.inf)
    for number, model in enumerate(problem.models):
        for row, gpu_type in enumerate(model.types.tolist()):
            if problem.types[gpu_type][0] == kind:
                out[number, : model.batches] = model.latency_us[row, 0, model.blocks]
    return out


def _check_possible(asked: Demands, limit_us: Floats) -> None:
    possible = np.isfinite(asked.load(np.ones(len(limit_us))))
    for number in np.flatnonzero(~possible.any(axis=1)).tolist():
        demand = asked.inputs.workload.models[number]
        where = f"workload model {demand.name!r}"
        single = [latencies(asked.problem, k)[number, 0] for k in range(len(asked.curves))]
        best = int(np.argmin(single))
        held = float(asked.static_bytes[number] + asked.dynamic_bytes[number])
        if not np.isfinite(single[best]) or single[best] <= limit_us[number]:
            reason = f"its {held / BYTES_PER_GIB:.3f} GiB fit no GPU of a class that it may use"
            raise InfeasibleError(where, reason)
        raise InfeasibleError(
            where,
            f"the whole model takes at least {us_to_ms(float(single[best])):.3f} ms, on "
            f"{asked.problem.classes[best]}, where SLO less margin allow "
            f"{us_to_ms(float(limit_us[number])):.3f} ms",
        )


def _continued(asked: Demands, previous: Plan) -> Demands:
    """The same with where models are under the plan in force: whole models on whole GPUs."""
    kinds = {name: kind for kind, name in enumerate(asked.problem.classes)}
    pools = tuple(
        (pool.name, kinds[pool.gpu_class])
        for pool in previous.pools
        if pool.share == WHOLE_GPU and pool.gpu_class in kinds
    )
    numbers = {name: number for number, (name, _) in enumerate(pools)}
    names = {model.name: number for number, model in enumerate(asked.problem.models)}
    before = asked.before.copy()
    for model, pipeline, stage, _ in previous.placed_stages():
        if model.name in names and len(pipeline.stages) == 1 and stage.pool in numbers:
            before[names[model.name]] = numbers[stage.pool]
    return replace(asked, before=before, pools=pools)
