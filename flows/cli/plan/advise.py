"""`advise`: GPUs and money a day for the load of an access log, before anything is deployed."""

from pathlib import Path
from typing import Annotated

import typer

from flows.cli.console import note, notes, print_json, progress, show, table
from flows.cli.registry import command
from flows.cli.shared_options import WAREHOUSE, AsJson, ClusterFile, WarehouseFile, WorkloadFile


@command(
    "advise",
    "poolpipe advise --access-log access.log --cluster cluster.yaml --workload workload.yaml",
)
def advise(
    *,
    access_log: Annotated[
        Path,
        typer.Option(
            metavar="FILE",
            help="Log of nginx, Envoy or Triton (--log-verbose=1), gzipped or not.",
        ),
    ],
    cluster: ClusterFile,
    workload: WorkloadFile,
    period_hours: Annotated[
        float,
        typer.Option(metavar="HOURS", min=1 / 60, max=1e4, help="Time between two replans."),
    ] = 1.0,
    as_json: AsJson = False,
    warehouse: WarehouseFile = WAREHOUSE,
) -> None:
    """Say what the load of a log costs a day, with and without splitting and replanning.

    Compares whole models sized for the highest minute, split models sized for it, and split models
    replanned. All three are planned on the profiles of the warehouse; nothing is deployed. A rate
    of a minute is taken as steady: bursts within it are in no figure. Requests of an application
    count under its name, with the rows that the workload states.
    """
    from flows.cli.project import check_known
    from flows.clock import now_utc
    from flows.files import read_cluster, read_workload
    from flows.operations.adoption.access_log import MINUTE_S, read_access_log
    from flows.operations.adoption.savings import asked_names, check_in_log, to_dict, ways_of
    from flows.planning.stored_plans import load_profiles
    from flows.workspace import workspace
    from triton_backend.contract.errors import InputError

    period_s = round(period_hours * 3600)
    if period_s % MINUTE_S:
        raise InputError("--period-hours", f"{period_s} s is no whole number of minutes")
    contents = (read_cluster(cluster), read_workload(workload))
    check_in_log(contents[1])
    work = workspace(warehouse)
    check_known(work, (cluster, workload), contents)
    profiles, warnings = load_profiles(work, *contents)
    with progress("reading the log") as report:
        log = read_access_log(access_log, now=now_utc())
        planned = {*asked_names(contents[1]).values()}
        left_out = {name: n for name, n in log.requests.items() if name not in planned}
        ways = ways_of(log, profiles, *contents, period_s=period_s, report=report)
    notes(warnings)
    if left_out:
        named = ", ".join(f"{count:,} of {name}" for name, count in sorted(left_out.items()))
        note(f"requests of names that the workload lacks are left out: {named}")
    if log.undated:
        left = "without a time that can be read, or with one ahead, are left out"
        note(f"{log.undated:,} requests {left}")
    if as_json:
        print_json(to_dict(log, ways))
        return
    total = sum(log.requests.values())
    show(f"{total:,} requests in {log.hours:,.1f} h from {log.start:%Y-%m-%d %H:%M} UTC")
    rows = [
        (
            way.name,
            f"{way.gpus:.1f}",
            f"{way.gpu_hours:,.0f}",
            "-" if way.cost is None else f"{way.cost:,.2f}",
            f"{way.served:.2%}",
        )
        for way in ways
    ]
    show(table(("served by", "GPUs", "GPU hours a day", "cost a day", "within capacity"), rows))
    notes(f"{way.name}: {way.note}" for way in ways if way.note)
