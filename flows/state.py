"""Where a project keeps what it makes: one folder, and the paths inside it.

Here: the names of the folders, and the environment variables that move them.
Not here: what lies in them (each step package knows its own), and the warehouse's content.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

HOME_VARIABLE = "POOLPIPE_HOME"
HOME_DEFAULT = ".poolpipe"
WAREHOUSE_VARIABLE = "POOLPIPE_WAREHOUSE"
WAREHOUSE_DEFAULT = "poolpipe.duckdb"
PROJECT_VARIABLE = "POOLPIPE_PROJECT"  # of a process that runs elsewhere: the project's folder


@dataclass(frozen=True, slots=True, kw_only=True)
class ProjectState:
    """The project's state folder. The process that writes into a folder makes it."""

    home: Path

    @property
    def models(self) -> Path:
        """Split models: `<model>/<hash>/`."""
        return self.home / "models"

    @property
    def artifacts(self) -> Path:
        """Engines, each under its key."""
        return self.home / "artifacts"

    @property
    def prefect(self) -> Path:
        """Prefect's own database and settings."""
        return self.home / "prefect"

    @property
    def limits(self) -> Path:
        """Holders on this host of the Prefect server's limits."""
        return self.home / "limits"

    @property
    def serve(self) -> Path:
        """The running system: state file, model repository, logs, event files."""
        return self.home / "serve"

    @property
    def rollout_under_way(self) -> Path:
        """The new plan while a rollout has not ended; stays where its process died."""
        return self.home / "rollout-under-way"

    @property
    def change_lock(self) -> Path:
        """The lock of a change of plan, from its preparation to the end of its bake."""
        return self.home / "change-of-plan.lock"

    @property
    def loop_lock(self) -> Path:
        """The lock of the one loop that follows the load."""
        return self.home / "loop.lock"

    @property
    def reports(self) -> Path:
        """Pages written for people."""
        return self.home / "reports"


def project_state(environment: Mapping[str, str] = os.environ) -> ProjectState:
    """The state folder of this project: `POOLPIPE_HOME`, else `.poolpipe` in this folder."""
    return ProjectState(home=Path(environment.get(HOME_VARIABLE) or HOME_DEFAULT))


def warehouse_path(environment: Mapping[str, str] = os.environ) -> Path:
    """The warehouse's file where none is named: `POOLPIPE_WAREHOUSE`, else `poolpipe.duckdb`."""
    return Path(environment.get(WAREHOUSE_VARIABLE) or WAREHOUSE_DEFAULT)
