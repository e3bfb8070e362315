"""`steps`: the Python steps of a workload, made models that can be profiled and planned."""

from typing import Annotated

import typer

from flows.cli.console import print_json, progress, show, table
from flows.cli.registry import command
from flows.cli.shared_options import WAREHOUSE, AsJson, WarehouseFile, WorkloadFile


@command("steps", "poolpipe steps --workload workload.yaml")
def steps(
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="NAME", help="Names of steps of the workload; all by default."),
    ] = None,
    *,
    workload: WorkloadFile,
    time_limit: Annotated[
        float,
        typer.Option(
            "--time-limit",
            metavar="SECONDS",
            min=0.1,
            max=1e6,
            help="Longest time that the import and the runs of one step may take together.",
        ),
    ] = 300.0,
    as_json: AsJson = False,
    warehouse: WarehouseFile = WAREHOUSE,
) -> None:
    """Prepare the Python steps that a workload names.

    Each is imported, run on its samples and stored as a model of one block; one that does not end
    within the time limit is refused. Its package beside the workload is copied: prepare, profile
    and plan again after a change.
    """
    from flows.preparation.steps.given import check_around, read_steps
    from flows.preparation.steps.prepare import prepare_steps
    from flows.workspace import workspace
    from triton_backend.contract.errors import InputError
    from warehouse.profiles import model_names

    known = read_steps(workload)
    for name in names or ():
        if name not in known:
            listed = ", ".join(known) or "none"
            raise InputError(str(workload), f"has no step {name!r}; its steps: {listed}")
    if not known:
        raise InputError(str(workload), "has no `steps`")
    wanted = [step for name, step in known.items() if not names or name in names]
    work = workspace(warehouse)
    models: list[str] = []
    if work.warehouse.exists():
        with work.open(read_only=True) as store:
            models = model_names(store)
    check_around(workload, models)
    with progress("preparing steps"):
        found = prepare_steps(work, wanted, time_limit)
    if as_json:
        print_json(
            {
                split.name: {
                    "key": split.key,
                    "folder": split.folder,
                    "inputs": [spec.to_dict() for spec in split.inputs],
                    "outputs": [spec.to_dict() for spec in split.outputs],
                    "sample_us": split.block_times_us[0],
                    "reused": split.reused,
                }
                for split in found
            }
        )
        return
    rows = [
        (
            split.name,
            str(split.step["python"]),
            f"{split.block_times_us[0] / 1_000:.2f}",
            "reused" if split.reused else "prepared",
        )
        for split in found
    ]
    show(table(("step", "function", "ms per sample", ""), rows))
