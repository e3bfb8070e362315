"""The wall clock may jump: nothing that is decided, waited for or measured depends on it."""

import ast
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import triton_backend
from tests.triton_backend.serving.small_plans import plan, two_stage
from tests.triton_backend.serving.system import LocalSystem
from triton_backend.runtimes.clock import SystemClock
from triton_backend.serve_folder.settings import ServeOptions
from triton_backend.serving.front.replies import Refusal

DAY_US = 86_400_000_000
PACKAGE = Path(triton_backend.__file__).parent
# `time` for people, in any of its spellings.
WALL = {"time", "time_ns", "ctime", "localtime", "gmtime", "strftime", "now", "utcnow", "today"}


class JumpingClock(SystemClock):
    """Every look at the wall clock finds it a day ahead of, or behind, the last one."""

    jumps = 0

    def wall_us(self) -> int:
        self.jumps += 1
        return super().wall_us() + (-1) ** self.jumps * self.jumps * DAY_US


@pytest.mark.slow
def test_requests_are_answered_in_time_while_the_wall_clock_jumps(tmp_path: Path) -> None:
    clock = JumpingClock()
    system = LocalSystem(tmp_path / "serve", plan(two_stage()), ServeOptions(), clock)
    image: dict[str, Any] = {
        "image": np.ones((1, 3, 16), dtype=np.float32),
        "mask": np.ones((1, 4), dtype=np.uint8),
    }
    try:
        for _ in range(5):
            waiting = [system.ask("pair", image) for _ in range(4)]
            assert not [answer for ask in waiting if isinstance(answer := ask(), Refusal)]
    finally:
        system.stop()
    assert clock.jumps
    (file,) = (system.settings.folder / "events").iterdir()
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    told_us = [line["now_us"] for line in lines if "now_us" in line]
    assert told_us == sorted(told_us)
    assert {line["t"] for line in lines}.isdisjoint({"Drop", "Abort", "Refused"})


@pytest.mark.long
def test_only_the_clock_reads_the_time_of_day() -> None:
    readers: set[str] = set()
    for file in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if (
                isinstance(node, ast.Attribute)
                and node.attr in WALL
                and isinstance(node.value, ast.Name)
                and node.value.id in {"time", "datetime", "date"}
            ):
                readers.add(file.relative_to(PACKAGE).as_posix())
    assert readers == {"runtimes/clock.py"}
