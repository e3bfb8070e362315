"""What every process of a running system must know: settings of the system, plan of a generation.

The settings file is rendered once per start (`model_repo_templates/settings.json.j2`); every
rollout adds a folder `generations/N` with a completed `plan.json`. A `Deployment` is both together
and answers where things are: sockets, segments, layouts, slots. All processes compute the same
answers from the same two files, so nobody has to be told.
"""

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Self

from triton_backend.contract.errors import InputError
from triton_backend.contract.plan import ModelPlan, Pipeline, Plan, Stage, VGpu
from triton_backend.contract.tensors import TensorSpec
from triton_backend.runtimes.stage_tensors import stage_inputs, stage_outputs
from triton_backend.scheduler.policies import SERVING_POLICY
from triton_backend.serving.layout import SlotLayout

MIN_SLOTS = 4
MIN_GUARD_US = 3_000
MAX_SLOTS = 64
# Requests that are larger, take longer or wait for company gain little from a hand-over less.
EXPRESS_BYTES = 1 << 16
EXPRESS_LATENCY_US = 15_000
SETTINGS_NAME = "settings.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeSettings:
    """One running system.

    Attributes:
        system: the same on all hosts; frames of another system are refused.
        instance: prefix of all this host leaves outside its folder (shared memory, sockets).
        folder: state file, model repository, generations, logs and event files.
        socket_folder: Unix sockets (short, because their paths may have 107 bytes).
        python: interpreter that workers run under.
        artifacts: root of the artifacts that plans name; None for emulated plans only.
        token: opens the repository API, the control request and TCP connections.
        emulate_links: transfers last as long as on the cluster's own links.
        noise: standard deviation of emulated latencies as a fraction of the latency.
        time_stretch: emulated latencies and transfers last this many times what the plan says;
            the plan must have been stretched alike.
        guard_fraction: part of a request's time that is kept back from the scheduler, for the way
            to and from it and for this machine's jitter (at least `MIN_GUARD_US`, at most a half);
            its timers ring as much earlier again.
        hosts: address of each node's host by node name; nodes not named run on this one.
        gateway_host: address of the host of fronts and scheduler, as nodes elsewhere reach it.
        base_port: first of the TCP ports used when there are several hosts.
        host_http_port: HTTP port of the other hosts' Tritons, where a rollout loads their nodes.
    """

    system: str
    instance: str
    folder: Path
    socket_folder: Path
    token: str
    python: str
    artifacts: Path | None = None
    policy: str = SERVING_POLICY
    nic: str = "shared"
    emulate_links: bool = False
    noise: float = 0.0
    time_stretch: float = 1.0
    guard_fraction: float = 0.1
    seed: int = 0
    checksum_up_to_bytes: int = 1 << 14
    hosts: Mapping[str, str] = field(default_factory=dict[str, str])
    gateway_host: str = "127.0.0.1"
    base_port: int = 18_500
    host_http_port: int = 8000

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read the settings file.

        Raises:
            InputError: it is missing or not a settings file.
        """
        try:
            data: dict[str, Any] = json.loads(path.read_text())
            artifacts = data.pop("artifacts", None)
            return cls(
                folder=Path(data.pop("folder")),
                socket_folder=Path(data.pop("socket_folder")),
                artifacts=None if artifacts is None else Path(artifacts),
                **data,
            )
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise InputError(str(path), f"not a settings file: {error}") from error

    def guard_us(self, allowed_us: int) -> int:
        """What is kept back of the time that a request allows."""
        return min(max(round(self.guard_fraction * allowed_us), MIN_GUARD_US), allowed_us // 2)

    @property
    def segment_prefix(self) -> str:
        """How every shared-memory segment of this system begins."""
        return f"poolpipe-{self.instance}-"

    @property
    def stub_prefix(self) -> str:
        """How the segments of Triton's own Python backend begin."""
        return f"poolpipe-{self.instance}-stub"

    def generation_folder(self, generation: int) -> Path:
        """Where a generation's plan lies."""
        return self.folder / "generations" / str(generation)

    def scheduler_address(self) -> str:
        """Where the scheduler listens on its own host."""
        return f"unix:{self.socket_folder}/scheduler"

    def scheduler_address_from(self, node: str) -> str:
        """Where processes of a node reach the scheduler."""
        if node in self.hosts:
            return f"tcp:{self.gateway_host}:{self.base_port}"
        return self.scheduler_address()

    def front_address(self, model: str) -> str:
        """Where a front takes answers on its own host."""
        return f"unix:{self.socket_folder}/front-{short_name(model)}"


def short_name(name: str) -> str:
    """A name of any length and letters as ten hexadecimal digits."""
    return hashlib.sha256(name.encode()).hexdigest()[:10]


@dataclass(frozen=True)
class Deployment:
    """One generation of a running system: settings, plan and what follows from both."""

    settings: ServeSettings
    generation: int
    plan: Plan

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
        return cls(settings, generation, check_complete(Plan.from_dict(data), str(path)))

    @cached_property
    def tag(self) -> int:
        """64 bits that every frame of this generation carries."""
        text = f"{self.settings.system}/{self.generation}/{self.plan.plan_id}"
        return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little")

    @cached_property
    def vgpus(self) -> tuple[VGpu, ...]:
        """The plan's vGPUs by number."""
        return self.plan.vgpus()

    def model_of(self, vgpu: int) -> ModelPlan:
        """The model a vGPU works for."""
        return self.plan.models[self.vgpus[vgpu].model]

    def pipeline_of(self, vgpu: int) -> Pipeline:
        """The pipeline a vGPU works in."""
        return self.model_of(vgpu).pipelines[self.vgpus[vgpu].pipeline]

    def stage_of(self, vgpu: int) -> Stage:
        """The stage a vGPU runs."""
        return self.pipeline_of(vgpu).stages[self.vgpus[vgpu].stage]

    def inputs_of(self, vgpu: int) -> tuple[TensorSpec, ...]:
        """Tensors that enter a vGPU's stage, as they cross the boundary."""
        place = self.vgpus[vgpu]
        return stage_inputs(self.model_of(vgpu), place.pipeline, place.stage)

    def outputs_of(self, vgpu: int) -> tuple[TensorSpec, ...]:
        """Tensors that leave a vGPU's stage, as they cross the boundary."""
        place = self.vgpus[vgpu]
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
        return self.settings.base_port + 1000 + 2 * vgpu + self.generation % 2

    def front_layout(self, model: ModelPlan) -> SlotLayout:
        """How an answer lies in a slot of a front."""
        return SlotLayout(specs=model.outputs, batch=largest_batch(model))

    def front_slots(self, model: int) -> int:
        """Answer slots of a front: one for every batch that its last stages may hold."""
        lasts = (
            v.index
            for v in self.vgpus
            if v.model == model and v.stage == len(self.pipeline_of(v.index).stages) - 1
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
            v.model == model and v.stage == 0 and v.pipeline in quick and self.at_gateway(v.index)
            for v in self.vgpus
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
        return self.settings.base_port + 1 + int(short_name(model), 16) % 900

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
    for model in plan.models:
        if not model.pipelines:
            raise InputError(where, f"model {model.name!r} has no pipeline")
        inner = (s.boundary for p in model.pipelines for s in p.stages[:-1])
        if not model.inputs or not model.outputs or not all(inner):
            raise InputError(where, f"model {model.name!r} does not name all of its tensors")
    return plan
