"""Where Prefect keeps its state, set before it is first imported.

Everything lies in the project's own folder, nothing is reported to anybody, and a server that
starts on a busy two-core machine gets the time it needs. What the environment says already wins,
so that a shared server (`PREFECT_API_URL`) is used unchanged.
"""

import os
from pathlib import Path

STARTUP_SECONDS = 120


def prepare_prefect(home: Path) -> None:
    """Set Prefect's environment for this process and those it starts."""
    home.mkdir(parents=True, exist_ok=True)
    defaults = {
        "PREFECT_HOME": str(home.resolve()),
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        "PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS": str(STARTUP_SECONDS),
        "PREFECT_LOGGING_LEVEL": "CRITICAL",  # the command says itself what failed
        "PREFECT_LOGGING_TO_API_WHEN_MISSING_FLOW": "ignore",
        "PREFECT_SERVER_LOGGING_LEVEL": "ERROR",
    }
    for name, value in defaults.items():
        os.environ.setdefault(name, value)


def prepare_server() -> None:
    """Set what a server started from here needs to survive being killed.

    Leases on limits outlive it (limits would stay taken for ever otherwise); who waits for a
    deployment's turn looks again every few seconds.
    """
    defaults = {
        "PREFECT_SERVER_CONCURRENCY_LEASE_STORAGE": (
            "prefect.server.concurrency.lease_storage.filesystem"
        ),
        "PREFECT_SERVER_CONCURRENCY_INITIAL_DEPLOYMENT_LEASE_DURATION": "60",
        "PREFECT_SERVER_CONCURRENCY_MAXIMUM_CONCURRENCY_SLOT_WAIT_SECONDS": "2",
        "PREFECT_SERVER_DEPLOYMENTS_CONCURRENCY_SLOT_WAIT_SECONDS": "5",
    }
    for name, value in defaults.items():
        os.environ.setdefault(name, value)
