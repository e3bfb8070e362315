"""What can be known before a long run that ends in a server: nothing is served, the ports are free.

The server checks its ports itself when it starts; a run that splits and profiles for minutes first
asks here. Not here: starting and stopping (`admin`).
"""

import socket
from pathlib import Path

from flows.release.server.admin import ServerPorts
from triton_backend.contract.errors import InputError


def check_can_start(folder: Path, ports: ServerPorts) -> None:
    """Refuse what `admin.start` would refuse now.

    Raises:
        InputError: something is served from the folder already, or a port is in use.
    """
    if (folder / "state.json").exists():
        raise InputError(
            str(folder / "state.json"), "is being served already; `poolpipe stop` ends it"
        )
    listening = (
        ("http", ports.http, ports.address),
        ("grpc", ports.grpc, ports.address),
        ("metrics", ports.metrics, ports.metrics_address),
    )
    for name, port, address in listening:
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((address, port))
            except OSError as error:
                raise InputError(
                    f"--{name}-port {port}", f"cannot be listened on at {address}: {error}"
                ) from error
