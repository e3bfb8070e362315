"""A hand-made event log of a gateway, and a workspace with its plan."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from flows.state import ProjectState
from flows.workspace import Workspace
from tests.fakes.plans import Own, hand_model, hand_pipeline, hand_plan, hand_stage, make_plan
from triton_backend.contract.cluster import NodeGroup
from triton_backend.contract.decisions import Decision, Dispatch, Drop, DropReason, Hop
from triton_backend.contract.events import Arrival, Event, StageDone
from triton_backend.contract.plan import PlacementRun, Plan
from triton_backend.serving.gateway.admission import Refused, RefusedJob
from triton_backend.serving.gateway.event_log import to_line

SLO_US = 100_000
MINUTE_US = 60_000_000
NOON_US = 1_767_268_800_000_000  # 2026-01-01 12:00 UTC
STARTED_US = 5_000_000  # the host's monotonic clock when the gateway started


def the_plan(plan_id: str = "one", names: tuple[str, ...] = ("a", "b")) -> Plan:
    """Two models; the first has two stages of 2 vGPUs each, the second one stage."""
    first, second = Own(latency_us=(3_000, 5_000), gpus=2), Own(latency_us=(2_000, 2_500), gpus=2)
    whole = Own(latency_us=(9_000, 10_000))
    models = ([[first, second]], [[whole]])[: len(names)]
    return make_plan(*models, slo_us=SLO_US, plan_id=plan_id, names=names)


def shared_plan() -> Plan:
    """Models `a` and `b` of one stage each on one pool: half a GPU."""
    place = PlacementRun(node=0, gpu=0, slot=0)
    models = [
        hand_model(
            name,
            hand_pipeline(
                hand_stage((0, 4), "GPU", place, (latency_us,), vgpu_divisor=2),
                batch=1,
                rate_rps=100.0,
            ),
            slo_us=SLO_US,
        )
        for name, latency_us in (("a", 3_000), ("b", 2_000))
    ]
    node = NodeGroup(count=1, gpu_class="GPU", gpus=1, nic_gbps=10.0)
    return hand_plan(*models, nodes=[node], plan_id="shared")


def workspace_of(folder: Path, *plans: Plan) -> Workspace:
    """State and warehouse in `folder`; generation n serves plan n."""
    work = Workspace(state=ProjectState(home=folder / "home"), warehouse=folder / "w.duckdb")
    for generation, plan in enumerate(plans, start=1):
        place = work.state.serve / "generations" / str(generation)
        place.mkdir(parents=True)
        (place / "plan.json").write_text(json.dumps(plan.to_dict()))
    (work.state.serve / "events").mkdir(parents=True)
    return work


class Log:
    """Lines in the order the gateway would write them; instants are µs after noon."""

    def __init__(self, start_us: int = STARTED_US) -> None:
        self.start_us = start_us
        self.lines: list[str] = []
        self._requests = 0
        self._batches = 0

    def plan(self, plan_id: str, generation: int, *, at_us: int = 0, rollout: bool = False) -> None:
        header = {
            "t": "Plan",
            "now_us": self.start_us + at_us,
            "wall_us": NOON_US + at_us,
            "rollout": rollout,
            "generation": generation,
            "plan_id": plan_id,
        }
        self.lines.append(json.dumps(header))

    def say(self, item: Event | Decision | Refused | RefusedJob) -> None:
        self.lines.append(to_line(item))

    def arrive(self, at_us: int, model: int = 0, **more: int) -> int:
        self._requests += 1
        self.arrive_again(self._requests, at_us, at_us, model, **more)
        return self._requests

    def arrive_again(
        self, request: int, first_us: int, at_us: int, model: int = 0, **more: int
    ) -> None:
        deadline_us = self.start_us + first_us + SLO_US
        at_us += self.start_us
        arrival = Arrival(now_us=at_us, request_id=request, model=model, deadline_us=deadline_us)
        self.say(replace(arrival, **more))

    def drop(self, request: int, model: int = 0, reason: DropReason = DropReason.DEADLINE) -> None:
        self.say(Drop(request_id=request, model=model, reason=reason, deadline_us=0))

    def dispatch(self, requests: tuple[int, ...], vgpus: tuple[int, ...], *, model: int = 0) -> int:
        self._batches += 1
        times: dict[str, int] = dict.fromkeys(
            ("transfer_start_us", "transfer_end_us", "start_us", "end_us"), 0
        )
        hops = tuple(Hop(vgpu=vgpu, **times) for vgpu in vgpus)
        self.say(
            Dispatch(
                batch_id=self._batches,
                model=model,
                pipeline=0,
                request_ids=requests,
                samples=len(requests),
                hops=hops,
            )
        )
        return self._batches

    def done(self, batch: int, stage: int, start_us: int, end_us: int) -> None:
        start_us, end_us = start_us + self.start_us, end_us + self.start_us
        self.say(
            StageDone(
                now_us=end_us + 10, batch_id=batch, stage=stage, start_us=start_us, end_us=end_us
            )
        )

    def serve(self, at_us: int, *, took_us: int = 8_000, requests: int = 1) -> None:
        """Requests of the first model that arrive at once and run as one batch."""
        ids = tuple(self.arrive(at_us) for _ in range(requests))
        batch = self.dispatch(ids, (0, 2))
        self.done(batch, 0, at_us, at_us + took_us // 2)
        self.done(batch, 1, at_us + took_us // 2, at_us + took_us)

    def write(self, work: Workspace, roll: int = 0, lines: slice | None = None) -> Path:
        """The lines (some of them) as a file of the serve folder."""
        path = work.state.serve / "events" / f"events-{self.start_us:020d}-{roll:04d}.jsonl"
        path.write_text("".join(f"{line}\n" for line in self.lines[lines or slice(None)]))
        return path


def table(work: Workspace, name: str, columns: str) -> list[tuple[Any, ...]]:
    """Rows of a table, sorted."""
    with work.open() as warehouse:
        rows = warehouse.rows(f"SELECT {columns} FROM {name} ORDER BY ALL")
    return [tuple(row.values()) for row in rows]
