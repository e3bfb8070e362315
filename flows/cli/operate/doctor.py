"""`doctor`: what is old, exposed or missing here, and what to do about it."""

import typer

from flows.cli.console import print_json, show, table
from flows.cli.registry import command
from flows.cli.shared_options import WAREHOUSE, AsJson, WarehouseFile


@command("doctor", "poolpipe doctor")
def doctor(*, warehouse: WarehouseFile = WAREHOUSE, as_json: AsJson = False) -> None:
    """Report what is old, exposed or missing on this machine and in the running system.

    Nothing is changed. Ends with 1 where something is a problem; advice alone is no failure.
    """
    from flows.clock import now_utc
    from flows.operations.doctor.registry import Severity, Surroundings, examine
    from flows.state import project_state

    here = Surroundings(state=project_state(), warehouse=warehouse, now=now_utc())
    found = list(examine(here))
    if as_json:
        rows = [
            {
                "check": each.name,
                "about": each.about,
                "severity": finding.severity,
                "seen": finding.seen,
                "remedy": finding.remedy or None,
            }
            for each, finding in found
        ]
        print_json({"findings": rows})
    else:
        texts = [(each.name, finding.severity, finding.seen) for each, finding in found]
        show(table(("check", "severity", "seen"), texts, texts=3))
        for each, finding in found:
            if finding.remedy:
                show(f"{finding.severity}: {each.name}: {finding.remedy}")
    if any(finding.severity is Severity.PROBLEM for _, finding in found):
        raise typer.Exit(1)
