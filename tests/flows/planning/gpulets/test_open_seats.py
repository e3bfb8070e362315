"""Open seats for pipelines beside parts shared in turns.

Equal to brute force, never below either alone.
"""

import math
from collections.abc import Iterator
from dataclasses import replace
from itertools import combinations_with_replacement, product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from flows.planning import PlanOptions, make_plan
from flows.planning.verify.numbers import verify_plan
from scripts.benchmarks.served import emulated_answer, stretched
from scripts.golden.problems import Recipe, drawn
from tests.flows.planning.gpulets.cases import MODEL, Case, alone, case, seats
from tests.triton_backend.serving.system import LocalSystem
from triton_backend.contract.errors import InfeasibleError, InputError
from triton_backend.contract.plan import Plan
from triton_backend.contract.profiles import InterferenceModel
from triton_backend.contract.workload import Workload
from triton_backend.runtimes.stage_tensors import complete_tensors
from triton_backend.serving.front.replies import Refusal
from triton_backend.simulator.run import simulate
from triton_backend.simulator.scenario import SimOptions

PIPELINE_MARGIN = 0.4


class Way(NamedTuple):
    """A pipeline of a model: batch, where its stages end, and their sizes."""

    model: int
    batch: int
    ends: tuple[int, ...]
    percents: tuple[int, ...]


Part = tuple[int, Any]  # percent; seats in turns, or (number of a way, stage)


def split(asked: Case, seed: int) -> Case:
    """The same with models of two blocks, and no time to gather a batch."""
    random = np.random.default_rng([seed, 2])
    profiles = dict(asked.profiles)
    for name, profile in asked.profiles.items():
        first = random.uniform(0.2, 0.8)
        parts = np.array([[first], [1 - first]])
        tables = {
            key: replace(
                table,
                latency_us=table.latency_us * parts,
                l2=None if table.l2 is None else np.repeat(table.l2, 2, axis=0),
                dram=None if table.dram is None else np.repeat(table.dram, 2, axis=0),
            )
            for key, table in profile.tables.items()
        }
        profiles[name] = replace(profile, tables=tables, boundary_bytes=(0,))
    models = tuple(replace(m, batch_building_rate_rps=1e12) for m in asked.workload.models)
    return replace(asked, profiles=profiles, workload=Workload(models=models))


class Brute:
    """Every plan, by shares and formulas of the design alone."""

    def __init__(self, asked: Case, model: InterferenceModel | None) -> None:
        self.asked, self.model = asked, model
        self.count = len(asked.workload.models)
        pairs = list(combinations_with_replacement(asked.percents, 2))
        self.cuts = [(p,) for p in asked.percents] + [c for c in pairs if sum(c) <= 100]
        self.most = {
            p: max(
                self.press(m, p, b)
                for m in range(self.count)
                for b in range(1, alone(asked, m, p).largest + 1)
            )
            for p in asked.percents
        }
        self.ways = [way for way in self._ways() if self._fits(way)]

    def press(self, m: int, percent: int, batch: int) -> float:
        """The pressure of a model on the others."""
        if self.model is None:
            return 0.0
        l2, dram = self._used(m, percent, batch)
        return max(0.0, self.model.c2_l2_other * l2 + self.model.c4_dram_other * dram)

    def _used(self, m: int, percent: int, batch: int) -> tuple[float, float]:
        table = alone(self.asked, m, percent)
        assert table.l2 is not None
        assert table.dram is not None
        weights = table.latency_us[:, batch - 1]
        return (
            float(np.average(table.l2[:, batch - 1], weights=weights)),
            float(np.average(table.dram[:, batch - 1], weights=weights)),
        )

    def factor(self, m: int, percent: int, batch: int, felt: float) -> float:
        """How much slower a model is beside neighbours."""
        if self.model is None:
            return 1.0
        l2, dram = self._used(m, percent, batch)
        own = self.model.c1_l2_self * l2 + self.model.c3_dram_self * dram + self.model.c5
        return max(1.0, own + felt)

    def stage_us(self, way: Way, stage: int) -> int:
        """A stage beside the worst neighbours that its part may have."""
        percent = way.percents[stage]
        first, last = (0, *way.ends)[stage], way.ends[stage]
        rows = alone(self.asked, way.model, percent).latency_us[first:last, way.batch - 1]
        solo = math.ceil(float(rows.sum()) - 1e-6)
        beside = [self.most[p] for p in self.asked.percents if p + percent <= 100]
        if not beside:
            return solo
        return math.ceil(solo * self.factor(way.model, percent, way.batch, max(beside)) - 1e-6)

    def _ways(self) -> Iterator[Way]:
        for m in range(self.count):
            largest = alone(self.asked, m, self.asked.percents[0]).largest
            for batch, ends in product(range(1, largest + 1), ((2,), (1, 2))):
                for percents in product(self.asked.percents, repeat=len(ends)):
                    yield Way(m, batch, ends, percents)

    def _fits(self, way: Way) -> bool:
        took = sum(self.stage_us(way, s) for s in range(len(way.ends)))
        return took <= (1 - PIPELINE_MARGIN) * self.asked.workload.models[way.model].slo_us

    def vectors(self) -> np.ndarray[Any, Any]:
        """[GPU, rates in turns by model, then vGPUs of every stage of every column], each once."""
        columns = {
            key: self.count + at
            for at, key in enumerate(
                (w, s) for w, way in enumerate(self.ways) for s in range(len(way.ends))
            )
        }
        open_ = {
            p: [key for key in columns if self.ways[key[0]].percents[key[1]] == p]
            for p in self.asked.percents
        }
        in_turns = seats(self.asked)
        found = {(0.0,) * (self.count + len(columns))}
        for cut in self.cuts:
            choices = [[(p, c) for c in (*in_turns[p], *open_[p])] for p in cut]
            for parts in product(*choices):
                row = self._row(parts, columns)
                if row is not None:
                    found.add(tuple(row))
        return np.array(sorted(found))

    def _row(
        self, parts: tuple[Part, ...], columns: dict[tuple[int, int], int]
    ) -> list[float] | None:
        row = [0.0] * (self.count + len(columns))
        for at, (percent, content) in enumerate(parts):
            if content in columns:
                row[columns[content]] += 1
                continue
            felt = sum(
                self.most[p] if c in columns else max(self.press(m, p, b) for m, b in c)
                for i, (p, c) in enumerate(parts)
                if i != at
            )
            turns: list[int] = []
            for m, batch in content:
                rows = alone(self.asked, m, percent).latency_us.sum(axis=0)[:batch]
                solo = max(math.ceil(float(v) - 1e-6) for v in rows)
                factor = self.factor(m, percent, batch, felt) if len(parts) > 1 else 1.0
                turns.append(math.ceil(solo * factor - 1e-6))
            for (m, batch), turn in zip(content, turns, strict=True):
                if sum(turns) + turn > 0.9 * self.asked.workload.models[m].slo_us:
                    return None
                row[m] += batch * 1e6 / sum(turns)
        return row

    def best(self) -> float:
        """The highest lowest rate / weight."""
        weights = np.array([m.weight or 1.0 for m in self.asked.workload.models])
        vectors = self.vectors()
        totals = vectors
        for _ in range(1, self.asked.cluster.gpus("G")):
            totals = (totals[:, None] + vectors).reshape(-1, vectors.shape[1])
        rates = totals[:, : self.count].copy()
        piped, at = np.zeros_like(rates), self.count
        for way in self.ways:
            stages = [
                totals[:, at + s] * way.batch * 1e6 / self.stage_us(way, s)
                for s in range(len(way.ends))
            ]
            piped[:, way.model] += np.min(stages, axis=0)
            at += len(way.ends)
        return float((np.maximum(rates, piped) / weights).min(axis=1).max())


def planned(
    asked: Case, model: InterferenceModel | None = None, name: str = "gpulets-open"
) -> Plan:
    own = {} if name == "pool" else {"max_models_per_vgpu": asked.most_models}
    found = make_plan(
        asked.profiles,
        asked.cluster,
        asked.workload,
        PlanOptions(planner=name, own=own),
        interference={} if model is None else {"G": model},
    )
    assert verify_plan(found, asked.profiles) == []
    return found


@pytest.mark.long
@pytest.mark.parametrize("model", [None, MODEL], ids=["alone", "interference"])
@pytest.mark.parametrize(("seed", "gpus", "batches"), [(0, 1, 2), (3, 1, 2), (5, 1, 2), (1, 2, 1)])
def test_equals_brute_force(
    seed: int, gpus: int, batches: int, model: InterferenceModel | None
) -> None:
    asked = split(case(seed, 2, gpus, batches=batches, percents=(20, 50, 80)), seed)
    best = Brute(asked, model).best()
    try:
        found = planned(asked, model)
    except InfeasibleError:
        assert best == 0
        return
    assert found.objective.value == pytest.approx(best, rel=1e-6)
    assert found.objective.gap <= 1e-4
    assert found.objective.space == "gpu-patterns-and-pipelines"


def one_large_two_small() -> Case:
    """A model that would wait too long for turns, and two that need little.

    One GPU of two parts for three.
    """
    asked = split(case(0, 3, 1, batches=2, percents=(40, 60)), 0)
    profiles = dict(asked.profiles)
    for name, slower in (("m0", 1.0), ("m1", 0.05), ("m2", 0.05)):
        tables = {
            key: replace(table, latency_us=table.latency_us * slower)
            for key, table in profiles[name].tables.items()
        }
        profiles[name] = replace(profiles[name], tables=tables)
    asked = replace(asked, profiles=profiles)
    least_us = min(int(alone(asked, 0, p).latency_us.sum(axis=0)[0]) for p in asked.percents)
    slos = (2 * least_us, 20_000, 20_000)  # two turns of it take all of that
    models = tuple(
        replace(m, slo_us=slo, weight=weight)
        for m, slo, weight in zip(asked.workload.models, slos, (1.0, 0.5, 0.25), strict=True)
    )
    return replace(asked, workload=Workload(models=models), most_models=3)


@pytest.fixture(scope="module")
def together() -> Plan:
    return planned(one_large_two_small())


def test_a_pipeline_and_models_in_turns_lie_on_one_gpu(together: Plan) -> None:
    asked = one_large_two_small()
    for name in ("gpulets", "pool"):
        with pytest.raises(InfeasibleError):
            planned(asked, name=name)
    assert [m.policy for m in together.models] == [
        "reservation-ahead",
        "turns-window",
        "turns-window",
    ]
    assert together.gpus_used == {"G": 1}
    assert sorted(pool.share for pool in together.pools) == [120, 180]
    assert together.objective.gap <= 1e-4


def test_such_a_plan_is_simulated(together: Plan) -> None:
    found = simulate(together, SimOptions(load_factor=0.5, duration_s=5.0))
    assert sum(m.late for m in found.models) == 0
    assert min(m.attainment for m in found.models) > 0.9


@pytest.mark.slow
def test_such_a_plan_is_served(together: Plan, tmp_path: Path) -> None:
    slow = stretched(complete_tensors(together), 50)
    system = LocalSystem(tmp_path / "serve", slow)
    try:
        for model in slow.models:
            (given,) = model.inputs
            sample = np.zeros((1, *given.shape[1:]), np.uint8)
            answer = system.ask(model.name, {given.name: sample})()
            assert not isinstance(answer, Refusal)
            (spec,) = model.outputs
            assert set(answer[spec.name].flat) == {int(emulated_answer(sample, [])[0])}
    finally:
        system.stop()


def test_what_neighbours_press_beyond_what_is_felt_is_found() -> None:
    for seed in range(8):
        asked = split(case(seed, 2, 1, batches=2), seed)
        try:
            plan = planned(asked, MODEL)
        except InfeasibleError:
            continue
        open_ = [
            n
            for n, pool in enumerate(plan.pools)
            if pool.interference is not None
            and pool.interference.felt > 0
            and all(stage.duty_cycle_us is None for stage in plan.stages_of(n))
        ]
        if len(plan.pools) > 1 and open_:
            break
    else:
        pytest.fail("no case with an open seat beside a neighbour")
    pools = list(plan.pools)
    stated = pools[open_[0]].interference
    assert stated is not None
    pools[open_[0]] = replace(pools[open_[0]], interference=replace(stated, felt=0.0))
    found = verify_plan(replace(plan, pools=tuple(pools)), asked.profiles)
    assert any("others press" in line for line in found)


@pytest.mark.long
def test_a_class_without_an_interference_model_lies_beside_one_that_has_it() -> None:
    recipe = Recipe(
        count=1, models=(1, 1), gpus={"fast": 4, "mid": 2}, cut="percents", blocks=2,
        planner="gpulets-open", gap=0.02,
    )  # fmt: skip
    made = drawn(recipe, seed=1086)
    assert set(made.interference) == {"fast"}
    plan = made.plan()
    assert verify_plan(plan, made.profiles) == []
    assert plan.objective.value > 0


@pytest.mark.long
@pytest.mark.parametrize("seed", [0, 3])
def test_is_never_below_either_kind_alone(seed: int) -> None:
    asked = split(case(seed, 3, 2, batches=3), seed)
    both = planned(asked).objective.value
    for name in ("gpulets", "pool"):
        try:
            assert both >= planned(asked, name=name).objective.value * (1 - 1e-9)
        except InfeasibleError:
            continue


def test_only_gpus_cut_into_percents_are_planned() -> None:
    asked = case(0, 1, 1)
    halves = replace(asked.cluster.gpu_classes[0], vgpu_percents=(), vgpu_divisors=(1, 2))
    with pytest.raises(InputError, match=r"vgpu_percents.*is missing"):
        planned(replace(asked, cluster=replace(asked.cluster, gpu_classes=(halves,))))
    with pytest.raises(InputError, match="least rates"):
        make_plan(
            asked.profiles,
            asked.cluster,
            asked.workload,
            PlanOptions(planner="gpulets-open", minimum_rps={"m0": 1.0}),
        )


def test_the_margin_of_pipelines_is_stated_and_checked_against() -> None:
    asked = split(case(0, 2, 2), 0)
    wide, narrow = (
        make_plan(
            asked.profiles,
            asked.cluster,
            asked.workload,
            PlanOptions(planner="gpulets-open", own={"pipeline_margin": margin}),
        )
        for margin in (0.4, 0.0)
    )
    assert (wide.options["pipeline_margin"], narrow.options["pipeline_margin"]) == (0.4, 0.0)
    assert narrow.objective.value >= wide.objective.value * (1 - 1e-3)
    assert verify_plan(narrow, asked.profiles) == []
