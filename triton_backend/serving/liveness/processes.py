"""Life and progress of a process: its end, its heartbeat, and the batch it runs.

Three watchers, each of processes of one kind (the picture is in the README of this folder):

* a node watches its workers: a row of shared memory each (`HealthBoard`, judged by `HealthWatch`);
* the supervisor of tritonserver watches Triton's model processes: a file each (`StubHeartbeat`,
  judged by `StubWatch`);
* the supervisor is woken at once when a process ends (`ExitWatch`); a node asks its children.

Silence alone says little on busy cores: a process is taken for hung soon only where none of its
threads wants to run (it is stopped, or waits for what never comes); one that runs or waits for a
disk has more time. A machine that stands still for a while hangs none.

Not here: workers judged by their results (`supervisor`).
"""

import contextlib
import ctypes
import math
import mmap
import os
import select
import signal
import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Self

from triton_backend.runtimes.clock import Clock
from triton_backend.serve_folder.names import short_name
from triton_backend.serve_folder.settings import ServeSettings
from triton_backend.serving.deployment import Deployment
from triton_backend.serving.transport.shared_memory import SHARED_FOLDER

# Of a process that does not even want to run.
STUCK_US = 1_000_000
# Of one that wants to run, or waits for a disk.
SILENT_US = 8_000_000
# Of one that compiles and says so, which takes 20 s of a processor: on a machine where it gets a
# sixtieth of one that is 20 minutes. What takes longer is taken to hang.
COMPILE_LIMIT_US = 1_800_000_000

WORKER_HEARTBEAT_SECONDS = 0.2
# A batch that runs so many times its profile, and so much longer at least, never ends.
HUNG_FACTOR = 10
HUNG_AT_LEAST_US = 1_000_000
# A process that does not get on is killed after `SILENT_US`; a little later nothing of it writes.
DEAD_BY_NOW_US = SILENT_US + 2_000_000
# A look that comes so long after the one before: the node stood still, and its workers with it.
STALL_US = 500_000

STUB_HEARTBEAT_SECONDS = 0.25
OWNERS_LOOK_MS = 200
STUCK_LOOKS = 3  # of a stub, one after the other

_HEARTBEAT, _BUSY_SINCE, _EXPECTED, _PID, _PRESSURE = range(5)
_OWNERS = range(5, 7)  # by gateway
_PATIENCE = 7
_COLUMNS = 8
_CELL_BYTES = 8
_MILLION = 1_000_000
_LINE_BYTES = 64
_SERVES, _COMPILES = 2, 3  # numbers in a file
_PR_SET_PDEATHSIG = 1
_PR_SET_NAME = 15
# Of /proc/PID/task/TID/stat, counted from the state.
_USER_TICKS, _SYSTEM_TICKS = 11, 12
_TICKS = os.sysconf("SC_CLK_TCK")


def dead_after_us(latency_us: int) -> int:
    """How long a process that runs stages of a latency may be silent before it counts as dead."""
    return DEAD_BY_NOW_US + HUNG_FACTOR * latency_us


def written_until_us(now_us: int, end_us: int, *, slo_us: int, latency_us: int) -> int:
    """Until when a process may write what belongs to a batch that is given up now.

    A worker that is cut off lives, and runs the batch when its turn has come or its shared batch
    leaves.

    Args:
        now_us: when it is given up.
        end_us: of the last of its reservations.
        slo_us: the longest of the plan.
        latency_us: of the slowest of its stages.
    """
    return max(now_us, end_us + slo_us) + dead_after_us(latency_us)


def thread_states(pid: int) -> set[str]:
    """The states of a process's threads, as Linux writes them (R, S, D, T, …).

    None of a dead one.
    """
    states: set[str] = set()
    with contextlib.suppress(OSError):
        for thread in Path(f"/proc/{pid}/task").iterdir():
            with contextlib.suppress(OSError):
                states.add((thread / "stat").read_text().rpartition(")")[2].split()[0])
    return states - {"Z", "X"}


class ThreadUse(NamedTuple):
    """A thread's wish for a processor now, and its run time in all."""

    wants: bool
    ran_us: int


def thread_uses(pid: int) -> dict[int, ThreadUse]:
    """Of every thread of a process, by its id, to 10 ms; none of a dead one."""
    found: dict[int, ThreadUse] = {}
    with contextlib.suppress(OSError):
        for thread in Path(f"/proc/{pid}/task").iterdir():
            with contextlib.suppress(OSError):
                fields = (thread / "stat").read_text().rpartition(")")[2].split()
                ticks = int(fields[_USER_TICKS]) + int(fields[_SYSTEM_TICKS])
                found[int(thread.name)] = ThreadUse(fields[0] == "R", ticks * _MILLION // _TICKS)
    return found


class Starvation:
    """For how long a process has wanted a processor and had none, from look to look.

    One that hangs waits for no processor: it is stopped, waits for what never comes, or runs in a
    circle. One on a machine that others fill does little else, and what it was to do is late
    through no fault of its own.
    """

    def __init__(self) -> None:
        self._before: Mapping[int, ThreadUse] = {}
        self._looked_us = 0
        self._total_us = 0

    def look(self, threads: Mapping[int, ThreadUse], now_us: int) -> int:
        """The time without (µs) since the first look.

        Of its threads' that one's which had the least.

        Args:
            threads: as they are now.
            now_us: instants never go back.
        """
        since_us = now_us - self._looked_us
        known = self._before.keys() & threads.keys()
        self._total_us += max(
            (
                since_us - (threads[t].ran_us - self._before[t].ran_us)
                for t in known
                if threads[t].wants
            ),
            default=0,
        )
        self._before, self._looked_us = threads, now_us
        return self._total_us


# Workers, watched by their node


@dataclass(frozen=True, slots=True)
class HealthBoard:
    """A node's view of its workers: shared memory that each writes, rows by vGPU number.

    `rows[vgpu]` is (heartbeat, busy since, expected), µs: when its heartbeat thread last ran; when
    the batch it runs began, 0 while it is idle; how long that batch should take; then the process,
    how hard the batch presses on neighbours (millionths, where interference is emulated), and the
    server of each gateway, all of which it belongs to. No messages, so a hundred workers cost
    nothing. A worker keeps the row of the generation that it was started for.
    """

    path: Path
    rows: "memoryview[int]"  # [vGPU, column]; written faster than an array of numpy

    @classmethod
    def open(cls, deployment: Deployment, node: str) -> Self:
        """Map the board of a node, making it where it is not there yet."""
        prefix = deployment.settings.segment_prefix
        path = SHARED_FOLDER / f"{prefix}g{deployment.generation}-health-{short_name(node)}"
        shape = (len(deployment.vgpus), _COLUMNS)
        size = math.prod(shape) * _CELL_BYTES
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            os.ftruncate(fd, size)
            memory = mmap.mmap(fd, size)
        finally:
            os.close(fd)
        return cls(path, memoryview(memory).cast("q", shape))

    @classmethod
    def generations(cls, settings: ServeSettings, node: str) -> list[int]:
        """Generations that a node has a board of."""
        prefix = f"{settings.segment_prefix}g"
        found = SHARED_FOLDER.glob(f"{prefix}*-health-{short_name(node)}")
        numbers = (path.name.removeprefix(prefix).partition("-")[0] for path in found)
        return sorted(int(number) for number in numbers if number.isdecimal())

    def row(self, vgpu: int) -> "HealthRow":
        """The row that the worker of a vGPU writes."""
        return HealthRow(self.rows, vgpu)

    def process_of(self, vgpu: int) -> int:
        """Process id of the worker; 0 before it has loaded."""
        return self.rows[vgpu, _PID]

    def has_loaded(self, vgpu: int) -> bool:
        """True if the worker has finished loading: its heart beats from then on."""
        return bool(self.rows[vgpu, _HEARTBEAT])

    def belongs_to(self, vgpu: int, gateway: int, owner: int) -> None:
        """Let a worker know of the process of the node's model in a gateway."""
        if self.rows[vgpu, _OWNERS[gateway]] != owner:
            self.rows[vgpu, _OWNERS[gateway]] = owner

    def reset(self, vgpu: int) -> None:
        """A new process takes the row."""
        for column in range(_COLUMNS):
            self.rows[vgpu, column] = 0

    def remove(self) -> None:
        """Delete the file; processes that map it keep it till then."""
        self.path.unlink(missing_ok=True)


class HealthRow:
    """A worker's own row of a board."""

    def __init__(self, rows: "memoryview[int]", vgpu: int) -> None:
        self._rows = rows
        self._vgpu = vgpu

    def busy(
        self, since_us: int, expected_us: int, pressure: float = 0.0, patience_us: int = 0
    ) -> None:
        """It begins a batch, which presses so hard on its neighbours.

        It is not taken to hang before `patience_us`.
        """
        self._rows[self._vgpu, _PATIENCE] = min(patience_us, SILENT_US)
        self._rows[self._vgpu, _PRESSURE] = round(pressure * _MILLION)
        self._rows[self._vgpu, _EXPECTED] = expected_us
        self._rows[self._vgpu, _BUSY_SINCE] = since_us

    def idle(self) -> None:
        """It ended its batch."""
        self._rows[self._vgpu, _BUSY_SINCE] = 0

    def pressing(self) -> float | None:
        """How hard its batch presses on its neighbours; None while it is idle."""
        if not self._rows[self._vgpu, _BUSY_SINCE]:
            return None
        return self._rows[self._vgpu, _PRESSURE] / _MILLION

    def keep_beating(
        self, clock: Clock, stop: threading.Event, owned_by: Callable[[int], None]
    ) -> None:
        """Show that this process runs, and read its owners; for a thread of its own."""
        self._rows[self._vgpu, _PID] = os.getpid()
        known = {0}
        while True:
            self._rows[self._vgpu, _HEARTBEAT] = clock.now_us()
            for owner in {self._rows[self._vgpu, column] for column in _OWNERS} - known:
                known.add(owner)
                owned_by(owner)
            if stop.wait(WORKER_HEARTBEAT_SECONDS):
                return


class HealthWatch:
    """Judges the workers on a board, in looks much less than `STALL_US` apart."""

    def __init__(self, board: HealthBoard) -> None:
        self._board = board
        self._looked_us = 0
        self._awake_us = 0  # nothing can have happened between two looks far apart
        # Of workers that run a batch for long: when it began, and what they had no processor for
        # since.
        self._starvation: dict[int, tuple[int, Starvation]] = {}

    def look(self, now_us: int) -> None:
        """Begin a look."""
        if now_us - self._looked_us > STALL_US:
            self._awake_us = now_us
        self._looked_us = now_us

    def complaint(self, vgpu: int, pid: int) -> str | None:
        """Why a worker must be taken for hung, or None. One that never beat is still loading."""
        beat, since, expected, patience_us = (
            self._board.rows[vgpu, column]
            for column in (_HEARTBEAT, _BUSY_SINCE, _EXPECTED, _PATIENCE)
        )
        silent_us = self._looked_us - max(beat, self._awake_us)
        if beat and silent_us > STUCK_US and (silent_us > SILENT_US or not _wants_to_run(pid)):
            return f"no heartbeat for {silent_us / 1e6:.1f} s"
        busy_us = self._looked_us - max(since, self._awake_us)
        limit_us = max(HUNG_FACTOR * expected, expected + HUNG_AT_LEAST_US, patience_us)
        if since and 2 * busy_us > limit_us:
            busy_us -= self._starved_us(vgpu, pid, since)
            if busy_us > limit_us:
                return f"busy for {busy_us / 1e6:.1f} s, expected {expected / 1e6:.3f} s"
        return None

    def _starved_us(self, vgpu: int, pid: int, since_us: int) -> int:
        """Time a worker lacked a processor since half of its batch's time was over."""
        began_us, starvation = self._starvation.get(vgpu, (0, Starvation()))
        if began_us != since_us:
            starvation = Starvation()
        self._starvation[vgpu] = since_us, starvation
        return starvation.look(thread_uses(pid), self._looked_us)


def _wants_to_run(pid: int) -> bool:
    """True if a thread waits for a processor or a disk.

    That of the heartbeat may be one of them.
    """
    return bool(thread_states(pid) & set("RD"))


# Triton's model processes (stubs), watched by the supervisor of tritonserver


class StubHeartbeat:
    """Keeps a model's file up to date between `start` and `stop`: its process id and heartbeat.

    Args:
        alive_us: the last instant at which all that requests depend on was seen to run.
        compiles_since_us: since when it compiles, before it can serve; None while it does not.
    """

    def __init__(
        self,
        path: Path,
        alive_us: Callable[[], int],
        compiles_since_us: Callable[[], int | None] = lambda: None,
    ) -> None:
        self._path = path
        self._alive_us = alive_us
        self._compiles_since_us = compiles_since_us
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="heartbeat", daemon=True)
        self._fd: int | None = None

    def start(self) -> None:
        """Write the file and go on writing it; harmless where that was begun before.

        Raises:
            OSError: it cannot be written.
        """
        if self._fd is not None:
            return
        self._path.parent.mkdir(exist_ok=True)
        # A new file, because a dead process may have left its own.
        self._path.unlink(missing_ok=True)
        self._fd = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._write()
        self._thread.start()

    def stop(self) -> None:
        """Stop, and remove the file unless a newer load of the model has written its own."""
        self._stopping.set()
        self._thread.join(timeout=2)
        assert self._fd is not None
        with contextlib.suppress(OSError):
            if self._path.stat().st_ino == os.fstat(self._fd).st_ino:
                self._path.unlink()
        os.close(self._fd)

    def _run(self) -> None:
        while not self._stopping.wait(STUB_HEARTBEAT_SECONDS):
            with contextlib.suppress(OSError):
                self._write()

    def _write(self) -> None:
        """In place and of one length: a full disk does not stop it, and no reader sees half."""
        assert self._fd is not None
        since_us = self._compiles_since_us()
        words = (os.getpid(), self._alive_us(), *([] if since_us is None else [since_us]))
        line = " ".join(map(str, words)).ljust(_LINE_BYTES - 1) + "\n"
        os.pwrite(self._fd, line.encode(), 0)


class Compiling(NamedTuple):
    """A model's process that compiles before it can serve, as its file says.

    Attributes:
        heard_us: when it was last heard of.
        since_us: when it began.
    """

    model: str
    heard_us: int
    since_us: int

    def complaint(self) -> str | None:
        """Why it must be taken for hung, or None."""
        lasted_us = self.heard_us - self.since_us
        if lasted_us <= COMPILE_LIMIT_US:
            return None
        return (
            f"has compiled for {lasted_us / 1e6:.0f} s, longer than the"
            f" {COMPILE_LIMIT_US / 1e6:.0f} s after which it is taken to hang"
        )


def compiling(pids: Path) -> list[Compiling]:
    """Processes of models that compile before they can serve, the one last heard of first."""
    found: list[Compiling] = []
    for file in stub_files(pids):
        numbers = _numbers_in(file)
        if len(numbers) == _COMPILES:
            found.append(Compiling(file.name, *numbers[1:]))
    return sorted(found, key=lambda one: one.heard_us, reverse=True)


def stub_files(pids: Path) -> list[Path]:
    """The files of the models' processes in a folder; none where it is not there."""
    try:
        return list(pids.iterdir())
    except OSError:
        return []


def _numbers_in(file: Path) -> list[int]:
    """The numbers of a model's process: its id, its heartbeat, since when it compiles, if it does.

    None where there is nothing to read yet. Hundreds are read a few times a second.
    """
    try:
        fd = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
        try:
            return [int(word) for word in os.read(fd, _LINE_BYTES).split()]
        finally:
            os.close(fd)
    except (OSError, ValueError):
        return []


class StubLook(NamedTuple):
    """Result of a check of a model's file: its process, and a reason to reload it, if any.

    `again_us`: until then nothing but the end of a process can make the result another.
    """

    pid: int
    alive: bool
    complaint: str | None
    again_us: int = 0


class StubWatch:
    """Judges the files of a folder; to be asked a few times a second.

    The kernel says which processes have ended, so of those whose heart beats nothing but their file
    is read. Time in which a process wanted a processor and had none is no silence: one that
    compiles on a busy machine would be restarted again and again.

    Args:
        exits: is woken when a process that was looked at ends.
    """

    def __init__(self, clock: Clock, exits: "ExitWatch | None" = None) -> None:
        self._clock = clock
        self._exits = exits or ExitWatch()
        self._stuck_looks: dict[tuple[str, int], int] = {}
        # Of those that have been silent for long: since when, and what they had no processor for
        # since.
        self._starvation: dict[tuple[str, int], tuple[int, Starvation]] = {}

    def look(self, file: Path) -> StubLook | None:
        """One look at one file; None where there is nothing to read yet."""
        numbers = _numbers_in(file)
        if len(numbers) < _SERVES:
            return None
        pid, alive_us, *rest = numbers
        since_us = rest[:1]  # where it compiles
        now_us = self._clock.now_us()
        key, silent_us = (file.name, pid), now_us - alive_us
        runs = self._exits.watch(pid)
        if runs and silent_us <= STUCK_US:
            self._forget(key)
            if since_us:
                endless = Compiling(file.name, alive_us, *since_us).complaint()
                return StubLook(pid, alive=True, complaint=endless)
            return StubLook(pid, alive=True, complaint=None, again_us=alive_us + STUCK_US)
        states = thread_states(pid) if runs else set[str]()
        if not states:
            self._forget(key)
            return StubLook(pid, alive=False, complaint="its process died")
        if not states & set("RD"):
            self._stuck_looks[key] = self._stuck_looks.get(key, 0) + 1
        else:
            self._stuck_looks.pop(key, None)
        silent_us -= self._starved_us(key, alive_us, now_us)
        if self._stuck_looks.get(key, 0) >= STUCK_LOOKS or silent_us > SILENT_US:
            self._forget(key)
            return StubLook(pid, alive=True, complaint=f"silent for {silent_us / 1e6:.1f} s")
        return StubLook(pid, alive=True, complaint=None)

    def _starved_us(self, key: tuple[str, int], alive_us: int, now_us: int) -> int:
        """For how long it wanted a processor and had none, since it was found silent."""
        since_us, starvation = self._starvation.get(key, (alive_us, Starvation()))
        if since_us != alive_us:
            starvation = Starvation()
        self._starvation[key] = alive_us, starvation
        return starvation.look(thread_uses(key[1]), now_us)

    def _forget(self, key: tuple[str, int]) -> None:
        self._stuck_looks.pop(key, None)
        self._starvation.pop(key, None)


# Ends of processes


def end_with_parent(parent: int) -> None:
    """Have the kernel kill this process when the one that started it is gone."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        sys.exit(0)


def end_with(other: int, release: Callable[[], object]) -> None:
    """Have this process killed as soon as another one is gone.

    A thread waits for that end. The kernel could do it only at the end of the thread that started
    this process (`end_with_parent`), and Triton starts its models from threads that end.

    Args:
        other: the process.
        release: called right before: the kernel takes a while to give back what a process has, and
            long on a busy machine.

    Raises:
        OSError: it is gone already.
    """
    ended = select.poll()
    ended.register(os.pidfd_open(other), select.POLLIN)

    def wait() -> None:
        ended.poll()
        try:
            release()
        finally:
            os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=wait, name="owner", daemon=True).start()


def name_process(name: str) -> None:
    """Have `ps` and `top` name the main thread's process so (15 bytes).

    A fork has its parent's command line.
    """
    ctypes.CDLL(None).prctl(_PR_SET_NAME, name.encode(), 0, 0, 0)


class OwnerWatch:
    """Ends this process once every process that it belongs to is gone.

    A worker belongs to the node that started it, by the kernel's own means (`end_with_parent`),
    until it has loaded; from then on to tritonserver, too, by this.
    """

    def __init__(self, parent: int) -> None:
        self._poll = select.poll()
        self._owners: dict[int, int] = {}  # process id by file descriptor
        self._coming: list[int] = []  # owners that are watched once it outlives its parent
        self._lock = threading.RLock()  # a signal may come while another one is handled
        self._running = False
        self._parent = parent
        # Python runs it in the main thread, whose parent the kernel watches.
        signal.signal(signal.SIGUSR1, self._outlive_parent)

    def add(self, owner: int) -> None:
        """It belongs to another process, too, as soon as its main thread takes the signal.

        Only then is that one watched: a process seen to watch another owner outlives its parent.

        Raises:
            OSError: the parent is gone already.
        """
        with self._lock:
            if not self._running:
                self._watch(self._parent)
                self._running = True
                threading.Thread(target=self._run, name="owners", daemon=True).start()
            self._coming.append(owner)
        self._tell_main_thread()

    def _tell_main_thread(self) -> None:
        """Signal it, not its process: a signal to that may be taken by another thread."""
        ident = threading.main_thread().ident
        assert ident is not None, "it runs"
        signal.pthread_kill(ident, signal.SIGUSR1)

    def _outlive_parent(self, _number: int, _frame: object) -> None:
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, 0)
        with self._lock:
            while self._coming:
                with contextlib.suppress(OSError):  # it is gone already
                    self._watch(self._coming.pop())

    def _watch(self, pid: int) -> None:
        if pid not in self._owners.values():
            fd = os.pidfd_open(pid)
            self._owners[fd] = pid
            self._poll.register(fd, select.POLLIN)

    def _run(self) -> None:
        while True:
            for fd, _ in self._poll.poll(OWNERS_LOOK_MS):
                with self._lock:
                    del self._owners[fd]
                    self._poll.unregister(fd)
                    os.close(fd)
            if not self._owners:
                os.kill(os.getpid(), signal.SIGKILL)
            if self._coming:  # a signal right before the main thread begins to wait wakes it not
                self._tell_main_thread()


def parent_named(name: str) -> int | None:
    """The process that started this one; None where it has another name, so that it is gone."""
    parent = os.getppid()
    try:
        found = Path(f"/proc/{parent}/comm").read_text().strip()
    except OSError:
        return None
    return parent if found == name else None


def is_alive(pid: int) -> bool:
    """True if a process runs, or could."""
    return pid > 0 and bool(thread_states(pid))


class ExitWatch:
    """Is woken when a watched process ends; those that are gone are forgotten by themselves."""

    def __init__(self) -> None:
        self._poll = select.poll()
        self._watched: dict[int, int] = {}  # process id by file descriptor
        self._pids: set[int] = set()

    def watch(self, pid: int) -> bool:
        """Wake up when this process ends, also if it is watched; False where it has ended."""
        if pid in self._pids:
            return True
        try:
            fd = os.pidfd_open(pid)
        except ProcessLookupError:
            return False
        except OSError:  # no descriptor is free, or it is the number of no process
            return is_alive(pid)
        ended = select.poll()
        ended.register(fd, select.POLLIN)
        if ended.poll(0):
            os.close(fd)
            return False
        self._watched[fd] = pid
        self._pids.add(pid)
        self._poll.register(fd, select.POLLIN)
        return True

    def wait(self, timeout_s: float) -> list[int]:
        """The processes that ended, as soon as one has; none after the time-out."""
        ended: list[int] = []
        for fd, _ in self._poll.poll(timeout_s * 1000):
            pid = self._watched.pop(fd)
            ended.append(pid)
            self._pids.discard(pid)
            self._poll.unregister(fd)
            os.close(fd)
        return ended
