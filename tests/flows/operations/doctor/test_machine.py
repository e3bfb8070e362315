"""Faults of a machine are reported with a remedy, on made-up machines too."""

import os
from datetime import UTC, datetime
from pathlib import Path

import pytest

from flows.operations.doctor import machine
from flows.operations.doctor.registry import Finding, Severity, Surroundings
from flows.state import ProjectState

NOW = datetime(2026, 11, 1, tzinfo=UTC)


def at(folder: Path, root: Path = Path("/")) -> Surroundings:
    return Surroundings(
        state=ProjectState(home=folder / "home"), warehouse=folder / "w", now=NOW, root=root
    )


def with_clock(root: Path, current: str, available: str) -> Surroundings:
    folder = root / "sys/devices/system/clocksource/clocksource0"
    folder.mkdir(parents=True)
    (folder / "current_clocksource").write_text(f"{current}\n")
    (folder / "available_clocksource").write_text(f"{available}\n")
    return at(root, root)


def test_a_fast_clock_is_good(tmp_path: Path) -> None:
    (found,) = machine.clock_source(with_clock(tmp_path, "tsc", "tsc hpet"))
    assert (found.severity, found.seen) == (Severity.GOOD, "tsc")


def test_of_a_slow_clock_it_is_said_whether_there_is_a_better_one(tmp_path: Path) -> None:
    (better,) = machine.clock_source(with_clock(tmp_path / "a", "hpet", "tsc hpet"))
    (worse,) = machine.clock_source(with_clock(tmp_path / "b", "acpi_pm", "acpi_pm"))
    assert better.severity is worse.severity is Severity.ADVICE
    assert "write tsc to" in better.remedy
    assert "no faster one" in worse.remedy


def test_a_kernel_that_says_nothing_of_its_clock_is_advice(tmp_path: Path) -> None:
    (found,) = machine.clock_source(at(tmp_path, tmp_path))
    assert found.severity is Severity.ADVICE


@pytest.mark.parametrize(
    ("free_mib", "severity"),
    [(64, Severity.PROBLEM), (512, Severity.ADVICE), (1024, Severity.GOOD)],
)
def test_too_little_shared_memory_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, free_mib: int, severity: Severity
) -> None:
    class Usage:
        free = free_mib << 20

    def usage(_folder: Path) -> type[Usage]:
        return Usage

    monkeypatch.setattr(machine.shutil, "disk_usage", usage)
    (found,) = machine.shared_memory(at(tmp_path, tmp_path))
    assert (found.severity, found.seen) == (
        severity,
        f"{free_mib / 1024:.2f} GiB free in {tmp_path}/dev/shm",
    )


@pytest.mark.parametrize(
    ("free_mib", "severity", "remedy"),
    [
        (
            0,
            Severity.PROBLEM,
            "delete or move files there: `poolpipe warehouse compact` needs room",
        ),
        (100, Severity.ADVICE, "make room: `poolpipe warehouse compact`"),
        (2048, Severity.GOOD, ""),
    ],
)
def test_a_disk_without_room_for_events_is_a_problem(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, free_mib: int, severity: Severity, remedy: str
) -> None:
    class Usage:
        free = free_mib << 20

    def usage(_folder: Path) -> type[Usage]:
        return Usage

    monkeypatch.setattr(machine.shutil, "disk_usage", usage)
    for found in machine.disk(at(tmp_path)):
        assert found.severity is severity
        assert found.remedy.startswith(remedy)


def test_a_folder_that_cannot_be_written_is_a_problem(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def access(_path: Path, _mode: int) -> bool:
        return False

    monkeypatch.setattr(machine.os, "access", access)
    found = list(machine.disk(at(tmp_path)))
    assert [f.severity for f in found] == [Severity.PROBLEM] * 2
    assert found[0].seen == f"state: {tmp_path} cannot be written"


def test_segments_of_no_running_system_are_counted(tmp_path: Path) -> None:
    shared = tmp_path / "dev/shm"
    shared.mkdir(parents=True)
    for name in ("poolpipe-12ab-front", "poolpipe-12ab-worker", "another"):
        (shared / name).write_bytes(bytes(1 << 20))
    *_, left = machine.shared_memory(at(tmp_path, tmp_path))
    assert left.severity is Severity.ADVICE
    assert left.seen == "2 segments (2 MiB) of no system served from here"


def test_limits_below_what_the_server_needs_are_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hard = {machine.resource.RLIMIT_STACK: 8 << 20, machine.resource.RLIMIT_NOFILE: 1024}

    def limits(kind: int) -> tuple[int, int]:
        return 0, hard[kind]

    monkeypatch.setattr(machine.resource, "getrlimit", limits)
    stack, files = machine.user_limits(at(tmp_path))
    assert (stack.severity, files.severity) == (Severity.PROBLEM, Severity.ADVICE)
    assert stack.seen.startswith("the stack may have 8 MiB")
    assert files.seen == "1024 open files allowed"


def with_gurobi(monkeypatch: pytest.MonkeyPatch, text: str, folder: Path) -> Finding:
    monkeypatch.setattr(machine, "gurobi_licence", lambda: text)

    def version(_distribution: str) -> str:
        return "13.0"

    monkeypatch.setattr(machine, "version", version)
    _, found = machine.solvers(at(folder))
    return found


@pytest.mark.parametrize(
    ("text", "severity", "remedy"),
    [
        ("Academic license - expires 2027-11-29", Severity.GOOD, ""),
        ("Set parameter LicenseID to value 1", Severity.GOOD, ""),
        ("Academic license - expires 2026-11-29", Severity.ADVICE, "renew"),
        ("Restricted license - expires 2027-11-29", Severity.ADVICE, "2,000 variables"),
        ("No Gurobi found", Severity.ADVICE, "until it has a licence"),
    ],
)
def test_a_licence_that_ends_or_limits_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, severity: Severity, remedy: str
) -> None:
    found = with_gurobi(monkeypatch, text, tmp_path)
    assert found.severity is severity
    assert remedy in found.remedy


def test_libpython_disk_and_processors_of_this_machine_are_looked_at(tmp_path: Path) -> None:
    (library,) = machine.libpython(at(tmp_path))
    assert Path(library.seen).is_file()
    assert [f.seen.split(":")[0] for f in machine.disk(at(tmp_path))] == ["state", "warehouse"]
    (usable,) = machine.processors(at(tmp_path))
    assert usable.seen == f"{len(os.sched_getaffinity(0))} usable"
