"""Tests and their projects that join a Prefect server which asks for credentials."""

import os
from contextlib import AbstractContextManager
from pathlib import Path

from prefect.settings import PREFECT_API_AUTH_STRING, PREFECT_API_URL, temporary_settings

from tests.ports import free_ports

AUTH = "poolpipe:credentials-of-the-tests"


def joined(url: str) -> AbstractContextManager[object]:
    """Clients of this process speak to the server meanwhile."""
    return temporary_settings({PREFECT_API_URL: url, PREFECT_API_AUTH_STRING: AUTH})


def joining(folder: Path, prefect_url: str) -> dict[str, str]:
    """The environment of its commands: its own state, warehouse and page, and that server."""
    (ui_port,) = free_ports(1)
    plain = {k: v for k, v in os.environ.items() if not k.startswith(("PREFECT_", "POOLPIPE_"))}
    return plain | {
        "PREFECT_API_URL": prefect_url,
        "PREFECT_API_AUTH_STRING": AUTH,
        "POOLPIPE_HOME": str(folder / "home"),
        "POOLPIPE_WAREHOUSE": str(folder / "w.duckdb"),
        "POOLPIPE_UI_PORT": str(ui_port),
    }
