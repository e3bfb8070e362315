"""Faults find the process that they break, whichever of two gateways has it."""

import json
import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from flows.release.server.running import AbsentError, ServerState
from scripts.benchmarks.served import Served
from scripts.faults.injection import worker
from tests.triton_backend.serving.small_plans import plan, two_stage
from tests.triton_backend.serving.system import deploy, wait_for
from triton_backend.runtimes.clock import SystemClock
from triton_backend.serve_folder.repository import node_model
from triton_backend.serve_folder.settings import ServeOptions
from triton_backend.serving.liveness.workers import HealthBoard
from triton_backend.serving.node.node import Node
from triton_backend.serving.transport.shared_memory import remove_segments

NODE, VGPU = "SLOW", 1


@dataclass(frozen=True, slots=True)
class TwoGateways(ServerState):
    """Two gateways with a model of one node each, which are in this process; None: one is gone."""

    nodes: Sequence[Node | None]

    def ask(
        self, model: str, request: dict[str, Any], gateway: int | None = None
    ) -> dict[str, Any]:
        asked = self.nodes[gateway or 0]
        if asked is None:
            raise AbsentError("no answer")
        assert model == node_model(NODE)
        return asked.answer(json.dumps(request))

    def control(self, command: str, **fields: Any) -> dict[str, Any]:
        del command, fields
        return {"generation": 1}


class InProcess(Served):
    """A system that says where its processes are."""

    told: TwoGateways

    @property
    def state(self) -> ServerState:
        return self.told


@pytest.mark.slow
def test_a_worker_is_found_whichever_of_two_gateways_leads_its_node(tmp_path: Path) -> None:
    served_plan = plan(two_stage())
    options = ServeOptions(emulate_links=False, gateways=2)
    deployment = deploy(tmp_path / "serve", served_plan, options)
    settings = deployment.settings
    settings.socket_folder.mkdir(mode=0o700)
    (settings.folder / "pids").mkdir()
    (settings.folder / "pids" / node_model(NODE)).write_text(f"{os.getpid()}")
    first, second = (Node(one, NODE, SystemClock()) for one in (settings, settings.of_gateway(1)))
    data = {"folder": str(settings.folder), "servers": [None, None]}
    served = InProcess(served_plan, 0, options, tmp_path)
    served.told = TwoGateways(data, [first, second])
    board = HealthBoard.open(deployment, NODE)
    try:
        first.start()
        wait_for(lambda: board.has_loaded(VGPU))
        second.start()
        pid = board.process_of(VGPU)
        assert worker(served, VGPU).pid == pid
        first.stop()
        wait_for(lambda: second.status()["workers"][0]["pid"] == pid)
        for told in ([first, second], [None, second]):
            served.told = TwoGateways(data, told)
            assert worker(served, VGPU).pid == pid
        second.stop()
        with pytest.raises(RuntimeError, match="no process of vGPU 1 of generation 1"):
            worker(served, VGPU)
    finally:
        remove_segments(settings.segment_prefix)
        shutil.rmtree(settings.socket_folder)
