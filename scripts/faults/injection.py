"""Faults of `bench_faults` and `soak`: processes, links, file systems, time of day.

`inject` returns when the cause is gone (or was momentary). A fault names the vGPUs it takes away
while it lasts, so that the simulator can say what is left without them.
"""

import contextlib
import itertools
import os
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import psutil

from flows.release.server.running import ServerState
from scripts.benchmarks.served import SHARED_FOLDER, Served
from scripts.faults.changes import change
from scripts.faults.places import LINK, Far, Shifted, run_as_root
from triton_backend.contract.errors import PoolPipeError
from triton_backend.runtimes.stage_tensors import served_models
from triton_backend.serve_folder.repository import (
    CONTROL_MODEL,
    STANDBY_MODEL,
    is_node_model,
)
from triton_backend.serving.node.fork_server import SERVER_NAME as FORK_SERVER

SLOW_PERIOD_S, SLOW_STOPPED = 0.15, 0.6  # stopped for 90 of every 150 ms
LASTING_S = 3.0
# So slow that a batch takes 16 ms, and at a quarter of it 64, of which half of what is offered is
# more than it carries.
LINK_GBPS, QUARTER = 0.1, 0.25
CUT_OFF_S = 6.0
# Shorter than any detector takes, but for the standby's (0.7 s); a connection is given up after 2
# s.
STOPPED_S = (0.2, 0.5, 0.95)
PAUSED_S = (0.3, 1.0, 1.9)
DAY_S = 86_400
# A process is noticed within a second and loaded in a few; a server with all of its models takes
# longer.
REPAIRED_S, SERVER_REPAIRED_S = 5.0, 15.0
LASTING_REPAIRED_S = LASTING_S + REPAIRED_S
FILL_PIECE = 1 << 16
FRONT, QUICK_FRONT, NODE = "alpha", "quick", "poolpipe_node_FAST-0"
QUICK_WORKER = 16
STANDARD_FILES = 3

Inject = Callable[[Served], object]


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """Something that breaks.

    Attributes:
        loses: what may be lost, in words.
        vgpus: which are away until all is repaired.
        holds: whether requests are held by the process that dies: no process can answer those.
        at_least_s: seconds of load that it takes to see it through.
        lasts: whether it is still there when the load ends.
        link: what is left of the rate of the link to the far host.
        longest_gap_s: for how long nothing may be dispatched around it, where that has a target.
        repaired_within_s: seconds from the fault until every worker is up and every model answers,
            at most.
        retries: how often clients send again what failed or was dropped, after 0.1 s; then nothing
            may be lost.
    """

    name: str
    inject: Inject
    loses: str
    vgpus: tuple[int, ...] = ()
    holds: bool = False
    at_least_s: float = 0.0
    lasts: bool = False
    link: float = 1.0
    longest_gap_s: float | None = None
    repaired_within_s: float = REPAIRED_S
    retries: int = 0


def stub(served: Served, model: str) -> psutil.Process:
    """The process of a Triton model."""
    text = (served.folder / "pids" / model).read_text()
    return psutil.Process(int(text.split()[0]))


def worker(served: Served, vgpu: int) -> psutil.Process:
    """The process of a vGPU of the generation served, whichever plan it was started for.

    Of two gateways, the model of the node that leads has it.

    Raises:
        RuntimeError: its node does not say it.
    """
    generation = served.state.control("status")["generation"]
    for state in served.states():
        for name, gateway in itertools.product(_nodes(state), state.gateways):
            with contextlib.suppress(PoolPipeError, psutil.Error):
                for each in state.ask(name, {"generation": generation}, gateway)["workers"]:
                    if each["vgpu"] == vgpu and each["pid"] is not None:
                        return psutil.Process(each["pid"])
    message = f"no process of vGPU {vgpu} of generation {generation}"
    raise RuntimeError(message)


def _nodes(state: ServerState) -> list[str]:
    return sorted(p.name for p in (state.folder / "pids").iterdir() if is_node_model(p.name))


def kill_worker(vgpu: int) -> Inject:
    """SIGKILL to a worker."""
    return lambda served: worker(served, vgpu).kill()


def kill_fork_servers(served: Served) -> None:
    """SIGKILL to the nodes' fork servers, and to a worker that must then be started."""
    for process in served.processes():
        if process.name() == FORK_SERVER:
            process.kill()
    worker(served, 1).kill()


def stop_worker(served: Served) -> None:
    """SIGSTOP: it lives and says nothing."""
    worker(served, 1).suspend()


def slow_worker(served: Served) -> None:
    """Stopped for the larger part of every period, so that its batches take about twice as long."""
    process = worker(served, 5)
    with contextlib.suppress(psutil.NoSuchProcess):
        for _ in range(int(LASTING_S / SLOW_PERIOD_S)):
            process.suspend()
            time.sleep(SLOW_PERIOD_S * SLOW_STOPPED)
            process.resume()
            time.sleep(SLOW_PERIOD_S * (1 - SLOW_STOPPED))


def stop_for(find: Callable[[Served], psutil.Process], seconds: float) -> Inject:
    """SIGSTOP, and SIGCONT so much later, where it is still there."""

    def inject(served: Served) -> None:
        process = find(served)
        with contextlib.suppress(psutil.NoSuchProcess):
            process.suspend()
            time.sleep(seconds)
            process.resume()

    return inject


def kill_stub(model: str) -> Inject:
    """SIGKILL to the process of a Triton model."""
    return lambda served: stub(served, model).kill()


def scheduler(served: Served) -> psutil.Process:
    """The process that dispatches."""
    return stub(served, served.state.control("status")["scheduler"]["active"])


def kill_standby(served: Served) -> None:
    """SIGKILL to the process that would take over."""
    active = served.state.control("status")["scheduler"]["active"]
    (other,) = {CONTROL_MODEL, STANDBY_MODEL} - {active}
    stub(served, other).kill()


def kill_gateway(served: Served) -> None:
    """SIGKILL to fronts and scheduler at once."""
    fronts = [stub(served, model.name) for model in served_models(served.plan)]
    for process in [scheduler(served), *fronts]:
        process.kill()


def kill_schedulers(served: Served) -> None:
    """SIGKILL to the scheduler and its standby at once."""
    for process in [stub(served, model) for model in (CONTROL_MODEL, STANDBY_MODEL)]:
        process.kill()


def kill_triton(served: Served) -> None:
    """SIGKILL to the server."""
    os.kill(int(served.state.data["triton_pid"]), signal.SIGKILL)


def kill_server(of_scheduler: bool) -> Inject:  # noqa: FBT001  # which of two
    """SIGKILL to one of two servers: the scheduler's or its standby's."""

    def inject(served: Served) -> None:
        active = served.state.control("status")["scheduler"]["active"]
        first = (active == CONTROL_MODEL) == of_scheduler
        server = served.state.data["servers"][0 if first else 1]
        os.kill(int(server["triton_pid"]), signal.SIGKILL)

    return inject


def fill(folder: Callable[[Served], Path], meanwhile: Inject | None = None) -> Inject:
    """Fill a file system to the last byte for a while, and do something else when it is full."""

    def inject(served: Served) -> None:
        path = folder(served) / "filler"
        try:
            with path.open("wb", buffering=0) as file, contextlib.suppress(OSError):
                while True:
                    file.write(bytes(FILL_PIECE))
            with path.open("ab", buffering=0) as file, contextlib.suppress(OSError):
                while True:
                    file.write(b"0")
            if meanwhile is not None:
                meanwhile(served)
            time.sleep(LASTING_S)
        finally:
            path.unlink()

    return inject


def cut_off(seconds: float | None) -> Inject:
    """Take the link to the far host down, for good where no time is given."""

    def inject(_: Served) -> None:
        run_as_root("ip", "link", "set", LINK, "down")
        if seconds is not None:
            time.sleep(seconds)
            run_as_root("ip", "link", "set", LINK, "up")

    return inject


def slow_link(_: Served) -> None:
    """Traffic to the far host gets a tenth of its need, for a while."""
    place = ["dev", LINK, "root"]
    shape = ["tbf", "rate", "5mbit", "burst", "64kb", "latency", "400ms"]
    run_as_root("tc", "qdisc", "add", *place, *shape)
    time.sleep(LASTING_S)
    run_as_root("tc", "qdisc", "del", *place)


def quarter_link(served: Served) -> None:
    """Traffic to the far host gets a quarter of the planned rate, for good."""
    assert isinstance(served, Far)
    served.limit_link(QUARTER * LINK_GBPS)


def kill_far_host(served: Served) -> None:
    """SIGKILL to all that runs on the far host, which is started again after a while."""
    assert isinstance(served, Far)
    served.kill_far()
    time.sleep(LASTING_S)
    served.start_far()


def change_while_a_worker_dies(served: Served) -> None:
    """A change of plan, with SIGKILL in its middle to a worker that both plans use."""
    failed: list[str] = []

    def changing() -> None:
        try:
            change(served)
        except PoolPipeError as error:
            failed.append(str(error))

    thread = threading.Thread(target=changing)
    thread.start()
    worker(served, QUICK_WORKER).kill()
    thread.join()
    if failed:
        raise RuntimeError(f"the change failed: {failed[0]}")


def take_descriptors(served: Served) -> None:
    """The scheduler can open no descriptor for a while, in which a worker starts and connects."""
    process = scheduler(served)
    before = process.rlimit(psutil.RLIMIT_NOFILE)
    process.rlimit(psutil.RLIMIT_NOFILE, (STANDARD_FILES, before[1]))
    try:
        worker(served, 1).kill()
        time.sleep(LASTING_S)
    finally:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.rlimit(psutil.RLIMIT_NOFILE, before)


def jump(served: Served) -> None:
    """The time of day goes a day ahead, two days back and home again."""
    assert isinstance(served, Shifted)
    for days in (1, -1, 0):
        served.shift(days * DAY_S)
        time.sleep(LASTING_S / 3)


PROCESSES = (
    Fault(
        name="worker killed",
        inject=kill_worker(1),
        vgpus=(1,),
        loses="its batch, where too late to retry",
    ),
    Fault(
        name="fork servers and a worker killed",
        inject=kill_fork_servers,
        vgpus=(1,),
        loses="its batch, where too late to retry",
    ),
    Fault(name="last-stage worker killed", inject=kill_worker(4), vgpus=(4,), loses="its batch"),
    Fault(
        name="quick model's worker killed",
        inject=kill_worker(QUICK_WORKER),
        vgpus=(QUICK_WORKER,),
        loses="its batch",
    ),
    Fault(
        name="worker hung",
        inject=stop_worker,
        vgpus=(1,),
        loses="its batches until noticed (1 s)",
    ),
    Fault(
        name="worker slow",
        inject=slow_worker,
        vgpus=(5,),
        loses="batches until its table is corrected",
        repaired_within_s=LASTING_REPAIRED_S,
    ),
    Fault(name="front killed", inject=kill_stub(FRONT), holds=True, loses="what it held"),
    Fault(
        name="quick model's front killed",
        inject=kill_stub(QUICK_FRONT),
        holds=True,
        loses="what it held",
    ),
    Fault(
        name="scheduler killed",
        inject=lambda served: scheduler(served).kill(),
        loses="what is due until the standby dispatches",
        longest_gap_s=0.3,
    ),
    Fault(
        name="scheduler hung",
        inject=lambda served: scheduler(served).suspend(),
        loses="what is due until noticed (0.9 s)",
        longest_gap_s=1.5,
    ),
    Fault(name="standby killed", inject=kill_standby, loses="nothing"),
    Fault(
        name="scheduler and standby killed",
        inject=kill_schedulers,
        loses="until one is loaded",
    ),
    Fault(
        name="gateway killed (fronts and scheduler)",
        inject=kill_gateway,
        holds=True,
        loses="what it held",
    ),
    Fault(
        name="scheduler without descriptors",
        inject=take_descriptors,
        vgpus=(1,),
        loses="a worker's batch",
        repaired_within_s=LASTING_REPAIRED_S,
    ),
    Fault(
        name="node killed",
        inject=kill_stub(NODE),
        loses="nothing",
    ),
    Fault(
        name="tritonserver killed",
        inject=kill_triton,
        holds=True,
        loses="until it is restarted",
        at_least_s=24,
        repaired_within_s=SERVER_REPAIRED_S,
    ),
)
CHANGED = (
    Fault(
        name="plan changed",
        inject=change,
        loses="jobs of an application that is another one",
        repaired_within_s=SERVER_REPAIRED_S,
    ),
    Fault(
        name="plan changed while a worker dies",
        inject=change_while_a_worker_dies,
        vgpus=(QUICK_WORKER,),
        loses="its batch, and jobs of an application that is another one",
        repaired_within_s=SERVER_REPAIRED_S,
    ),
)
STOPPED = tuple(
    Fault(
        name=f"{name} stopped for {seconds:g} s",
        inject=stop_for(find, seconds),
        vgpus=vgpus,
        loses="what is due meanwhile",
    )
    for name, vgpus, find in (
        ("first-stage worker", (1,), partial(worker, vgpu=1)),
        ("last-stage worker", (4,), partial(worker, vgpu=4)),
        ("front", (), partial(stub, model=FRONT)),
        ("node", (), partial(stub, model=NODE)),
        ("scheduler", (), scheduler),
    )
    for seconds in STOPPED_S
)
TWO_GATEWAYS = tuple(
    Fault(
        name=f"tritonserver of two killed: {whose}",
        inject=kill_server(of_scheduler=whose == "scheduler"),
        loses="nothing, with one retry",
        at_least_s=18,
        retries=1,
    )
    for whose in ("standby", "scheduler")
)
FAR = (
    Fault(
        name="link slow",
        inject=slow_link,
        vgpus=(6, 7, 14, 15),
        loses="what is behind the link",
        repaired_within_s=LASTING_REPAIRED_S,
    ),
    Fault(
        name="far host killed",
        inject=kill_far_host,
        vgpus=(6, 7, 14, 15),
        loses="its batches, and what lay there alone where too late to begin again",
        at_least_s=24,
        repaired_within_s=LASTING_S + SERVER_REPAIRED_S,
    ),
    Fault(
        name="node cut off",
        inject=cut_off(CUT_OFF_S),
        vgpus=(6, 7, 14, 15),
        loses="its batches until noticed",
        at_least_s=18,
        repaired_within_s=CUT_OFF_S + REPAIRED_S,
    ),
    Fault(
        name="node cut off for good",
        inject=cut_off(None),
        vgpus=(6, 7, 14, 15),
        loses="its batches until noticed",
        at_least_s=18,
        lasts=True,
    ),
)
PAUSED = tuple(
    Fault(
        name=f"link paused for {seconds:g} s",
        inject=cut_off(seconds),
        vgpus=(6, 7, 14, 15),
        loses="what is behind the link",
    )
    for seconds in PAUSED_S
)
LINKED = (
    Fault(
        name="link at a quarter of its rate",
        inject=quarter_link,
        loses="what is on its way until the rate is learnt",
        at_least_s=45,
        lasts=True,
        link=QUARTER,
    ),
)
CLOCK = (
    Fault(name="clock jump", inject=jump, loses="nothing", repaired_within_s=LASTING_REPAIRED_S),
)
FILLED = (
    Fault(
        name="disk full",
        inject=fill(lambda served: served.folder),
        loses="log lines",
        repaired_within_s=LASTING_REPAIRED_S,
    ),
    Fault(
        name="scheduler killed on a full disk",
        inject=fill(lambda served: served.folder, lambda served: scheduler(served).kill()),
        loses="what is due until the standby dispatches",
        repaired_within_s=LASTING_REPAIRED_S,
    ),
    Fault(
        name="shared memory full",
        inject=fill(lambda _: SHARED_FOLDER),
        loses="requests meanwhile",
        repaired_within_s=LASTING_REPAIRED_S,
    ),
)
