"""A project of a test that joins a Prefect server."""

import os
from pathlib import Path

from tests.ports import free_ports


def joining(folder: Path, prefect_url: str) -> dict[str, str]:
    """The environment of its commands: its own state, warehouse and page, and that server."""
    (ui_port,) = free_ports(1)
    plain = {k: v for k, v in os.environ.items() if not k.startswith(("PREFECT_", "POOLPIPE_"))}
    return plain | {
        "PREFECT_API_URL": prefect_url,
        "POOLPIPE_HOME": str(folder / "home"),
        "POOLPIPE_WAREHOUSE": str(folder / "w.duckdb"),
        "POOLPIPE_UI_PORT": str(ui_port),
    }
