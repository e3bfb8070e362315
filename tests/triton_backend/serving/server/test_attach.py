"""A PyTriton program that binds its own model and serves a plan beside it."""

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import tritonclient.grpc as grpc_client
import tritonclient.http as http_client
from tritonclient.utils import InferenceServerException, np_to_triton_dtype

from tests.ports import free_ports
from tests.triton_backend.serving.small_plans import plan, two_stage
from triton_backend import attach
from triton_backend.contract.errors import InputError
from triton_backend.serve_folder.settings import ServeSettings

ROOT = Path(__file__).parents[4]
PROGRAM = Path(__file__).with_name("attached_program.py")
SHARED = Path("/dev/shm")
PLAN = plan(two_stage())
PYTRITON = pytest.importorskip("pytriton.triton", reason="needs the extra `local`")


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """The program, while it serves."""

    process: "subprocess.Popen[bytes]"
    http: int
    grpc: int

    def workers(self) -> list[psutil.Process]:
        """Of the plan."""
        family = psutil.Process(self.process.pid).children(recursive=True)
        return [p for p in family if p.name().startswith("worker-")]


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Program]:
    folder = tmp_path_factory.mktemp("attached")
    (folder / "plan.json").write_text(json.dumps(PLAN.to_dict()))
    ports = free_ports(3)
    with (
        (folder / "log").open("wb") as log,
        subprocess.Popen(
            [sys.executable, PROGRAM, folder / "plan.json", *map(str, ports)],
            cwd=folder,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
        ) as process,
    ):
        assert process.stdin is not None
        try:
            pause = threading.Event()
            ready = folder / "ready"
            while not (ready.exists() and ready.read_text()):
                assert process.poll() is None, (folder / "log").read_text()[-3000:]
                pause.wait(0.05)
            repository = Path(ready.read_text())
            settings = ServeSettings.read(repository.parent / "settings.json")
            yield Program(process=process, http=ports[0], grpc=ports[1])
            family = psutil.Process(process.pid).children(recursive=True)
            process.stdin.close()
            assert process.wait(60) == 0
        finally:
            process.kill()
    _, left = psutil.wait_procs(family, timeout=30)
    places = (repository, settings.socket_folder, *SHARED.glob(f"{settings.segment_prefix}*"))
    assert (left, [path for path in places if path.exists()]) == ([], [])


def answered(client: Any, name: str, inputs: list[Any], output: str) -> np.ndarray:
    """A model's first answer: workers start while the server is ready already."""
    pause = threading.Event()
    while True:
        try:
            return client.infer(name, inputs).as_numpy(output)
        except InferenceServerException as error:
            if error.status() not in {"503", "StatusCode.UNAVAILABLE"}:
                raise
            pause.wait(0.05)


def inputs_of(module: Any, **arrays: np.ndarray) -> list[Any]:
    made: list[Any] = []
    for name, array in arrays.items():
        made.append(module.InferInput(name, array.shape, np_to_triton_dtype(array.dtype)))
        made[-1].set_data_from_numpy(array)
    return made


@pytest.mark.slow
def test_a_bound_model_and_a_plan_answer_over_http_and_grpc_and_survive_their_workers(
    program: Program,
) -> None:
    asked = {"number": np.array([[21.0]], np.float32)}
    image = {"image": np.ones((1, 3, 16), np.float32), "mask": np.ones((1, 4), np.uint8)}
    with (
        http_client.InferenceServerClient(f"127.0.0.1:{program.http}") as http,
        grpc_client.InferenceServerClient(f"127.0.0.1:{program.grpc}") as grpc,
    ):
        both = ((http, http_client), (grpc, grpc_client))

        def all_answer() -> None:
            for client, module in both:
                doubled = answered(client, "double", inputs_of(module, **asked), "doubled")
                assert doubled.tolist() == [[42.0]]
                scores = answered(client, "pair", inputs_of(module, **image), "scores")
                assert scores.shape == (1, 10)

        all_answer()
        workers = program.workers()
        assert len(workers) == 3
        for worker in workers:
            os.kill(worker.pid, signal.SIGKILL)
        psutil.wait_procs(workers, timeout=30)
        all_answer()


def test_a_repository_of_another_is_refused(tmp_path: Path) -> None:
    config: Any = PYTRITON.TritonConfig()
    config.model_repository = tmp_path
    with pytest.raises(InputError, match="PyTriton loads one repository"):
        attach(PLAN, config)


def test_what_is_no_plan_is_named(tmp_path: Path) -> None:
    (tmp_path / "p.json").write_text("{")
    for name in ("p.json", "absent.json"):
        with pytest.raises(InputError, match=f"{name}: is no plan"):
            attach(tmp_path / name)
