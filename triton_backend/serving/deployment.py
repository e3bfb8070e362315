"""What every process of a running system must know: settings of the system, plan of a generation.

The settings are written once per start (`serve_folder/settings.py`); every rollout adds a folder
`generations/N` with a completed `plan.json`. A `Deployment` is both together and answers where
things are: sockets, segments, layouts, slots. All processes compute the same answers from the same
two files, so nobody has to be told.
"""

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Self

from triton_backend.contract.errors import InputError
from triton_backend.contract.plan import ModelPlan, Pipeline, Plan, Pool, Stage, StageRow, VGpu
from triton_backend.contract.tensors import TensorSpec
from triton_backend.runtimes.stage_tensors import stage_inputs, stage_outputs
from triton_backend.serve_folder.names import short_name
from triton_backend.serve_folder.repository import FIRST_WORKER_PORT, read_front_ports
from triton_backend.serve_folder.settings import ServeSettings
from triton_backend.serving.layout import SlotLayout

MIN_SLOTS = 4
MAX_SLOTS = 64
# Requests that are larger, take longer or wait for company gain little from a hand-over less.
EXPRESS_BYTES = 1 << 16
EXPRESS_LATENCY_US = 15_000


@dataclass(frozen=True)
class Deployment:
    """One generation of a running system: settings, plan and what follows from both."""

    settings: ServeSettings
    generation: int
    plan: Plan
    front_ports: Mapping[str, int] = field(default_factory=dict[str, int])

    @classmethod
    def read(cls, settings: ServeSettings, generation: int) -> Self:
        """Read the plan of a generation.

        Raises:
            InputError: no such generation, or its plan cannot be used or names no tensors.
        """
        path = settings.generation_folder(generation) / "plan.json"
        try:
            data = json.loads(path.read_text())
        except (OSError, ValueError) as error:
            raise InputError(str(path), f"not a plan: {error}") from error
        plan = check_complete(Plan.from_dict(data), str(path))
        return cls(settings, generation, plan, read_front_ports(settings.folder, generation))

    @cached_property
    def tag(self) -> int:
        """64 bits that every frame of this generation carries."""
        text = f"{self.settings.system}/{self.generation}/{self.plan.plan_id}"
        return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little")

    @cached_property
    def vgpus(self) -> tuple[VGpu, ...]:
        """The plan's vGPUs by number."""
        return self.plan.vgpus()

    @cached_property
    def _row_of_pool(self) -> dict[int, StageRow]:
        return {row.pool: row for row in self.plan.stage_rows()}

    def divisor_of(self, vgpu: int) -> int:
        """v, where a vGPU is 1/v of its GPU."""
        return self.pool_of(vgpu).divisor or 1

    def place_of(self, vgpu: int) -> StageRow:
        """Model, pipeline and stage that a vGPU runs, and its pool, by number."""
        return self._row_of_pool[self.vgpus[vgpu].pool]

    def pool_of(self, vgpu: int) -> Pool:
        """The pool that a vGPU belongs to."""
        return self.plan.pools[self.vgpus[vgpu].pool]

    def model_of(self, vgpu: int) -> ModelPlan:
        """The model a vGPU works for."""
        return self.plan.models[self.place_of(vgpu).model]

    def pipeline_of(self, vgpu: int) -> Pipeline:
        """The pipeline a vGPU works in."""
        return self.model_of(vgpu).pipelines[self.place_of(vgpu).pipeline]

    def stage_of(self, vgpu: int) -> Stage:
        """The stage a vGPU runs."""
        return self.pipeline_of(vgpu).stages[self.place_of(vgpu).stage]

    def inputs_of(self, vgpu: int) -> tuple[TensorSpec, ...]:
        """Tensors that enter a vGPU's stage, as they cross the boundary."""
        place = self.place_of(vgpu)
        return stage_inputs(self.model_of(vgpu), place.pipeline, place.stage)

    def outputs_of(self, vgpu: int) -> tuple[TensorSpec, ...]:
        """Tensors that leave a vGPU's stage, as they cross the boundary."""
        place = self.place_of(vgpu)
        return stage_outputs(self.model_of(vgpu), place.pipeline, place.stage)

    def node_name_of(self, vgpu: int) -> str:
        """The node a vGPU sits on."""
        return self.plan.cluster.node_name(self.vgpus[vgpu].slot.node)

    def nodes(self) -> tuple[str, ...]:
        """Nodes that have at least one vGPU of the plan, in the cluster's order."""
        used = sorted({vgpu.slot.node for vgpu in self.vgpus})
        return tuple(self.plan.cluster.node_name(node) for node in used)

    def vgpus_on(self, node: str) -> tuple[int, ...]:
        """Numbers of the vGPUs on a node."""
        return tuple(v.index for v in self.vgpus if self.node_name_of(v.index) == node)

    def worker_layout(self, vgpu: int) -> SlotLayout:
        """How a batch lies in a slot of a worker."""
        return SlotLayout(specs=self.inputs_of(vgpu), batch=self.pipeline_of(vgpu).batch)

    def worker_slots(self, vgpu: int) -> int:
        """Slots of a worker: as many batches of one as can be reserved within one SLO."""
        within_slo = self.model_of(vgpu).slo_us / self.stage_of(vgpu).latency_us_by_batch[0]
        return min(max(math.ceil(within_slo) + MIN_SLOTS, MIN_SLOTS), MAX_SLOTS)

    def worker_segment(self, vgpu: int) -> str:
        """Name of a worker's segment."""
        return f"{self.settings.segment_prefix}g{self.generation}-w{vgpu}"

    def worker_address(self, vgpu: int, *, same_host: bool) -> str:
        """Where a worker takes batches."""
        if same_host:
            return f"unix:{self.settings.socket_folder}/g{self.generation}-w{vgpu}"
        host = self.settings.hosts.get(self.node_name_of(vgpu), self.settings.gateway_host)
        return f"tcp:{host}:{self.worker_port(vgpu)}"

    def worker_port(self, vgpu: int) -> int:
        """TCP port of a worker; two generations live side by side."""
        return self.settings.base_port + FIRST_WORKER_PORT + 2 * vgpu + self.generation % 2

    def front_layout(self, model: ModelPlan) -> SlotLayout:
        """How an answer lies in a slot of a front."""
        return SlotLayout(specs=model.outputs, batch=largest_batch(model))

    def front_slots(self, model: int) -> int:
        """Answer slots of a front: one for every batch that its last stages may hold."""
        lasts = (
            v.index
            for v in self.vgpus
            if self.place_of(v.index).model == model
            and self.place_of(v.index).stage == len(self.pipeline_of(v.index).stages) - 1
        )
        return min(sum(self.worker_slots(v) for v in lasts), 4 * MAX_SLOTS)

    def front_segment(self, model: str) -> str:
        """Name of a front's segment."""
        return f"{self.settings.segment_prefix}g{self.generation}-f{short_name(model)}"

    def express_slots(self, model: int) -> range:
        """Slots of a front for express requests and their answers, after its other answer slots."""
        plan, slots = self.plan.models[model], self.front_slots(model)
        quick = {
            number
            for number, pipeline in enumerate(plan.pipelines)
            if pipeline.batch == 1 and pipeline.latency_us < EXPRESS_LATENCY_US
        }
        used = self.express_layout(plan).bytes_per_sample <= EXPRESS_BYTES and any(
            place.model == model
            and place.stage == 0
            and place.pipeline in quick
            and self.at_gateway(v.index)
            for v in self.vgpus
            for place in [self.place_of(v.index)]
        )
        return range(slots, 2 * slots if used else slots)

    def express_layout(self, model: ModelPlan) -> SlotLayout:
        """How an express request lies in a slot of its front."""
        return SlotLayout(specs=model.inputs, batch=largest_batch(model))

    def express_segment(self, model: str) -> str:
        """Name of the segment of a front's express requests."""
        return f"{self.settings.segment_prefix}g{self.generation}-e{short_name(model)}"

    def front_port(self, model: str) -> int:
        """TCP port of a front, the same in every generation."""
        return self.front_ports[model]

    def same_host(self, node: str, other: str | None) -> bool:
        """Whether two nodes (None: the gateway) share memory."""
        mine = self.settings.hosts.get(node)
        return mine == (None if other is None else self.settings.hosts.get(other))

    def at_gateway(self, vgpu: int) -> bool:
        """Whether a vGPU shares memory with the gateway."""
        return self.same_host(self.node_name_of(vgpu), None)

    def max_waiting(self, model: ModelPlan) -> int:
        """Requests a front holds at most: four SLOs' worth at the planned rate."""
        at_rate = 4 * model.throughput_rps * model.slo_us / 1e6
        return math.ceil(at_rate) + 8 * largest_batch(model)


def largest_batch(model: ModelPlan) -> int:
    """Samples that fit one request."""
    return max((p.batch for p in model.pipelines), default=1)


def check_complete(plan: Plan, where: str) -> Plan:
    """The plan, if every tensor that is served is named.

    Raises:
        InputError: a model without pipelines, or a tensor that is not named.
    """
    for number, pool in enumerate(plan.pools):
        if len(plan.stages_of(number)) > 1:
            raise InputError(
                where, f"pool {pool.name!r} is shared by several stages, not served yet"
            )
        if pool.divisor is None:
            raise InputError(where, f"pool {pool.name!r} has shares in percents, not served yet")
    for model in plan.models:
        if not model.pipelines:
            raise InputError(where, f"model {model.name!r} has no pipeline")
        inner = (s.boundary for p in model.pipelines for s in p.stages[:-1])
        if not model.inputs or not model.outputs or not all(inner):
            raise InputError(where, f"model {model.name!r} does not name all of its tensors")
    return plan
