"""A module of several sizes on a real Triton server: prepared, profiled, planned and served."""

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import tritonclient.grpc as grpc_client
from onnx import TensorProto, helper
from tritonclient.utils import InferenceServerException

from flows.device_class import DeviceClass
from flows.files import read_workload
from flows.planning.registry import PlanOptions
from flows.planning.stored_plans import plan_step
from flows.planning.verify.numbers import verify_plan
from flows.preparation.building.onnxruntime import OnnxRuntimeClass
from flows.preparation.profiling.measure import MeasureLimits
from flows.preparation.profiling.model_profile import profile_step
from flows.preparation.splitting.split import SplitChoices
from flows.preparation.splitting.stored_split import split_step
from flows.preparation.steps.given import read_steps
from flows.preparation.steps.prepare import prepare_steps
from flows.release.artifacts import attach_artifacts
from flows.release.server.admin import start, stop
from flows.release.server.running import ServerState
from flows.state import ProjectState
from flows.workspace import Workspace
from tests.flows.release.server.test_running import server_ports
from triton_backend.contract.cluster import Cluster
from triton_backend.contract.plan import Plan
from triton_backend.serve_folder.repository import render_repository
from triton_backend.serve_folder.settings import ServeOptions
from triton_backend.simulator.run import simulate
from triton_backend.simulator.scenario import SimOptions

pytestmark = pytest.mark.slow
CLASS, SIZES, ROOM, MOST = "CPU", (4, 8, 16), 16, 6
PATIENT_US = 3_000_000
WORKLOAD = f"""
steps:
  - name: cut
    python: shop_steps.lines:cut
    package: ./shop_steps
    inputs: {{lengths: INT64 {MOST}}}
    outputs: {{line: INT64, line_rows: INT64}}
    max_batch: 1
  - name: fit
    python: shop_steps.lines:fit
    package: ./shop_steps
    inputs: {{line: INT64}}
    outputs: {{x: FP32 1x{ROOM}, x_shape: INT64 2, twice: INT64}}
    samples: lines.npz
    max_batch: 2
  - name: spell
    python: shop_steps.lines:spell
    package: ./shop_steps
    inputs: {{y: FP32 1x{ROOM}, total: FP32}}
    outputs: {{word: BYTES}}
    max_bytes: {{word: 60}}
    max_batch: 2
applications:
  - name: lines
    slo_ms: 2000
    rate_rps: 2
    modules:
      - {{name: cut, model: cut, inputs: {{lengths: request.lengths}}}}
      - {{name: fit, model: fit, rows_per_request: 3, max_rows: {MOST}, inputs: {{line: cut.line}}}}
      - name: net
        model: net
        rows_per_request: 3
        max_rows: {MOST}
        inputs: {{x: fit.x, more: fit.twice}}
        sizes:
          - {{input_shapes: {{x: 1x4}}, share: 0.5}}
          - {{input_shapes: {{x: 1x8}}, share: 0.3}}
          - {{input_shapes: {{x: 1x16}}, share: 0.2}}
      - name: spell
        model: spell
        rows_per_request: 3
        max_rows: {MOST}
        inputs: {{y: net.y, total: net.total}}
    outputs: {{y: net.y, word: spell.word, lengths: cut.line}}
"""
LINES = '''
"""A request's lengths become lines of so many ones, and those words."""
import numpy as np


def cut(lengths):
    return [row[row > 0] for row in lengths]


def fit(line):
    return {"x": [np.full((1, n), n, np.float32) for n in line], "twice": 2 * line}


def spell(y, total):
    return [f"{int((row != 0).sum())} of {sum:.0f}" for row, sum in zip(y, total)]
'''


def write_net(path: Path) -> None:
    """y = x + more, of as many columns as x; and the sum of it."""
    one = helper.make_tensor("one", TensorProto.INT64, [2], [1, 2])
    nodes = [
        helper.make_node("Cast", ["more"], ["added"], to=TensorProto.FLOAT),
        helper.make_node("Constant", [], ["axes"], value=one),
        helper.make_node("Unsqueeze", ["added", "axes"], ["column"]),
        helper.make_node("Add", ["x", "column"], ["y"]),
        helper.make_node("ReduceSum", ["y", "axes"], ["total"], keepdims=0),
    ]
    sides = [
        helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 1, "columns"]),
        helper.make_tensor_value_info("more", TensorProto.INT64, ["n"]),
        helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 1, "columns"]),
        helper.make_tensor_value_info("total", TensorProto.FLOAT, ["n"]),
    ]
    graph = helper.make_graph(nodes, "net", sides[:2], sides[2:])
    opset = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opset, ir_version=9), path)


def planned(folder: Path) -> tuple[Workspace, Plan]:
    """Prepare, profile, plan and build what the workload names."""
    (folder / "workload.yaml").write_text(WORKLOAD)
    (folder / "shop_steps").mkdir()
    (folder / "shop_steps" / "__init__.py").write_text("")
    (folder / "shop_steps" / "lines.py").write_text(LINES)
    np.savez(folder / "lines.npz", line=np.array(SIZES, np.int64))
    write_net(folder / "net.onnx")
    work = Workspace(state=ProjectState(home=folder / "state"), warehouse=folder / "w.duckdb")
    steps = read_steps(folder / "workload.yaml")
    splits = prepare_steps(work, list(steps.values()))
    for columns in SIZES:
        choices = SplitChoices(input_shapes={"x": (1, columns)}, size_inputs=("x",))
        name = choices.named("net")
        splits.append(
            split_step(work, folder / "net.onnx", name, blocks=1, max_batch=1, choices=choices)
        )
    device = DeviceClass(name=CLASS, cores=(min(os.sched_getaffinity(0)),))
    limits = MeasureLimits(min_runs=3, max_seconds=0.05)
    for split in splits:
        profile_step(work, split, [OnnxRuntimeClass(device=device)], limits=limits)
    cluster = Cluster.from_dict(
        {
            "name": "here",
            "gpu_classes": {CLASS: {"hourly_cost": 1.0}},
            "nodes": [{"count": 1, "gpu_class": CLASS, "gpus": 6, "nic_gbps": 10}],
        }
    )
    workload = read_workload(folder / "workload.yaml")
    options = PlanOptions(objective="cost", time_limit_s=20)
    plan = plan_step(work, cluster, workload, options, robust=False).plan
    return work, attach_artifacts(work, plan, {CLASS: device})


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Workspace, Plan]:
    folder = tmp_path_factory.mktemp("project")
    return folder, *planned(folder)


@pytest.fixture(scope="module")
def state(project: tuple[Path, Workspace, Plan]) -> Iterator[ServerState]:
    folder, work, plan = project
    options = ServeOptions(artifacts=work.state.artifacts, guard_fraction=0.4)
    render_repository(folder / "serve", plan, options)
    yield start(folder / "serve", server_ports())
    stop(folder / "serve")


def asked(state: ServerState, lengths: Sequence[int]) -> Any:
    client: Any = grpc_client.InferenceServerClient(state.grpc_url)
    given = grpc_client.InferInput("lengths", [1, MOST], "INT64")
    row = [*lengths, *[0] * (MOST - len(lengths))]
    given.set_data_from_numpy(np.array([row], np.int64))
    try:
        return client.infer("lines", [given], timeout=PATIENT_US)
    finally:
        client.close()


def test_a_plan_has_pools_for_every_size_and_verifies(
    project: tuple[Path, Workspace, Plan],
) -> None:
    plan = project[2]
    assert verify_plan(plan) == []
    rates = {model.name: model.throughput_rps for model in plan.models}
    assert all(rates[f"net@1x{n}"] >= 5.99 * s for n, s in zip(SIZES, (0.5, 0.3, 0.2), strict=True))
    found = simulate(plan, SimOptions(load_factor=0.5, duration_s=20.0)).applications["lines"]
    assert found.outcome.attainment > 0.99
    ran = {name: module.rows for name, module in found.modules.items()}
    assert ran["fit"] == sum(ran[f"net@1x{n}"] for n in SIZES) == ran["spell"]


@pytest.mark.parametrize(
    "lengths",
    [(4,), (16, 4, 8), (8, 8, 4, 16, 4, 16), (16, 16), (4, 4, 4, 8), ()],
)
def test_every_row_is_answered_by_its_size_in_the_order_of_the_request(
    state: ServerState, lengths: tuple[int, ...]
) -> None:
    answer = asked(state, lengths)
    assert answer.as_numpy("lengths").tolist() == list(lengths)
    y = np.zeros((len(lengths), 1, ROOM), np.float32)
    for row, n in zip(y, lengths, strict=True):
        row[0, :n] = 3 * n
    assert answer.as_numpy("y").tolist() == y.tolist()
    words = [f"{n} of {3 * n * n}".encode() for n in lengths]
    assert answer.as_numpy("word").tolist() == words


@pytest.mark.parametrize(
    ("lengths", "reason"),
    [
        ((4, 5), "x_shape 1x5 is none of the sizes served: 1x4, 1x8, 1x16"),
        ((17, 4), "a row of 'x' is 1x17, there is room for 1x16"),
    ],
)
def test_a_row_of_another_size_is_refused_with_the_list(
    state: ServerState, lengths: tuple[int, ...], reason: str
) -> None:
    with pytest.raises(InferenceServerException) as caught:
        asked(state, lengths)
    text = str(caught.value)
    assert "StatusCode.INVALID_ARGUMENT" in text
    assert f"module 'fit': {reason}" in text
    assert asked(state, (4, 8)).as_numpy("word").tolist() == [b"4 of 48", b"8 of 192"]
