"""A node: starts one worker process per vGPU, watches them, restarts what died or hangs.

Workers that go on from the generation before are not started: the node finds them on the health board
of the generation that they began with. While that generation's node lives, it restarts them; a worker
that is started reads of itself which later generations it serves. Where there are two gateways, each has a model
of the node, of which one starts and watches (`leadership`).

Lives in the node's Triton model, so that loading and unloading that model is the life of a plan on
the node. The scheduler learns of a worker's end from its connection, of its return from its HELLO;
a node only keeps the processes alive.
"""

import contextlib
import json
import logging
import os
import signal
import subprocess
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, cast

from triton_backend.contract.errors import InputError
from triton_backend.contract.plan import StageRow
from triton_backend.runtimes.clock import Clock
from triton_backend.serve_folder.names import short_name
from triton_backend.serve_folder.repository import node_model
from triton_backend.serve_folder.settings import SETTINGS_NAME
from triton_backend.serving.deployment import Deployment
from triton_backend.serving.gpus import NodeGpus
from triton_backend.serving.liveness.processes import (
    HealthBoard,
    HealthWatch,
    is_alive,
    stub_process,
)
from triton_backend.serving.node.fork_server import GONE, Forked, ForkServer
from triton_backend.serving.node.leadership import NodeLeadership, node_is_loaded
from triton_backend.serving.node.remote_files import (
    missing_artifacts,
    put_artifact,
    put_generation,
    remove_models,
)
from triton_backend.serving.transport.sched_tuning import lower_priority
from triton_backend.serving.transport.shared_memory import SHARED_FOLDER
from triton_backend.serving.transport.shelves import remove_shelves
from triton_backend.serving.worker.stage_probe import read_tensors, run_stage, write_tensors

WATCH_SECONDS = 0.05
LOADING_AT_ONCE = 2  # more would take the processor from those who serve
FIRST_BACKOFF_US = 100_000
LONGEST_BACKOFF_US = 5_000_000
HEALTHY_AFTER_US = 10_000_000
FORKED_FROM = 2  # workers; one alone is started as soon as the process that would fork it
# One heap for the threads of a worker, which take turns, and what is freed stays in it. Else the first runs of each,
# and those after memory was given back, write pages that are new, at 2 to 13 µs each. And no threads of numpy's: runtimes
# have their own, and a process that forks may have none.
WORKER_ENVIRONMENT = {
    "OPENBLAS_NUM_THREADS": "1",
    "MALLOC_ARENA_MAX": "1",
    "MALLOC_MMAP_THRESHOLD_": str(1 << 25),
    "MALLOC_TRIM_THRESHOLD_": str(1 << 28),
}
_LOG = logging.getLogger(__name__)
_ABOUT_FILES = {
    function.__name__: function
    for function in (missing_artifacts, put_artifact, put_generation, remove_models)
}


@dataclass(frozen=True, slots=True)
class _Adopted:
    """A worker process that another generation's node has started."""

    pid: int

    def poll(self) -> int | None:
        """As of a child: None while it lives."""
        return None if is_alive(self.pid) else GONE

    def kill(self) -> None:
        """End it at once."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)

    def wait(self) -> int:
        """It is not ours to wait for."""
        return GONE


@dataclass(slots=True)
class _Process:
    vgpu: int
    board: HealthBoard
    row: int  # of the board
    health: HealthWatch
    inherited: bool
    process: subprocess.Popen[bytes] | Forked | _Adopted | None = None
    started_us: int = 0
    backoff_us: int = FIRST_BACKOFF_US
    restart_us: int = 0
    restarts: int = 0
    last_end: str = ""


class Node:
    """The workers of one node, between `start` and `stop`."""

    def __init__(self, deployment: Deployment, name: str, clock: Clock) -> None:
        self.name = name
        self._deployment = deployment
        self._clock = clock
        self._boards: dict[int, tuple[HealthBoard, HealthWatch]] = {}
        self._gpus = NodeGpus(deployment, name)
        self._workers = [self._worker(vgpu) for vgpu in deployment.vgpus_on(name)]
        self._former = self._former_stub()
        self._leadership = NodeLeadership(deployment.settings, name, deployment.generation)
        self._leads = False
        # The plan before goes on while these load; one that is started anew is missed, and hurries.
        self._beside_others = (
            deployment.workers is not None and deployment.workers.former is not None
        )
        self._forks = self._fork_server()
        self._stopping = threading.Event()
        # Workers die with the thread that started them (PR_SET_PDEATHSIG), so one thread starts all.
        self._thread = threading.Thread(target=self._run, name=f"node-{name}", daemon=True)

    def _worker(self, vgpu: int) -> _Process:
        origin, row = self._deployment.origin_of(vgpu)
        if origin.generation not in self._boards:
            board = HealthBoard.open(origin, self.name)
            self._boards[origin.generation] = board, HealthWatch(board)
        board, health = self._boards[origin.generation]
        inherited = origin.generation != self._deployment.generation
        return _Process(vgpu, board, row, health, inherited)

    def _former_stub(self) -> int | None:
        """Process of this node's model in the generation before, which owns the workers inherited."""
        workers = self._deployment.workers
        if workers is None or workers.former is None:
            return None
        pids = self._deployment.settings.place / "pids"
        return stub_process(pids / node_model(self.name, workers.former))

    def _fork_server(self) -> ForkServer | None:
        """What forks the workers of this node, where there are several."""
        if sum(not worker.inherited for worker in self._workers) < FORKED_FROM:
            return None
        settings = self._deployment.settings
        name = f"fork-server-g{self._deployment.generation}-{short_name(self.name)}.log"
        environment = {**WORKER_ENVIRONMENT, **os.environ}
        runtimes = self._gpus.runtimes_without_gpu()
        command = (settings.python, "-m", "triton_backend.serving.node.fork_server")
        return ForkServer(command, environment, runtimes, self._logs() / name)

    def _former_lives(self) -> bool:
        """Whether the generation before has its model of this node, in this gateway or the other."""
        workers, settings = self._deployment.workers, self._deployment.settings
        if settings.gateways > 1 and workers is not None and workers.former is not None:
            return node_is_loaded(settings, self.name, workers.former)
        return self._former is not None and is_alive(self._former)

    def start(self) -> None:
        """Start the workers and the watch.

        Raises:
            InputError: vGPUs that are parts of a GPU cannot be made here.
        """
        with self._leadership.begin():
            self._gpus.start()
        self._thread.start()

    def stop(self) -> None:
        """End the workers; returns when they are gone."""
        self._stopping.set()
        self._thread.join(timeout=10)
        self._gpus.stop()

    def status(self) -> dict[str, Any]:
        """Processes of the node, for people and tests."""
        return {
            "node": self.name,
            "generation": self._deployment.generation,
            "workers": [
                {
                    "vgpu": worker.vgpu,
                    "pid": None if worker.process is None else worker.process.pid,
                    "restarts": worker.restarts,
                    "last_end": worker.last_end,
                }
                for worker in self._workers
            ],
        }

    def answer(self, request: str) -> dict[str, Any]:
        """Answer one request in JSON: `{"command": "infer" | …}`, or one of `remote_files`; else status.

        Raises:
            InputError: no JSON object, or what is asked cannot be done.
        """
        try:
            asked = json.loads(request)
        except ValueError as error:
            raise InputError("node request", f"is not JSON: {error}") from error
        if not isinstance(asked, dict):
            raise InputError("node request", "is not a JSON object")
        fields = cast("dict[str, Any]", asked)
        command = fields.get("command")
        if command == "infer":
            return self.infer(fields)
        if command in _ABOUT_FILES:
            return _ABOUT_FILES[command](self._deployment.settings, fields)
        return self.status()

    def infer(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """A direct run of a stage on the first of its vGPUs here.

        Args:
            request: `model`, `pipeline` (0 where absent), `stage`, and `inputs` as in `direct`.

        Returns:
            `vgpu` and `outputs`.

        Raises:
            InputError: no such stage here, wrong tensors, or its worker cannot run it.
        """
        vgpu, row = self._stage_asked(request)
        deployment = self._deployment
        most = deployment.largest_of(row)
        tensors, samples = read_tensors(request.get("inputs"), deployment.inputs_of(row), most)
        made = run_stage(deployment, vgpu, row, tensors, samples)
        return {"vgpu": vgpu, "outputs": write_tensors(made, deployment.outputs_of(row))}

    def _stage_asked(self, request: Mapping[str, Any]) -> tuple[int, StageRow]:
        """The first vGPU here that holds the stage of a request, and its row."""
        wanted = (request.get("model"), request.get("pipeline", 0), request.get("stage"))
        for worker in self._workers:
            for row in self._deployment.rows_of(worker.vgpu):
                model = self._deployment.model_of(row).name
                if (model, row.pipeline, row.stage) == wanted:
                    return worker.vgpu, row
        name, pipeline, stage = wanted
        raise InputError(
            f"node {self.name}", f"runs no stage {stage} of pipeline {pipeline} of model {name!r}"
        )

    def _run(self) -> None:
        while not self._stopping.is_set():
            if not self._leads and self._leadership.acquire():
                self._leads = True
                self._find_workers()
            if self._leads:
                self._look(self._clock.now_us())
            self._show_owner()
            self._stopping.wait(WATCH_SECONDS)
        if not self._leadership.release():
            if not self._leads:
                self._find_workers()
            self._end()
        if self._forks is not None:
            self._forks.stop()

    def _find_workers(self) -> None:
        """Go on with the workers that the other gateway's model of this node has started."""
        if self._leadership.alone:
            return
        for worker in self._workers:
            pid = worker.board.process_of(worker.row)
            if is_alive(pid):
                worker.process = _Adopted(pid)

    def _show_owner(self) -> None:
        """Have the workers belong to this process, too: one of the other gateway may have started them.

        Those of the generation before hear of it when they go on, and from its own nodes until these are gone.
        """
        if self._leadership.alone:
            return
        former_lives = self._former_lives()
        for worker in self._workers:
            if not (worker.inherited and former_lives):
                gateway = self._deployment.settings.gateway
                worker.board.belongs_to(worker.row, gateway, os.getpid())

    def _look(self, now_us: int) -> None:
        """Take note of what ended, and start what is to run."""
        for _, health in self._boards.values():
            health.look(now_us)
        if self._forks is not None:
            self._look_after(self._forks, now_us)
        loading = sum(self._is_loading(worker) for worker in self._workers)
        for worker in self._workers:
            if worker.process is not None:
                self._watch(worker, now_us)
            elif worker.inherited and self._is_anothers(worker):
                pass
            elif now_us >= worker.restart_us and loading < LOADING_AT_ONCE:
                if self._forks is not None and self._forks.is_loading:
                    continue  # it makes this one sooner than a start would
                loading += 1
                self._start(worker, now_us)

    def _look_after(self, forks: ForkServer, now_us: int) -> None:
        before = forks.pid
        forks.look(now_us)
        if self._beside_others and forks.pid is not None and forks.pid != before:
            lower_priority(forks.pid)

    def _end(self) -> None:
        """End the workers, but those that go on."""
        # Those that another generation's node watches too end by themselves, with the last of them.
        own = [worker for worker in self._workers if not worker.board.is_inherited(worker.row)]
        processes = [worker.process for worker in own if worker.process is not None]
        for process in processes:
            process.kill()
        for process in processes:
            process.wait()
        for worker in own:
            self._remove_memory(worker)
        remove_shelves(self._deployment, (worker.vgpu for worker in self._workers))
        for board, _ in self._boards.values():
            if not board.has_inherited():  # a later node looks there for workers that go on
                board.remove()

    def _is_anothers(self, worker: _Process) -> bool:
        """Whether an inherited worker lives, or is its former node's to start."""
        pid = worker.board.process_of(worker.row)
        if is_alive(pid):
            worker.process = _Adopted(pid)
            return True
        return self._former_lives()

    def _is_loading(self, worker: _Process) -> bool:
        return worker.process is not None and not worker.board.has_loaded(worker.row)

    def _watch(self, worker: _Process, now_us: int) -> None:
        assert worker.process is not None
        code = worker.process.poll()
        if code is None:
            complaint = worker.health.complaint(worker.row, worker.process.pid)
            if complaint is None:
                return
            _LOG.warning("worker %d is killed: %s", worker.vgpu, complaint)
            worker.process.kill()
            code = worker.process.wait()
            worker.last_end = complaint
        else:
            worker.last_end = f"exit code {code}"
        self._remove_memory(worker)
        if now_us - worker.started_us > HEALTHY_AFTER_US:
            worker.backoff_us = FIRST_BACKOFF_US
        _LOG.warning("worker %d ended (%s)", worker.vgpu, worker.last_end)
        worker.process = None
        worker.restart_us = now_us + worker.backoff_us
        worker.backoff_us = min(2 * worker.backoff_us, LONGEST_BACKOFF_US)
        worker.restarts += 1

    def _remove_memory(self, worker: _Process) -> None:
        """Delete the segments of a worker that is gone; those who map them keep them till then."""
        if worker.process is not None:
            (SHARED_FOLDER / self._deployment.worker_segment(worker.vgpu)).unlink(missing_ok=True)

    def _start(self, worker: _Process, now_us: int) -> None:
        worker.board.reset(worker.row)
        deployment, settings = self._deployment, self._deployment.settings
        arguments = [
            str(settings.folder / SETTINGS_NAME),
            str(deployment.generation),
            str(worker.vgpu),
            str(os.getpid()),
        ]
        environment = self._gpus.environment(worker.vgpu)
        with self._log_file(worker.vgpu) as log:
            if self._forks is not None:
                worker.process = self._forks.fork(arguments, environment, log.fileno())
            if worker.process is None:
                worker.process = subprocess.Popen(
                    [settings.python, "-m", "triton_backend.serving.worker.process", *arguments],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    env={**WORKER_ENVIRONMENT, **os.environ, **environment},
                )
        worker.started_us = now_us
        if self._beside_others and not worker.restarts:
            lower_priority(worker.process.pid)

    def _log_file(self, vgpu: int) -> IO[bytes]:
        return (self._logs() / f"worker-g{self._deployment.generation}-{vgpu}.log").open("ab")

    def _logs(self) -> Path:
        folder = self._deployment.settings.folder / "logs"
        folder.mkdir(parents=True, exist_ok=True)
        return folder
