"""Lines in files that roll: what event files and request logs share.

Lines are buffered until `flush`. A file rolls when it is large, the oldest beyond some number are
deleted, and what cannot be written (a full disk) ends the log with one warning, never its owner.
"""

import logging
from pathlib import Path
from typing import IO

ROLL_BYTES = 64 << 20
KEEP_FILES = 8
_LOG = logging.getLogger(__name__)


class RollingLines:
    """Files `PREFIX-START-NUMBER.jsonl` in a folder; `start_us` tells lives of a process apart."""

    def __init__(self, folder: Path, prefix: str, start_us: int) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._prefix = prefix
        self._start_us = start_us
        self._roll = 0
        self._size = 0
        self._lines: list[str] = []
        self._file: IO[str] | None = None
        self._lost = False

    def write(self, line: str) -> None:
        """Buffer a line."""
        if not self._lost:
            self._lines.append(line)

    def flush(self) -> None:
        """Write what is buffered."""
        lines, self._lines = self._lines, []
        if not lines or self._lost:
            return
        try:
            if self._file is None or self._size > ROLL_BYTES:
                self._open_next()
            assert self._file is not None
            text = "\n".join(lines) + "\n"
            self._file.write(text)
            self._file.flush()
            self._size += len(text)
        except OSError as error:
            self._lost = True
            _LOG.warning("%s of %s end here: %s", self._prefix, self._folder, error)

    def _open_next(self) -> None:
        if self._file is not None:
            self._file.close()
        name = f"{self._prefix}-{self._start_us:020d}-{self._roll:04d}.jsonl"
        self._file = (self._folder / name).open("w")
        self._roll += 1
        self._size = 0
        for old in sorted(self._folder.glob(f"{self._prefix}-*.jsonl"))[:-KEEP_FILES]:
            old.unlink(missing_ok=True)

    def close(self) -> None:
        """Flush and close."""
        self.flush()
        if self._file is not None:
            self._file.close()
            self._file = None
