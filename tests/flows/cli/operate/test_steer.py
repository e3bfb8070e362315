"""`steer` and `poolpipe_offload` of a real system: a client moves its cut and nothing is lost."""

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as grpc_client
import tritonclient.http as http_client
import yaml
from tritonclient.utils import InferenceServerException, triton_to_np_dtype

from flows.release.server.running import ServerState, read_state
from tests.flows.cli.conftest import PLAN, WAREHOUSE, Command
from tests.flows.planning.entries.entry_cases import cluster, entry, made, profile
from tests.ports import free_ports
from tests.triton_backend.serving.system import wait_for
from triton_backend.contract.plan import Plan
from triton_backend.runtimes.stage_tensors import complete_tensors
from triton_backend.serve_folder.repository import OFFLOAD_MODEL
from warehouse.db import open_warehouse
from warehouse.profiles import import_profile

pytestmark = pytest.mark.slow
BUDGET_US = 400_000


@pytest.fixture
def planned(project: Path, poolpipe: Command) -> Plan:
    """One entry at block 0, and a shadow pool; stages of some milliseconds, emulated."""
    net = profile(7)
    workload = made(net, [entry("first", 0, 300, 10)]).workload
    (project / "cluster.yaml").write_text(yaml.safe_dump(cluster().to_dict()))
    (project / "workload.yaml").write_text(yaml.safe_dump(workload.to_dict()))
    with open_warehouse(project / WAREHOUSE) as warehouse:
        import_profile(warehouse, net, "test", datetime(2026, 11, 1, tzinfo=UTC))
    options = ("--planner", "graft", "--objective", "share", "--shadow-rps", "40")
    assert poolpipe(*PLAN, *options, "-o", "plan.json").code == 0
    return Plan.from_dict(json.loads((project / "plan.json").read_text()))


@pytest.fixture
def served(planned: Plan, project: Path, poolpipe: Command) -> Iterator[ServerState]:
    """The plan, served."""
    del planned
    http, grpc, metrics = map(str, free_ports(3))
    ports = ("--http-port", http, "--grpc-port", grpc, "--metrics-port", metrics)
    ran = poolpipe("serve", "plan.json", *ports)
    assert ran.code == 0, ran.err
    yield read_state(project / ".poolpipe" / "serve")
    poolpipe("stop")


def offload(state: ServerState, kind: str, text: str, **more: str) -> dict[str, Any]:
    """One request to the public model."""
    module: Any = {"grpc": grpc_client, "http": http_client}[kind]
    url = state.grpc_url if kind == "grpc" else state.http_url
    with module.InferenceServerClient(url) as client:
        inputs: list[Any] = []
        for name, value in {"request": text, **more}.items():
            given = module.InferInput(name, [1], "BYTES")
            given.set_data_from_numpy(np.array([value.encode()], dtype=np.object_))
            inputs.append(given)
        answer = client.infer(OFFLOAD_MODEL, inputs).as_numpy("answer")
        return json.loads(answer[0])


def announce(state: ServerState, block: int, rate_rps: float) -> dict[str, Any]:
    request = {"command": "announce", "client": "phone", "model": "net", "cut": block}
    more = {"rate_rps": rate_rps, "budget_ms": BUDGET_US / 1e3}
    return offload(state, "grpc", json.dumps(request | more))


class Phone(threading.Thread):
    """Sends a request at its cut as soon as the last one is answered.

    What went wrong, if anything did.
    """

    def __init__(self, state: ServerState, plan: Plan) -> None:
        super().__init__(daemon=True)
        self._state, self.block, self.answered = state, 0, {0: 0, 1: 0, 2: 0}
        self._inputs = {e.block: e.inputs for e in complete_tensors(plan).models[0].entries}
        self.wrong: list[str] = []
        self.over = threading.Event()

    def run(self) -> None:
        with grpc_client.InferenceServerClient(self._state.grpc_url) as client:
            while not self.over.is_set():
                block = self.block
                try:
                    client.infer("net", self._tensors(block), timeout=BUDGET_US)
                except InferenceServerException as error:
                    self.wrong.append(f"cut {block}: {error}")
                self.answered[block] += 1

    def _tensors(self, block: int) -> list[Any]:
        found: list[Any] = []
        for spec in self._inputs[block]:
            given = grpc_client.InferInput(spec.name, [1, *spec.shape[1:]], spec.dtype)
            zeros = np.zeros((1, *spec.shape[1:]), triton_to_np_dtype(spec.dtype))
            given.set_data_from_numpy(zeros)
            found.append(given)
        return found

    def wait_for_answers(self, block: int, more: int = 10) -> None:
        self.block, wanted = block, self.answered[block] + more
        wait_for(lambda: self.answered[block] >= wanted)


def steer() -> subprocess.Popen[bytes]:
    command = [sys.executable, "-c", "from flows.cli.main import main; main()", "steer"]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL)


def blocks_planned(state: ServerState) -> set[int]:
    """Where entries have pools of their own, in the plan in force."""
    offer = offload(state, "http", '{"command": "offer", "model": "net"}')
    return {cut["block"] for cut in offer["cuts"] if cut["state"] == "planned"}


def test_offload_answers_everybody_in_one_line(served: ServerState) -> None:
    for kind in ("grpc", "http"):
        offer = offload(served, kind, '{"command": "offer", "model": "net"}')
        assert [cut["state"] for cut in offer["cuts"]] == ["planned", "shadow", "shadow"]
        assert all(0 < c["tail_ms"]["p50"] <= c["tail_ms"]["p99"] for c in offer["cuts"])
        assert offer["plan_id"] == served.control("status")["plan_id"]
        for wrong, reason in (
            ('{"command": "offer", "model": "other"}', "'other' is none of net"),
            ('{"command": "announced"}', "needs the system's token"),
            ("no json", "is not JSON"),
            ("[" * 5_000, "at most 4096 are read"),
        ):
            with pytest.raises(InferenceServerException, match=reason) as error:
                offload(served, kind, wrong)
            assert "\n" not in str(error.value.message())
        with pytest.raises(InferenceServerException, match="wrong token"):
            offload(served, kind, '{"command": "announced"}', token="guess")
    lease = announce(served, 2, 12.0)
    assert (lease["state"], lease["lease_s"]) == ("shadow", 10.0)
    (found,) = served.ask(OFFLOAD_MODEL, {"command": "announced"})["leases"]
    assert found.pop("until_us") > 0
    told = {"client": "phone", "model": "net", "block": 2}
    assert found == told | {"rate_rps": 12.0, "budget_us": BUDGET_US}


def test_a_client_moves_its_cut_and_steer_follows_even_where_it_is_killed(
    served: ServerState, planned: Plan, poolpipe: Command
) -> None:
    phone = Phone(served, planned)
    phone.start()
    phone.wait_for_answers(0)
    steering = steer()
    try:
        announce(served, 2, 20.0)
        phone.wait_for_answers(2)  # by the shadow pool, until the plan has one of its own
        wait_for(lambda: 2 in blocks_planned(served))
        phone.wait_for_answers(2)
        announce(served, 1, 30.0)
        phone.wait_for_answers(1)
        wait_for(lambda: served.control("status")["prepared"] is not None)
        os.kill(steering.pid, signal.SIGKILL)
        steering.wait()
        phone.wait_for_answers(1)
        again = poolpipe("steer", "--looks", "1")
        assert again.code == 0, again.err
        status = served.control("status")
        assert (status["state"], status["prepared"]) == ("serving", None)
        assert status["workers"]["up"] == status["workers"]["total"]
        assert status["workers"]["plan_id"] == status["plan_id"]
        for block in (0, 1, 2):
            phone.wait_for_answers(block)
    finally:
        phone.over.set()
        steering.kill()
        steering.wait()
    phone.join()
    assert phone.wrong == []


def test_without_a_running_system_it_is_refused(planned: Plan, poolpipe: Command) -> None:
    del planned
    ran = poolpipe("steer", "--looks", "1")
    assert (ran.code, ran.out, ran.err.count("\n")) == (2, "", 1)
    assert "nothing is being served from here" in ran.err
