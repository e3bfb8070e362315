"""Clients that move their cuts every few seconds on a real Triton, and `poolpipe steer`.

Emulated vGPUs of a V100 run tails of a model of the paper (tensors of 4 KB). Clients announce as
the wheel does (`triton_backend/client/announcing.py`), send at their cut at equal gaps, and every
`--change-seconds` some of them move to another block drawn at random. What a plan does not know yet
a shadow pool serves. Then a worker, the scheduler, `steer` and a client are killed, each in the
middle of a change; after each one whole plan must be in force.

    .venv/bin/python scripts/paper/graft/live.py --data DIR [--minutes 3] [--change-seconds 5]
        [--no-kills] [--out FILE]

The full run is `--minutes 10`. In time: answered within the request's budget. Lost: neither
answered nor refused.
"""

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self

import numpy as np
import psutil
import yaml

from flows.clock import Stopwatch, now_utc
from flows.release.rollout.generations import plan_of_generation
from scripts.benchmarks.figures import Figure, add_destinations, conclude
from scripts.benchmarks.resource_usage import resources
from scripts.benchmarks.served import AROUND_S, Served, emulated_answer
from scripts.faults.injection import scheduler
from scripts.paper.graft.fleets import MODELS, inputs_of
from triton_backend.client.announcing import Announcing
from triton_backend.client.heads import Head, Heads, Tensor
from triton_backend.client.server import OFFLOAD_MODEL, RefusedError, Server
from triton_backend.contract.entries import Entry
from triton_backend.contract.errors import PoolPipeError
from triton_backend.contract.events import Arrival
from triton_backend.contract.plan import Plan
from triton_backend.contract.units import US_PER_S
from triton_backend.runtimes.stage_tensors import complete_tensors
from warehouse.db import open_warehouse
from warehouse.profiles import import_profile

WAREHOUSE, TENSOR_BYTES, GPUS = "poolpipe.duckdb", 4_096, 8
GAP_SLACK_S, POOL_S, MEMORY = 0.05, 3.0, 1.05
MEMORY_S = 10.0  # between two looks at memory
WARM_S, TICK_S, LOOK_S, SETTLE_S = 15.0, 0.5, 0.1, 60.0
MOVE_S = 5.0  # between two moves before a kill
FIRST = 5  # requests of a client at a new cut
PATIENCE_S = 5.0
SWITCH_S = 5e-4  # clients send from one thread; what looks at the system is others
WORKER = "triton_backend.serving.worker.process"
KILLED = ("worker", "scheduler", "steer", "client")


@dataclass(slots=True, kw_only=True)
class Asked:
    """One request of a client: when, since its last move, and what became of it."""

    at_s: float
    since_move: int
    took_s: float = 0.0
    outcome: str = "lost"


@dataclass(slots=True)
class Move:
    """A client that came to a block.

    When the plan in force had pools of its own for all that comes in there.
    """

    at_s: float
    block: int
    planned_s: float | None = None


@dataclass(slots=True, kw_only=True)
class Phone:
    """A client with a rate and a budget, and the block at which it sends."""

    name: str
    heads: Heads
    server: Server
    rps: float
    budget_us: int
    random: np.random.Generator
    block: int
    clock: Stopwatch
    asked: list[Asked] = field(default_factory=list[Asked])
    moves: list[Move] = field(default_factory=list[Move])
    refusals: list[str] = field(default_factory=list[str])
    announced: int = 0
    announcing: Announcing = field(init=False)
    over: bool = False

    def __post_init__(self) -> None:
        self.announcing = Announcing(self.rps)

    def now_us(self) -> int:
        """Since the run began."""
        return round(1e6 * self.clock.seconds())

    def move(self) -> None:
        """To another block."""
        others = [head.block for head in self.heads.cuts[:-1] if head.block != self.block]
        self.block = int(self.random.choice(others))
        self.moves.append(Move(self.now_us() / 1e6, self.block))

    async def run(self) -> None:
        """Send and announce until it is over."""
        announcing = asyncio.create_task(self._announce())
        sent: set[asyncio.Task[None]] = set()
        since, at = 0, self.block
        due_s = self.clock.seconds() + self.random.uniform(0, 1 / self.rps)
        while not self.over:
            await asyncio.sleep(max(due_s - self.clock.seconds(), 0))
            since = since + 1 if at == self.block else 1
            at = self.block
            sent.add(task := asyncio.create_task(self._send(at, since)))
            task.add_done_callback(sent.discard)
            due_s += 1 / self.rps
        await asyncio.gather(*sent)
        announcing.cancel()
        with suppress(asyncio.CancelledError):
            await announcing

    async def _send(self, block: int, since_move: int) -> None:
        now_us = self.now_us()
        self.announcing.decided(now_us, block, self.budget_us)
        sample = self.random.integers(0, 256, size=(1, TENSOR_BYTES), dtype=np.uint8)
        (tensor,) = self.heads.cuts[block].tensors
        asked = Asked(at_s=now_us / 1e6, since_move=since_move)
        self.asked.append(asked)
        wait_s = self.budget_us / 1e6 + PATIENCE_S
        try:
            answer = await self.server.infer(
                self.heads.cuts[block], {tensor.name: sample}, self.budget_us, wait_s
            )
        except RefusedError as error:
            self.refusals.append(f"cut {block}: {error}")
            asked.outcome = "lost" if "no answer" in str(error) else "refused"
            return
        asked.took_s = (self.now_us() - now_us) / 1e6
        (given,) = answer.values()
        right = {
            int(emulated_answer(sample, [TENSOR_BYTES] * moves)[0])
            for moves in range(len(self.heads.cuts))
        }
        in_time = asked.took_s <= self.budget_us / 1e6
        asked.outcome = "late" if not in_time else "in time"
        if int(given.flat[0]) not in right:
            asked.outcome = "wrong"

    async def _announce(self) -> None:
        while True:
            said = self.announcing.due(self.now_us())
            if said is not None:
                self.announced += 1
                try:
                    lease = await self.server.announce(self.name, said)
                    self.announcing.announced(self.now_us(), said, lease.lease_us)
                except RefusedError:
                    self.announcing.failed(self.now_us())
            await asyncio.sleep(LOOK_S)


class Project(Served):
    """A served plan of a project folder, with `steer` beside it."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.root = Path(tempfile.mkdtemp(prefix="poolpipe-bench-"))
        self.folder = self.root / ".poolpipe" / "serve"
        self._port = options.port
        self.steering: subprocess.Popen[bytes] | None = None
        self.plan = self._planned(options)

    def command(self, *words: str) -> None:
        """Run a command of the product to its end."""
        program = [sys.executable, "-c", "from flows.cli.main import main; main()", *words]
        done = subprocess.run(
            program, cwd=self.root, env=self._environment(), capture_output=True, check=False
        )
        if done.returncode:
            raise RuntimeError(f"poolpipe {words[0]}: {done.stderr.decode()[-2000:]}")

    def _environment(self) -> dict[str, str]:
        here = str(Path(__file__).resolve().parents[3])
        own = {"PYTHONPATH": here, "POOLPIPE_WAREHOUSE": WAREHOUSE}
        return {k: v for k, v in os.environ.items() if k != "POOLPIPE_HOME"} | own

    def _planned(self, options: argparse.Namespace) -> Plan:
        """One entry of hardly any rate, and a shadow pool for all clients that move at once."""
        budget_us = round(1e3 * options.budget_ms)
        idle = Entry(name="idle", block=0, budget_us=budget_us, rate_rps=options.rps)
        inputs = inputs_of(options.data, options.model, (idle,), GPUS)
        demand = replace(inputs.workload.models[0], slo_us=budget_us)
        workload = replace(inputs.workload, models=(demand,))
        profile = inputs.profiles[options.model]
        small = (TENSOR_BYTES,) * len(profile.boundary_bytes)
        with open_warehouse(self.root / WAREHOUSE) as warehouse:
            import_profile(warehouse, replace(profile, boundary_bytes=small), "bench", now_utc())
        for name, made in (("cluster", inputs.cluster), ("workload", workload)):
            (self.root / f"{name}.yaml").write_text(yaml.safe_dump(made.to_dict()))
        shadow_rps = options.shadow * options.rps * options.clients
        self.command(
            *("plan", "--cluster", "cluster.yaml", "--workload", "workload.yaml"),
            *("--planner", "graft", "--objective", "share", "--shadow-rps", f"{shadow_rps:g}"),
            *("-o", "plan.json"),
        )
        return Plan.from_dict(json.loads((self.root / "plan.json").read_text()))

    def __enter__(self) -> Self:
        ports = (str(self._port + number) for number in range(3))
        names = ("--http-port", "--grpc-port", "--metrics-port")
        asked = [word for pair in zip(names, ports, strict=True) for word in pair]
        self.command("serve", "plan.json", *asked)
        self.steer()
        return self

    def steer(self) -> None:
        """Begin to steer, or restart."""
        program = [sys.executable, "-c", "from flows.cli.main import main; main()", "steer"]
        with (self.root / "steer.log").open("a") as log:
            self.steering = subprocess.Popen(
                program, cwd=self.root, env=self._environment(), stdout=log, stderr=log
            )

    def end_steering(self, *, kill: bool = False) -> None:
        """Wait for its end."""
        if self.steering is not None:
            (self.steering.kill if kill else self.steering.terminate)()
            self.steering.wait()

    def __exit__(self, kind: object, *rest: object) -> None:
        self.end_steering()
        super().__exit__(kind, *rest)

    def heads(self) -> Heads:
        """The tensors that clients send at each block."""
        model = complete_tensors(self.plan).models[0]
        given = {
            entry.block: Head(
                block=entry.block,
                file=None,
                tensors=tuple(
                    Tensor(name=t.name, dtype=t.dtype, shape=t.shape[1:]) for t in entry.inputs
                ),
                head_us=0,
                tail_us=None,
            )
            for entry in model.entries
        }  # fmt: skip
        out = tuple(Tensor(name=t.name, dtype=t.dtype, shape=t.shape[1:]) for t in model.outputs)
        whole = Head(block=model.blocks, file=None, tensors=out, head_us=0, tail_us=0)
        cuts = (*(given[block] for block in range(model.blocks)), whole)
        return Heads(folder=self.root, model=model.name, split="", cuts=cuts)


class Watch:
    """The plan in force as it changes, and which moves it knows."""

    def __init__(self, project: Project, phones: Sequence[Phone]) -> None:
        self._project, self._phones = project, phones
        self._plans: dict[int, dict[int, float]] = {}
        self.plans: list[str] = []
        self.changing = False
        self.steered = asyncio.Event()
        self.usage: list[tuple[float, dict[str, Any]]] = []

    async def run(self, over: Callable[[], bool]) -> None:
        """Look at the plan in force ten times a second, at memory every ten seconds."""
        clock = self._phones[0].clock
        looked_s = 0.0
        while not over():
            with suppress(PoolPipeError):  # while the scheduler's standby takes over
                status = await asyncio.to_thread(self._project.state.control, "status")
                number = int(status["generation"])
                if number not in self._plans:  # read beside the clients, which would send late
                    await asyncio.to_thread(self._read, number, status["plan_id"])
                self._see(status)
            if clock.seconds() - looked_s >= MEMORY_S:
                looked_s = clock.seconds()
                used = await asyncio.to_thread(resources, self._project)
                self.usage.append((looked_s, used))
            await asyncio.sleep(LOOK_S)

    def _read(self, number: int, plan_id: str) -> None:
        self._plans[number] = own_rates(plan_of_generation(self._project.folder, number))
        self.plans.append(plan_id)

    def _see(self, status: dict[str, Any]) -> None:
        self.changing = status["prepared"] is not None
        if len(self.plans) > 1:
            self.steered.set()
        own = self._plans[int(status["generation"])]
        asked: dict[int, float] = {}
        for phone in self._phones:
            asked[phone.block] = asked.get(phone.block, 0.0) + phone.rps * (not phone.over)
        for phone in self._phones:
            for move in phone.moves[-1:]:
                covered = own.get(move.block, 0.0) >= asked[move.block]
                if covered and move.planned_s is None and move.block == phone.block:
                    move.planned_s = phone.now_us() / 1e6


def longest_wait_s(project: Project) -> float:
    """The longest time from an arrival to the next dispatch, around plan changes."""
    changed, dispatched = project.changes_and_dispatches()
    arrived = np.array([us for us, item in project.events() if isinstance(item, Arrival)])
    first = arrived[np.searchsorted(arrived, dispatched[:-1], "right").clip(max=len(arrived) - 1)]
    waited = dispatched[1:] - np.maximum(first, dispatched[:-1])
    around = np.zeros(len(waited), dtype=np.bool_)
    for instant_us in changed:
        since_us = dispatched[1:] - instant_us
        around |= (since_us > -US_PER_S) & (since_us <= AROUND_S * US_PER_S)
    return float(waited[around].max(initial=0)) / US_PER_S


def own_rates(plan: Plan) -> dict[int, float]:
    """Requests per second at each block that pools of their own are planned for."""
    anywhere = {pool.name for pool in plan.pools if pool.starts_anywhere}
    found: dict[int, float] = {}
    for model in plan.models:
        for pipeline in model.pipelines:
            if any(stage.pool not in anywhere for stage in pipeline.stages):
                block = pipeline.first_block
                found[block] = found.get(block, 0.0) + pipeline.throughput_rps
    return found


async def driven(project: Project, options: argparse.Namespace) -> dict[str, Any]:
    """Clients for as long as asked, then one kill after the other."""
    heads = project.heads()
    random = np.random.default_rng(options.seed)
    clock = Stopwatch()
    servers = [Server(project.state.grpc_url, heads) for _ in range(options.clients)]
    phones = [
        Phone(
            name=f"phone-{number}", heads=heads, server=server, rps=options.rps, clock=clock,
            budget_us=round(1e3 * options.budget_ms),
            random=np.random.default_rng([options.seed, number]),
            block=int(random.integers(len(heads.cuts) - 1)),
        )
        for number, server in enumerate(servers)
    ]  # fmt: skip
    watch = Watch(project, phones)
    over = [False]
    tasks = [asyncio.create_task(phone.run()) for phone in phones]
    watching = asyncio.create_task(watch.run(lambda: over[0]))
    with suppress(TimeoutError):  # `steer` comes up
        await asyncio.wait_for(watch.steered.wait(), 2 * SETTLE_S)
    await asyncio.sleep(WARM_S)
    warm_s = clock.seconds()
    while clock.seconds() < warm_s + 60 * options.minutes:
        for number in random.choice(len(phones), size=options.movers, replace=False):
            phones[number].move()
        await asyncio.sleep(options.change_seconds)
    await asyncio.sleep(options.change_seconds)
    result: dict[str, Any] = {
        "soak_s": [warm_s, clock.seconds()],
        "moves": [move for phone in phones for move in phone.moves],
        "plans": len(watch.plans),
        "usage": list(watch.usage),
        "kills": {},
    }
    for part in KILLED if options.kills else ():
        result["kills"][part] = await killed(part, project, phones, watch)
    over[0] = True
    for phone in phones:
        phone.over = True
    await asyncio.gather(*tasks, watching, return_exceptions=True)
    for server in servers:
        await server.close()
    result["asked"] = [asked for phone in phones for asked in phone.asked]
    result["refusals"] = [text for phone in phones for text in phone.refusals]
    result["announced"] = sum(phone.announced for phone in phones)
    return result


async def killed(
    part: str, project: Project, phones: Sequence[Phone], watch: Watch
) -> dict[str, Any]:
    """Kill something in the middle of a change; whether one whole plan follows, and how soon."""
    living = [phone for phone in phones if not phone.over]
    waited = Stopwatch()
    moved_s = -MOVE_S
    while not watch.changing:
        if waited.seconds() > SETTLE_S:
            return {"whole_s": None, "note": "no change began"}
        if waited.seconds() >= moved_s + MOVE_S:
            moved_s = waited.seconds()
            for phone in living:
                phone.move()
        await asyncio.sleep(LOOK_S)
    struck = Stopwatch()
    if part == "client":
        living[0].over = True  # it gives nothing back: its lease ends
    elif part == "steer":
        project.end_steering(kill=True)
        await asyncio.sleep(1.0)
        project.steer()
    else:
        await asyncio.to_thread(strike, part, project)
    wrong = sum(a.outcome == "wrong" for p in phones for a in p.asked)
    while struck.seconds() < SETTLE_S:
        await asyncio.sleep(TICK_S)
        with suppress(PoolPipeError, KeyError, TypeError):
            status = await asyncio.to_thread(project.state.control, "status")
            announced = await asyncio.to_thread(
                project.state.ask, OFFLOAD_MODEL, {"command": "announced"}
            )
            clients = sum(lease["rate_rps"] for lease in announced["leases"]) / phones[0].rps
            if whole(status) and clients <= len([p for p in phones if not p.over]) + 0.5:
                break
    else:
        return {"whole_s": None, "note": "no whole plan"}
    whole_s = struck.seconds()
    before = len(living[-1].asked)
    await asyncio.sleep(3.0)
    after = living[-1].asked[before:-1]
    return {
        "whole_s": whole_s,
        "answered": float(np.mean([a.outcome == "in time" for a in after])) if after else None,
        "wrong": sum(a.outcome == "wrong" for p in phones for a in p.asked) - wrong,
    }


def strike(part: str, project: Project) -> None:
    """SIGKILL to the process of a vGPU, or to the one that dispatches."""
    if part == "scheduler":
        scheduler(project).kill()
        return
    for process in project.processes():
        with suppress(psutil.Error):
            if WORKER in process.cmdline():
                process.kill()
                return


def whole(status: dict[str, Any]) -> bool:
    """True if one plan is in force, and all of it."""
    workers = status["workers"]
    return (
        status["state"] == "serving"
        and status["prepared"] is None
        and workers["up"] == workers["total"]
        and workers["plan_id"] == status["plan_id"]
    )


def figures_of(result: dict[str, Any], gaps: Sequence[Any], wait_s: float) -> Iterator[Figure]:
    """Against what must hold."""
    begin_s, end_s = result["soak_s"]
    asked = [a for a in result["asked"] if begin_s <= a.at_s < end_s]
    load = f"machine load {os.getloadavg()[0]:.1f}"
    yield Figure(name="moves of a client", value=len(result["moves"]))
    yield Figure(name="plans in force, one after the other", value=result["plans"])
    yield Figure(name="requests", value=len(asked))
    yield Figure(name="requests lost", value=sum(a.outcome == "lost" for a in asked), most=0)
    everything = [a.outcome for a in result["asked"]]
    yield Figure(name="wrong answers, kills too", value=everything.count("wrong"), most=0)
    yield Figure(name="in time", value=_percent(asked), unit="%", note=load)
    first = [a for a in asked if a.since_move <= FIRST and a.at_s > begin_s]
    name = f"in time, of the first {FIRST} requests at a new cut"
    yield Figure(name=name, value=_percent(first), unit="%", least=99.0)
    opening = [a for a in first if a.since_move == 1]
    yield Figure(name="in time, of the first one", value=_percent(opening), unit="%", least=99.0)
    took = [(m.planned_s or np.inf) - m.at_s for m in result["moves"]]
    value = float(np.percentile(took, 95, method="higher")) if took else None
    yield Figure(
        name="from a move to pools of its own, p95", value=value, unit="s", most=POOL_S,
        note=f"p50 {np.median(took):.2f} s; {load}" if took else "",
    )  # fmt: skip
    beyond = [gap.around_s - gap.before_s for gap in gaps]
    yield Figure(
        name="longest time without a dispatch around a change, beyond the longest before",
        value=max(beyond, default=None), unit="s", most=GAP_SLACK_S,
        note=f"{max((gap.around_s for gap in gaps), default=0):.3f} s around {len(gaps)} changes",
    )  # fmt: skip
    name = "longest from an arrival to the next dispatch around a change"
    yield Figure(name=name, value=wait_s, unit="s")
    usage = [used for at_s, used in result["usage"] if at_s >= begin_s]
    third = max(len(usage) // 3, 1)
    per_process = [used["rss_mb"] / used["processes"] for used in usage]
    now, then = (float(np.mean(part)) for part in (per_process[-third:], per_process[:third]))
    yield Figure(
        name="memory of a process in the last third, of that in the first", value=now / then,
        most=MEMORY, note=f"{usage[0]['rss_mb']:.0f} -> {usage[-1]['rss_mb']:.0f} MB in"
        f" {usage[0]['processes']} -> {usage[-1]['processes']} processes",
    )  # fmt: skip
    for part, seen in result["kills"].items():
        yield Figure(
            name=f"{part} killed in a change: one whole plan after", value=seen["whole_s"],
            unit="s", most=SETTLE_S, note=str(seen),
        )  # fmt: skip
    if result["kills"]:
        whole_after = sum(seen["whole_s"] is not None for seen in result["kills"].values())
        yield Figure(
            name="kills after which one plan was whole", value=whole_after, least=len(KILLED)
        )


def _percent(asked: Sequence[Asked]) -> float | None:
    return 100 * float(np.mean([a.outcome == "in time" for a in asked])) if asked else None


def main() -> int:
    """Run, print, store."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--data", type=Path, required=True, metavar="DIR")
    add("--model", choices=MODELS, default=MODELS[0])
    add("--minutes", type=float, default=3.0)
    add("--change-seconds", type=float, default=5.0)
    add("--clients", type=int, default=6)
    add("--movers", type=int, default=1, help="clients that move at once")
    add("--rps", type=float, default=4.0, help="of a client")
    add("--budget-ms", type=float, default=600.0)
    add("--shadow", type=float, default=1.0, help="rate of the shadow pool over that of all")
    add("--kills", action=argparse.BooleanOptionalAction, default=True)
    add("--seed", type=int, default=0)
    add("--port", type=int, default=18_790)
    add_destinations(parser)
    options = parser.parse_args()
    sys.setswitchinterval(SWITCH_S)
    with Project(options) as project:
        result = asyncio.run(driven(project, options))
        gaps, wait_s = project.dispatch_gaps(), longest_wait_s(project)
    for text in sorted(set(result["refusals"]))[:10]:
        print(text, file=sys.stderr)
    return conclude(options, "graft live", list(figures_of(result, gaps, wait_s)))


if __name__ == "__main__":
    sys.exit(main())
