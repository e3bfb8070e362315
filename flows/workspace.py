"""Where a step reads and writes.

The project's state folder, its warehouse, and the plans kept there. Here: plans stored and found.
Not here: planning, which loads solvers and kernels (`planning/stored_plans`).
"""

import time
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path

from flows.clock import now_utc
from flows.files import read_plan as read_plan_file
from flows.progress import say_on_stderr
from flows.state import ProjectState, project_state, warehouse_path
from triton_backend.contract.errors import InputError
from triton_backend.contract.plan import Plan
from warehouse.db import Warehouse, WarehouseInUseError, open_warehouse
from warehouse.plans import add_plan, read_plan
from warehouse.schema import OlderSchemaError

RETRY_SECONDS = 0.25
UNNOTICED = 8  # attempts before it is said that we wait
Turn = Callable[[], AbstractContextManager[None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Workspace:
    """State folder and warehouse of one project.

    The warehouse is opened for each piece of work and closed after it: DuckDB has one writer.
    The second process waits up to `patience_seconds`, so that a rollout does not fail because
    statistics are just being read in. `turn` is held around every piece that writes: where many
    flows write, they queue there and the patience is for processes that know of no queue.
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
        except OlderSchemaError:  # a reader after an upgrade migrates the file, too
            open_warehouse(self.warehouse).close()
            return open_warehouse(self.warehouse, read_only=read_only)


def workspace(warehouse: Path | None = None) -> Workspace:
    """This project's workspace; `warehouse` overrides its default file."""
    return Workspace(state=project_state(), warehouse=warehouse or warehouse_path())


def store_plan(work: Workspace, plan: Plan) -> None:
    """Store a plan under its id."""
    with work.open() as warehouse:
        add_plan(warehouse, plan, now_utc())


def find_plan(work: Workspace, text: str) -> Plan:
    """A plan by its file, its id in the warehouse, or the beginning of its id.

    Raises:
        InputError: no such file, or a folder; no stored plan, or several, fit; or the file is no
            plan.
    """
    if not text:  # every id begins with nothing
        raise InputError("plan ''", "name a plan.json, the id of a stored plan, or its beginning")
    if is_plan_file(text):
        return read_plan_file(Path(text))
    folder = Path(text)
    if not work.warehouse.exists():
        where = f"neither a file nor, as there is no {work.warehouse}, a stored plan"
        raise _no_file(folder) if folder.is_dir() else InputError(text, where)
    with work.open(read_only=True) as warehouse:
        try:
            return read_plan(warehouse, text)
        except InputError as error:
            if folder.is_dir():
                raise _no_file(folder) from error
            raise


def _no_file(folder: Path) -> InputError:
    """The complaint about a folder in a plan's place, with the plans that lie in it."""
    found: list[str] = []
    for path in sorted(folder.glob("*.json")):
        with suppress(InputError):
            read_plan_file(path)
            found.append(str(path))
    there = f"name a file in it: {', '.join(found)}" if found else "no plan lies in it"
    return InputError(str(folder), f"is a folder; {there}")


def is_plan_file(text: str) -> bool:
    """True if a text names a file: one that is there, or one that could only be a file."""
    path = Path(text)
    if path.is_dir():
        return False
    return path.is_file() or path.suffix == ".json" or len(path.parts) > 1
