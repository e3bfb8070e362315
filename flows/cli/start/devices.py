"""`devices`: this machine's GPUs, and the cluster.yaml that they suggest."""

from pathlib import Path
from typing import Annotated

import typer

from flows.cli.console import print_json, show, table
from flows.cli.registry import command
from flows.cli.shared_options import AsJson


@command("devices", "poolpipe devices --cluster-file cluster.yaml")
def devices(
    *,
    cluster_file: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write the proposed cluster.yaml to this file."),
    ] = None,
    nic_gbps: Annotated[
        float | None,
        typer.Option(
            metavar="N",
            min=0.001,
            max=1e6,
            help="Rate of this node's network link in the proposal, in Gbit/s.",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """List this machine's GPUs and propose a cluster.yaml."""
    import yaml

    from flows.files import write_text
    from flows.preparation.profiling.devices import list_devices, propose_cluster

    found = list_devices()
    proposal = propose_cluster(found, nic_gbps=nic_gbps)
    if cluster_file is not None:
        write_text(cluster_file, yaml.safe_dump(proposal, sort_keys=False))
    if as_json:
        print_json({"devices": [device.to_dict() for device in found], "cluster": proposal})
        return
    names = ("name", "uuid", "compute_capability", "memory_mib", "driver", "mps", "mig")
    show(table(names, [[getattr(device, name) for name in names] for device in found]))
    show(
        f"written to {cluster_file}" if cluster_file else yaml.safe_dump(proposal, sort_keys=False)
    )
