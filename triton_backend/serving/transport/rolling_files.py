"""Lines in files that roll: what event files and request logs share.

The owner's threads only buffer lines and hand them over; a thread of its own writes them, opens the
next file when one is large, and deletes the oldest beyond some number, so that no decision waits
for a disk. What cannot be written (a full disk) is kept up to `MAX_WAITING_LINES` and
`MAX_WAITING_BYTES` and tried again with every hand-over. What is lost beyond that is counted by a
line of its own: `{"t":"Gap","lines":N}`. Files are for their owner's user alone: they name clients
and requests.
"""

import contextlib
import fcntl
import logging
import os
import threading
from pathlib import Path

from triton_backend.serve_folder.files import PRIVATE
from triton_backend.serve_folder.line_files import (
    KEEP_FILES,
    ROLL_BYTES,
    files_in_order,
    line_file,
    next_start_us,
)

MAX_WAITING_LINES = 50_000
MAX_WAITING_BYTES = 32 << 20
CLOSE_SECONDS = 5.0
_LOG = logging.getLogger(__name__)


class RollingLines:
    """The files of one life of a process in a folder (`serve_folder/line_files`).

    `write` and `flush` are for any thread, `close` for the last of them.

    Args:
        folder: where they are.
        prefix: what their names begin with.
        wall_us: the wall clock at the beginning of this life.
    """

    def __init__(self, folder: Path, prefix: str, wall_us: int) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._files = _Files(folder, prefix, wall_us)
        self._buffering = threading.Lock()
        self._lines: list[str] = []
        self._handed_over: list[str] = []
        self._handed_over_bytes = 0
        self._lost = 0  # lines, since the last that was written
        self._failing = False
        self._closing = False
        self._changed = threading.Condition()
        self._to_write = False  # handed over since the last attempt
        self._writing = False
        self._thread: threading.Thread | None = None

    def write(self, line: str) -> None:
        """Buffer a line."""
        with self._buffering:
            self._lines.append(line)

    def flush(self) -> None:
        """Hand over what is buffered; a thread of its own writes it."""
        with self._buffering:
            lines, self._lines = self._lines, []
        if not lines:
            return
        with self._changed:
            self._handed_over += lines
            self._handed_over_bytes += sum(map(len, lines))
            self._leave_out_surplus()
            self._to_write = True
            self._changed.notify_all()
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="log-writer", daemon=True)
                self._thread.start()

    def _leave_out_surplus(self) -> None:
        """The oldest lines stay: a log with a gap can be read up to it."""
        lines = self._handed_over
        while len(lines) > MAX_WAITING_LINES or self._handed_over_bytes > MAX_WAITING_BYTES:
            self._handed_over_bytes -= len(lines.pop())
            self._lost += 1

    def drain(self) -> None:
        """Flush, and wait until it is written or has failed to be."""
        self.flush()
        with self._changed:
            self._changed.wait_for(lambda: not self._to_write and not self._writing, CLOSE_SECONDS)

    def close(self) -> None:
        """Flush, try once more what could not be written, end the thread and close."""
        self.drain()
        with self._changed:
            self._to_write = bool(self._handed_over)
            self._changed.notify_all()
        self.drain()
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join(CLOSE_SECONDS)
        self._files.close()

    # The writer's thread

    def _run(self) -> None:
        while True:
            with self._changed:
                self._writing = False
                self._changed.notify_all()
                # A failed write is tried again when more lines come, not before.
                self._changed.wait_for(lambda: self._to_write or self._closing)
                if not self._to_write:
                    return
                self._to_write, self._writing = False, True
            self._write_all()

    def _write_all(self) -> None:
        while True:
            with self._changed:
                lines, self._handed_over = self._handed_over, []
                self._handed_over_bytes = 0
                lost, self._lost = self._lost, 0
            if lost:
                lines.append(f'{{"t":"Gap","lines":{lost}}}')
            if not lines:
                return
            try:
                self._files.write(lines)
            except _NotWrittenError as error:
                self._keep(error, lost)
                return
            if self._failing:
                self._failing = False
                _LOG.warning("%s are written again", self._files)

    def _keep(self, error: "_NotWrittenError", lost: int) -> None:
        """Put what was not written back before what was handed over since."""
        if not self._failing:
            self._failing = True
            _LOG.warning("%s cannot be written, tried again: %s", self._files, error)
        rest = error.lines[:-1] if lost else error.lines  # but for the gap
        with self._changed:
            self._handed_over[:0] = rest
            self._handed_over_bytes += sum(map(len, rest))
            self._lost += lost


class _NotWrittenError(Exception):
    """Some lines could not be written; those before them were."""

    def __init__(self, cause: OSError, lines: list[str]) -> None:
        super().__init__(str(cause))
        self.lines = lines


class _Files:
    """The files themselves; for one thread. Files hold whole lines only, whatever fails.

    The file that is open is locked, which tells other writers of the folder not to delete it.
    """

    def __init__(self, folder: Path, prefix: str, wall_us: int) -> None:
        self._folder = folder
        self._prefix = prefix
        self._wall_us = wall_us
        self._start_us: int | None = None
        self._roll = 0
        self._size = 0
        self._fd: int | None = None

    def __str__(self) -> str:
        return f"{self._prefix} of {self._folder}"

    def write(self, lines: list[str]) -> None:
        """Write lines, each whole.

        Raises:
            _NotWrittenError: the disk is full or the folder gone; with the lines that are left.
        """
        data = ("\n".join(lines) + "\n").encode()
        written = 0
        try:
            if self._fd is None or self._size > ROLL_BYTES:
                self._open_next()
            assert self._fd is not None
            while written < len(data):
                written += os.write(self._fd, memoryview(data)[written:])
        except OSError as error:
            whole = data.rfind(b"\n", 0, written) + 1
            self._end_at(self._size + whole)
            left = data[whole:].decode().split("\n")[:-1]  # `splitlines` ends lines within one, too
            raise _NotWrittenError(error, left) from error
        self._size += written

    def _end_at(self, size: int) -> None:
        """Cut what was written of half a line."""
        self._size = size
        if self._fd is not None:
            with contextlib.suppress(OSError):
                os.ftruncate(self._fd, size)
                os.lseek(self._fd, size, os.SEEK_SET)

    def _open_next(self) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        if self._start_us is None:
            fd = self._open_first()
        else:
            fd = self._open(self._start_us, os.O_CREAT)
        fcntl.flock(fd, fcntl.LOCK_SH)
        self.close()
        self._fd, self._size = fd, 0
        self._roll += 1
        for old in files_in_order(self._folder, self._prefix)[:-KEEP_FILES]:
            if not _is_open(old):
                old.unlink(missing_ok=True)

    def _open_first(self) -> int:
        """A life that begins at the same instant as another one takes the START after it."""
        while True:
            start_us = next_start_us(self._folder, self._prefix, self._wall_us)
            with contextlib.suppress(FileExistsError):
                fd = self._open(start_us, os.O_CREAT | os.O_EXCL)
                self._start_us = start_us
                return fd

    def _open(self, start_us: int, flags: int) -> int:
        path = line_file(self._folder, self._prefix, start_us, self._roll)
        return os.open(path, os.O_WRONLY | os.O_CLOEXEC | flags, PRIVATE)

    def close(self) -> None:
        """Close the file that is open."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None


def _is_open(path: Path) -> bool:
    """True if a writer that lives, this one or another, has a file open."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
    return False
