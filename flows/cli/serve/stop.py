"""`stop`: end what is being served."""

from flows.cli.console import print_json, progress, show
from flows.cli.registry import command
from flows.cli.shared_options import AsJson


@command("stop", "poolpipe stop")
def stop(*, as_json: AsJson = False) -> None:
    """Stop the server, and remove what an earlier one left behind."""
    from flows.release.server import admin
    from flows.state import project_state

    with progress("stopping"):
        stopped = admin.stop(project_state().serve)
    if as_json:
        print_json({"stopped": stopped})
        return
    show("stopped" if stopped else "nothing was being served")
