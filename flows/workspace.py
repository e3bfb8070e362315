"""Where a step reads and writes: the project's state folder and its warehouse."""

import time
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path

from flows.progress import say_on_stderr
from flows.state import ProjectState, project_state, warehouse_path
from warehouse.db import Warehouse, WarehouseInUseError, open_warehouse
from warehouse.schema import OlderSchemaError

RETRY_SECONDS = 0.25
UNNOTICED = 8  # attempts before it is said that we wait
Turn = Callable[[], AbstractContextManager[None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Workspace:
    """State folder and warehouse of one project.

    The warehouse is opened for each piece of work and closed after it: DuckDB has one writer.
    Whoever comes second waits up to `patience_seconds`, so that a rollout does not fail because
    statistics are just being read in. `turn` is held around every piece that writes: where many
    flows write, they queue there and the patience is for those who know of no queue.
    """

    state: ProjectState
    warehouse: Path
    patience_seconds: float = 30.0
    turn: Turn = nullcontext

    @contextmanager
    def open(self, *, read_only: bool = False) -> Generator[Warehouse]:
        """The warehouse while the context lasts; make it short.

        Raises:
            InputError: as `open_warehouse`.
        """
        turn = nullcontext() if read_only else self.turn()
        with turn, self._patiently(read_only=read_only) as warehouse:
            yield warehouse

    def _patiently(self, *, read_only: bool) -> Warehouse:
        for attempt in range(int(self.patience_seconds / RETRY_SECONDS)):
            try:
                return self._open(read_only=read_only)
            except WarehouseInUseError as error:
                if attempt == UNNOTICED:
                    say_on_stderr(f"{error}; waiting up to {self.patience_seconds:.0f} s")
                time.sleep(RETRY_SECONDS)
        return self._open(read_only=read_only)

    def _open(self, *, read_only: bool) -> Warehouse:
        try:
            return open_warehouse(self.warehouse, read_only=read_only)
        except OlderSchemaError:  # who only reads after an upgrade brings it up to date too
            open_warehouse(self.warehouse).close()
            return open_warehouse(self.warehouse, read_only=read_only)


def workspace(warehouse: Path | None = None) -> Workspace:
    """This project's workspace; `warehouse` overrides its default file."""
    return Workspace(state=project_state(), warehouse=warehouse or warehouse_path())
