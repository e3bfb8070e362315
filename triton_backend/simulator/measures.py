"""Guards and expected paces, which follow what is measured as in a gateway.

Where true run times are not those of the table, a gateway learns it: the guards of its fronts grow
with what batches overrun, and stages that are slow are planned with their true pace. Here the same
rules (`scheduler.measured`) see what was simulated, at looks as far apart as the
gateway's. A front renews its guard every few answers instead; what it keeps back is the same.

Here: from the loop's notes to the rules, and from the rules to the tables. Not here: the rules.
"""

from collections.abc import Iterable

import numpy as np

from triton_backend.contract.plan import Plan
from triton_backend.scheduler.compiled import Integers, Records
from triton_backend.scheduler.kernel_api import correct_pace
from triton_backend.scheduler.measured.guard import Guard
from triton_backend.scheduler.measured.paces import LOOK_EVERY_US, StagePaces
from triton_backend.scheduler.plan_rows import pipelines_by_queue
from triton_backend.scheduler.topology import Lead
from triton_backend.simulator.world import OVERRUN, RAN, World

NOTED = 1 << 14  # runs and batches between two looks; of more the last count


class Measures:
    """The guards and paces of one run.

    Attributes:
        look_us: when it is to look next.
    """

    def __init__(self, lead: Lead) -> None:
        self.look_us = LOOK_EVERY_US
        self._lead = lead
        self._guards: dict[str, Guard] = {}

    def adopt(self, plan: Plan, world: World) -> World:
        """The world under a plan from now on, with room for notes; paces are planned ones again."""
        now_us = int(world.tables.counts[0]["now_us"])
        self._ran, self._overruns = int(world.cursor[0]["ran"]), int(world.cursor[0]["overruns"])
        self._table_us = world.tables.topology.latency_us.copy()
        self._places = [
            (known.model, known.number, stage)
            for known in pipelines_by_queue(plan)
            for stage in range(len(known.pipeline.stages))
        ]
        planned_us = (
            stage.latency_us
            for known in pipelines_by_queue(plan)
            for stage in known.pipeline.stages
        )
        self._paces = StagePaces(dict(zip(self._places, planned_us, strict=True)), now_us)
        names = [model.name for model in plan.models]
        names += [planned.name for planned in plan.applications]
        self._guards = {name: self._guards.get(name, Guard()) for name in names}
        boards = world.tables.topology.pipelines["boards"].any()
        for name, guard in self._guards.items():
            guard.least_us = plan.least_us(name)
            guard.measured = not boards
        self._models = list(self._guards.values())
        self._allowed_us = [entry.budget_us for model in plan.models for entry in model.queues]
        self._allowed_us += [p.application.slo_us for p in reversed(plan.applications)]
        own = [self._guards[model.name] for model in plan.models for _ in model.queues]
        own += [self._guards[planned.name] for planned in reversed(plan.applications)]
        self._of_row = own
        return world._replace(
            guards_us=self._guards_us(),
            table_us=self._table_us,
            ran=world.ran if len(world.ran) else np.zeros(NOTED, dtype=RAN),
            overruns=world.overruns if len(world.overruns) else np.zeros(NOTED, dtype=OVERRUN),
        )

    def look(self, world: World) -> None:
        """Everything before `look_us` has happened: let guards and expected paces follow."""
        now_us, cursor = self.look_us, world.cursor[0]
        self.look_us += LOOK_EVERY_US
        world.tables.counts[0]["now_us"] = now_us
        for run in _noted(world.ran, self._ran, int(cursor["ran"])):
            stage, vgpu, samples, took_us = run
            expected_us = max(int(self._table_us[stage, samples]), 1)
            self._paces.ran(self._places[stage], vgpu, took_us, expected_us, now_us)
        for model, late_us in _noted(world.overruns, self._overruns, int(cursor["overruns"])):
            self._models[model].answered(0, late_us)
        self._ran, self._overruns = int(cursor["ran"]), int(cursor["overruns"])
        world.guards_us[:] = self._guards_us()
        lost = world.tables.resources["lost"][: len(world.tables.topology.vgpus)]
        for place, percent in self._paces.changes(now_us, set(np.flatnonzero(lost == 0).tolist())):
            correct_pace(world.tables, self._table_us, place, percent, self._lead)
            cursor["again"] = 1

    def _guards_us(self) -> Integers:
        times_us = zip(self._of_row, self._allowed_us, strict=True)
        return np.array([guard.guard_us(us) for guard, us in times_us], dtype=np.int64)


def _noted(ring: Records, since: int, count: int) -> Iterable[tuple[int, ...]]:
    """Notes since a count in order, the last `NOTED` of them."""
    numbers = np.arange(max(since, count - len(ring)), count) % len(ring)
    return ring[numbers].tolist()
