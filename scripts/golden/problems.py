"""The 200 problems of the golden rows: every family that planners serve, generated from seeds.

    problems()                   -> all of them, in order, each with a name of its own
    named("scarce-03").make()    -> profiles, cluster, workload, options

A problem is a recipe (`Recipe`) in a table (`FAMILIES`): how many models of how many blocks on
which GPUs, for which planner and objective. Profiles, SLOs, rates and entries are drawn from the
recipe's seed, so a problem is the same on every machine. Nothing is read from a file.

Latencies of a model of `blocks` blocks (µs), on class c, part s of a GPU (s = 1 whole), batch b:

    block latency = (fixed + slope * b) * slowdown[c] * (1 + contention * (1 / s - 1))

with fixed, slope, slowdown and contention drawn for each block, class and model. SLOs are five
times the latency of batch 1 on the fastest class (ten times for applications), scaled by a factor
from 0.8 to 1.6.
"""

import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np

from flows.planning import PlanOptions, make_plan
from flows.planning.auto.plan import able
from flows.planning.entries import AS_LISTED
from flows.planning.registry import Inputs, planner_named
from triton_backend.contract.cluster import Cluster
from triton_backend.contract.errors import InfeasibleError, InputError
from triton_backend.contract.plan import Plan
from triton_backend.contract.profiles import (
    InterferenceModel,
    ModelProfile,
    ProfileKey,
    ProfileTable,
)
from triton_backend.contract.shares import (
    LOADED,
    MIG_CARDS,
    SOLO,
    WHOLE_GPU,
    Mig,
    MigCell,
    mig_share,
)
from triton_backend.contract.workload import GATHERING_FACTOR, Workload


class Card(NamedTuple):
    """A GPU class: times slower than the fastest, price per hour, watts, memory (GiB)."""

    slowdown: float
    hourly_cost: float
    power_w: float
    memory_gib: float


CARDS = {
    "fast": Card(1.0, 2.0, 300.0, 40.0),
    "mid": Card(1.9, 0.9, 150.0, 24.0),
    "old": Card(3.4, 0.4, 75.0, 16.0),
    "slow": Card(5.5, 0.25, 60.0, 8.0),
}
PERCENTS = (10, 20, 25, 40, 50, 60, 75, 80, 100)
DIVISORS = (1, 2, 3, 4)
BATCHES = 8
PRESSURE = InterferenceModel(
    c1_l2_self=0.1, c2_l2_other=0.5, c3_dram_self=0.2, c4_dram_other=0.2, c5=0.9
)
MIG_CARD = "A100-40GB"


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """A kind of problem.

    Attributes:
        count: problems of the kind.
        models: at least and at most so many.
        gpus: GPUs of each class, by name.
        cut: how GPUs are cut: `divisors`, `percents` or `mig`.
        blocks: blocks of a model.
        load: for objectives that are minimised: rates, as a part of what a throughput plan reaches.
        rates_rps: requests/s of applications and entries, drawn from these.
        own: options of the planner itself.
        before: how many models a plan in force lacks; None: no plan is in force.
        gathering: batch-building rates are given, at which gathering the largest batch takes this
            part of the SLO; None: they are derived.
    """

    count: int
    models: tuple[int, int]
    gpus: Mapping[str, int]
    cut: str = "divisors"
    blocks: int = 8
    stages: int = 2
    planner: str = "pool"
    objective: str = "throughput"
    applications: bool = False
    entries: tuple[int, int] | None = None
    load: float = 0.6
    rates_rps: tuple[float, ...] = ()
    gap: float = 1e-3
    own: Mapping[str, Any] = field(default_factory=dict[str, Any])
    before: int | None = None
    gathering: float | None = None


LIMIT_S = 20.0
"""Wall time of one plan; problems are sized to end well before it on two idle cores."""

JOINED = 4
"""Modules from which on an application ends in one that joins two branches."""

TWO = {"fast": 4, "old": 12}
FOUR = {"fast": 24, "mid": 36, "old": 36, "slow": 36}
FAMILIES: dict[str, Recipe] = {
    "one-model": Recipe(count=10, models=(1, 1), gpus=TWO),
    "two-stages": Recipe(count=20, models=(2, 4), gpus={"fast": 10, "old": 30}),
    "three-stages": Recipe(
        count=8, models=(1, 2), gpus={"fast": 4, "old": 8}, stages=3, blocks=7, gap=0.01
    ),
    "more-models": Recipe(count=8, models=(8, 16), gpus={"fast": 20, "old": 60}, gap=0.005),
    "many-models": Recipe(count=8, models=(25, 40), gpus=FOUR, gathering=0.15, gap=0.01),
    "classes": Recipe(
        count=8, models=(2, 4), gpus={"fast": 6, "mid": 8, "old": 12, "slow": 12}, gap=0.02
    ),
    "percents": Recipe(
        count=8, models=(1, 3), gpus={"fast": 2, "old": 4}, cut="percents", gap=0.02
    ),
    "scarce": Recipe(
        count=8, models=(5, 7), gpus={"fast": 3, "old": 6}, gathering=0.1, gap=0.02
    ),
    "cost": Recipe(
        count=10, models=(3, 8), gpus={"fast": 12, "mid": 12, "old": 20}, objective="cost", gap=0.01
    ),
    "power": Recipe(
        count=8, models=(3, 8), gpus={"fast": 12, "old": 30}, objective="power", gap=0.01
    ),
    "sub-clusters-gpus": Recipe(
        count=4, models=(6, 14), gpus={"fast": 60, "old": 90}, planner="subclusters", blocks=1,
        objective="gpus", gap=0.01,
    ),
    "in-force": Recipe(count=6, models=(3, 6), gpus={"fast": 10, "old": 30}, before=1),
    "applications": Recipe(
        count=8, models=(3, 5), gpus={"fast": 60, "old": 120}, applications=True, objective="cost",
        rates_rps=(40.0, 80.0, 160.0), gap=0.005,
    ),
    "applications-padded": Recipe(
        count=8, models=(3, 5), gpus={"fast": 60, "old": 120}, applications=True, objective="cost",
        rates_rps=(40.0, 80.0, 160.0), own={"gathering": "tc-padded"}, gap=0.005,
    ),
    "applications-fixed": Recipe(
        count=8, models=(3, 5), gpus={"fast": 8, "old": 16}, applications=True, objective="cost",
        rates_rps=(60.0, 90.0), own={"gathering": "fixed"}, gap=0.01,
    ),
    "applications-throughput": Recipe(
        count=8, models=(2, 3), gpus={"fast": 4, "old": 8}, applications=True,
        rates_rps=(10.0, 20.0), gap=0.02,
    ),
    "entries-one-rate": Recipe(
        count=10, models=(1, 1), gpus={"fast": 200}, cut="percents", entries=(6, 24),
        objective="share", rates_rps=(20.0,), gap=0.01, own=AS_LISTED,
    ),
    "entries-mixed": Recipe(
        count=10, models=(1, 2), gpus={"fast": 200}, cut="percents", entries=(5, 20),
        objective="share", rates_rps=(5.0, 12.0, 30.0, 60.0), gap=0.01,
        own=AS_LISTED,
    ),
    "entries-many": Recipe(
        count=4, models=(1, 1), gpus={"fast": 900}, cut="percents", entries=(100, 420),
        objective="share", rates_rps=(10.0,), gap=0.02, own=AS_LISTED,
    ),
    "gpulets": Recipe(
        count=10, models=(3, 9), gpus={"fast": 4}, cut="percents", blocks=1, planner="gpulets",
        gap=0.01,
    ),
    "gpulets-cost": Recipe(
        count=4, models=(3, 7), gpus={"fast": 12}, cut="percents", blocks=1, planner="gpulets",
        objective="gpus", gap=0.01,
    ),
    "mig": Recipe(
        count=8, models=(3, 6), gpus={"fast": 4}, cut="mig", blocks=1, planner="gpulets", gap=0.01
    ),
    "open-seats": Recipe(
        count=6, models=(2, 4), gpus={"fast": 3}, cut="percents", blocks=3,
        planner="gpulets-open", gathering=0.1, gap=0.02,
    ),
    "sub-clusters": Recipe(
        count=10, models=(6, 20), gpus={"fast": 20, "old": 20}, planner="subclusters", blocks=1,
        gap=0.01,
    ),
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Made:
    """A problem, ready to be planned."""

    profiles: dict[str, ModelProfile]
    cluster: Cluster
    workload: Workload
    options: PlanOptions
    interference: dict[str, InterferenceModel]

    def suits(self, planner: str) -> bool:
        """True if a planner takes it."""
        inputs = Inputs(
            profiles=self.profiles,
            cluster=self.cluster,
            workload=self.workload,
            options=self.options,
        )
        return able(planner_named(planner), inputs)

    def plan(self) -> Plan:
        """Plan it.

        Raises:
            InfeasibleError: it has no plan.
        """
        return make_plan(
            self.profiles,
            self.cluster,
            self.workload,
            self.options,
            interference=self.interference,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """A problem by name: `make` draws it."""

    name: str
    family: str
    seed: int

    def make(self) -> Made:
        """Draw it; what its options need (rates, a plan in force) is planned on the way."""
        recipe = FAMILIES[self.family]
        made = drawn(recipe, self.seed)
        workload, options = made.workload, made.options
        if recipe.before is not None:
            former = replace(workload, models=workload.models[recipe.before :])
            in_force = replace(made, workload=former).plan()
            made = replace(made, options=replace(options, previous=in_force))
        if recipe.objective != "throughput" and not recipe.rates_rps:
            made = replace(made, workload=_rated(made, recipe.load))
        return made


def drawn(recipe: Recipe, seed: int) -> Made:
    """A problem of a recipe, with the rates that the recipe states."""
    random = np.random.default_rng(seed)
    cluster = Cluster.from_dict(_cluster(recipe))
    count = int(random.integers(recipe.models[0], recipe.models[1] + 1))
    profiles = {
        profile.name: profile
        for profile in (_profile(random, f"m{number:02}", recipe) for number in range(count))
    }
    workload = Workload.from_dict(_workload(random, profiles, recipe))
    options = PlanOptions(
        planner=recipe.planner,
        objective=recipe.objective,
        max_partitions=min(recipe.stages, recipe.blocks),
        gap=recipe.gap,
        time_limit_s=LIMIT_S,
        own=recipe.own,
    )
    pressure = {"fast": PRESSURE} if recipe.planner.startswith("gpulets") else {}
    return Made(
        profiles=profiles,
        cluster=cluster,
        workload=workload,
        options=options,
        interference={} if recipe.cut == "mig" else pressure,
    )


def problems() -> tuple[Problem, ...]:
    """All of them, family by family."""
    return tuple(
        Problem(name=f"{family}-{number:02}", family=family, seed=_seed(family, number))
        for family, recipe in FAMILIES.items()
        for number in range(recipe.count)
    )


def named(name: str) -> Problem:
    """The problem of that name.

    Raises:
        KeyError: there is none.
    """
    return {problem.name: problem for problem in problems()}[name]


def chosen(only: str, most: int | None = None) -> list[Problem]:
    """Those of the families and problems named with commas, or all; of a family at most so many.

    Raises:
        InputError: a name is neither a family nor a problem.
    """
    wanted = {name for name in only.split(",") if name}
    known = {problem.name for problem in problems()} | set(FAMILIES)
    if unknown := sorted(wanted - known):
        raise InputError("--only", f"{unknown[0]!r} is neither a family nor a problem")
    return [
        problem
        for problem in problems()
        if (not wanted or {problem.family, problem.name} & wanted)
        and (most is None or int(problem.name.rpartition("-")[2]) < most)
    ]


def _seed(family: str, number: int) -> int:
    return zlib.crc32(family.encode()) + number


def _cluster(recipe: Recipe) -> dict[str, Any]:
    cuts: dict[str, dict[str, Any]] = {
        "divisors": {"vgpu_divisors": list(DIVISORS)},
        "percents": {"vgpu_percents": list(PERCENTS), "max_vgpus_per_gpu": 10},
        "mig": {"mig": {"card": MIG_CARD, "processes": 2}},
    }
    if recipe.blocks == 1 and recipe.cut == "percents":
        cuts["percents"]["max_vgpus_per_gpu"] = 2
    return {
        "gpu_classes": {
            name: cuts[recipe.cut]
            | {"hourly_cost": CARDS[name].hourly_cost, "power_w": CARDS[name].power_w}
            | ({} if recipe.cut == "mig" else {"memory_gib": CARDS[name].memory_gib})
            for name in recipe.gpus
        },
        "nodes": [
            {"count": -(-gpus // 4), "gpu_class": name, "gpus": min(gpus, 4), "nic_gbps": 10}
            for name, gpus in recipe.gpus.items()
        ],
    }


def _profile(random: np.random.Generator, name: str, recipe: Recipe) -> ModelProfile:
    blocks = recipe.blocks
    scale = float(np.exp(random.uniform(np.log(0.4), np.log(2.5))))
    fixed = scale * random.uniform(150, 900, (blocks, 1)) * 8 / max(blocks, 4)
    slope = scale * random.uniform(60, 500, (blocks, 1)) * 8 / max(blocks, 4)
    batches = np.arange(1, BATCHES + 1)
    tables: dict[ProfileKey, ProfileTable] = {}
    for gpu_class in recipe.gpus:
        slowdown = CARDS[gpu_class].slowdown * random.uniform(0.8, 1.25, (blocks, 1))
        base = (fixed + slope * batches) * slowdown
        contention = random.uniform(0.3, 0.9)
        l2, dram = random.uniform(0.1, 0.8, 2)
        for share, basis, part in _parts(recipe.cut):
            key = ProfileKey(gpu_class, share, basis)
            used = np.full((blocks, BATCHES), part)
            tables[key] = ProfileTable(
                latency_us=base * (1 + contention * (1 / part - 1)),
                l2=used * l2 if basis == SOLO and recipe.cut == "percents" else None,
                dram=used * dram if basis == SOLO and recipe.cut == "percents" else None,
            )
    weights = random.uniform(0.01, 0.08, blocks) * scale * 2**30
    return ModelProfile(
        name=name,
        boundary_bytes=tuple(int(b) for b in random.integers(2_000, 150_000, blocks - 1)),
        tables=tables,
        block_memory_bytes=tuple(int(b) for b in weights),
    )


def _parts(cut: str) -> list[tuple[int, str, float]]:
    """Share, basis and part of a whole GPU of every table."""
    if cut == "divisors":
        return [(WHOLE_GPU // v, LOADED, 1 / v) for v in DIVISORS]
    if cut == "percents":
        return [(3 * p, SOLO, p / 100) for p in PERCENTS]
    found: dict[int, float] = {}
    for kind in Mig(card=MIG_CARD, processes=2).kinds:
        for processes in (1, 2):
            cell = MigCell(kind.compute, processes)
            found[mig_share(cell)] = kind.compute / 7 / processes
    assert MIG_CARD in MIG_CARDS
    return [(share, SOLO, part) for share, part in found.items()]


def _workload(
    random: np.random.Generator, profiles: Mapping[str, ModelProfile], recipe: Recipe
) -> dict[str, Any]:
    if recipe.applications:
        return {"applications": [_application(random, profiles, recipe)]}
    models: list[dict[str, Any]] = []
    for name, profile in profiles.items():
        slo_ms = 5 * _fastest_ms(profile, 0) * random.uniform(0.8, 1.6)
        if recipe.cut == "mig":
            slo_ms *= 4
        demand: dict[str, Any] = {"name": name, "slo_ms": round(float(slo_ms), 3)}
        if recipe.entries is None:
            demand["weight"] = float(random.choice([1.0, 1.0, 2.0, 5.0]))
            if recipe.gathering is not None:
                rate = GATHERING_FACTOR * (BATCHES - 1) / (recipe.gathering * slo_ms / 1_000)
                demand["batch_building_rate_rps"] = round(float(rate), 3)
        else:
            demand["entries"] = _entries(random, profile, recipe)
        models.append(demand)
    return {"models": models}


def _fastest_ms(profile: ModelProfile, block: int) -> float:
    """Latency of a tail at batch 1 on the fastest table."""
    return min(float(t.latency_us[block:, 0].sum()) for t in profile.tables.values()) / 1_000


def _entries(
    random: np.random.Generator, profile: ModelProfile, recipe: Recipe
) -> list[dict[str, Any]]:
    least, most = recipe.entries or (1, 1)
    found: list[dict[str, Any]] = []
    for number in range(int(random.integers(least, most + 1))):
        block = int(random.integers(0, profile.blocks - 1))
        budget = 2.2 * _fastest_ms(profile, block) * random.uniform(1.5, 8)
        found.append(
            {
                "name": f"e{number}",
                "block": block,
                "budget_ms": round(float(budget), 3),
                "rate_rps": float(random.choice(recipe.rates_rps)),
            }
        )
    return found


def _application(
    random: np.random.Generator, profiles: Mapping[str, ModelProfile], recipe: Recipe
) -> dict[str, Any]:
    """A detector, modules after it, and from four modules on a last one that joins some."""
    names = list(profiles)
    modules: list[dict[str, Any]] = [{"name": names[0], "model": names[0]}]
    for name in names[1:]:
        after = [names[0]] if name != names[-1] or len(names) < JOINED else names[1:3]
        rows = float(random.choice([1.0, 1.0, 2.0])) if after == [names[0]] else None
        module: dict[str, Any] = {"name": name, "model": name, "after": after}
        if rows and rows > 1:
            module |= {"rows_per_request": rows, "max_rows": 6}
        modules.append(module)
    longest = sum(_fastest_ms(profile, 0) for profile in profiles.values())
    return {
        "name": "app",
        "slo_ms": round(float(10 * longest / len(names) * random.uniform(0.9, 1.6)), 3),
        "rate_rps": float(random.choice(recipe.rates_rps)),
        "modules": modules,
    }


def _rated(made: Made, load: float) -> Workload:
    """The workload with rates: a part of what a throughput plan of it reaches."""
    free = replace(made.options, objective="throughput", gap=0.01)
    try:
        most = replace(made, options=free).plan().objective.value
    except InfeasibleError:
        return made.workload
    return replace(
        made.workload,
        models=tuple(
            replace(m, rate_rps=(m.weight or 1.0) * most * load) for m in made.workload.models
        ),
    )
