"""`applications import`: DAGs of models from elsewhere as `applications:` of a workload."""

from pathlib import Path
from typing import Annotated

import typer

from flows.cli.console import note, notes, print_json, show
from flows.cli.registry import command, family
from flows.cli.shared_options import AsJson

family("applications", "DAGs of models behind one endpoint.")


@command("applications import", "poolpipe applications import config.pbtxt --slo-ms 400")
def import_application(
    file: Annotated[
        Path,
        typer.Argument(
            metavar="FILE",
            help="The config.pbtxt of an ensemble, or the YAML of a KServe InferenceGraph.",
        ),
    ],
    *,
    slo_ms: Annotated[
        float | None,
        typer.Option(
            metavar="MS",
            min=0.001,
            help="SLO of the application, which neither format states; 1000 ms by default.",
        ),
    ] = None,
    rate_rps: Annotated[
        float | None,
        typer.Option(
            metavar="RPS",
            min=1e-6,
            help="Client requests per second; by default the workload states no rate.",
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", metavar="FILE", help="Write the workload to this file."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Read a Triton ensemble or a KServe InferenceGraph as an application.

    Rows per request, optional modules and the SLO are yours to add; what the file says and an
    application cannot is named.
    """
    from dataclasses import replace

    import yaml

    from flows.files import check_writable, read_text, read_yaml, write_text
    from flows.operations.adoption.applications import from_kserve, from_triton
    from triton_backend.contract.units import ms_to_us
    from triton_backend.contract.workload import Workload

    assumed_ms = 1_000.0
    slo_us = ms_to_us(assumed_ms if slo_ms is None else slo_ms)
    check_writable(output)
    if file.suffix in (".yaml", ".yml", ".json"):
        found = from_kserve(read_yaml(file), str(file), slo_us)
    else:
        found = from_triton(read_text(file), str(file), slo_us)
    notes(found.notes)
    if slo_ms is None:
        note(f"slo_ms: {assumed_ms:g} is assumed; --slo-ms says another")
    application = replace(found.application, rate_rps=rate_rps)
    workload = Workload(applications=(application,))
    text = yaml.safe_dump(workload.to_dict(), sort_keys=False)
    if output is not None:
        write_text(output, text)
    if as_json:
        print_json(workload.to_dict() | {"notes": list(found.notes)})
        return
    show(f"written to {output}" if output else text.rstrip())
