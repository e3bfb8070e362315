"""Two writers of the state file, keeper and rollout, keep what the other wrote."""

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from flows.release.server.running import note_plan
from tests.triton_backend.serve_folder.state_files import LEFT
from tests.triton_backend.serving.small_plans import plan, two_stage
from triton_backend.serve_folder.endpoints import Endpoints
from triton_backend.serve_folder.settings import ServeOptions, ServeSettings
from triton_backend.serve_folder.state import read_state_file, whole_state_file, write_state_file
from triton_backend.serving.server.tritonserver import Keeper

WRITES = 100


class CountingServer:
    """Stands for a server of the keeper's: started again with every look."""

    restarts = 0

    def to_state(self) -> dict[str, Any]:
        self.restarts += 1
        pids: dict[str, Any] = dict.fromkeys(("triton_pid", "server_group"), LEFT["triton_pid"])
        none: dict[str, Any] = dict.fromkeys(("restarted_us", "retry_us", "compiled_us"))
        counts = {"restarts": self.restarts, "models_begun": 0}
        return {"ready": True, **counts, **pids, **none}


def test_keeper_and_rollout_write_the_state_file_in_turns(tmp_path: Path) -> None:
    settings = ServeSettings.begin(tmp_path, plan(two_stage()), ServeOptions())
    keeper = Keeper(settings, Endpoints(), None, ["start"])
    keeper._servers = [CountingServer()]  # type: ignore[list-item]  # what of one is asked here
    write_state_file(tmp_path, {**LEFT, "folder": str(tmp_path), "restarts": 0, "generation": 0})
    went_back: list[tuple[str, int]] = []

    def write(name: str, once: Callable[[int], None]) -> None:
        for number in range(1, WRITES + 1):
            once(number)
            state = read_state_file(tmp_path)
            if state is None or state[name] != number:
                went_back.append((name, number))

    def look(_: int) -> None:
        keeper._write_state()

    def note(number: int) -> None:
        note_plan(tmp_path, "p", number)

    writers = {"restarts": look, "generation": note}
    threads = [threading.Thread(target=write, args=writer) for writer in writers.items()]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert went_back == []


def test_instants_of_the_wall_clock_are_no_reason_to_refuse_a_state_file(tmp_path: Path) -> None:
    instants = {"restarted_us": 1_795_631_158_016_617, "retry_us": None, "restarts": 2}
    write_state_file(tmp_path, {**LEFT, **instants})
    assert whole_state_file(tmp_path) == {**LEFT, **instants}
