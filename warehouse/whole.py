"""Files that are written whole or not at all."""

from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory


@contextmanager
def unfinished(path: Path) -> Generator[Path]:
    """Give the path to write to, whose file takes the place of `path` once all of it is written.

    What was there before stays until then, and its mode. A pipe or a device is written to itself.

    Raises:
        OSError: there cannot be such a file.
    """
    target = path.resolve()
    if target.exists() and not target.is_file():
        yield target
        return
    with TemporaryDirectory(dir=target.parent, prefix=f".{target.name}.") as scratch:
        written = Path(scratch) / target.name
        yield written
        if target.exists():
            written.chmod(target.stat().st_mode & 0o777)
        written.replace(target)
