"""A batch that was sent, and a shared batch of several, as the scheduler's process knows them."""

from dataclasses import dataclass, field

from triton_backend.contract.decisions import Dispatch, SharedBatch
from triton_backend.contract.plan import StagePlace
from triton_backend.serving.gateway.applications.job import RetainedOutputSlot
from triton_backend.serving.gateway.batches.generation import Generation
from triton_backend.serving.transport.wire import TimesBody


@dataclass(slots=True)
class BatchInFlight:
    """A batch that was sent.

    Attributes:
        generation: by whose plan its model, pipeline and vGPUs are numbered.
        slots: granted at every stage.
        heard_us: when it was sent, or last reported of.
        reported: stages that have reported their end.
        early: reports of stages whose stage before has not reported yet; None: it failed there.
        output_slot: of its retained outputs, where it is of modules.
        given: rows that each of its samples gave, for every count of its model; then the place of
            each one's shape, for every choice of sizes.
        failed: no outputs of it will be retained.
        low: all of its requests are low.
    """

    generation: Generation
    dispatch: Dispatch
    slots: list[int]
    heard_us: int
    reported: int = 0
    early: dict[int, TimesBody | None] = field(default_factory=dict[int, TimesBody | None])
    output_slot: RetainedOutputSlot | None = None
    given: tuple[tuple[int, ...], ...] = ()
    failed: bool = False
    low: bool = False

    def place(self, stage: int) -> StagePlace:
        """Which stage of the plan a stage of its path is."""
        return self.dispatch.model, self.dispatch.pipeline, stage

    def complete(self) -> bool:
        """True if all that its retained outputs mean is known."""
        deployment = self.generation.deployment
        name = deployment.plan.models[self.dispatch.model].name
        return len(self.given) == len(deployment.applications.row_groups(name)) + len(
            deployment.applications.choices(name)
        )

    def expects(self, stage: int) -> bool:
        """True if a stage exists and has not reported."""
        return self.reported <= stage < len(self.slots)

    def keep_early(self, stage: int, times: TimesBody, now_us: int) -> None:
        """Keep a report that is not the next, where it is from the worker of a later stage.

        Two workers' sockets are read in any order where this process was kept waiting.
        """
        later = self.reported < stage < len(self.slots)
        if later and self.dispatch.hops[stage].vgpu == times.vgpu:
            self.early[stage] = times
            self.heard_us = now_us


@dataclass(slots=True)
class SharedBatchInFlight:
    """Batches that run together.

    Attributes:
        generation: by whose plan its members and its vGPU are numbered.
        decision: how it is now.
        done: when it ran and with which members, until all of them have reported the stages before.
    """

    generation: Generation
    vgpu: int
    decision: SharedBatch
    done: tuple[TimesBody, frozenset[int]] | None = None
