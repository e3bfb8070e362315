"""`status`: what is being served, where, and how it does."""

from typing import Any

from flows.cli.console import cell, print_json, show
from flows.cli.registry import command
from flows.cli.shared_options import AsJson


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
        show(f"{name}: {_in_words(value)}")


def _in_words(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name} {_in_words(part)}" for name, part in value.items()) or "-"
    if isinstance(value, list):
        return ", ".join(map(_in_words, value)) or "-"
    return cell(value)
