"""`simulate` behind its options: from what was stated to a run, and to the same run again.

What was stated is plain data, kept with the run, so that a page about it can be drawn later.
"""

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from flows.clock import Stopwatch
from triton_backend.contract.errors import InputError
from triton_backend.contract.plan import Plan
from triton_backend.contract.units import s_to_us
from triton_backend.simulator.failures import Failure
from triton_backend.simulator.goodput import goodput_report
from triton_backend.simulator.offered import (
    POISSON,
    Arrivals,
    Deterministic,
    Gamma,
    TraceFormat,
    read_arrivals,
)
from triton_backend.simulator.records import OPTIONAL, request_columns
from triton_backend.simulator.results import SimResult
from triton_backend.simulator.run import simulate
from triton_backend.simulator.scenario import PlanChange, SimOptions
from warehouse.parquet import write_columns

_FAILURE = re.compile(
    r"(?:vgpu:(?P<vgpu>\d+)|(?P<node>[^:@]+)(?::(?P<gpu>\d+))?)"
    r"@(?P<start>\d+(?:\.\d+)?)-(?P<end>\d+(?:\.\d+)?)?"
)


def run_simulation(
    plan: Plan, stated: Mapping[str, Any], attainment: float | None = None
) -> SimResult:
    """Simulate as stated; with `attainment`, search the goodput too.

    Raises:
        InputError: an option does not fit the plan, or a file cannot be used.
    """
    asked = _options(stated)
    watch = Stopwatch()
    result = simulate(plan, asked, clock_ns=lambda: round(watch.seconds() * 1e9))
    if attainment is None:
        return result
    return replace(result, goodput=goodput_report(plan, asked, attainment))


def write_records(result: SimResult, path: Path) -> None:
    """One row per request as a Parquet file; see `sim.records` for its columns.

    Raises:
        InputError: the file cannot be written.
    """
    write_columns(path, request_columns(result), OPTIONAL)


def _options(stated: Mapping[str, Any]) -> SimOptions:
    run, models = stated["run"], stated["models"]
    reference, change = stated["reference"], stated["change"]
    return SimOptions(
        models=None if models is None else tuple(models),
        arrivals=_arrivals(stated["drawn"]),
        reference=None if reference is None else Plan.from_dict(reference),
        failures=tuple(map(parse_failure, stated["failures"])),
        change=change and PlanChange(at_s=change["at_s"], plan=Plan.from_dict(change["plan"])),
        **run,
    )


def _arrivals(drawn: Mapping[str, Any]) -> Arrivals:
    processes: dict[str, Arrivals] = {
        "poisson": POISSON,
        "gamma": Gamma(shape=drawn["shape"]),
        "deterministic": Deterministic(),
    }
    if drawn["arrivals"] in processes:
        return processes[drawn["arrivals"]]
    interval_s = drawn["interval_s"]
    trace = TraceFormat(
        time_column=drawn["time_column"],
        model_column=drawn["model_column"],
        names=drawn["names"] or None,
        interval_us=None if interval_s is None else s_to_us(interval_s),
    )
    return read_arrivals(Path(drawn["arrivals"]), trace)


def parse_failure(text: str) -> Failure:
    """`NODE@5-10`, `NODE:GPU@5-10`, `vgpu:3@5-`: what is gone from when to when, in seconds.

    Raises:
        InputError: it reads otherwise.
    """
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
