"""Loads of stages on demand, counted as their workers make them.

Workers load and evict by the order of their runs alone (`runtimes.residency`), and report the runs
in that order. So the gateway knows what is there without a report of it; a new process has nothing.
Stages that a change of plan leaves there are counted as loaded once more.
"""

from triton_backend.contract.errors import InvariantError
from triton_backend.contract.plan import Plan, Pool, Stage, StagePlace, StageRow
from triton_backend.runtimes.residency import ABSENT, admit
from triton_backend.serving.gateway.counters import GatewayCounters, stage_labels


class Loads:
    """Of the plan in force; none of its stages is there at first."""

    def __init__(self, plan: Plan, counters: GatewayCounters) -> None:
        labels = stage_labels(plan)
        rows = [row for row in plan.stage_rows() if _stage(plan, row).load_us is not None]
        self._counters = counters
        self._places = {row.place: at for at, row in enumerate(rows)}
        self._labels = [labels[row] for row in rows]
        self._sizes = [_weights(_stage(plan, row)) for row in rows]
        self._rooms = {number: plan.room_bytes(number) for number in {row.pool for row in rows}}
        self._pools = [vgpu.pool for vgpu in plan.vgpus()]
        self._plan = plan
        self._used: dict[int, list[int]] = {}

    def ran(self, place: StagePlace, vgpu: int) -> None:
        """A vGPU ran a stage."""
        at = self._places.get(place)
        if at is None:
            return
        used = self._used.setdefault(vgpu, [ABSENT] * len(self._sizes))
        before = list(used)
        if admit(used, self._sizes, self._rooms[self._pools[vgpu]], at):
            self._counters.loads[self._labels[at]] += 1
        for label, was, now in zip(self._labels, before, used, strict=True):
            if was != ABSENT and now == ABSENT:
                self._counters.evictions[label] += 1

    def worker_up(self, vgpu: int) -> None:
        """A new process stands for a vGPU: nothing is loaded there."""
        self._used.pop(vgpu, None)

    def bytes_by_pool(self) -> dict[Pool, int]:
        """Bytes of the stages that are there, of every pool that loads some."""
        found = dict.fromkeys(self._rooms, 0)
        for vgpu, used in self._used.items():
            both = zip(self._sizes, used, strict=True)
            found[self._pools[vgpu]] += sum(size for size, last in both if last != ABSENT)
        return {self._plan.pools[number]: held for number, held in found.items()}


def loads_of(plan: Plan, counters: GatewayCounters) -> Loads | None:
    """Those of a plan; None where it pins all stages, so that nothing is counted."""
    on_demand = any(stage.load_us is not None for _, _, stage, _ in plan.placed_stages())
    return Loads(plan, counters) if on_demand else None


def _stage(plan: Plan, row: StageRow) -> Stage:
    return plan.models[row.model].pipelines[row.pipeline].stages[row.stage]


def _weights(stage: Stage) -> int:
    if stage.memory is None:
        raise InvariantError("a stage without memory is not loaded on demand")
    return stage.memory.static
