"""Traces read from a serve folder: its event files and the request logs of its fronts.

A request is traced by its client's `traceparent`, if that says `sampled`; of the others a share is
chosen by their numbers, in traces of their own. What fronts write of a request and what the
scheduler writes lie in different files, each flushed when its process finds the time: a request's
spans are made a little after its end, by the clock of the events.
"""

import heapq
import json
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

from flows.clock import boot_wall_us
from flows.operations.ingest.reader import plan_of
from flows.operations.traces.history import FORGET_LINES, Header, History, Key, Request
from flows.operations.traces.spans import (
    FrontLine,
    Trace,
    share_of,
    trace_of_line,
    trace_of_request,
)
from flows.workspace import Workspace
from triton_backend.contract.plan import Plan
from triton_backend.contract.units import US_PER_S
from triton_backend.serve_folder.line_files import lives
from triton_backend.serve_folder.state import read_state_file
from triton_backend.serve_folder.traceparent import TraceParent

SETTLED_US = 2 * US_PER_S  # after the answer: what the scheduler had to write of it is there
SAME_BOOT_US = 60 * US_PER_S
QUIET_READS = 3  # one after the other without a line: nothing more is to be waited for


class TraceReader:
    """Reads on where it stopped, each time it is asked.

    Attributes:
        skipped: lines that could not be used.
        alone: traces without what the scheduler knew: its files have rolled away, or it never saw
            the request.

    Args:
        work: where plans are that event files name.
        folder: the serve folder.
        share: of the requests without a sampled `traceparent`, 0 to 1.
        from_now: leave out what the files hold already.
    """

    def __init__(
        self, work: Workspace, folder: Path, *, share: float = 0.0, from_now: bool = False
    ) -> None:
        self._work, self._folder, self._share = work, folder, share
        self._plans: dict[tuple[str, int], Plan | None] = {}
        self._history = History(self._plan)
        self._life = ""
        self._ends: dict[Path, int] = {}
        self._lines: list[tuple[int, int, FrontLine]] = []  # a heap by the wall clock
        self._keys: Counter[Key] = Counter()
        self._torn = 0
        self._order = 0
        self._quiet = 0
        self.alone = 0
        if from_now:
            self._skip()

    @property
    def skipped(self) -> int:
        """Lines that could not be used."""
        return self._torn + self._history.skipped

    @property
    def kept(self) -> int:
        """Requests that are remembered for a while."""
        return self._history.kept

    def read(self, *, everything: bool = False) -> Iterator[Trace]:
        """Traces that are complete since the last time; with `everything` those under way, too."""
        lines = 0
        for line in self._front_lines():
            lines += 1
            self._front_line(line)
        for line in self._events():
            lines += 1
            self._history.take(line)
            if lines % FORGET_LINES == 0:
                yield from self._settled(everything=False)
        self._quiet = 0 if lines else self._quiet + 1
        yield from self._settled(everything=everything or self._quiet >= QUIET_READS)

    def _settled(self, *, everything: bool) -> Iterator[Trace]:
        history = self._history
        wall_us = history.header.boot_wall_us + history.now_us
        while self._lines and (everything or self._lines[0][0] + SETTLED_US <= wall_us):
            _, _, line = heapq.heappop(self._lines)
            found = self._found(line)
            for request in found:
                request.traced = True
            self.alone += not found
            self._keys[line.model, line.number] -= 1
            yield trace_of_line(line, found)
        history.forget(everything=everything)
        settled, history.settled = history.settled, []
        for request in settled:
            if not request.traced and not self._keys[request.key] and self._chosen(*request.key):
                yield trace_of_request(request)
        self._keys = +self._keys

    def _found(self, line: FrontLine) -> list[Request]:
        key = (line.model, line.number)
        found = self._history.requests(key, from_us=line.arrival_us, to_us=line.answered_us)
        return [
            request
            for request in found
            if abs(request.header.boot_wall_us - line.boot_wall_us) < SAME_BOOT_US
        ]

    def _chosen(self, model: str, number: int) -> bool:
        return share_of(model, number) < self._share

    def _front_line(self, text: bytes) -> None:
        try:
            line = FrontLine.from_dict(json.loads(text))
        except (ValueError, LookupError, TypeError, AttributeError):
            self._torn += 1
            return
        parent = TraceParent.parse(line.traceparent)
        sampled = self._chosen(line.model, line.number) if parent is None else parent.sampled
        if sampled:
            self._order += 1
            self._keys[line.model, line.number] += 1
            wall_us = line.boot_wall_us + line.answered_us
            heapq.heappush(self._lines, (wall_us, self._order, line))

    # Files

    def _front_lines(self) -> Iterator[bytes]:
        return self._new(sorted((self._folder / "logs").glob("requests-*.jsonl")))

    def _events(self) -> Iterator[bytes]:
        found = lives(self._folder / "events", "events")
        for place, (start, files) in enumerate(found, 1):
            if start > self._life:
                self._life = start
                self._history.begin(self._in_force() if place == len(found) else Header("", 0, 0))
            yield from self._new(files)

    def _new(self, files: Iterable[Path]) -> Iterator[bytes]:
        """Whole lines that files have gained; one that has gone is left out."""
        for path in files:
            begin = self._ends.get(path, 0)
            try:
                size = path.stat().st_size  # lines that come later are for the next time
                with path.open("rb") as file:
                    file.seek(begin)
                    for line in file:
                        if not line.endswith(b"\n") or begin >= size:
                            break
                        begin += len(line)
                        self._ends[path] = begin
                        yield line
            except FileNotFoundError:
                self._ends.pop(path, None)

    def _skip(self) -> None:
        """Read what is there for the plan in force alone."""
        for line in self._events():
            if line.startswith((b'{"t": "Plan"', b'{"t":"Plan"')):
                self._history.take(line)
        for _ in self._front_lines():
            pass

    # Plans

    def _plan(self, header: Header) -> Plan | None:
        key = header.plan_id, header.generation
        if key not in self._plans:
            self._plans[key] = plan_of(self._work, self._folder, *key)
        return self._plans[key]

    def _in_force(self) -> Header:
        """For the lines of a life whose first file, with the header, has rolled away."""
        state = read_state_file(self._folder) or {}
        generations = (self._folder / "generations").glob("*/plan.json")
        known = [int(path.parent.name) for path in generations if path.parent.name.isdecimal()]
        generation = state.get("generation") or max(known, default=0)
        path = self._folder / "generations" / str(generation) / "plan.json"
        try:
            plan_id = str(json.loads(path.read_text())["plan_id"])
        except (OSError, ValueError, LookupError, TypeError):
            plan_id = ""
        return Header(plan_id, int(generation), boot_wall_us())
