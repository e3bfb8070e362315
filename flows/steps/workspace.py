"""Where a step reads and writes: the project's state folder and its warehouse."""

from dataclasses import dataclass
from pathlib import Path

from flows.state import ProjectState, project_state, warehouse_path
from warehouse.db import Warehouse, open_warehouse


@dataclass(frozen=True, slots=True, kw_only=True)
class Workspace:
    """State folder and warehouse of one project.

    The warehouse is opened for each piece of work and closed after it: DuckDB has one writer.
    """

    state: ProjectState
    warehouse: Path

    def open(self, *, read_only: bool = False) -> Warehouse:
        """The warehouse; close it soon.

        Raises:
            InputError: as `open_warehouse`.
        """
        return open_warehouse(self.warehouse, read_only=read_only)


def workspace(warehouse: Path | None = None) -> Workspace:
    """This project's workspace; `warehouse` overrides its default file."""
    return Workspace(state=project_state(), warehouse=warehouse or warehouse_path())
