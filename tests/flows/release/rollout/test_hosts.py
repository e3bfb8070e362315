"""Two hosts in a rollout, each with a Triton of its own."""

import json
import os
import shutil
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as grpc_client

from flows.release.rollout.change import StepDone, change_plan, finish_or_undo_change
from flows.release.rollout.hosts import OtherHosts
from flows.release.server.admin import start, stop
from flows.release.server.running import ServerError
from tests.flows.release.server.test_running import server_ports
from tests.triton_backend.serving.artifacts import FACTOR, OFFSET, affine
from tests.triton_backend.serving.small_plans import plan
from tests.triton_backend.serving.system import wait_for
from triton_backend.contract.errors import InputError
from triton_backend.contract.plan import Plan
from triton_backend.serve_folder.repository import (
    GenerationNames,
    Workers,
    node_model,
    render_host,
    render_repository,
)
from triton_backend.serve_folder.settings import ServeOptions, ServeSettings

pytestmark = pytest.mark.slow
# Two addresses of one machine are two hosts: they share nothing but TCP and the repository API.
ELSEWHERE = "127.0.0.2"


@pytest.fixture(scope="module")
def artifacts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("artifacts")


class TwoHosts:
    """A gateway with one node, and a second Triton with the other.

    Args:
        folder: of both.
        served: a plan of nodes `FAST`, at the gateway, and `SLOW`.
        artifacts: of its stages, where it has any.
        port: the first of those of workers.
    """

    def __init__(
        self, folder: Path, served: Plan, artifacts: Path | None, port: int = 21_960
    ) -> None:
        self.gateway, self.node = folder / "gateway", folder / "node"
        self.artifacts_there = folder / "artifacts of the node"
        if artifacts is not None:
            shutil.copytree(artifacts, self.artifacts_there)
        self._ports_there = replace(server_ports(), address=ELSEWHERE)
        options = ServeOptions(
            artifacts=artifacts,
            hosts={"SLOW": ELSEWHERE},
            base_port=port,
            host_http_port=self._ports_there.http,
            guard_fraction=0.4,  # requests that fill no batch wait for a fifth of their time
        )
        render_repository(self.gateway, served, options)
        settings = ServeSettings.read(self.gateway / "settings.json")
        there = None if artifacts is None else self.artifacts_there
        render_host(self.node, settings, served, ELSEWHERE, there)
        self.state = start(self.gateway, server_ports(), wait_for_workers=False)
        self.start_there()
        self._client = grpc_client.InferenceServerClient(self.state.grpc_url)

    def start_there(self) -> None:
        """Start the other host's Triton, and wait for its workers."""
        self.there = start(self.node, self._ports_there, wait_for_workers=False)
        wait_for(self.is_whole)

    def kill_there(self) -> None:
        """SIGKILL to whatever runs on the other host, as when its power fails."""
        os.killpg(int(self.there.data["process_group"]), signal.SIGKILL)

    def workers(self) -> tuple[int, int]:
        workers = self.state.control("status")["workers"]
        return workers["up"], workers["total"]

    def is_whole(self) -> bool:
        """True if every worker is up."""
        up, total = self.workers()
        return up == total

    def right(self, model: str) -> bool:
        # A full batch: a smaller one waits for company until the last moment.
        x = np.arange(12, dtype=np.float32).reshape(4, 3)
        given = grpc_client.InferInput("x", [4, 3], "FP32")
        given.set_data_from_numpy(x)
        answer = self._client.infer(model, [given], timeout=3_000_000)
        return answer is not None and bool(np.all(answer.as_numpy("y") == x * FACTOR + OFFSET))

    def loaded_there(self) -> set[str]:
        """Models ready in the other host's Triton."""
        index: Any = self.there.post("/v2/repository/index", {})
        return {entry["name"] for entry in index if entry.get("state") == "READY"}

    def files_there(self) -> set[str]:
        return {entry.name for entry in (self.node / "repository").iterdir()}

    def stop(self) -> None:
        self._client.close()
        stop(self.gateway)
        stop(self.node)


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory, artifacts: Path) -> Iterator[TwoHosts]:
    served = plan(affine(artifacts))
    made = TwoHosts(tmp_path_factory.mktemp("hosts"), served, artifacts)
    yield made
    made.stop()


def test_a_rollout_goes_to_every_hosts_own_triton(hosts: TwoHosts, artifacts: Path) -> None:
    assert hosts.right("affine")
    following = replace(plan(affine(artifacts, "second")), plan_id="following")
    assert not (hosts.artifacts_there / "second-1").exists()
    done = change_plan(hosts.gateway, following)
    assert (hosts.artifacts_there / "second-1" / "model.onnx").is_file()  # it was sent there
    assert not (hosts.artifacts_there / "second-0").exists()  # the gateway's own stage was not
    node = node_model("SLOW")
    assert hosts.right("second")
    assert hosts.workers() == (2, 2)
    assert hosts.loaded_there() == hosts.files_there() == {node}
    assert not (hosts.gateway / "repository" / node).exists()
    status = hosts.there.ask(node, {})
    assert (status["node"], status["generations"]) == ("SLOW", [done.generation])


def test_what_is_nowhere_ends_the_rollout_before_anything_is_changed(
    hosts: TwoHosts, artifacts: Path
) -> None:
    before = hosts.state.control("status"), hosts.loaded_there()
    lacking = plan(affine(artifacts, "lacking"))
    (model,) = lacking.models
    first, last = model.pipelines[0].stages
    stages = (first, replace(last, artifact="not-built-there"))
    pipeline = replace(model.pipelines[0], stages=stages)
    bad = replace(lacking, plan_id="bad", models=(replace(model, pipelines=(pipeline,)),))
    steps: list[StepDone] = []
    with pytest.raises(InputError) as refused:
        change_plan(hosts.gateway, bad, steps.append)
    assert str(refused.value).startswith(f"host {ELSEWHERE}:")
    assert f"lacks artifact not-built-there in {hosts.artifacts_there}" in str(refused.value)
    assert steps == []
    after = hosts.state.control("status"), hosts.loaded_there()
    assert after[0]["plan_id"] == before[0]["plan_id"]
    assert (after[0]["state"], after[0]["prepared"], after[1]) == ("serving", None, before[1])
    assert hosts.files_there() == before[1]


def test_a_rollout_cut_off_is_cleared_up_on_every_host(hosts: TwoHosts, artifacts: Path) -> None:
    """As if its process had been killed once everything was loaded."""
    state = hosts.state
    served, before = state.control("status"), hosts.loaded_there()
    following = replace(plan(affine(artifacts, "third")), plan_id="cut-off")
    folder = hosts.gateway / "generations" / str(served["generation"])
    old = Plan.from_dict(json.loads((folder / "plan.json").read_text()))
    elsewhere = OtherHosts.of(state)
    names = GenerationNames({"affine": 1}, Workers.first(following, 77, 18_500))
    elsewhere.put_generation(old, following, 77, names)
    elsewhere.begin(old, following, (served["generation"], 77))
    node = node_model("SLOW")
    assert hosts.there.ask(node, {})["generations"] == [served["generation"], 77]
    assert finish_or_undo_change(hosts.gateway).plan_id == served["plan_id"]
    assert hosts.there.ask(node, {})["generations"] == [served["generation"]]
    assert hosts.loaded_there() == hosts.files_there() == before
    assert hosts.right("second")


def test_a_plan_on_a_host_that_is_not_served_needs_a_restart(
    hosts: TwoHosts, artifacts: Path
) -> None:
    moved = plan(affine(artifacts, "moved"))
    groups = (moved.cluster.nodes[0], replace(moved.cluster.nodes[1], host="10.1.2.3"))
    moved = replace(moved, plan_id="moved", cluster=replace(moved.cluster, nodes=groups))
    with pytest.raises(InputError, match=r"node SLOW: is at 10.1.2.3, but is served at"):
        change_plan(hosts.gateway, moved)


def test_a_host_needs_a_node_of_the_plan(tmp_path: Path) -> None:
    served = plan(affine(tmp_path / "artifacts"))
    options = ServeOptions(hosts={"SLOW": ELSEWHERE})
    gateway = ServeSettings.begin(tmp_path / "gateway", served, options)
    with pytest.raises(InputError, match="no node of plan"):
        render_host(tmp_path, gateway, served, "10.9.9.9", None)


def test_nodes_elsewhere_are_not_in_the_gateways_repository(tmp_path: Path) -> None:
    artifacts = tmp_path / "artifacts"
    served = replace(plan(affine(artifacts)), plan_id="hosts")
    render_repository(tmp_path, served, ServeOptions(hosts={"SLOW": ELSEWHERE}))
    models = {entry.name for entry in (tmp_path / "repository").iterdir()}
    assert models == {"affine", "poolpipe_control", "poolpipe_standby", "poolpipe_node_FAST"}


def test_a_host_that_does_not_answer_ends_the_rollout(hosts: TwoHosts, artifacts: Path) -> None:
    """The last test of this file: the other host is gone after it."""
    served = hosts.state.control("status")
    stop(hosts.node)
    with pytest.raises(ServerError, match=rf"no answer from {ELSEWHERE}"):
        change_plan(hosts.gateway, replace(plan(affine(artifacts, "late")), plan_id="late"))
    now = hosts.state.control("status")
    assert (now["plan_id"], now["state"], now["prepared"]) == (served["plan_id"], "serving", None)
    assert now["workers"]["up"] == 1
