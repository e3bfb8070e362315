"""Files of lines that serving processes leave behind.

Their names, and the order they were written in. `PREFIX-START-ROLL.jsonl`: START tells the lives of
processes apart, ROLL the files of one life. START is the wall clock in µs, or one more than the
last life's where the clock went back, so that names alone say the order, also over a restart of the
host. A START that no wall clock shows is an instant of a host's monotonic clock, which begins at 0
with every boot: such lives come first, in the order of their last lines.
"""

import re
from pathlib import Path

ROLL_BYTES = 64 << 20  # of a file, after which its writer begins the next one
KEEP_FILES = 8  # of a prefix
# Of a prefix at most: a file grows by one hand-over more, and those that two processes have open
# stay.
MOST_BYTES = (KEEP_FILES + 2) * ROLL_BYTES
# 2001 as a wall clock; 31 years as an uptime.
_FIRST_WALL_US = 10**15
_NUMBERS = re.compile(r"(\d+)(?:-(\d+))?\.jsonl")


def line_file(folder: Path, prefix: str, start_us: int, roll: int) -> Path:
    """The path of a life's file."""
    return folder / f"{prefix}-{start_us:020d}-{roll:04d}.jsonl"


def roll_of(name: str, prefix: str) -> int:
    """The ROLL of a file's name; names do not sort by it from the ten thousandth on."""
    numbers = _NUMBERS.fullmatch(name.removeprefix(f"{prefix}-"))
    return int(numbers[2] or 0) if numbers else 0


def next_start_us(folder: Path, prefix: str, wall_us: int) -> int:
    """The START of a life that begins now, after all that left files."""
    return max([wall_us, *(int(start) + 1 for start, _ in lives(folder, prefix))])


def lives(folder: Path, prefix: str) -> list[tuple[str, list[Path]]]:
    """START and files of every life, the oldest life and its first file first."""
    found: dict[str, list[tuple[int, Path]]] = {}
    for path in folder.glob(f"{prefix}-*.jsonl"):
        numbers = _NUMBERS.fullmatch(path.name.removeprefix(f"{prefix}-"))
        if numbers:
            found.setdefault(numbers[1], []).append((int(numbers[2] or 0), path))
    ordered = [(start, [path for _, path in sorted(files)]) for start, files in found.items()]
    return sorted(ordered, key=lambda life: (*_order(*life), life[0]))


def files_in_order(folder: Path, prefix: str) -> list[Path]:
    """All files of a prefix, the oldest first."""
    return [path for _, files in lives(folder, prefix) for path in files]


def _order(start: str, files: list[Path]) -> tuple[bool, int]:
    """Where a life stands among others: by its START, else by the instant of its last line."""
    if int(start) >= _FIRST_WALL_US:
        return True, int(start)
    try:
        return False, files[-1].stat().st_mtime_ns
    except FileNotFoundError:  # rolled away meanwhile
        return False, 0
