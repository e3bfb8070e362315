"""A serve folder and the parts of a running system inside the test's own process."""

import contextlib
import json
import os
import shutil
import threading
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import psutil

from triton_backend.contract.plan import Plan
from triton_backend.runtimes.clock import Clock, SystemClock
from triton_backend.runtimes.stage_tensors import complete_tensors, endpoints
from triton_backend.serve_folder.repository import (
    GenerationNames,
    first_names,
    front_ports,
    render_generation,
    render_node_generations,
    render_settings,
    used_nodes,
)
from triton_backend.serve_folder.settings import ServeOptions, ServeSettings
from triton_backend.serving.deployment import Deployment
from triton_backend.serving.front.group import FrontGroup
from triton_backend.serving.front.replies import Refusal
from triton_backend.serving.front.requests.request import Request
from triton_backend.serving.gateway.service import SchedulerService
from triton_backend.serving.transport.shared_memory import Arrays, remove_segments
from triton_backend.serving.worker.process import StageWorker, health_row, later_generations
from triton_backend.serving.worker.stage import open_runtimes

WAIT_SECONDS = 120.0
LONGEST_PAUSE_SECONDS = 0.05
Answer = Arrays | Refusal


def owners(pid: int) -> set[int]:
    """The processes that a worker watches, with the last of which it ends."""
    found: set[int] = set()
    for file in Path(f"/proc/{pid}/fdinfo").iterdir():
        with contextlib.suppress(OSError):
            lines = file.read_text().splitlines()
            found |= {int(line.split()[1]) for line in lines if line.startswith("Pid:")}
    return found


def deploy(
    folder: Path, plan: Plan, options: ServeOptions | None = None, generation: int = 1
) -> Deployment:
    """A generation on disk, as a rollout leaves it, read back."""
    if generation == 1:
        render_settings(folder, plan, options or ServeOptions())
    settings = ServeSettings.read(folder / "settings.json")
    names = first_names(plan, settings)
    if generation > 1:
        before = Deployment.read(settings, generation - 1)
        assert before.workers is not None
        names = GenerationNames(
            front_ports(plan, settings, before.front_ports),
            before.workers.following(
                before.plan,
                complete_tensors(plan),
                (generation - 1, generation),
                settings.base_port,
            ),
        )
    nodes = used_nodes(plan)
    render_generation(folder, plan, generation, nodes=nodes, names=names)
    render_node_generations(folder, nodes, range(1, generation + 1))
    return Deployment.read(settings, generation)


def wait_for(condition: Callable[[], bool]) -> None:
    """Return once a condition holds.

    Asked less often as time goes by: many ask a server or look at every process of the machine,
    which takes a processor from what is waited for.
    """
    pause, waited_s, pause_s = threading.Event(), 0.0, 0.01
    while waited_s < WAIT_SECONDS:
        if condition():
            return
        pause.wait(pause_s)
        waited_s += pause_s
        pause_s = min(LONGEST_PAUSE_SECONDS, 1.1 * pause_s)
    message = f"did not come true within {WAIT_SECONDS} s"
    raise AssertionError(message)


def processes_of(groups: Collection[int]) -> list[psutil.Process]:
    """The processes in process groups.

    Any other process of the machine may end while they are looked for.
    """
    found: list[psutil.Process] = []
    for process in psutil.process_iter():
        with contextlib.suppress(ProcessLookupError, psutil.NoSuchProcess):
            if os.getpgid(process.pid) in groups and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


class LocalSystem:
    """Scheduler, fronts and workers as threads."""

    def __init__(
        self,
        folder: Path,
        plan: Plan,
        options: ServeOptions | None = None,
        clock: Clock | None = None,
        *,
        names_variants: bool = False,
    ) -> None:
        self.clock = clock or SystemClock()
        self.deployment = deploy(folder, plan, options)
        self.settings = self.deployment.settings
        self.settings.socket_folder.mkdir(mode=0o700, exist_ok=True)
        self.scheduler = SchedulerService(self.settings, self.deployment, self.clock)
        self.groups = {
            name: FrontGroup(
                self.settings, self.deployment, name, self.clock, names_variants=names_variants
            )
            for name in endpoints(self.deployment.plan)
        }
        self.fronts = {
            front.model: front for group in self.groups.values() for front in group.fronts
        }
        self.workers: dict[int, tuple[StageWorker, threading.Thread]] = {}
        self.scheduler.start()
        for front in self.fronts.values():
            front.start()
        for vgpu in range(len(self.deployment.vgpus)):
            self.start_worker(self.deployment, vgpu)
        wait_for(lambda: self.status()["workers"]["up"] == len(self.deployment.vgpus))

    def start_worker(self, deployment: Deployment, vgpu: int) -> StageWorker:
        loaded = open_runtimes(deployment, vgpu, self.clock)
        health = health_row(deployment, vgpu)
        worker = StageWorker(deployment, vgpu, loaded, health, self.clock)
        for generation in later_generations(deployment, vgpu):
            worker.adopt(generation)
        self.run_worker(worker, deployment.generation, vgpu)
        return worker

    def run_worker(self, worker: StageWorker, generation: int = 1, vgpu: int = 0) -> None:
        """Have a worker serve in a thread of its own."""
        worker.listen()
        thread = threading.Thread(target=worker.run, daemon=True)
        thread.start()
        self.workers[generation * 1000 + vgpu] = (worker, thread)

    def stop_worker(self, generation: int, vgpu: int) -> None:
        worker, thread = self.workers.pop(generation * 1000 + vgpu)
        worker.stop()
        thread.join(WAIT_SECONDS)

    def control(self, command: str, **fields: object) -> dict[str, Any]:
        return self.scheduler.control(json.dumps({"command": command, **fields}))

    def status(self) -> dict[str, Any]:
        return self.scheduler.control(json.dumps({"command": "status"}))

    def ask(
        self,
        model: str,
        tensors: Arrays,
        allowed_us: int | None = None,
        *,
        cancelled: Callable[[], bool] = lambda: False,
        **own: Any,
    ) -> Callable[[], Answer]:
        """Submit a request with fields of its `own`; the result waits for its answer."""
        answers: list[Answer] = []
        done = threading.Event()

        def reply(answer: Answer) -> None:
            copied = answer
            if not isinstance(answer, Refusal):
                copied = {name: array.copy() for name, array in answer.items()}
            answers.append(copied)
            done.set()

        now_us = self.clock.now_us()
        front = self.fronts[model]
        front.submit(
            Request(
                tensors=tensors,
                samples=len(next(iter(tensors.values()))),
                arrival_us=now_us,
                deadline_us=now_us + (allowed_us or front.plan.slo_us),
                reply=reply,
                is_cancelled=cancelled,
                **own,
            )
        )

        def result() -> Answer:
            assert done.wait(WAIT_SECONDS)
            assert len(answers) == 1
            return answers[0]

        return result

    def stop(self) -> None:
        for group in self.groups.values():
            group.stop()
        for front in self.fronts.values():
            front.stop()
        for worker, thread in self.workers.values():
            worker.stop()
            thread.join(WAIT_SECONDS)
        self.scheduler.stop()
        remove_segments(self.settings.segment_prefix)
        shutil.rmtree(self.settings.socket_folder)
