"""The gateway's event files read into the minutes of the warehouse.

A folder holds the files of one life of the gateway after another (`events-<start>-<roll>.jsonl`);
each life is read on from its cursor, which the warehouse keeps together with the rows it led to.
So a run that is cut off, repeated, or made after any pause ends with the same rows. One file is in
memory at no time; what is held are open requests and the minutes of one piece.
"""

import hashlib
import json
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from flows.clock import now_utc
from flows.operations.ingest.aggregator import KINDS, Header
from flows.operations.ingest.cursor import Position, from_text, to_text
from flows.operations.ingest.newest_profiles import note_newest_profiles
from flows.workspace import Workspace
from triton_backend.contract.errors import InputError
from triton_backend.contract.plan import Plan
from triton_backend.serve_folder.line_files import lives, roll_of
from warehouse.observations import StatisticsFile, add_statistics, read_cursor
from warehouse.plans import read_plan

EVENTS = "events"  # folder of the files, and prefix of their names
PIECE_BYTES = 32 << 20
_KIND = re.compile(rb'\{"t": ?"(%s)"' % "|".join(KINDS).encode())


@dataclass(frozen=True, slots=True, kw_only=True)
class Ingested:
    """Result of a read: bytes, minutes stated (again), and unusable lines."""

    bytes_read: int = 0
    minutes: int = 0
    skipped: int = 0

    def __add__(self, other: "Ingested") -> "Ingested":
        return Ingested(
            bytes_read=self.bytes_read + other.bytes_read,
            minutes=self.minutes + other.minutes,
            skipped=self.skipped + other.skipped,
        )


def ingest(work: Workspace, folder: Path | None = None) -> Ingested:
    """Read what is new in the event files of a serve folder (this project's by default).

    For a system that runs there it notes how the newest profiles compare with its plan.

    Raises:
        InputError: the warehouse cannot be written.
    """
    folder = folder or work.state.serve
    found = lives(folder / EVENTS, EVENTS)
    total = Ingested()
    for number, (start, files) in enumerate(found, 1):
        total += _Life(work, folder, start).read(files, ended=number < len(found))
    note_newest_profiles(work, folder)
    return total


class _Life:
    """One life of one gateway, read on from where it was left."""

    def __init__(self, work: Workspace, folder: Path, start: str) -> None:
        self._work, self._folder = work, folder
        self._source = f"{(folder / EVENTS).resolve()}/{start}"
        with work.open() as warehouse:
            text = read_cursor(warehouse, self._source)
        self._position, self._aggregator = from_text(text, self._plan)

    def read(self, files: Sequence[Path], *, ended: bool) -> Ingested:
        total = Ingested()
        if self._position.ended:
            return total
        for path in files:
            if roll_of(path.name, EVENTS) < roll_of(self._position.file, EVENTS):
                continue
            if path.name != self._position.file:
                self._position = Position(file=path.name)
            with suppress(FileNotFoundError):  # rolled away meanwhile: the gateway keeps so many
                # Lines written from now on are for the next read, or this one would never end.
                size = path.stat().st_size
                while self._position.offset < size:
                    piece = self._piece(path)
                    if not piece.bytes_read:
                        break
                    total += piece
        if ended:  # another life has begun: outcomes of the open requests are lost
            self._aggregator.lost()
            self._position = replace(self._position, ended=True)
            total += self._store(files[-1], "ended")
        return total

    def _piece(self, path: Path) -> Ingested:
        """The next whole lines of a file, counted and stored."""
        begin, skipped = self._position.offset, self._aggregator.skipped
        digest = hashlib.sha256(f"{path}:{begin}".encode())
        end = begin
        for line in _lines(path, begin):
            end += len(line)
            digest.update(line)
            self._take(line)
            if end - begin >= PIECE_BYTES:
                break
        if end == begin:
            return Ingested()
        self._position = replace(self._position, offset=end)
        found = self._store(path, digest.hexdigest())
        return replace(found, bytes_read=end - begin, skipped=self._aggregator.skipped - skipped)

    def _take(self, line: bytes) -> None:
        if not _KIND.match(line):
            if not line.startswith(b'{"t":'):
                self._aggregator.skipped += 1
            return
        try:
            self._aggregator.take(json.loads(line))
        except (ValueError, KeyError, IndexError, TypeError):
            self._aggregator.skipped += 1  # torn by a crash, and never continued

    def _store(self, path: Path, digest: str) -> Ingested:
        rows = self._aggregator.take_rows()
        file = StatisticsFile(
            path=str(path),
            digest=digest,
            models=rows.models,
            vgpus=rows.vgpus,
            drops=rows.drops,
            pairs=rows.pairs,
            modules=rows.modules,
            entries=rows.entries,
            cursor=(self._source, to_text(self._position, self._aggregator)),
        )
        with self._work.open() as warehouse:
            add_statistics(warehouse, file, now_utc())
        return Ingested(minutes=len(rows.models))

    def _plan(self, header: Header) -> Plan | None:
        return plan_of(self._work, self._folder, header.plan_id, header.generation)


def plan_of(work: Workspace, folder: Path, plan_id: str, generation: int) -> Plan | None:
    """The plan that a header of event files names: beside them, else in the warehouse."""
    path = folder / "generations" / str(generation) / "plan.json"
    try:
        plan = Plan.from_dict(json.loads(path.read_text()))
        if plan.plan_id == plan_id:
            return plan
    except (OSError, ValueError, InputError):
        pass  # a later start has taken the folder; the warehouse knows older plans
    try:
        with work.open(read_only=True) as warehouse:
            return read_plan(warehouse, plan_id)
    except InputError:
        return None


def _lines(path: Path, begin: int) -> Iterator[bytes]:
    """Whole lines from a byte on; one that is still being written is left for the next time."""
    with path.open("rb") as file:
        file.seek(begin)
        for line in file:
            if not line.endswith(b"\n"):
                return
            yield line


def check_folder(folder: Path) -> None:
    """Complain where no system has ever been served from a folder.

    Raises:
        InputError: it has no event files.
    """
    if not lives(folder / EVENTS, EVENTS):
        raise InputError(str(folder), "has no event files; `poolpipe serve` writes them")
