"""`status`: what is being served, where, and how it does."""

from typing import Any

from flows.cli.console import cell, print_json, show
from flows.cli.registry import command
from flows.cli.shared_options import AsJson

DURATION = "_us"  # ends names of durations in microseconds, which people do not read


@command("status", "poolpipe status")
def status(*, as_json: AsJson = False) -> None:
    """Show the plan that is served, its endpoints, and how it performs."""
    from flows.release.server import running
    from flows.state import project_state

    found = running.status(project_state().serve)
    if as_json:
        print_json(found)
        return
    for name, value in found.items():
        if isinstance(value, dict) and any(isinstance(part, dict) for part in value.values()):
            show(f"{name}:")
            for part, counts in value.items():
                if counts not in ({}, []):
                    show(f"  {part.removesuffix(DURATION)}: {_in_words(counts, part)}")
        else:
            show(f"{name.removesuffix(DURATION)}: {_in_words(value, name)}")


def _in_words(value: Any, name: str) -> str:
    """A value as text; `name` says its unit."""
    from flows.reporting import words
    from triton_backend.contract.units import us_to_s

    if isinstance(value, dict):
        return ", ".join(f"{key} {_in_words(part, name)}" for key, part in value.items()) or "-"
    if isinstance(value, list):
        return ", ".join(_in_words(part, name) for part in value) or "-"
    if name.endswith(DURATION) and isinstance(value, int | float):
        return words.seconds(us_to_s(value))
    return cell(value)
