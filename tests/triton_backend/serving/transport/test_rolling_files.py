"""Files of lines that roll, on disks that fill up and are freed again."""

import json
from pathlib import Path

import pytest

from triton_backend.serving.transport import rolling_files
from triton_backend.serving.transport.rolling_files import RollingLines


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "lines"


def contents(folder: Path) -> list[str]:
    """All lines of all files, oldest first."""
    return [line for path in sorted(folder.iterdir()) for line in path.read_text().splitlines()]


def test_lines_are_in_the_files_in_their_order(folder: Path) -> None:
    lines = RollingLines(folder, "events", 7)
    wanted = [f'{{"n":{n}}}' for n in range(1000)]
    for number, line in enumerate(wanted):
        lines.write(line)
        if number % 3 == 0:
            lines.flush()
    lines.close()
    assert contents(folder) == wanted
    assert [path.name for path in folder.iterdir()] == [f"events-{7:020d}-0000.jsonl"]


def test_files_roll_and_the_oldest_go(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rolling_files, "ROLL_BYTES", 10)
    monkeypatch.setattr(rolling_files, "KEEP_FILES", 3)
    lines = RollingLines(folder, "events", 7)
    for number in range(12):
        lines.write(f"a line of more than ten bytes, number {number}")
        lines.drain()
    lines.close()
    assert [path.name[-10:-6] for path in sorted(folder.iterdir())] == ["0009", "0010", "0011"]
    assert contents(folder)[-1].endswith("number 11")


def full_disk(folder: Path) -> Path:
    """A file on a device that is full, at the place of the first file."""
    folder.mkdir()
    path = folder / f"events-{7:020d}-0000.jsonl"
    path.symlink_to("/dev/full")
    return path


def test_a_disk_that_is_freed_gets_all_lines_that_waited(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder.mkdir()
    blocked = folder / f"events-{7:020d}-0000.jsonl"
    blocked.mkdir()  # where the first file should be: opening it fails
    lines = RollingLines(folder, "events", 7)
    for number in range(3):
        lines.write(f"line {number}")
        lines.drain()
    blocked.rmdir()
    lines.write("line 3")
    lines.drain()
    assert contents(folder) == [f"line {number}" for number in range(4)]
    monkeypatch.setattr(rolling_files, "ROLL_BYTES", 1)
    lines.write("line 4")
    lines.close()
    assert contents(folder)[-1] == "line 4"


def test_what_waits_for_a_disk_is_written_at_the_end(folder: Path) -> None:
    folder.mkdir()
    blocked = folder / f"events-{7:020d}-0000.jsonl"
    blocked.mkdir()
    lines = RollingLines(folder, "events", 7)
    lines.write("a line")
    lines.drain()
    blocked.rmdir()
    lines.close()
    assert contents(folder) == ["a line"]


def test_a_device_that_is_full_keeps_nobody_waiting(folder: Path) -> None:
    full_disk(folder)
    lines = RollingLines(folder, "events", 7)
    for number in range(3):
        lines.write(f"line {number}")
        lines.drain()
    lines.close()
    assert [path.name for path in folder.iterdir()] == [f"events-{7:020d}-0000.jsonl"]


def test_what_is_lost_beyond_the_limit_is_said(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rolling_files, "MAX_WAITING_LINES", 4)
    folder.mkdir()
    blocked = folder / f"events-{7:020d}-0000.jsonl"
    blocked.mkdir()
    lines = RollingLines(folder, "events", 7)
    for number in range(10):
        lines.write(f"line {number}")
        lines.drain()
    blocked.rmdir()
    lines.write("line 10")
    lines.drain()
    lines.write("line 11")
    lines.close()
    *kept, gap, after = contents(folder)
    assert kept == [f"line {number}" for number in range(4)]
    assert json.loads(gap) == {"t": "Gap", "lines": 7}
    assert after == "line 11"


def test_a_folder_that_was_removed_is_made_again(folder: Path) -> None:
    lines = RollingLines(folder, "events", 7)
    folder.rmdir()
    lines.write("line 0")
    lines.close()
    assert contents(folder) == ["line 0"]
