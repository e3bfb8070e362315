"""Options of `simulate`: a dataclass for each kind of run, which says what goes together.

All are run by a scheduler (`ServedRun`). Load comes from clients that follow their links
(`ClientsRun`), or is offered (`OfferedRun`): once (`PlainRun`), at many factors (`GoodputRun`) or
epoch by epoch (`EpochRun`).
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar

import typer

from flows.cli import shared_options
from flows.cli.shared_options import pairs
from triton_backend.contract.errors import InputError

if TYPE_CHECKING:
    from flows.cli.simulate.request import SimulationRequest
    from flows.workspace import Workspace
    from triton_backend.simulator.scenario import SimOptions

_DISPATCH, _LOAD = "Dispatch", "Load"
_HARDWARE, _CHANGES, _TRACES = "Emulated hardware", "Changes", "Traces"
_GOODPUT, _EPOCHS, _CLIENTS = "Goodput", "Epochs", "Edge clients"


@dataclass(frozen=True, kw_only=True)
class ServedRun:
    """How requests are dispatched, and on which hardware."""

    policy: shared_options.PolicyOfAll = None
    lead_us: shared_options.LeadUs = 0
    lead_us_per_sample: shared_options.LeadUsPerSample = 0
    shared_batches: Annotated[
        bool,
        typer.Option(
            rich_help_panel=_DISPATCH,
            help="Share batches between pipelines in the stages where the plan joins them; with "
            "--no-shared-batches each pipeline runs its own.",
        ),
    ] = True
    admission: Annotated[
        bool,
        typer.Option(
            "--admission",
            rich_help_panel=_DISPATCH,
            help="Refuse requests on arrival under overload, as the gateway does for early "
            "binding. Late binding has the same rule here; the gateway refuses none of it.",
        ),
    ] = False
    heads: shared_options.Heads = None
    target: shared_options.Target = None
    rank: shared_options.Rank = None
    batch_timeout_ms: shared_options.BatchTimeoutMs = None
    batch_timeout_share: shared_options.BatchTimeoutShare = None
    nic: shared_options.Nic = "shared"
    count_io: Annotated[
        bool,
        typer.Option(
            "--count-io",
            rich_help_panel=_HARDWARE,
            help="Also send inputs and answers over the network links.",
        ),
    ] = False
    latency_factor: Annotated[
        float,
        typer.Option(
            metavar="FACTOR",
            min=0.01,
            max=100.0,
            rich_help_panel=_HARDWARE,
            help="True run times over those of the profile, which the plan rests on.",
        ),
    ] = 1.0
    noise: Annotated[
        float,
        typer.Option(
            metavar="FACTOR",
            min=0.0,
            max=10.0,
            rich_help_panel=_HARDWARE,
            help="Coefficient of variation of a stage's run time.",
        ),
    ] = 0.0
    measured: Annotated[
        bool,
        typer.Option(
            rich_help_panel=_HARDWARE,
            help="Follow run times other than the profile's as a gateway does, by earlier "
            "deadlines and longer expected times; with --no-measured both stay as planned.",
        ),
    ] = True
    interference: Annotated[
        str,
        typer.Option(
            metavar="planned|overlap|off",
            rich_help_panel=_HARDWARE,
            help="Slow-down on shared GPUs: the planned factor, computed from the actual "
            "overlap, or none.",
        ),
    ] = "planned"
    interference_noise: Annotated[
        float,
        typer.Option(
            metavar="SHARE",
            min=0.0,
            max=10.0,
            rich_help_panel=_HARDWARE,
            help="With --interference overlap: 90th percentile of the relative error of the "
            "slow-down.",
        ),
    ] = 0.0
    duration: shared_options.Duration = 30.0
    seed: shared_options.Seed = 0

    def sim_options(self, work: "Workspace") -> "SimOptions":
        """The options of the simulator.

        Raises:
            InputError: an option is wrong.
        """
        from triton_backend.simulator.scenario import SimOptions

        del work
        known = {field.name for field in fields(SimOptions)}
        same = [field.name for field in fields(ServedRun) if field.name in known]
        return SimOptions(
            duration_s=self.duration,
            latency_noise_cv=self.noise,
            **{name: getattr(self, name) for name in same},
        )


@dataclass(frozen=True, kw_only=True)
class OfferedRun(ServedRun):
    """The same, and what is offered: a process or a trace, at a rate."""

    arrivals: shared_options.ArrivalsFrom = "poisson"
    shape: shared_options.Shape = shared_options.SHAPE
    load_factor: shared_options.LoadFactor = None
    low_load_factor: Annotated[
        float,
        typer.Option(
            metavar="FACTOR",
            min=0.0,
            rich_help_panel=_LOAD,
            help="Offer this share of each model's planned rate as low requests on top, which are "
            "served with what others leave.",
        ),
    ] = 0.0
    rate: shared_options.Rate = None
    reference_plan: shared_options.ReferencePlan = None
    model: shared_options.Models = None
    application: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            rich_help_panel=_LOAD,
            help="Send load to this application only; repeat it for several applications.",
        ),
    ] = None
    rows: Annotated[
        str,
        typer.Option(
            metavar="poisson|fixed",
            rich_help_panel=_LOAD,
            help="Rows per module: drawn for every job, or constant and as near to the mean as "
            "whole numbers allow.",
        ),
    ] = "poisson"
    trace_time: shared_options.TraceTime = shared_options.TIME_COLUMN
    trace_model: shared_options.TraceModel = None
    trace_interval: shared_options.TraceInterval = None
    trace_names: shared_options.TraceNames = None
    trace_as_is: Annotated[
        bool,
        typer.Option(
            "--trace-as-is",
            rich_help_panel=_TRACES,
            help="Send requests at the times of the trace, once and unscaled, with its columns "
            "deadline_ms, samples and entry.",
        ),
    ] = False

    def __post_init__(self) -> None:
        for value, option in ((self.load_factor, "--load-factor"), (self.rate, "--rate")):
            self._unscaled(option, value)
        trace = shared_options.of_trace(self) | {"--trace-as-is": self.trace_as_is}
        shared_options.check_load(self.arrivals, self.shape, self.load_factor, self.rate, trace)

    def _unscaled(self, option: str, value: float | None) -> None:
        if self.trace_as_is and value is not None:
            raise InputError(option, "scales arrivals, which --trace-as-is keeps as they are")

    def request(self, work: "Workspace") -> "SimulationRequest":
        """The simulation's request, as it is stored with a run.

        Raises:
            InputError: an option is wrong.
        """
        from flows.cli.simulate.request import OfferedLoad, SimulationRequest

        return SimulationRequest(
            options=self.sim_options(work),
            load=OfferedLoad(
                arrivals=self.arrivals,
                shape=self.shape,
                time_column=self.trace_time,
                model_column=self.trace_model,
                interval_s=self.trace_interval,
                names=pairs("--map", self.trace_names),
                as_is=self.trace_as_is,
            ),
        )

    def sim_options(self, work: "Workspace") -> "SimOptions":
        """The options of the simulator without the arrivals."""
        from flows.workspace import find_plan

        reference = self.reference_plan
        return replace(
            ServedRun.sim_options(self, work),
            load_factor=1.0 if self.load_factor is None else self.load_factor,
            low_load_factor=self.low_load_factor,
            rate_rps=self.rate,
            reference=None if reference is None else find_plan(work, reference),
            models=None if self.model is None else tuple(self.model),
            applications=None if self.application is None else tuple(self.application),
            rows=self.rows,
        )


@dataclass(frozen=True, kw_only=True)
class PlainRun(OfferedRun):
    """A run from beginning to end, with failures and changes of plan on the way."""

    fail: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NODE[:GPU]@FROM-TO",
            rich_help_panel=_CHANGES,
            help="Take a node, a GPU or a vGPU (vgpu:3@5-10) away between two instants, in "
            "seconds.",
        ),
    ] = None
    change: Annotated[
        list[str] | None,
        typer.Option(
            metavar="SECONDS=PLAN",
            rich_help_panel=_CHANGES,
            help="Switch to this plan at this instant, with work in flight; repeat it for several.",
        ),
    ] = None
    flush: Annotated[
        bool,
        typer.Option(
            "--flush",
            rich_help_panel=_CHANGES,
            help="Switch plans only when no work is in flight.",
        ),
    ] = False
    records: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write one row per request to this Parquet file."),
    ] = None

    def sim_options(self, work: "Workspace") -> "SimOptions":
        """The options of the simulator without the arrivals."""
        from flows.cli.simulate.request import parse_change, parse_failure
        from flows.workspace import find_plan
        from triton_backend.simulator.scenario import PlanChange

        return replace(
            OfferedRun.sim_options(self, work),
            failures=tuple(map(parse_failure, self.fail or ())),
            changes=tuple(
                PlanChange(at_s=at_s, plan=find_plan(work, name), flush=self.flush)
                for at_s, name in map(parse_change, self.change or ())
            ),
        )

    def __post_init__(self) -> None:
        OfferedRun.__post_init__(self)
        if self.flush and not self.change:
            raise InputError("--flush", "needs --change, the plan to switch to")


@dataclass(frozen=True, kw_only=True)
class GoodputRun(PlainRun):
    """The same, and a search for the highest load that is served in time."""

    find_goodput: Annotated[
        float | None,
        typer.Option(
            metavar="SHARE",
            min=0.0,
            max=1.0,
            rich_help_panel=_GOODPUT,
            help="Search the highest load at which this share of requests is served in time.",
        ),
    ] = None
    goodput_step: Annotated[
        float | None,
        typer.Option(
            metavar="SHARE",
            min=0.001,
            max=1.0,
            rich_help_panel=_GOODPUT,
            help="Step of the search, as a load factor; 0.05 by default.",
        ),
    ] = None

    def __post_init__(self) -> None:
        PlainRun.__post_init__(self)
        self._unscaled("--find-goodput", self.find_goodput)
        if self.find_goodput is None:
            raise InputError("--goodput-step", "needs --find-goodput")


@dataclass(frozen=True, kw_only=True)
class EpochRun(OfferedRun):
    """Epochs one by one, pools or plans following the load."""

    reasons: ClassVar[Mapping[str, str]] = dict.fromkeys(
        ("fail", "change"), "pools and plans that follow the load know no failures, no other plan"
    )

    epoch: Annotated[
        float | None,
        typer.Option(
            metavar="SECONDS",
            min=1e-3,
            rich_help_panel=_EPOCHS,
            help="Report per epoch of this length, with the scaling advice after each.",
        ),
    ] = None
    autoscale: Annotated[
        bool,
        typer.Option(
            "--autoscale",
            rich_help_panel=_EPOCHS,
            help="Apply the advice after every --epoch; plans of shared GPUs, applications and "
            "entries are planned again instead.",
        ),
    ] = False

    def __post_init__(self) -> None:
        OfferedRun.__post_init__(self)
        if self.epoch is None:
            raise InputError("--autoscale", "needs --epoch, the seconds between two changes")

    @property
    def epoch_s(self) -> float:
        """Length of an epoch."""
        assert self.epoch is not None  # checked when it was made
        return self.epoch


@dataclass(frozen=True, kw_only=True)
class ClientsRun(ServedRun):
    """Clients that offload over recorded links, and plans that follow them."""

    clients: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            rich_help_panel=_CLIENTS,
            help="Clients that run the first blocks themselves: name, model, fps, slo_ms, "
            "heads_us, link.",
        ),
    ] = None
    links: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            rich_help_panel=_CLIENTS,
            help="Their uplinks over time: columns time_s, mbit_per_s and, for several links, "
            "link.",
        ),
    ] = None
    steer: Annotated[
        bool,
        typer.Option(
            "--steer",
            rich_help_panel=_CLIENTS,
            help="Make new plans as clients change their cuts, as `poolpipe steer` does.",
        ),
    ] = False
    plan_ms: Annotated[
        float | None,
        typer.Option(
            metavar="MS",
            min=0.0,
            rich_help_panel=_CLIENTS,
            help="With --steer: time that planning takes; by default the time that it does take.",
        ),
    ] = None
    start_s: Annotated[
        float,
        typer.Option(
            metavar="SECONDS",
            min=0.0,
            rich_help_panel=_CLIENTS,
            help="With --steer: time that new workers take to start.",
        ),
    ] = 2.0

    def __post_init__(self) -> None:
        if self.clients is None:
            given = {
                "--steer": self.steer,
                "--links": self.links is not None,
                "--plan-ms": self.plan_ms is not None,
                "--start-s": True,
            }
            by = next(option for option, is_given in given.items() if is_given)
            raise InputError(by, "needs --clients")
        if self.links is None:
            raise InputError("--clients", "needs --links, the trace of their uplinks")

    @property
    def files(self) -> tuple[Path, Path]:
        """Of clients and of links."""
        assert self.clients is not None  # checked when it was made
        assert self.links is not None
        return self.clients, self.links
