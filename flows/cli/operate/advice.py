"""`advice`: how many GPUs the pools in force should have, by recent measurements."""

from flows.cli.console import print_json, show, table
from flows.cli.registry import command
from flows.cli.shared_options import AsJson


@command("advice", "poolpipe advice --json")
def advice(*, as_json: AsJson = False) -> None:
    """Show how many GPUs each pool in force should have, and the rates that this is for.

    Rates are sized as `poolpipe autoscale` does it; they are known after twenty seconds.
    """
    from flows.release.server.running import read_state
    from flows.reporting import words
    from flows.state import project_state

    found = read_state(project_state().serve).control("advice")
    if as_json:
        print_json(found)
        return
    rows = [
        (
            name,
            pool["gpu_class"],
            pool["vgpus"],
            pool["advised"],
            words.percent(pool["idle_fraction"]),
            words.percent(pool["bad_rate"], 2),
        )
        for name, pool in found["pools"].items()
    ]
    show(table(("pool", "class", "vGPUs", "advised", "idle", "bad"), rows, texts=2))
    classes = [(name, row["gpus"], row["advised"]) for name, row in found["gpu_classes"].items()]
    show(table(("class", "GPUs", "advised"), classes))
    rates = [
        (name, f"{one['planned_rps']:.1f}", f"{one['wanted_rps']:.1f}")
        for name, one in found["demands"].items()
    ]
    if rates:
        show(table(("asked for", "planned rps", "wanted rps"), rates))
