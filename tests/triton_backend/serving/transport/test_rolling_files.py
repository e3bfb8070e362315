"""Files of lines that roll, on disks that fill up and are freed again."""

import json
import threading
from pathlib import Path

import pytest

from triton_backend.serving.transport import rolling_files
from triton_backend.serving.transport.rolling_files import RollingLines

NOW_US = 1_700_000_000_000_000


def file_of(roll: int, folder: Path, start_us: int = NOW_US) -> Path:
    return folder / f"events-{start_us:020d}-{roll:04d}.jsonl"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "lines"


def contents(folder: Path) -> list[str]:
    """All lines of all files, oldest first."""
    return [line for path in sorted(folder.iterdir()) for line in path.read_text().split("\n")[:-1]]


def test_lines_are_in_the_files_in_their_order(folder: Path) -> None:
    lines = RollingLines(folder, "events", NOW_US)
    wanted = [f'{{"n":{n}}}' for n in range(1000)]
    for number, line in enumerate(wanted):
        lines.write(line)
        if number % 3 == 0:
            lines.flush()
    lines.close()
    assert contents(folder) == wanted
    assert [*folder.iterdir()] == [file_of(0, folder)]


def test_files_roll_and_the_oldest_go(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rolling_files, "ROLL_BYTES", 10)
    monkeypatch.setattr(rolling_files, "KEEP_FILES", 3)
    lines = RollingLines(folder, "events", NOW_US)
    for number in range(12):
        lines.write(f"a line of more than ten bytes, number {number}")
        lines.drain()
    lines.close()
    assert [path.name[-10:-6] for path in sorted(folder.iterdir())] == ["0009", "0010", "0011"]
    assert contents(folder)[-1].endswith("number 11")


class Blocked:
    """The place of a folder, taken by a file: nothing can be opened there."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.rmdir()
        folder.touch()

    def free(self) -> None:
        self._folder.unlink()


def test_a_disk_that_is_freed_gets_all_lines_that_waited(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = RollingLines(folder, "events", NOW_US)
    blocked = Blocked(folder)
    waits = ["line 0", "a line\u2028of two to some readers", "line 2"]
    for line in waits:
        lines.write(line)
        lines.drain()
    blocked.free()
    lines.write("line 3")
    lines.drain()
    assert contents(folder) == [*waits, "line 3"]
    monkeypatch.setattr(rolling_files, "ROLL_BYTES", 1)
    lines.write("line 4")
    lines.close()
    assert contents(folder)[-1] == "line 4"


def test_what_waits_for_a_disk_is_written_at_the_end(folder: Path) -> None:
    lines = RollingLines(folder, "events", NOW_US)
    blocked = Blocked(folder)
    lines.write("a line")
    lines.drain()
    blocked.free()
    lines.close()
    assert contents(folder) == ["a line"]


def test_a_device_that_is_full_keeps_nobody_waiting(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rolling_files, "ROLL_BYTES", 1)
    lines = RollingLines(folder, "events", NOW_US)
    lines.write("line 0")
    lines.drain()
    file_of(1, folder).symlink_to("/dev/full")
    for number in range(1, 4):
        lines.write(f"line {number}")
        lines.drain()
    lines.close()
    assert sorted(folder.iterdir()) == [file_of(0, folder), file_of(1, folder)]
    assert file_of(0, folder).read_text() == "line 0\n"


def test_what_is_lost_beyond_the_limit_is_said(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rolling_files, "MAX_WAITING_LINES", 4)
    lines = RollingLines(folder, "events", NOW_US)
    blocked = Blocked(folder)
    for number in range(10):
        lines.write(f"line {number}")
        lines.drain()
    blocked.free()
    lines.write("line 10")
    lines.drain()
    lines.write("line 11")
    lines.close()
    *kept, gap, after = contents(folder)
    assert kept == [f"line {number}" for number in range(4)]
    assert json.loads(gap) == {"t": "Gap", "lines": 7}
    assert after == "line 11"


def test_a_folder_that_was_removed_is_made_again(folder: Path) -> None:
    lines = RollingLines(folder, "events", NOW_US)
    folder.rmdir()
    lines.write("line 0")
    lines.close()
    assert contents(folder) == ["line 0"]


def test_a_life_on_a_clock_behind_those_before_keeps_its_file_and_is_the_last(folder: Path) -> None:
    folder.mkdir()
    ahead_us = NOW_US + 10**12
    for roll in range(8):
        file_of(roll, folder, ahead_us).write_text("a former life\n")
    lines = RollingLines(folder, "events", NOW_US)
    lines.write("this life")
    lines.close()
    assert contents(folder) == ["a former life"] * 7 + ["this life"]


def test_files_of_hosts_uptimes_come_before_a_life_named_by_the_wall_clock(folder: Path) -> None:
    folder.mkdir()
    for roll in range(8):
        file_of(roll, folder, 10**12).write_text("a former life\n")
    lines = RollingLines(folder, "events", 10**9)  # a host without a clock, too, begins at 1970
    lines.write("this life")
    lines.close()
    assert contents(folder) == ["a former life"] * 7 + ["this life"]


def test_a_file_that_another_writer_has_open_stays(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rolling_files, "ROLL_BYTES", 1)
    monkeypatch.setattr(rolling_files, "KEEP_FILES", 2)
    first, other = (RollingLines(folder, "events", NOW_US) for _ in range(2))
    first.write("of the first writer")
    first.drain()
    for number in range(4):
        other.write(f"line {number} of the other")
        other.drain()
    assert contents(folder) == [
        "of the first writer",
        "line 2 of the other",
        "line 3 of the other",
    ]
    first.close()
    other.close()


def test_files_of_a_longer_prefix_are_left_alone(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rolling_files, "KEEP_FILES", 1)
    folder.mkdir()
    others = folder / f"events-of-another-{1:020d}-0000.jsonl"
    others.write_text("another's\n")
    lines = RollingLines(folder, "events", NOW_US)
    lines.write("ours")
    lines.close()
    assert sorted(folder.iterdir()) == [file_of(0, folder), others]


def test_files_are_for_their_user_alone(folder: Path) -> None:
    lines = RollingLines(folder, "events", NOW_US)
    lines.write("a line")
    lines.close()
    assert file_of(0, folder).stat().st_mode & 0o777 == 0o600


def test_what_waits_is_limited_in_bytes(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rolling_files, "MAX_WAITING_BYTES", 1_000)
    lines = RollingLines(folder, "events", NOW_US)
    blocked = Blocked(folder)
    for _ in range(10):
        lines.write("x" * 300)
        lines.drain()
    blocked.free()
    lines.write("y")
    lines.drain()
    lines.close()
    *kept, gap = contents(folder)
    assert (kept, json.loads(gap)) == (["x" * 300] * 3 + ["y"], {"t": "Gap", "lines": 7})


def test_no_line_of_several_threads_is_lost(folder: Path) -> None:
    lines = RollingLines(folder, "events", NOW_US)

    def write(name: int) -> None:
        for number in range(2_000):
            lines.write(f"{name} {number}")
            lines.flush()

    threads = [threading.Thread(target=write, args=(name,)) for name in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    lines.close()
    assert sorted(contents(folder)) == sorted(f"{a} {n}" for a in range(4) for n in range(2_000))
