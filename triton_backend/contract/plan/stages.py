"""Stages, pipelines and models of a plan, as `plan.json` has them."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

from triton_backend.contract.entries import Entry, check_entries
from triton_backend.contract.errors import InputError
from triton_backend.contract.fields import About, Fields, Form, check_form, check_name
from triton_backend.contract.tensors import EXAMPLE, TensorSpec

# Of plans that name none. Under `reservation` a backlog once there, after a stall say, stays while
# the overload does: late heads allow small batches only, which make all later ones late.
DEFAULT_POLICY = "reservation-ahead"
# Stages: what a scheduler decides at once about a batch of so many fits its memory.
LONGEST_PIPELINE = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class StageMemory(Form):
    """Bytes a stage takes on its vGPU."""

    static: Annotated[int, About("Bytes held always (weights).", 5000000, least=0)]
    dynamic: Annotated[int, About("Bytes held while it runs.", 12000000, least=0)]

    def __post_init__(self) -> None:
        check_form("memory_bytes", self)


def _read_blocks(fields: Fields) -> tuple[int, int]:
    blocks = fields.integers("blocks")
    if len(blocks) != 2:  # noqa: PLR2004 - first and last
        raise fields.wrong("blocks", f"{list(blocks)} is not [first, last)")
    return blocks[0], blocks[1]


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage(Form):
    """Blocks [first, last) of a model on a pool, which it names.

    `latency_us_by_batch[b - 1]` is the run time of batch b. `transfer_us` is 0 for the last stage;
    the bytes that leave it are the answer's, 0 where not known. A stage that boards joins batches
    with the model's other pipelines on its pool: its batch is how many samples one batch takes in
    all. One with `load_us` is loaded on demand: every run is reckoned with a load.
    """

    blocks: Annotated[
        tuple[int, int],
        About("First block, and the block after the last.", [0, 4], read=_read_blocks),
    ]
    pool: Annotated[str, About("Pool that runs it.", "p4-0")]
    batch: Annotated[int | None, About("Planned batch, if not the pipeline's.", 8, least=1)] = None
    latency_us: Annotated[int, About("Run time of the planned batch, in µs.", 52000)]
    transfer_us: Annotated[
        int, About("Time to move a batch to the next stage, in µs.", 900, least=0)
    ]
    latency_us_by_batch: Annotated[
        tuple[int, ...],
        About(
            "Run time of batch 1, 2, …, in µs.",
            [16000, 28000, 40000, 52000],
            read=lambda f: f.integers("latency_us_by_batch", least=1),
        ),
    ]
    boundary_bytes_per_sample: Annotated[
        int, About("Bytes leaving it per sample.", 401408, least=0)
    ]
    duty_cycle_us: Annotated[
        int | None, About("Period of its turn on a shared vGPU, in µs.", 40000, least=1)
    ] = None
    boundary: Annotated[
        tuple[TensorSpec, ...] | None, About("Tensors that leave it.", [EXAMPLE], kind="tensor[]")
    ] = None
    memory: Annotated[
        StageMemory | None,
        About("Memory of its GPU.", {"static": 5000000, "dynamic": 0}, "memory_bytes", "memory"),
    ] = None
    load_us: Annotated[
        int | None,
        About(
            "Time of a load, which its latencies contain, in µs, if it is loaded on demand.",
            46000,
            least=1,
        ),
    ] = None
    artifact: Annotated[
        str | None, About("Folder that the runtime loads; absent if emulated.", "9a/1f…")
    ] = None
    boards: Annotated[
        bool, About("Batches of several pipelines run together here.", example=True)
    ] = False

    def __post_init__(self) -> None:
        where = f"stage {list(self.blocks)} on pool {self.pool!r}"
        if self.artifact is not None:
            check_name(f"{where}, artifact", self.artifact)
        if not 0 <= self.blocks[0] < self.blocks[1]:
            raise InputError(where, "blocks must be [first, last) with first < last")
        if not self.latency_us_by_batch or min(self.latency_us_by_batch) < 1:
            raise InputError(where, "latency_us_by_batch must be positive")
        check_form(where, self)
        if self.batch is not None and self.batch > self.largest:
            reason = f"{self.batch}, but latencies are known for batches 1 to {self.largest}"
            raise InputError(f"{where}, batch", reason)
        if self.load_us is not None:
            self._check_on_demand(f"{where}, load_us", self.load_us)

    def _check_on_demand(self, where: str, load_us: int) -> None:
        if self.memory is None:
            raise InputError(where, "needs memory_bytes: what is loaded must find room")
        if self.boards:
            raise InputError(where, "a stage that boards is not loaded on demand")
        shortest = min(self.latency_us_by_batch)
        if shortest <= load_us:
            reason = f"a load of {load_us} µs is contained in no run of {shortest} µs"
            raise InputError(where, reason)

    @property
    def largest(self) -> int:
        """Largest batch with a known latency."""
        return len(self.latency_us_by_batch)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pipeline(Form):
    """Stages that follow one another without a gap, one batch size for all.

    `throughput_rps` is its planned rate: what its slowest pool delivers, or less where the plan
    promises its model less than all pipelines together deliver. It is 0 for best-effort pipelines:
    whole models on GPUs that are free, which may use part of the SLO's margin and promise nothing.
    It names an entry where the model lists some. What its first stage reads of modules before it
    takes `input_transfer_us`, where the plan counts that (`with_module_transfers`).
    """

    entry: Annotated[str | None, About("Entry whose requests it takes.", "tails")] = None
    batch: Annotated[int, About("Planned batch size.", 4, least=1)]
    throughput_rps: Annotated[
        float, About("Planned rate; 0 for best effort.", 35.3, least=0, missing=0.0)
    ]
    latency_us: Annotated[
        int, About("Time of a planned batch, transfers included, in µs.", 96000, missing=0)
    ]
    input_bytes_per_sample: Annotated[
        int,
        About(
            "Bytes per sample from earlier modules, if their transfers count.",
            602112,
            least=0,
            written=False,
        ),
    ] = 0
    input_transfer_us: Annotated[
        int,
        About("Time to move them to the first stage, in µs.", 19268, least=0, written=False),
    ] = 0
    occupied_vgpus: Annotated[
        float | None, About("vGPUs it keeps busy, if billed by occupancy.", 1.6)
    ] = None
    stages: Annotated[
        tuple[Stage, ...],
        About("Its stages, without a gap between their blocks.", [], kind="stage[]"),
    ]

    def __post_init__(self) -> None:
        if self.occupied_vgpus is not None and not 0 < self.occupied_vgpus < float("inf"):
            raise InputError("pipeline, occupied_vgpus", f"{self.occupied_vgpus} is not positive")
        if self.batch < 1 or not 0 < len(self.stages) <= LONGEST_PIPELINE:
            reason = f"batch {self.batch} and {len(self.stages)} stages, at most {LONGEST_PIPELINE}"
            raise InputError("pipeline", reason)
        at = self.stages[0].blocks[0]
        for stage in self.stages:
            if stage.blocks[0] != at:
                raise InputError("pipeline", f"a stage starts at block {stage.blocks[0]}, not {at}")
            if stage.largest < (stage.batch or self.batch):
                raise InputError("pipeline", f"no latency for batch {self.batch} in {stage.blocks}")
            at = stage.blocks[1]

    @property
    def first_block(self) -> int:
        """The block it starts with."""
        return self.stages[0].blocks[0]

    @property
    def blocks(self) -> int:
        """The block after its last."""
        return self.stages[-1].blocks[1]

    @property
    def largest(self) -> int:
        """Largest batch that every stage has a latency for."""
        return min(stage.largest for stage in self.stages)

    @property
    def alone_us(self) -> int:
        """The time of a batch of one without waits, moves included."""
        moves_us = self.input_transfer_us
        return moves_us + sum(s.latency_us_by_batch[0] + s.transfer_us for s in self.stages)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelPlan(Form):
    """All pipelines of one model; `throughput_rps`, its planned rate, is their sum.

    A `pool` plan promises weight x objective (or the rate asked for) and keeps what GPUs deliver
    beyond that as slack, as the published plans do; the baselines promise all they deliver.
    Without entries, requests come in at block 0 with the SLO as budget.
    """

    name: Annotated[str, About("Name of the model.", "squeezenet")]
    slo_us: Annotated[int, About("Latency objective in µs.", 200000, least=1)]
    throughput_rps: Annotated[
        float, About("Planned rate, in requests/s.", 70.7, least=0, missing=0.0)
    ]
    policy: Annotated[str, About("Dispatch policy that it was planned for.", DEFAULT_POLICY)] = (
        DEFAULT_POLICY
    )
    inputs: Annotated[
        tuple[TensorSpec, ...], About("Tensors of a request.", [EXAMPLE], kind="tensor[]")
    ] = ()
    outputs: Annotated[
        tuple[TensorSpec, ...], About("Tensors of the answer.", [EXAMPLE], kind="tensor[]")
    ] = ()
    split: Annotated[str | None, About("Key of the split whose blocks these are.", "8c1d…")] = None
    entries: Annotated[
        tuple[Entry, ...], About("Blocks at which requests come in.", [], written=False)
    ] = ()
    pipelines: Annotated[tuple[Pipeline, ...], About("Ways through the pools.", [])]

    def __post_init__(self) -> None:
        check_name("models.name", self.name)
        where = f"model {self.name!r}"
        if not self.policy:
            raise InputError(f"{where}, policy", "is empty")
        if len({p.blocks for p in self.pipelines}) > 1:
            raise InputError(where, "pipelines end at different blocks")
        check_entries(self.name, self.entries, self.blocks)
        known = {entry.name: entry.block for entry in self.entries}
        for number, pipeline in enumerate(self.pipelines):
            self._check_entry(f"{where}, pipeline {number}", pipeline, known)
        served = {pipeline.entry for pipeline in self.pipelines}
        for name in known:
            if name not in served:
                raise InputError(f"{where}, entry {name!r}", "has no pipeline")

    def _check_entry(self, where: str, pipeline: Pipeline, known: Mapping[str, int]) -> None:
        if pipeline.entry is not None and pipeline.entry not in known:
            listed = ", ".join(known) or "none"
            reason = f"{pipeline.entry!r} is not one of the model's entries ({listed})"
            raise InputError(f"{where}, entry", reason)
        if known and pipeline.entry is None:
            raise InputError(f"{where}, entry", f"is missing; the model has {', '.join(known)}")
        block = 0 if pipeline.entry is None else known[pipeline.entry]
        if pipeline.first_block != block:
            reason = f"starts at block {pipeline.first_block}, its entry at {block}"
            raise InputError(f"{where}, stages", reason)

    @property
    def blocks(self) -> int:
        """Blocks of the model."""
        return self.pipelines[0].blocks if self.pipelines else 0

    @property
    def queues(self) -> tuple[Entry, ...]:
        """One entry per queue of requests: those listed, or block 0 with the SLO as budget."""
        return self.entries or (
            Entry(
                name=self.name, block=0, budget_us=self.slo_us, rate_rps=max(self.throughput_rps, 0)
            ),
        )

    def stage_inputs(self, pipeline: int, stage: int) -> tuple[TensorSpec, ...]:
        """The tensors that enter a stage, as far as the plan names them."""
        path = self.pipelines[pipeline]
        if stage:
            return path.stages[stage - 1].boundary or ()
        return next((e.inputs for e in self.entries if e.name == path.entry), self.inputs)

    def stage_outputs(self, pipeline: int, stage: int) -> tuple[TensorSpec, ...]:
        """The tensors that leave a stage, as far as the plan names them."""
        stages = self.pipelines[pipeline].stages
        return self.outputs if stage == len(stages) - 1 else stages[stage].boundary or ()
