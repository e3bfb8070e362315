"""Knowledge of every serving process: the system's settings, a generation's plan.

The settings are written once per start (`serve_folder/settings.py`); every rollout adds a folder
`generations/N` with a completed `plan.json`. A `Deployment` is both together and answers where
things are: sockets, segments, layouts, slots. All processes compute the same answers from the same
two files, so none has to send them.
"""

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Self

from triton_backend.contract.applications import REQUEST
from triton_backend.contract.entries import Entry
from triton_backend.contract.errors import InputError
from triton_backend.contract.plan import (
    ModelPlan,
    Pipeline,
    Plan,
    Pool,
    SeatInterference,
    Stage,
    StagePlace,
    StageRow,
    VGpu,
)
from triton_backend.contract.tensors import ALIGNMENT, TensorSpec
from triton_backend.contract.transition.workers import MAX_SLOTS, MIN_SLOTS, SlotNeeds, slot_needs
from triton_backend.runtimes.stage_tensors import (
    endpoints,
    request_tensors,
    served_model,
    served_models,
)
from triton_backend.serve_folder.batches import ModelBatches, plan_batches, read_batches
from triton_backend.serve_folder.names import short_name
from triton_backend.serve_folder.repository import (
    WorkerOrigin,
    Workers,
    read_front_ports,
    read_workers,
)
from triton_backend.serve_folder.settings import ServeSettings, gateway_suffix
from triton_backend.serving.applications import ServedApplications, brought
from triton_backend.serving.layout import SlotLayout

if TYPE_CHECKING:
    from triton_backend.scheduler.topology import SharedBatchTimes

MAX_RETAINED_SLOTS = 4 * MAX_SLOTS
# Requests that are larger, take longer or wait for company gain little from a hand-over less.
EXPRESS_BYTES = 1 << 16
# A frame from the scheduler to a worker takes so long at most, nearly always.
DOORS_US = 1_000
EXPRESS_LATENCY_US = 15_000


@dataclass(frozen=True)
class Deployment:
    """One generation of a running system: settings, plan and what follows from both."""

    settings: ServeSettings
    generation: int
    plan: Plan
    front_ports: Mapping[str, int] = field(default_factory=dict[str, int])
    workers: Workers | None = None
    batches: Mapping[str, ModelBatches] | None = None

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
        ports = read_front_ports(settings.folder, generation)
        workers = read_workers(settings.folder, generation)
        own = settings.policy is None  # else the plan's own policies are not asked
        batches = read_batches(settings.folder, generation) if own else None
        return cls(settings, generation, plan, ports, workers, batches)

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
    def longest_slos_us(self) -> tuple[int, ...]:
        """By model: the longest SLO of requests that it may still work for, of applications too.

        In an application a model's own `slo_us` is the part of the time that the plan gives it.
        """
        return tuple(
            max(
                model.slo_us,
                *(
                    planned.application.slo_us
                    for planned in self.plan.applications
                    if model.name in [module.model for module in planned.application.modules]
                ),
                0,
            )
            for model in self.plan.models
        )

    @cached_property
    def step_patience_us(self) -> tuple[int, ...]:
        """By model: how long a run of a Python step is waited for whatever its profile says.

        Its time depends on what a client sends. 0 for models that are no steps.
        """
        steps = {step.name for step in self.plan.workload.steps}
        return tuple(
            slo_us if model.name in steps else 0
            for model, slo_us in zip(self.plan.models, self.longest_slos_us, strict=True)
        )

    @cached_property
    def _rows(self) -> dict[StagePlace, StageRow]:
        return {row.place: row for row in self.plan.stage_rows()}

    @cached_property
    def _rows_of_pools(self) -> tuple[tuple[StageRow, ...], ...]:
        rows = self._rows.values()
        return tuple(
            tuple(row for row in rows if row.pool == pool) for pool in range(len(self.plan.pools))
        )

    @cached_property
    def _layouts(self) -> dict[tuple[StageRow, int], SlotLayout]:
        """Made once each, because slots are known by the identity of their layout."""
        return {}

    # Stages: a row is a stage of a pipeline of a model, and the pool that holds it

    def row_of(self, model: int, pipeline: int, stage: int) -> StageRow:
        """The row of a stage that the plan has."""
        return self._rows[model, pipeline, stage]

    def rows_of(self, vgpu: int) -> tuple[StageRow, ...]:
        """Every stage that a vGPU holds, those of its pool."""
        return self._rows_of_pools[self.vgpus[vgpu].pool]

    def model_of(self, row: StageRow) -> ModelPlan:
        """The model of a stage."""
        return self.plan.models[row.model]

    def pipeline_of(self, row: StageRow) -> Pipeline:
        """The pipeline of a stage."""
        return self.model_of(row).pipelines[row.pipeline]

    def stage_of(self, row: StageRow) -> Stage:
        """A stage's planned values."""
        return self.pipeline_of(row).stages[row.stage]

    def planned_batch(self, row: StageRow) -> int:
        """Samples of a planned batch at a stage: its own where those of several pipelines join."""
        return self.stage_of(row).batch or self.pipeline_of(row).batch

    def inputs_of(self, row: StageRow) -> tuple[TensorSpec, ...]:
        """Tensors that enter a stage, as they cross the boundary."""
        return self.model_of(row).stage_inputs(row.pipeline, row.stage)

    def outputs_of(self, row: StageRow) -> tuple[TensorSpec, ...]:
        """Tensors that leave a stage, as they cross the boundary."""
        return self.model_of(row).stage_outputs(row.pipeline, row.stage)

    @cached_property
    def _batches(self) -> Mapping[str, ModelBatches]:
        return self.batches or plan_batches(self.plan, self.settings.policy)

    def _batches_of(self, row: StageRow) -> ModelBatches:
        return self._batches[self.model_of(row).name]

    def binds_late(self, model: int) -> bool:
        """True if batches of a model stay open until they are sent."""
        return self._batches[self.plan.models[model].name].late

    def largest_of(self, row: StageRow) -> int:
        """Most samples of a batch at a stage."""
        return self._batches_of(row).largest[row.pipeline]

    def capacity_of(self, row: StageRow) -> int:
        """Most samples of a joint run of a stage; 0 where each batch runs alone."""
        return self._batches_of(row).capacities[row.pipeline][row.stage]

    def most_in_a_run(self, row: StageRow) -> int:
        """Most samples that a stage runs at once: of a batch, or of all in a shared batch."""
        return max(self.largest_of(row), self.capacity_of(row))

    @cached_property
    def boards(self) -> bool:
        """True if batches of several pipelines run as one in any stage."""
        models = self._batches.values()
        return any(
            capacities for model in models for stages in model.capacities for capacities in stages
        )

    @cached_property
    def shared_batch_times(self) -> "SharedBatchTimes":
        """The time shared batches get, paid by the guard of every request.

        Timers of the scheduler ring before their instant by as much as `guard_us` is; half as long
        is left for a member that is late.
        """
        # Imported here, because of all processes only the scheduler's has its kernels.
        from triton_backend.scheduler.topology import SharedBatchTimes  # noqa: PLC0415

        guard_us = min(self.settings.guard_us(model.slo_us) for model in self.plan.models)
        return SharedBatchTimes(DOORS_US, guard_us + guard_us // 2)

    def largest_request(self, model: ModelPlan, entry: Entry | None = None) -> int:
        """Most samples of a request of a model, of one of its entries, or of an application."""
        if model.name not in self._batches:
            return self._largest_job(model.name)
        pairs = zip(model.pipelines, self._batches[model.name].largest, strict=True)
        return max(
            (n for p, n in pairs if entry is None or p.entry in {None, entry.name}), default=1
        )

    def _largest_job(self, application: str) -> int:
        """Most samples of a request of an application: each of its modules takes them at once.

        One where a module reads the request for each of the rows that another one gives it: none
        tells which sample such a row is of.
        """
        graph = self.applications.graph_of(application)
        for module in graph.modules:
            reads = any(source.startswith(f"{REQUEST}.") for source in module.inputs.values())
            if reads and module.parents and module.max_rows != 1:
                return 1
        modules = [module for module in graph.modules if module.max_rows == 1]
        models = [self.plan.model(module.model) for module in modules or graph.modules]
        return min(map(self.largest_request, models))

    def layout_of(self, row: StageRow, vgpu: int) -> SlotLayout:
        """How a batch of a stage lies in a slot of a worker."""
        known = self._layouts.get((row, vgpu))
        if known is None:
            known = SlotLayout(
                specs=self.inputs_of(row),
                batch=self.largest_of(row),
                least_bytes=self.slot_bytes(vgpu),
            )
            self._layouts[row, vgpu] = known
        return known

    # Tensors of clients, and between modules

    @cached_property
    def served(self) -> Mapping[str, ModelPlan]:
        """Models as clients see them, by name, applications among them."""
        return {model.name: model for model in served_models(self.plan)}

    def sizes_of(self, name: str) -> tuple[str, ...]:
        """Names of the served models of which clients ask by one name.

        Raises:
            InputError: the plan serves nothing of that name.
        """
        sizes = endpoints(self.plan).get(name) or (self.served_model(name),)
        return tuple(size.name for size in sizes)

    def served_model(self, name: str) -> ModelPlan:
        """One of them.

        Raises:
            InputError: the plan has none of that name.
        """
        return served_model(self.plan, name)

    @cached_property
    def applications(self) -> ServedApplications:
        """Its applications, and what their modules read of one another.

        With two gateways all models are modules: then a batch holds requests of two fronts, neither
        of which could gather it, nor take the other's part of the answer.
        """
        return ServedApplications(self.plan, all_models=self.settings.gateways > 1)

    def written_by(self, row: StageRow) -> tuple[TensorSpec, ...]:
        """The output arrays of a stage; where rows vary, [samples, most, ...]."""
        outputs = self.outputs_of(row)
        last = row.stage == len(self.pipeline_of(row).stages) - 1
        return self.applications.with_room(self.model_of(row).name, outputs) if last else outputs

    def least_us(self, name: str) -> int:
        """The least time of a request of a model or application as emulated, without waits."""
        return round(self.plan.least_us(name) * self.settings.time_stretch)

    def computes(self, vgpu: int) -> bool:
        """True if a vGPU has a stage that is not emulated.

        Its runs last longer where memory is new.
        """
        return any(self.stage_of(row).artifact is not None for row in self.rows_of(vgpu))

    def retaining_models(self, vgpu: int) -> tuple[ModelPlan, ...]:
        """The models whose outputs a vGPU retains."""
        last = (
            self.model_of(row)
            for row in self.rows_of(vgpu)
            if row.stage == len(self.pipeline_of(row).stages) - 1
        )
        return tuple(
            {m.name: m for m in last if m.name in self.applications.retained_models}.values()
        )

    def retained_slots(self, vgpu: int) -> int:
        """Slots for retained outputs of a vGPU, of both sets.

        Batches of one that end within the longest SLO of a job.
        """
        if not self.retaining_models(vgpu):
            return 0
        slo_us = max(self.served[graph.name].slo_us for graph in self.applications.graphs)
        rows = self.rows_of(vgpu)
        least_us = min(self.stage_of(row).latency_us_by_batch[0] for row in rows)
        own = min(math.ceil(slo_us / least_us) + MIN_SLOTS, MAX_RETAINED_SLOTS)
        return self.slot_sets * own

    def retained_layout(self, model: ModelPlan, vgpu: int) -> SlotLayout:
        """How the outputs of a batch of a model lie in a slot for retained outputs of a vGPU."""
        known = self._retained_layouts.get((model.name, vgpu))
        if known is None:
            own = [self._outputs_layout(one) for one in self.retaining_models(vgpu)]
            least_bytes = max(layout.slot_bytes for layout in own)
            known = replace(self._outputs_layout(model), least_bytes=least_bytes)
            self._retained_layouts[model.name, vgpu] = known
        return known

    @cached_property
    def _retained_layouts(self) -> dict[tuple[str, int], SlotLayout]:
        return {}

    def _outputs_layout(self, model: ModelPlan) -> SlotLayout:
        specs = self.applications.with_room(model.name, model.outputs)
        return SlotLayout(specs=specs, batch=self.largest_request(model))

    def retained_segment(self, vgpu: int) -> str:
        """Name of the segment of a vGPU's retained outputs; it outlives its worker."""
        return f"{self.settings.segment_prefix}g{self.generation}-s{vgpu}"

    # vGPUs

    def pool_of(self, vgpu: int) -> Pool:
        """The pool that a vGPU belongs to."""
        return self.plan.pools[self.vgpus[vgpu].pool]

    def seat_of(self, row: StageRow) -> SeatInterference | None:
        """Sensitivity and pressure of a stage, if the plan states them."""
        stated = self.plan.pools[row.pool].interference
        rows = self._rows_of_pools[row.pool]
        return None if stated is None else stated.seats[rows.index(row)]

    def beside(self, vgpu: int) -> tuple[int, ...]:
        """The other vGPUs of its GPU."""
        slot = self.vgpus[vgpu].slot
        here = (slot.node, slot.gpu)
        own = (v for v in self.vgpus if (v.slot.node, v.slot.gpu) == here)
        return tuple(v.index for v in own if v.index != vgpu)

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

    # Workers: their names are those of the generation that they were started for

    @cached_property
    def origins(self) -> tuple[WorkerOrigin, ...]:
        """Of every worker."""
        workers = self.workers or Workers.first(self.plan, self.generation, self.settings.base_port)
        return workers.origins

    @cached_property
    def _origin_deployments(self) -> dict[int, "Deployment"]:
        """Of other generations; with itself among them a deployment would hold itself in memory."""
        return {}

    def origin_of(self, vgpu: int) -> tuple["Deployment", int]:
        """The generation that a worker was started for, and its vGPU's number there."""
        generation, number, _ = self.origins[vgpu]
        if generation == self.generation:
            return self, number
        known = self._origin_deployments.get(generation)
        if known is None:
            known = self._origin_deployments[generation] = Deployment.read(
                self.settings, generation
            )
        return known, number

    def number_of(self, origin: WorkerOrigin) -> int | None:
        """The vGPU number of a worker here; None where it has none."""
        return self.origins.index(origin) if origin in self.origins else None

    def slot_bytes(self, vgpu: int) -> int:
        """Size of a worker's slots.

        As large as the largest stage that it was started for needs them.
        """
        origin, number = self.origin_of(vgpu)
        if origin is not self:
            return origin.slot_bytes(number)
        return max(self._slot_needs[self.vgpus[vgpu].pool].slot_bytes, ALIGNMENT)

    def worker_layout(self, vgpu: int) -> SlotLayout:
        """How a batch of a worker's first stage lies; slots are of one size for all its stages."""
        return self.layout_of(self.rows_of(vgpu)[0], vgpu)

    @cached_property
    def _slot_needs(self) -> tuple[SlotNeeds, ...]:
        return slot_needs(self.plan)

    def worker_slots(self, vgpu: int) -> int:
        """Slots of a worker for one scheduler.

        As many batches of one as can be reserved in the longest SLO.
        """
        origin, number = self.origin_of(vgpu)
        if origin is not self:
            return origin.worker_slots(number)
        return self._slot_needs[self.vgpus[vgpu].pool].slots

    @property
    def slot_sets(self) -> int:
        """Sets of slots that a worker has.

        Two lives of the scheduler in turn grant none of the other's.
        """
        return 2 if self.settings.standby else 1

    def segment_slots(self, vgpu: int) -> int:
        """Slots of a worker's segment, those of both sets.

        There are twice as many as batches need: slots that are held after a fault keep none
        waiting.
        """
        return 2 * self.slot_sets * self.worker_slots(vgpu)

    def worker_segment(self, vgpu: int) -> str:
        """Name of a worker's segment."""
        generation, number, _ = self.origins[vgpu]
        return f"{self.settings.segment_prefix}g{generation}-w{number}"

    def worker_address(self, vgpu: int, *, same_host: bool) -> str:
        """Where a worker takes batches."""
        if same_host:
            generation, number, _ = self.origins[vgpu]
            return f"unix:{self.settings.socket_folder}/g{generation}-w{number}"
        host = self.settings.hosts.get(self.node_name_of(vgpu), self.settings.gateway_host)
        return f"tcp:{host}:{self.worker_port(vgpu)}"

    def worker_port(self, vgpu: int) -> int:
        """TCP port of a worker."""
        return self.origins[vgpu].port

    def front_layout(self, model: ModelPlan) -> SlotLayout:
        """How an answer lies in a slot of a front."""
        return SlotLayout(specs=model.outputs, batch=self.largest_request(model))

    def front_slots(self, model: int) -> int:
        """Answer slots of a front: one for every batch that its last stages may hold."""
        pipelines = self.plan.models[model].pipelines
        lasts = {
            self.row_of(model, number, len(pipeline.stages) - 1).pool
            for number, pipeline in enumerate(pipelines)
        }
        slots = (self.worker_slots(v.index) for v in self.vgpus if v.pool in lasts)
        return min(sum(slots), 4 * MAX_SLOTS)

    def front_segment(self, model: str) -> str:
        """Name of a front's segment."""
        return f"{self.settings.segment_prefix}g{self.generation}-f{short_name(model)}"

    def request_slots(self, model: ModelPlan) -> int:
        """Slots of a front that answers from retained outputs: one for a request's inputs."""
        return 2 * self.max_waiting(model)

    def express_slots(self, model: int) -> range:
        """Slots of a front for express requests and their answers, after its other answer slots."""
        plan, slots = self.plan.models[model], self.front_slots(model)
        quick = {
            self.row_of(model, number, 0).pool
            for number, pipeline in enumerate(plan.pipelines)
            if pipeline.batch == 1 and pipeline.latency_us < EXPRESS_LATENCY_US
        }
        small = self.express_layout(plan).bytes_per_sample <= EXPRESS_BYTES
        used = small and not plan.entries and plan.name not in self.applications.retained_models
        used = used and any(v.pool in quick and self.at_gateway(v.index) for v in self.vgpus)
        return range(slots, 2 * slots if used else slots)

    def express_layout(self, model: ModelPlan) -> SlotLayout:
        """How an express request, or one of a module, lies in a slot of its front.

        A slot has room for the tensors of every entry, of which a request brings those of one.
        """
        specs = brought(model) if model.name in self.applications.retained_models else model.inputs
        return SlotLayout(specs=specs, batch=self.largest_request(model))

    def express_segment(self, model: str, gateway: int = 0) -> str:
        """Name of a front's segment in a gateway for express requests and those of modules."""
        name = f"{short_name(model)}{gateway_suffix(gateway)}"
        return f"{self.settings.segment_prefix}g{self.generation}-e{name}"

    def front_port(self, model: str) -> int:
        """TCP port of a front, the same in every generation."""
        return self.front_ports[model]

    def same_host(self, node: str, other: str | None) -> bool:
        """True if two nodes (None: the gateway) share memory."""
        mine = self.settings.hosts.get(node)
        return mine == (None if other is None else self.settings.hosts.get(other))

    def at_gateway(self, vgpu: int) -> bool:
        """True if a vGPU shares memory with the gateway."""
        return self.same_host(self.node_name_of(vgpu), None)

    def max_waiting(self, model: ModelPlan) -> int:
        """Requests a front holds at most: four SLOs' worth at the planned rate."""
        at_rate = 4 * model.throughput_rps * model.slo_us / 1e6
        return math.ceil(at_rate) + 8 * self.largest_request(model)


def check_complete(plan: Plan, where: str) -> Plan:
    """The plan, if every tensor that is served is named.

    Raises:
        InputError: a model without pipelines, or a tensor that is not named, or a name of two.
    """
    for model in plan.models:
        if not model.pipelines:
            raise InputError(where, f"model {model.name!r} has no pipeline")
        inner = (s.boundary for p in model.pipelines for s in p.stages[:-1])
        cuts = (entry.inputs for entry in model.entries)
        if not model.inputs or not model.outputs or not all(inner) or not all(cuts):
            raise InputError(where, f"model {model.name!r} does not name all of its tensors")
        request_tensors(model)
    return plan
