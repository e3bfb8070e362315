"""The request of a simulation: typed, and as plain data stored with the run.

From the plain form the same run can be made again, so that a page about it can be drawn later.
"""

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from triton_backend.contract.errors import InputError

if TYPE_CHECKING:
    from triton_backend.contract.plan import Plan
    from triton_backend.simulator.failures import Failure
    from triton_backend.simulator.offered import Arrivals
    from triton_backend.simulator.results import SimResult
    from triton_backend.simulator.scenario import SimOptions

_FAILURE = re.compile(
    r"(?:vgpu:(?P<vgpu>\d+)|(?P<node>[^:@]+)(?::(?P<gpu>\d+))?)"
    r"@(?P<start>\d+(?:\.\d+)?)-(?P<end>\d+(?:\.\d+)?)?"
)
# Fields of `SimOptions` that are no plain values; the plain form has places of its own for them.
_STRUCTURED = frozenset(
    {
        "models",
        "applications",
        "arrivals",
        "reference",
        "failures",
        "changes",
        "keep_uses",
        "give_up_below",
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class OfferedLoad:
    """A process by its name, or a trace file and how it is read.

    Attributes:
        arrivals: `poisson`, `gamma`, `deterministic`, or a file.
        shape: of gamma arrivals.
        time_column, model_column: of a trace with a row per request.
        interval_s: of a trace with a row of counts per interval.
        names: names in the trace, and the plan's.
        as_is: the trace's instants are kept, whatever the rate.
    """

    arrivals: str = "poisson"
    shape: float = 0.3
    time_column: str = "arrival_s"
    model_column: str | None = None
    interval_s: float | None = None
    names: Mapping[str, str] = field(default_factory=dict[str, str])
    as_is: bool = False

    def read(self) -> "Arrivals":
        """The process, or what the file holds.

        Raises:
            InputError: the file cannot be used.
        """
        from triton_backend.contract.units import s_to_us
        from triton_backend.simulator.offered import (
            POISSON,
            Deterministic,
            Gamma,
            TraceFormat,
            read_arrivals,
        )

        processes: dict[str, Arrivals] = {
            "poisson": POISSON,
            "gamma": Gamma(shape=self.shape),
            "deterministic": Deterministic(),
        }
        if self.arrivals in processes:
            return processes[self.arrivals]
        trace = TraceFormat(
            time_column=self.time_column,
            model_column=self.model_column,
            names=self.names or None,
            interval_us=None if self.interval_s is None else s_to_us(self.interval_s),
            as_is=self.as_is,
        )
        return read_arrivals(Path(self.arrivals), trace)


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulationRequest:
    """The simulation's request; `load` replaces the options' own arrivals."""

    options: "SimOptions"
    load: OfferedLoad

    def complete_options(self) -> "SimOptions":
        """The options with the arrivals of `load`.

        Raises:
            InputError: a file cannot be used.
        """
        return replace(self.options, arrivals=self.load.read())

    def run(self, plan: "Plan") -> "SimResult":
        """Simulate.

        Raises:
            InputError: an option does not fit the plan, or a file cannot be used.
        """
        from flows.clock import Stopwatch
        from triton_backend.simulator.run import simulate

        asked, watch = self.complete_options(), Stopwatch()
        return simulate(plan, asked, clock_ns=lambda: round(watch.seconds() * 1e9))

    def to_dict(self) -> dict[str, Any]:
        """Plain form."""
        asked = self.options
        names = [f.name for f in fields(asked) if f.name not in _STRUCTURED]
        return {
            "run": {name: getattr(asked, name) for name in names},
            "models": None if asked.models is None else list(asked.models),
            "applications": None if asked.applications is None else list(asked.applications),
            "drawn": asdict(self.load),
            "failures": [failure_text(failure) for failure in asked.failures],
            "reference": asked.reference and asked.reference.to_dict(),
            "changes": [
                {"at_s": change.at_s, "plan": change.plan.to_dict(), "flush": change.flush}
                for change in asked.changes
            ],
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "SimulationRequest":
        """Inverse of `to_dict`.

        Takes what was kept when a run had one change at most, by a flush.
        """
        from triton_backend.contract.plan import Plan
        from triton_backend.simulator.scenario import PlanChange, SimOptions

        models, reference = data["models"], data["reference"]
        applications = data.get("applications")
        only = data.get("change")
        changes = data.get("changes", [] if only is None else [{**only, "flush": True}])
        return cls(
            options=SimOptions(
                models=None if models is None else tuple(models),
                applications=None if applications is None else tuple(applications),
                reference=None if reference is None else Plan.from_dict(reference),
                failures=tuple(map(parse_failure, data["failures"])),
                changes=tuple(
                    PlanChange(
                        at_s=change["at_s"],
                        plan=Plan.from_dict(change["plan"]),
                        flush=change["flush"],
                    )
                    for change in changes
                ),
                **data["run"],
            ),
            load=OfferedLoad(**data["drawn"]),
        )


def parse_failure(text: str) -> "Failure":
    """`NODE@5-10`, `NODE:GPU@5-10`, `vgpu:3@5-`: what is gone from when to when, in seconds.

    Raises:
        InputError: it reads otherwise.
    """
    from triton_backend.simulator.failures import Failure

    found = _FAILURE.fullmatch(text)
    if found is None:
        raise InputError("--fail", f"{text!r} is none of NODE@5-10, NODE:GPU@5-10, vgpu:3@5-")
    parts = found.groupdict()
    return Failure(
        start_s=float(parts["start"]),
        end_s=None if parts["end"] is None else float(parts["end"]),
        vgpu=None if parts["vgpu"] is None else int(parts["vgpu"]),
        node=parts["node"],
        gpu=None if parts["gpu"] is None else int(parts["gpu"]),
    )


def parse_change(text: str) -> tuple[float, str]:
    """`10=plan.json`: when, in seconds, and which plan, by its file or id.

    Raises:
        InputError: it reads otherwise.
    """
    at_s, _, plan = text.partition("=")
    try:
        instant = float(at_s)
    except ValueError:
        instant = -1.0
    if not plan or not 0 <= instant < float("inf"):
        raise InputError("--change", f"{text!r} is not SECONDS=PLAN")
    return instant, plan


def failure_text(failure: "Failure") -> str:
    """Inverse of `parse_failure`."""
    if failure.vgpu is not None:
        place = f"vgpu:{failure.vgpu}"
    else:
        place = f"{failure.node}" + ("" if failure.gpu is None else f":{failure.gpu}")
    return f"{place}@{failure.start_s:f}-" + ("" if failure.end_s is None else f"{failure.end_s:f}")
