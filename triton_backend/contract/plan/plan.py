"""The plan: pipelines of every model, GPUs of every pool, proof."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import Annotated, Any, NamedTuple, Self

import numpy as np

from triton_backend.contract.applications import ApplicationPlan, check_names
from triton_backend.contract.cluster import Cluster
from triton_backend.contract.entries import shares_of
from triton_backend.contract.errors import InputError
from triton_backend.contract.fields import (
    About,
    Fields,
    Form,
    check_form,
    check_name,
    form_to_dict,
    read_form,
)
from triton_backend.contract.plan.formats import FORMAT, upgrade_format_1
from triton_backend.contract.plan.gpus import check_gpus, check_sizes
from triton_backend.contract.plan.memory import TOLERANCE, room_bytes
from triton_backend.contract.plan.pools import Pool, VGpu, slot_table
from triton_backend.contract.plan.stages import ModelPlan, Pipeline, Stage
from triton_backend.contract.units import US_PER_S
from triton_backend.contract.workload import (
    GATHERING,
    RULES,
    WAITS,
    Accounting,
    Workload,
    derived_accounting,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Objective(Form):
    """The objective and its proof: gap = (upper_bound - value) / value.

    For minimised objectives `upper_bound` holds the lower bound and gap = (value - bound) / value.
    """

    name: Annotated[str, About("throughput, cost, power, gpus or share.", "throughput")]
    value: Annotated[float, About("Value of this plan.", 70.7)]
    upper_bound: Annotated[
        float,
        About(
            "No plan of `space` is better: an upper bound for throughput, a lower bound otherwise.",
            70.7,
        ),
    ]
    gap: Annotated[float, About("Relative distance of value and bound.", 0.0)]
    space: Annotated[str | None, About("Plans that the bound covers.", "pool")] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Attained(Form):
    """Attainment of a finished plan in the simulator.

    Of all models and applications, that which attains least counts. Both shares are None, and the
    duration 0, where the plan is too large to be simulated at once.
    """

    even: Annotated[
        float | None,
        About(
            "Least share of a model's requests in time, at equal gaps at the planned rates; missing"
            " if not simulated.",
            0.9995,
            least=0,
            most=1,
        ),
    ] = None
    poisson: Annotated[
        float | None,
        About(
            "The same of Poisson arrivals at `poisson_load` of them.",
            0.993,
            least=0,
            most=1,
        ),
    ] = None
    poisson_load: Annotated[
        float, About("Part of the planned rates that is offered as Poisson arrivals.", 0.9, least=0)
    ]
    duration_s: Annotated[
        float, About("Seconds of arrivals of each; 0 if not simulated.", 20.0, least=0)
    ]
    seed: Annotated[int, About("Seed of the arrivals.", 0)]

    def __post_init__(self) -> None:
        check_form("attained", self)


StagePlace = tuple[int, int, int]
"""A stage: its model, its pipeline in the model and its place in the pipeline, by their numbers."""


class StageRow(NamedTuple):
    """One stage of one pipeline, numbered through the plan by model, pipeline, stage."""

    model: int
    pipeline: int
    stage: int
    pool: int

    @property
    def place(self) -> StagePlace:
        """Which stage it is."""
        return self[:3]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A whole plan.

    Pools stand in the order in which stages first name them, whatever the order they are given in:
    pools and vGPUs are numbered so. `waits` is one of `workload.WAITS`, or None where the plan does
    not say; `gathering_rule` is one of `workload.RULES`, or None where batches gather at the
    workload's rate.
    """

    plan_id: Annotated[str, About("Identity of the plan: a hash of its content.", "3f2a9c01d7e4")]
    planner: Annotated[str, About("Planner that made it.", "pool")]
    options: Annotated[
        Mapping[str, Any], About("Options it was planned with.", {"slo_margin": 0.4})
    ] = field(default_factory=dict[str, Any])
    objective: Annotated[Objective, About("What was optimised, and the proof.", {"gap": 0.0})]
    solver: Annotated[
        str,
        About("Solvers that solved its programs: highs, gurobi, gurobi+highs, none.", "highs"),
    ] = ""
    solve_seconds: Annotated[float, About("Wall time of planning, in s.", 1.7, least=0)] = 0.0
    certificate: Annotated[
        Mapping[str, Any],
        About(
            "What the search did: status, seconds per step, configurations, parts of the proof;"
            " keys vary by planner.",
            {"status": "optimal"},
        ),
    ] = field(default_factory=dict[str, Any])
    cluster: Annotated[Cluster, About("The cluster, as in cluster.yaml.", {"name": "lab"})]
    workload: Annotated[Workload, About("The workload, as in workload.yaml.", {"models": []})]
    gpus_used: Annotated[
        Mapping[str, int], About("GPUs that hold at least one vGPU, by class.", {"L4": 2})
    ]
    price_paid: Annotated[
        float | None,
        About(
            "Sum of hourly_cost over `gpus_used`, per hour; missing if a used class states none.",
            12.5,
            least=0,
        ),
    ] = None
    pools: Annotated[
        tuple[Pool, ...], About("Pools of vGPUs, numbered in this order.", [], kind="pool[]")
    ]
    models: Annotated[
        tuple[ModelPlan, ...], About("Models with their pipelines.", [], kind="model[]")
    ]
    applications: Annotated[
        tuple[ApplicationPlan, ...],
        About("Applications with their time budgets.", [], kind="application[]", written=False),
    ] = ()
    attained: Annotated[
        Attained | None,
        About("Attainment in the simulator.", {"poisson": 0.993}, kind="attained"),
    ] = None
    waits: Annotated[
        str | None,
        About("How the wait for a whole batch counts: gathering, turn or margin.", GATHERING),
    ] = None
    gathering_rule: Annotated[
        str | None,
        About(
            "Rate at which batches gather, if not the workload's: dt, 2d, tc-even, tc-tail, "
            "tc-padded.",
            "tc-tail",
        ),
    ] = None

    def __post_init__(self) -> None:
        check_name("plan_id", self.plan_id)
        _check_accounting(self)
        if not self.models:
            raise InputError(f"plan {self.plan_id}, models", "there is none")
        names = [model.name for model in self.models]
        if len(set(names)) < len(names):
            raise InputError(f"plan {self.plan_id}, models", f"a name is listed twice in {names}")
        check_names([planned.application for planned in self.applications], names)
        for planned in self.applications:
            for module in planned.application.modules:
                if module.model not in names:
                    where = f"application {planned.name!r}, module {module.name!r}.model"
                    raise InputError(where, f"{module.model!r} is none of {', '.join(names)}")
        object.__setattr__(self, "pools", self._pools_as_mentioned())
        check_sizes(self.cluster, self.pools)
        _check_boards(self)
        _check_on_demand(self)
        check_gpus(self.cluster, self.pools, [*map(self.stages_of, range(len(self.pools)))])
        _check_sharing(self)

    def _pools_as_mentioned(self) -> tuple[Pool, ...]:
        by_name = {pool.name: pool for pool in self.pools}
        if len(by_name) < len(self.pools):
            raise InputError("pools", f"a name is listed twice in {[p.name for p in self.pools]}")
        order: dict[str, Pool] = {}
        for model in self.models:
            for p, pipeline in enumerate(model.pipelines):
                for s, stage in enumerate(pipeline.stages):
                    if stage.pool not in by_name:
                        where = f"model {model.name!r}, pipeline {p}, stage {s}, pool"
                        listed = ", ".join(by_name) or "none"
                        raise InputError(
                            where, f"{stage.pool!r} is not one of the pools ({listed})"
                        )
                    order[stage.pool] = by_name[stage.pool]
        for name in by_name:
            if name not in order:
                raise InputError(f"pool {name!r}", "no stage names it")
        return tuple(order.values())

    @property
    def accounting(self) -> Accounting:
        """How waiting counts: as stated, else as planner's options of earlier plans mean it."""
        if self.waits is not None:
            return Accounting(self.waits, self.gathering_rule)
        stages = [stage for m in self.models for p in m.pipelines for stage in p.stages]
        return derived_accounting(
            self.options,
            in_entries=any(p.entry is not None for m in self.models for p in m.pipelines),
            in_turns=all(stage.duty_cycle_us is not None for stage in stages),
        )

    def model(self, name: str) -> ModelPlan:
        """The plan of one model.

        Raises:
            InputError: it has none of that name.
        """
        for model in self.models:
            if model.name == name:
                return model
        names = ", ".join(m.name for m in self.models)
        raise InputError(f"plan {self.plan_id}", f"no model {name!r}; it has {names}")

    def least_tails_us(self, name: str) -> dict[int, int]:
        """Of every open cut of a model, by block: the least time of a batch of one, moves included.

        With a shadow pool it is that pool's. Clients use what time there is: where they knew of a
        faster pool, they would leave the server less, for which another plan needs faster ones
        still.

        Raises:
            InputError: it has no model of that name.
        """
        anywhere = {pool.name for pool in self.pools if pool.starts_anywhere}
        found: dict[int, int] = {}
        for pipeline in self.model(name).pipelines:
            if anywhere and any(stage.pool not in anywhere for stage in pipeline.stages):
                continue
            block = pipeline.first_block
            found[block] = min(pipeline.alone_us, found.get(block, pipeline.alone_us))
        return dict(sorted(found.items()))

    def least_us(self, name: str) -> int:
        """The least time of a request of a model or application by the profiles, without waits.

        Modules that a job may do without take no time: optional ones, those whose rows may be none.
        """
        for planned in self.applications:
            graph = planned.application
            if graph.name == name:
                times_us = {
                    module.name: 0
                    if module.optional or graph.rows_vary(module)
                    else self.least_us(module.model)
                    for module in graph.modules
                }
                return round(graph.longest(times_us))
        pipelines = self.model(name).pipelines
        times_us = (sum(stage.latency_us_by_batch[0] for stage in p.stages) for p in pipelines)
        return min(times_us, default=0)

    def own_rate_rps(self, name: str) -> float:
        """The rate at which clients of a model may ask for it by its name.

        The applications that use it leave that of its rate; of a name with variants, the rates of
        all; none of another name's variant.
        """
        rate = self.model(name).throughput_rps
        variant_of = self.workload.variant_of
        if name in variant_of:
            return 0.0
        rate += sum(m.throughput_rps for m in self.models if variant_of.get(m.name) == name)
        if not self.applications:
            return rate
        if name not in [demand.name for demand in self.workload.models]:
            return 0.0
        for planned in self.applications:
            for module in planned.application.modules:
                if module.model == name:
                    rate -= (planned.application.rate_rps or 0.0) * module.rows_per_request
        return max(rate, 0.0)

    def pool_of(self, stage: Stage) -> Pool:
        """The pool that a stage names."""
        return next(pool for pool in self.pools if pool.name == stage.pool)

    def stage_rows(self) -> tuple[StageRow, ...]:
        """Every stage, numbered by model, pipeline and stage, with the number of its pool."""
        numbers = {pool.name: number for number, pool in enumerate(self.pools)}
        return tuple(
            StageRow(m, p, s, numbers[stage.pool])
            for m, model in enumerate(self.models)
            for p, pipeline in enumerate(model.pipelines)
            for s, stage in enumerate(pipeline.stages)
        )

    @property
    def shares_requests(self) -> bool:
        """True if two entries share the requests of a model, as in a canary's steps."""
        return any(shares_of(model.entries) for model in self.models)

    def queues(self) -> tuple[range, ...]:
        """Of every model the numbers of its queues, one per entry, in the order of models."""
        ends = list(accumulate(len(model.queues) for model in self.models))
        return tuple(
            range(end - len(model.queues), end)
            for model, end in zip(self.models, ends, strict=True)
        )

    def placed_stages(self) -> Iterator[tuple[ModelPlan, Pipeline, Stage, Pool]]:
        """Every stage in the order of rows, with its model, pipeline and pool."""
        by_name = {pool.name: pool for pool in self.pools}
        for model in self.models:
            for pipeline in model.pipelines:
                for stage in pipeline.stages:
                    yield model, pipeline, stage, by_name[stage.pool]

    def gpus(self) -> dict[str, int]:
        """Whole GPUs that hold at least one vGPU, by class."""
        used = {gpu_class.name: 0 for gpu_class in self.cluster.gpu_classes}
        for name in used:
            tables = [slot_table(p.placement) for p in self.pools if p.gpu_class == name]
            if tables:
                used[name] = len(np.unique(np.concatenate(tables)[:, :2], axis=0))
        return used

    def counted(self) -> "Plan":
        """The plan with `gpus_used` and `price_paid` as its pools are placed."""
        used = self.gpus()
        costs = {c.name: c.hourly_cost for c in self.cluster.gpu_classes if used[c.name]}
        paid = None
        if all(cost is not None for cost in costs.values()):
            paid = math.fsum(used[name] * (cost or 0.0) for name, cost in costs.items())
        return replace(self, gpus_used=used, price_paid=paid)

    def stages_of(self, pool: int) -> tuple[Stage, ...]:
        """Every stage that names pool number `pool`, in the order of rows."""
        name = self.pools[pool].name
        return tuple(
            stage
            for model in self.models
            for pipeline in model.pipelines
            for stage in pipeline.stages
            if stage.pool == name
        )

    def room_bytes(self, pool: int) -> int:
        """Bytes that every vGPU of a pool has for stages that are loaded on demand."""
        place, stages = self.pools[pool], self.stages_of(pool)
        return room_bytes(self.cluster.gpu_class(place.gpu_class), place.share, stages)

    def vgpus(self) -> tuple[VGpu, ...]:
        """Every vGPU, numbered by pool and placement order.

        The numbers are the resource ids of the scheduler, the simulator and the workers.
        """
        places = ((number, slot) for number, pool in enumerate(self.pools) for slot in pool.slots())
        return tuple(VGpu(index=i, pool=pool, slot=slot) for i, (pool, slot) in enumerate(places))

    def to_dict(self) -> dict[str, Any]:
        """Plain form: the object of `plan.json`."""
        pools = [pool.to_dict(self.cluster) for pool in self.pools]
        return {"format": FORMAT, **form_to_dict(self, pools=pools)}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """Inverse of `to_dict`; takes format 1 too.

        Raises:
            InputError: a field is missing, of the wrong type, or does not fit the others.
        """
        fields = Fields(data)
        if not fields.has("format"):
            data = upgrade_format_1(data)
            fields = Fields(data)
        fields.integer("format", least=FORMAT, most=FORMAT)
        cluster = Cluster.read(fields.inner("cluster"))
        pools = tuple(Pool.read(pool, cluster) for pool in fields.items("pools"))
        return cls(**read_form(cls, fields, cluster=cluster, pools=pools))


def _check_accounting(plan: Plan) -> None:
    for name, known in (("waits", WAITS), ("gathering_rule", RULES)):
        value = getattr(plan, name)
        if value is not None and value not in known:
            raise InputError(f"plan {plan.plan_id}, {name}", f"{value!r} is none of {known}")
    if plan.gathering_rule is not None and plan.waits != GATHERING:
        reason = f"{plan.gathering_rule!r} needs waits {GATHERING!r}, not {plan.waits!r}"
        raise InputError(f"plan {plan.plan_id}, gathering_rule", reason)


def _check_boards(plan: Plan) -> None:
    """Stages that board on a pool are one stage: of one model, its blocks and its batch."""
    first: dict[int, tuple[int, tuple[int, int], int]] = {}
    for row in plan.stage_rows():
        pipeline = plan.models[row.model].pipelines[row.pipeline]
        stage = pipeline.stages[row.stage]
        if stage.boards:
            mine = (row.model, stage.blocks, stage.batch or pipeline.batch)
            if first.setdefault(row.pool, mine) != mine:
                where = f"pool {plan.pools[row.pool].name!r}, boards"
                raise InputError(where, "its stages differ in model, blocks or batch")


def _check_sharing(plan: Plan) -> None:
    """Models on one pool have one policy, and what is promised on it fits its vGPUs."""
    rows = plan.stage_rows()
    policies: dict[int, str] = {}
    work: dict[int, float] = {}
    stages: dict[int, int] = {}
    for row in rows:
        model = plan.models[row.model]
        pipeline = model.pipelines[row.pipeline]
        stage = pipeline.stages[row.stage]
        first = policies.setdefault(row.pool, model.policy)
        if first != model.policy:
            where = f"pool {plan.pools[row.pool].name!r}, policy"
            raise InputError(where, f"{model.name!r} has {model.policy}, others on it {first}")
        busy_us = pipeline.throughput_rps * stage.latency_us / (stage.batch or pipeline.batch)
        work[row.pool] = work.get(row.pool, 0.0) + busy_us / US_PER_S
        stages[row.pool] = stages.get(row.pool, 0) + 1
    for number, pool in enumerate(plan.pools):
        if pool.interference is not None and len(pool.interference.seats) != stages[number]:
            reason = f"{len(pool.interference.seats)} of them, but {stages[number]} stages name it"
            raise InputError(f"pool {pool.name!r}, interference, seats", reason)
        if stages[number] > 1 and work[number] > pool.vgpus * (1 + TOLERANCE):
            reason = f"its stages promise the work of {work[number]:.3f} vGPUs, it has {pool.vgpus}"
            raise InputError(f"pool {pool.name!r}, vgpus", reason)


def _check_on_demand(plan: Plan) -> None:
    """Stages that are loaded on demand are there once, on a pool without interference."""
    seen: set[tuple[str, str, tuple[int, int]]] = set()
    for model, _, stage, pool in plan.placed_stages():
        if stage.load_us is None:
            continue
        where = f"pool {pool.name!r}, load_us"
        if pool.interference is not None:
            raise InputError(where, "stands beside interference, which loads do not count")
        place = (pool.name, model.name, stage.blocks)
        if place in seen:
            raise InputError(where, f"{model.name!r} has two pipelines here; one is needed")
        seen.add(place)
