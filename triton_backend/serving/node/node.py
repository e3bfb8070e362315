"""A node: starts one worker process per vGPU, watches them, restarts what died or hangs.

One node serves every generation: while the plan changes it has the workers of two, and one that
goes on is the same process in both. It is known by where it comes from, the generation and the vGPU
number that it began with (`WorkerOrigin`), and ends with the last generation that has it. Which
generations there are says a file beside the node's Triton model; the node looks for it, so it goes
on with all of them after its own death, too. Where there are two gateways, each has a model of the
node, of which one starts and watches (`leadership`).

Lives in the node's Triton model, which is loaded with the first plan that has vGPUs on the node and
unloaded with the last. Workers belong to tritonserver as well as to the model's process: where that
dies they go on, and the process that is loaded in its place finds them on the health board. The
scheduler learns of a worker's end from its connection, of its return from its HELLO; a node only
keeps the processes alive.
"""

import contextlib
import json
import logging
import os
import select
import signal
import subprocess
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, cast

from triton_backend.contract.errors import InputError
from triton_backend.contract.plan import StageRow
from triton_backend.runtimes.clock import Clock
from triton_backend.serve_folder.names import short_name
from triton_backend.serve_folder.repository import (
    WorkerOrigin,
    node_generations_file,
    read_node_generations,
)
from triton_backend.serve_folder.settings import SETTINGS_NAME, ServeSettings
from triton_backend.serving.deployment import Deployment
from triton_backend.serving.gpus import NodeGpus
from triton_backend.serving.liveness.threads import is_alive
from triton_backend.serving.liveness.workers import HealthBoard, HealthWatch
from triton_backend.serving.node.fork_server import GONE, Forked, ForkServer
from triton_backend.serving.node.leadership import NodeLeadership
from triton_backend.serving.node.remote_files import (
    missing_artifacts,
    put_artifact,
    put_generation,
    remove_models,
    serve_generations,
)
from triton_backend.serving.transport.backoff import Backoff
from triton_backend.serving.transport.retained import remove_retained
from triton_backend.serving.transport.sched_tuning import lower_priority
from triton_backend.serving.transport.shared_memory import SHARED_FOLDER
from triton_backend.serving.worker.stage_probe import read_tensors, run_stage, write_tensors

WATCH_SECONDS = 0.05
LOADING_AT_ONCE = 2  # more would take the processor from workers that serve
FIRST_BACKOFF_US = 100_000
LONGEST_BACKOFF_US = 5_000_000
HEALTHY_AFTER_US = 10_000_000
# For so long a change of plan waits for the end of workers that it has killed, by looks: the kernel
# ends none that waits for a device.
END_SECONDS, END_LOOK_SECONDS = 5.0, 5e-3
FORKED_FROM = 2  # workers; one alone is started as soon as the process that would fork it
# One heap for the threads of a worker, which take turns, and what is freed stays in it. Else the
# first runs of each, and those after memory was given back, write pages that are new, at 2 to 13 µs
# each. And no threads of numpy's: runtimes have their own, and a process that forks may have none.
WORKER_ENVIRONMENT = {
    "OPENBLAS_NUM_THREADS": "1",
    "MALLOC_ARENA_MAX": "1",
    "MALLOC_MMAP_THRESHOLD_": str(1 << 25),
    "MALLOC_TRIM_THRESHOLD_": str(1 << 28),
}
_LOG = logging.getLogger(__name__)
_ABOUT_FILES = {
    function.__name__: function
    for function in (
        missing_artifacts,
        put_artifact,
        put_generation,
        remove_models,
        serve_generations,
    )
}


class _Adopted:
    """A worker process that another process of this node's model has started.

    Another process waits for it, so its number may become another's; its descriptor does not.

    Raises:
        OSError: it is gone.
    """

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._fd = os.pidfd_open(pid)
        self._ended = select.poll()
        self._ended.register(self._fd, select.POLLIN)

    def __del__(self) -> None:
        """Its descriptor is closed with it."""
        if hasattr(self, "_fd"):
            os.close(self._fd)

    def poll(self) -> int | None:
        """As of a child: None while it lives."""
        return GONE if self._ended.poll(0) else None

    def kill(self) -> None:
        """End it at once."""
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._fd, signal.SIGKILL)

    def wait(self) -> int:
        """Return when it has ended."""
        self._ended.poll()
        return GONE


class _Generation(NamedTuple):
    """A generation that has vGPUs here, or had when it was begun."""

    deployment: Deployment
    gpus: NodeGpus


@dataclass(slots=True)
class _Worker:
    """A worker that runs or is to run.

    Attributes:
        segment: of its slots.
        killed_for: why its process was killed, which may not have ended yet.
    """

    origin: WorkerOrigin
    board: HealthBoard
    health: HealthWatch
    segment: str
    process: subprocess.Popen[bytes] | Forked | _Adopted | None = None
    started_us: int = 0
    backoff_us: int = FIRST_BACKOFF_US
    restart_us: int = 0
    restarts: int = 0
    killed_for: str = ""
    last_end: str = ""

    @property
    def row(self) -> int:
        """Of the board."""
        return self.origin.vgpu

    @property
    def name(self) -> str:
        """As its log has it."""
        return f"g{self.origin.generation}-{self.origin.vgpu}"

    @property
    def is_loading(self) -> bool:
        """True if its process has begun and does not listen yet."""
        return self.process is not None and not self.board.has_loaded(self.row)

    def kill(self) -> None:
        """End its process, where there is one."""
        if self.process is not None:
            self.process.kill()

    def find(self) -> None:
        """Go on with its process where that lives.

        The one on the board, if it has this worker's segment.
        """
        pid = self.board.process_of(self.row)
        if not is_alive(pid):
            return
        with contextlib.suppress(OSError):  # it is gone meanwhile
            found = _Adopted(pid)
            if self.segment in Path(f"/proc/{pid}/maps").read_text():
                self.process = found

    @property
    def has_ended(self) -> bool:
        """True if no process of it is left."""
        return self.process is None or self.process.poll() is not None

    def put_off(self, now_us: int) -> None:
        """Start it after a pause, each twice as long as the one before."""
        self.restart_us = now_us + self.backoff_us
        self.backoff_us = min(2 * self.backoff_us, LONGEST_BACKOFF_US)

    def remove(self) -> None:
        """Delete its segment, which processes that map it keep."""
        (SHARED_FOLDER / self.segment).unlink(missing_ok=True)


class Node:
    """The workers of one node, between `start` and `stop`.

    Args:
        server: the process that its workers belong to beside this one, tritonserver's; with none
            they end with this one, where there is one gateway.
    """

    def __init__(
        self, settings: ServeSettings, name: str, clock: Clock, server: int | None = None
    ) -> None:
        self.name = name
        self._server = server
        self._settings = settings
        self._clock = clock
        self._generations: dict[int, _Generation] = {}  # in order
        self._workers: dict[WorkerOrigin, _Worker] = {}  # those of the oldest generation first
        self._leaving: list[_Worker] = []  # of generations that are over, where the other one leads
        self._boards: dict[int, tuple[HealthBoard, HealthWatch]] = {}
        self._restarts = 0
        self._forks: ForkServer | None = None
        self._runtimes: set[str] = set()  # runtimes that it has imported
        self._forks_give_way = False
        self._leadership = NodeLeadership(settings, name)
        self._leads = False
        self._seen: tuple[int, int] | None = None  # of the file of generations
        self._lock = threading.Lock()  # of all of these
        self._stopping = threading.Event()
        self._pause = threading.Event()  # never set
        self._succeeded_us = clock.now_us()
        self._backoff = Backoff()
        # While they load, workers die with the thread that started them (PR_SET_PDEATHSIG), so one
        # thread starts all.
        self._thread = threading.Thread(target=self._run, name=f"node-{name}", daemon=True)

    def start(self) -> None:
        """Start the workers and the watch.

        Raises:
            InputError: a generation cannot be read, or vGPUs that are parts of a GPU cannot be made
                here.
        """
        self.look()
        self._thread.start()

    def stop(self) -> None:
        """End the workers; returns when they are gone."""
        self._stopping.set()
        self._thread.join(timeout=10)
        for generation in self._generations.values():
            generation.gpus.stop()

    def alive_us(self) -> int:
        """When its rounds last succeeded; now, unless they fail.

        One that lasts has not failed: a plan's GPUs may take seconds to be ready.
        """
        return self._succeeded_us if self._backoff.failures else self._clock.now_us()

    # Generations

    def look(self) -> None:
        """Begin and end generations as the file says.

        What ends is gone then, where this one leads, but for workers that the kernel does not end.

        Raises:
            InputError: a generation cannot be read, or vGPUs that are parts of a GPU cannot be made
                here; the others go on.
        """
        with self._lock:
            self._seen = self._file()
            wanted = read_node_generations(self._settings.place, self.name)
            for number in [number for number in wanted if number not in self._generations]:
                self._begin(number)
            for number in [number for number in self._generations if number not in wanted]:
                self._forget(number)

    def _file(self) -> tuple[int, int] | None:
        try:
            found = node_generations_file(self._settings.place, self.name).stat()
        except OSError:  # it is being unloaded
            return None
        return found.st_ino, found.st_mtime_ns

    def _look_for_changes(self) -> None:
        """Its message may be lost.

        This process was being loaded, or it is that of the other gateway.
        """
        if self._file() in {None, self._seen}:
            return
        try:
            self.look()
        except (InputError, OSError) as error:  # the workers that there are go on
            _LOG.error("%s", error)

    def _begin(self, number: int) -> None:
        deployment = Deployment.read(self._settings, number)
        gpus = NodeGpus(deployment, self.name)
        with self._leadership.begin():
            gpus.start()
        added = [
            origin
            for vgpu in deployment.vgpus_on(self.name)
            if (origin := deployment.origins[vgpu]) not in self._workers
        ]
        for origin in added:
            self._workers[origin] = self._worker(deployment, origin)
        begun = {**self._generations, number: _Generation(deployment, gpus)}
        self._generations = dict(sorted(begun.items()))
        if self._leads:
            self._find_workers(self._workers[origin] for origin in added)
        forks, runtimes = self._forks, gpus.runtimes_without_gpu()
        if forks is not None and (self._runtimes != runtimes or forks.is_given_up):
            # It has imported too little; or too much beside a GPU, which does not survive a fork.
            # One that was given up is tried again: what it lacked may be there by now.
            forks.stop()
            self._forks = None
        if self._forks is None and len(added) >= FORKED_FROM:
            self._forks = self._fork_server(runtimes)
            self._forks_give_way = _is_beside_another(deployment)

    def _worker(self, deployment: Deployment, origin: WorkerOrigin) -> _Worker:
        vgpu = deployment.origins.index(origin)
        if origin.generation not in self._boards:
            board = HealthBoard.open(deployment.origin_of(vgpu)[0], self.name)
            self._boards[origin.generation] = board, HealthWatch(board)
        board, health = self._boards[origin.generation]
        return _Worker(origin, board, health, deployment.worker_segment(vgpu))

    def _forget(self, number: int) -> None:
        over = self._generations.pop(number)
        others = [generation.deployment.origins for generation in self._generations.values()]
        kept = {origin for origins in others for origin in origins}
        gone = [worker for origin, worker in self._workers.items() if origin not in kept]
        self._workers = {one: worker for one, worker in self._workers.items() if one in kept}
        self._leaving += gone
        if self._leads:
            self._end_leaving(END_SECONDS)
        remove_retained(over.deployment, over.deployment.vgpus_on(self.name))
        self._remove_boards()
        if not any(generation.gpus.shared for generation in self._generations.values()):
            over.gpus.stop()

    def _remove_boards(self) -> None:
        for generation in self._boards.keys() - {origin.generation for origin in self._workers}:
            self._boards.pop(generation)[0].remove()

    def _end_leaving(self, patience_s: float = 0.0) -> None:
        """Kill workers of generations that are over; one that does not end is left to later."""
        for worker in self._leaving:
            worker.kill()
        while True:
            for worker in [worker for worker in self._leaving if worker.has_ended]:
                worker.remove()
                self._leaving.remove(worker)
            if not self._leaving or patience_s <= 0:
                return
            self._pause.wait(END_LOOK_SECONDS)
            patience_s -= END_LOOK_SECONDS

    def _fork_server(self, runtimes: set[str]) -> ForkServer:
        """The fork server of workers that need these runtimes."""
        self._runtimes = runtimes
        environment = {**WORKER_ENVIRONMENT, **os.environ}
        command = (self._settings.python, "-m", "triton_backend.serving.node.fork_server")
        log = self._logs() / f"fork-server-{short_name(self.name)}.log"
        return ForkServer(command, environment, runtimes, log)

    # Requests of clients

    def status(self, generation: int | None = None) -> dict[str, Any]:
        """Processes of the node, for people and tests.

        Workers by their numbers in the latest generation or another.

        Raises:
            InputError: no such generation here.
        """
        with self._lock:
            asked = self._asked(generation)
            return {
                "node": self.name,
                "generation": asked.generation,
                "generations": list(self._generations),
                "restarts": self._restarts,
                "workers": [
                    {
                        "vgpu": vgpu,
                        "pid": None if worker.process is None else worker.process.pid,
                        "restarts": worker.restarts,
                        "last_end": worker.last_end,
                    }
                    for vgpu in asked.vgpus_on(self.name)
                    for worker in (self._workers[asked.origins[vgpu]],)
                ],
            }

    def _asked(self, generation: int | None) -> Deployment:
        number = max(self._generations, default=0) if generation is None else generation
        found = self._generations.get(number)
        if found is None:
            raise InputError(f"node {self.name}", f"has no generation {generation}")
        return found.deployment

    def answer(self, request: str) -> dict[str, Any]:
        """Answer one request in JSON.

        `{"command": "infer" | "look" | …}`, or one of `remote_files`; else status.

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
            return _ABOUT_FILES[command](self._settings, fields)
        if command == "look":
            self.look()
        return self.status(fields.get("generation"))

    def infer(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """A direct run of a stage of the latest generation on the first of its vGPUs here.

        Args:
            request: `model`, `pipeline` (0 where absent), `stage`, and `inputs` as in `direct`.

        Returns:
            `vgpu`, `outputs`, and `took_us`, how long its worker took to answer.

        Raises:
            InputError: no such stage here, wrong tensors, or its worker cannot run it.
        """
        with self._lock:
            deployment = self._asked(None)
        vgpu, row = self._stage_asked(deployment, request)
        most = deployment.largest_of(row)
        tensors, samples = read_tensors(request.get("inputs"), deployment.inputs_of(row), most)
        began_us = self._clock.now_us()
        made = run_stage(deployment, vgpu, row, tensors, samples)
        took_us = self._clock.now_us() - began_us
        outputs = write_tensors(made, deployment.outputs_of(row))
        return {"vgpu": vgpu, "outputs": outputs, "took_us": took_us}

    def _stage_asked(
        self, deployment: Deployment, request: Mapping[str, Any]
    ) -> tuple[int, StageRow]:
        """The first vGPU here that holds the stage of a request, and its row."""
        wanted = (request.get("model"), request.get("pipeline", 0), request.get("stage"))
        for vgpu in deployment.vgpus_on(self.name):
            for row in deployment.rows_of(vgpu):
                if (deployment.model_of(row).name, row.pipeline, row.stage) == wanted:
                    return vgpu, row
        name, pipeline, stage = wanted
        raise InputError(
            f"node {self.name}", f"runs no stage {stage} of pipeline {pipeline} of model {name!r}"
        )

    # Processes

    def _run(self) -> None:
        while not self._stopping.is_set():
            self._stopping.wait(self._round_seconds())
        with self._lock:
            if not self._leadership.release():
                self._end()
            if self._forks is not None:
                self._forks.stop()

    def _round_seconds(self) -> float:
        """Go one round; seconds until the next one."""
        try:
            self._look_for_changes()
            with self._lock:
                self._lead()
                self._show_owner()
        except Exception:  # noqa: BLE001  # one failure must not leave all workers unwatched
            pause_seconds = self._backoff.failed()
            _LOG.exception("node %s goes on in %.2f s", self.name, pause_seconds)
            return pause_seconds
        self._succeeded_us = self._clock.now_us()
        self._backoff.succeeded()
        return WATCH_SECONDS

    def _lead(self) -> None:
        """Watch and start the workers, where this is the node's model that does so."""
        if not self._leads and self._leadership.acquire():
            self._leaving += self._left_over()
            self._find_workers([*self._workers.values(), *self._leaving])
            self._remove_boards()
            self._leads = True  # last: what fails is done again, lest a worker has two processes
        if self._leads:
            self._end_leaving()
            self._watch_all(self._clock.now_us())
        else:  # the other one ends them
            self._leaving = [w for w in self._leaving if is_alive(w.board.process_of(w.row))]

    def _find_workers(self, workers: Iterable[_Worker]) -> None:
        """Go on with the workers that another process has started.

        Before its death, or of the other gateway.
        """
        for worker in workers:
            worker.find()

    def _left_over(self) -> list[_Worker]:
        """Workers of generations that were over before anybody could end them here."""
        boards = HealthBoard.generations(self._settings, self.name)
        # Read after the boards: a generation is written down before it has one.
        wanted = read_node_generations(self._settings.place, self.name)
        if set(wanted) - self._generations.keys():
            return []  # the processes that go on there are not known
        known = {*self._workers, *(worker.origin for worker in self._leaving)}
        found: list[_Worker] = []
        for number in boards:
            with contextlib.suppress(InputError):  # its files are gone, and so are its workers
                deployment = Deployment.read(self._settings, number)
                vgpus = deployment.vgpus_on(self.name)
                origins = {deployment.origins[vgpu] for vgpu in vgpus} - known
                own = [origin for origin in origins if origin.generation == number]
                found += [self._worker(deployment, origin) for origin in own]
                if number not in wanted:
                    remove_retained(deployment, vgpus)
        return found

    def _show_owner(self) -> None:
        """Have the workers belong to another process than that which started them, too.

        That is tritonserver, which outlives both; or, of two gateways, each model of the node.
        """
        if self._server is None and self._leadership.alone:
            return
        owner = self._server or os.getpid()
        for worker in self._workers.values():
            worker.board.belongs_to(worker.row, self._settings.gateway, owner)

    def _watch_all(self, now_us: int) -> None:
        """Take note of what ended, and start what is to run.

        A model that takes the lead where all workers live needs no fork server: to load it would
            take the
        processor from requests just when one server answers them all.
        """
        for _, health in self._boards.values():
            health.look(now_us)
        missed = any(worker.process is None for worker in self._workers.values())
        if self._forks is not None and (missed or self._forks.pid is not None):
            self._look_after(self._forks, now_us)
        loading = sum(worker.is_loading for worker in self._workers.values())
        for worker in self._workers.values():
            if worker.process is not None:
                self._watch(worker, now_us)
            elif now_us >= worker.restart_us and loading < LOADING_AT_ONCE:
                if self._forks is not None and self._forks.is_loading:
                    continue  # it makes this one sooner than a start would
                loading += 1
                self._start(worker, now_us)

    def _look_after(self, forks: ForkServer, now_us: int) -> None:
        before = forks.pid
        forks.look(now_us)
        if self._forks_give_way and forks.pid is not None and forks.pid != before:
            lower_priority(forks.pid)

    def _end(self) -> None:
        """End all workers: no other process has them."""
        if not self._leads:
            self._leads = True
            self._find_workers([*self._workers.values(), *self._leaving])
        for number in list(self._generations):
            self._forget(number)

    def _watch(self, worker: _Worker, now_us: int) -> None:
        assert worker.process is not None
        code = worker.process.poll()
        if code is None:
            complaint = worker.health.complaint(worker.row, worker.process.pid)
            if complaint is not None and not worker.killed_for:
                _LOG.warning("worker %s is killed: %s", worker.name, complaint)
                worker.kill()
                worker.killed_for = complaint
            return
        worker.last_end, worker.killed_for = worker.killed_for or f"exit code {code}", ""
        worker.remove()
        if now_us - worker.started_us > HEALTHY_AFTER_US:
            worker.backoff_us = FIRST_BACKOFF_US
        _LOG.warning("worker %s ended (%s)", worker.name, worker.last_end)
        worker.process = None
        worker.put_off(now_us)
        worker.restarts += 1
        self._restarts += 1

    def _start(self, worker: _Worker, now_us: int) -> None:
        """Start a worker for the oldest generation that has it.

        It goes on in the others by itself.
        """
        worker.board.reset(worker.row)
        deployment, gpus = next(
            g for g in self._generations.values() if worker.origin in g.deployment.origins
        )
        vgpu = deployment.origins.index(worker.origin)
        arguments = [
            str(self._settings.folder / SETTINGS_NAME),
            str(deployment.generation),
            str(vgpu),
            str(os.getpid()),
        ]
        give_way = _is_beside_another(deployment) and not worker.restarts
        try:
            worker.process = self._process(
                worker, arguments, gpus.environment(vgpu), give_way=give_way
            )
        except OSError as error:  # no process or descriptor is free
            worker.last_end = f"cannot be started: {error}"
            _LOG.warning("worker %s %s", worker.name, worker.last_end)
            worker.put_off(now_us)
        else:
            worker.started_us = now_us

    def _process(
        self,
        worker: _Worker,
        arguments: Sequence[str],
        environment: Mapping[str, str],
        *,
        give_way: bool,
    ) -> subprocess.Popen[bytes] | Forked:
        """A new process of a worker.

        Raises:
            OSError: none can be made now.
        """
        with (self._logs() / f"worker-{worker.name}.log").open("ab") as log:
            if self._forks is not None:
                forked = self._forks.fork(
                    arguments,
                    environment,
                    log.fileno(),
                    give_way=self._settings.socket_folder if give_way else None,
                )
                if forked is not None:
                    return forked
            made = subprocess.Popen(
                [self._settings.python, "-m", "triton_backend.serving.worker.process", *arguments],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**WORKER_ENVIRONMENT, **os.environ, **environment},
            )
        if give_way:
            lower_priority(made.pid)
        return made

    def _logs(self) -> Path:
        folder = self._settings.folder / "logs"
        folder.mkdir(parents=True, exist_ok=True)
        return folder


def _is_beside_another(deployment: Deployment) -> bool:
    """True if the plan before goes on while a generation's workers load.

    One that is restarted is missed, and hurries.
    """
    return deployment.workers is not None and deployment.workers.former is not None
