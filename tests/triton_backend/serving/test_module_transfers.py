"""Modules on two nodes, served: rows between them hold links, and the log replays alike."""

from pathlib import Path

import numpy as np
import pytest

from scripts.benchmarks.applications.plans import FAR, shape_plan
from tests.triton_backend.serving.served_applications import expected
from tests.triton_backend.serving.system import LocalSystem, wait_for
from tests.triton_backend.serving.test_replay import replayed
from triton_backend.contract.decisions import Dispatch
from triton_backend.contract.events import TransferDone
from triton_backend.contract.plan import Plan
from triton_backend.serve_folder.line_files import files_in_order
from triton_backend.serve_folder.settings import ServeOptions
from triton_backend.serving.front.replies import Refusal
from triton_backend.serving.gateway.event_log import read_events

pytestmark = pytest.mark.slow
JOBS = 12


def served(folder: Path, plan: Plan) -> None:
    """Some jobs, each checked against its models run one after the other."""
    system = LocalSystem(folder, plan, ServeOptions(guard_fraction=0.2, emulate_links=True))
    try:
        rng = np.random.default_rng(1)
        spec = system.deployment.served[FAR].inputs[0]
        rows = [rng.integers(0, 256, (1, *spec.shape[1:])).astype(np.uint8) for _ in range(JOBS)]
        results = [system.ask(FAR, {spec.name: row}, 4_000_000) for row in rows]
        for row, result in zip(rows, results, strict=True):
            answer = result()
            assert not isinstance(answer, Refusal), answer
            wanted = expected(system.deployment, FAR, {spec.name: row})
            np.testing.assert_array_equal(answer["y"], wanted["y"])
        wait_for(lambda: not system.status()["in_flight"])
    finally:
        system.stop()


def logged(folder: Path) -> list[object]:
    """Events and decisions of the gateway."""
    found: list[object] = []
    for path in files_in_order(folder / "events", "events"):
        with path.open() as lines:
            found += read_events(lines)
    return found


def test_links_are_reserved_for_what_modules_of_two_nodes_give_each_other(tmp_path: Path) -> None:
    """9.6 ms a row at 1 Gbit/s; runs begin after it, the core hears of it and decides alike."""
    served(tmp_path / "serve", shape_plan(FAR))
    log = logged(tmp_path / "serve")
    batches = [item for item in log if isinstance(item, Dispatch)]
    moved = {b.batch_id: (b.samples, b.hops[0]) for b in batches if b.model > 0}
    assert sum(b.samples for b in batches if b.model == 0) == JOBS
    assert moved
    for samples, hop in moved.values():
        assert hop.transfer_end_us - hop.transfer_start_us == 9_600 * samples
        assert hop.start_us >= hop.transfer_end_us
    arrived = [e for e in log if isinstance(e, TransferDone)]
    assert {event.batch_id for event in arrived} == set(moved)
    assert {event.stage for event in arrived} == {0}
    done = replayed(tmp_path / "serve")
    assert done.returncode == 0, done.stderr
    assert "decisions alike" in done.stdout
