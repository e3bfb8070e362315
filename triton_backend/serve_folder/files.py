"""Files of a serve folder, written whole or not at all: somebody may be reading them just now."""

import os
import tempfile
from pathlib import Path

PRIVATE = 0o600  # of what holds the token


def write_whole(path: Path, text: str, *, mode: int = 0o644) -> None:
    """Write a file in one step; on a full disk what was there before stays.

    Raises:
        OSError: it cannot be written.
    """
    fd, unfinished = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(fd, "w", encoding="utf-8") as file:
            os.fchmod(fd, mode)
            file.write(text)
        Path(unfinished).replace(path)
    except OSError:
        Path(unfinished).unlink(missing_ok=True)
        raise
