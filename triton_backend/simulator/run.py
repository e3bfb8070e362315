"""Simulate a plan: options in, a result out."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import numpy as np

from triton_backend.contract.errors import InputError
from triton_backend.contract.plan import Plan
from triton_backend.contract.transition.workers import inherited_vgpus
from triton_backend.contract.units import US_PER_S, s_to_us
from triton_backend.scheduler.admission import job_work, new_admission, no_admission
from triton_backend.scheduler.compiled import FAR, NONE, Integers, Records
from triton_backend.scheduler.handover import (
    HandOver,
    Numbering,
    first_numbering,
    hand_over,
    matching_queues,
)
from triton_backend.scheduler.invariants import check_invariants
from triton_backend.scheduler.plan_rows import build_topology, edge_rows, module_rows
from triton_backend.scheduler.policies.late_rules import changed, lead_of
from triton_backend.scheduler.policies.registry import SIMULATOR_ONLY, queue_policies
from triton_backend.scheduler.policies.variants import new_variants, with_lost
from triton_backend.scheduler.reservations.timeline import refresh
from triton_backend.scheduler.tables import Tables, fuller, new_tables, unpack
from triton_backend.scheduler.topology import Topology, first_low, resource_count
from triton_backend.simulator.cluster.workers import ONE, Gpu, beside, gpus_of, loading_of, seats_of
from triton_backend.simulator.counted import (
    application_results,
    class_seconds,
    entry_results,
    former_batch_seconds,
    model_results,
    pool_results,
    utilisation,
    variant_results,
    with_tasks,
)
from triton_backend.simulator.early_end import looks_us, surely_below
from triton_backend.simulator.failures import reschedule_failures, schedule_failures
from triton_backend.simulator.loop import FULL, run
from triton_backend.simulator.measures import Measures
from triton_backend.simulator.offered import Instant, Offer, drawn_rows, offered_requests
from triton_backend.simulator.results import Changed, DecisionCost, SimResult
from triton_backend.simulator.scenario import (
    INTERFERENCE,
    PlanChange,
    SimOptions,
    from_papers,
    low_rates_of,
    rates_of,
)
from triton_backend.simulator.ticks import cycles_now
from triton_backend.simulator.world import (
    DROPPED,
    NOW,
    QUEUE_COLUMNS,
    World,
    addresses,
    fit,
    interfering,
    loading,
    new_world,
    tasks_of,
    with_jobs,
    with_tables,
)

FACTORS = 1 << 16
TIMED = 1 << 20  # decisions timed at most
_P90 = 1.2815515655446004  # standard deviations of a normal distribution


class _Run(NamedTuple):
    """A run in progress.

    Its plans so far, the world, and busy seconds per class before the last.
    """

    plans: tuple[Plan, ...]
    world: World
    numbering: Numbering
    seconds: dict[str, float]
    gpus: list[Gpu | None]  # of every resource
    measures: Measures | None = None
    changes: tuple[Changed, ...] = ()


def simulate(
    plan: Plan, options: SimOptions | None = None, *, clock_ns: Callable[[], int] | None = None
) -> SimResult:
    """Run a plan against offered load until every request has its outcome.

    Args:
        plan: what serves.
        options: what is offered and how.
        clock_ns: a monotonic clock in nanoseconds, where the wall time of the loop and the cost
            of decisions are wanted; nothing else depends on it.

    Raises:
        InputError: an option does not fit the plan.
        InvariantError: the scheduler's tables contradict themselves (our fault).
    """
    options = options or SimOptions()
    if options.policy in SIMULATOR_ONLY:
        if any(stage.load_us is not None for _, _, stage, _ in plan.placed_stages()):
            reason = f"{options.policy!r} loads nothing on demand, as the plan does"
            raise InputError("policy", reason)
        requests = offered_requests(plan, _offer(plan, options))
        factors = _factors(options)
        policy = from_papers(options.policy)
        return policy.simulate(plan, options, requests, factors, clock_ns)
    world = prepare(plan, options, timed=TIMED if clock_ns else 0)
    measures = Measures(lead_of(options.late_binding)) if options.measures else None
    world = measures.adopt(plan, world) if measures else world
    _warm_up(world)
    start_ns, start_cycles = (clock_ns() if clock_ns else 0), cycles_now()
    numbering = first_numbering(plan, world.tables.topology, options.nic)
    seconds = dict.fromkeys(class_seconds(plan, world.busy_us), 0.0)
    now = _Run((plan,), world, numbering, seconds, _gpus(world, plan), measures)
    for change in options.changes:
        now = _change_plan(now, options, change)
        check_invariants(now.world.tables)
    now = now._replace(world=_to_the_end(now, options))
    wall_seconds = (clock_ns() - start_ns) / 1e9 if clock_ns else None
    cycle_us = (wall_seconds or 0.0) * 1e6 / max(cycles_now() - start_cycles, 1)
    check_invariants(now.world.tables)
    return _result(plan, options, now, wall_seconds, cycle_us)


class Stepwise:
    """A run whose requests and plans come while it runs.

    Args:
        plan: what serves at first.
        options: how; what they offer is nothing.
    """

    def __init__(self, plan: Plan, options: SimOptions) -> None:
        self._options = replace(options, arrivals=Instant(by_model={}), keep_uses=False)
        world = prepare(plan, self._options)
        self._requests, self._count = world.requests, 0
        _warm_up(world)
        numbering = first_numbering(plan, world.tables.topology, options.nic)
        seconds = dict.fromkeys(class_seconds(plan, world.busy_us), 0.0)
        self._run = _Run((plan,), world, numbering, seconds, _gpus(world, plan))

    @property
    def plan(self) -> Plan:
        """In force."""
        return self._run.plans[-1]

    @property
    def requests(self) -> Records:
        """`REQUEST_RECORD` rows so far; `queue` as of the plan under which a request came."""
        return self._requests[: self._count]

    def offer(self, rows: Records) -> None:
        """Requests by arrival, none before what has happened.

        They end under the plan of their arrival.
        """
        if self._count + len(rows) > len(self._requests):
            grown = np.zeros(2 * (self._count + len(rows)), dtype=self._requests.dtype)
            grown[: self._count] = self.requests
            self._requests = grown
        self._requests[self._count : self._count + len(rows)] = rows
        self._count += len(rows)
        self._run = self._run._replace(world=self._run.world._replace(requests=self.requests))

    def advance(self, until_us: int) -> None:
        """Let everything happen that happens before an instant."""
        self._run.world.cursor[0]["stop_us"] = until_us
        self._run = self._run._replace(world=run_on(self._run.world, self.plan))

    def change(self, plan: Plan, at_us: int) -> None:
        """Another plan takes over, with work in flight."""
        change = PlanChange(at_s=at_us / US_PER_S, plan=plan)
        # A change goes by the queues of the first plan; here requests have the numbers of the plan
        # in force.
        self._number_queues(_queues(self._run.plans[0]))
        self._run = _change_plan(self._run, self._options, change)
        # Those of before may still sit in shared batches, which count by their number.
        self._number_queues(max(map(_queues, self._run.plans)))
        check_invariants(self._run.world.tables)

    def _number_queues(self, count: int) -> None:
        queues = _own_queues(count)
        self._run = self._run._replace(world=self._run.world._replace(queues=queues))


def _queues(plan: Plan) -> int:
    return sum(len(model.queues) for model in plan.models)


def _own_queues(count: int) -> Integers:
    """Queues of a plan that is itself in force, before anything shared batches."""
    queues = np.zeros((count, QUEUE_COLUMNS), dtype=np.int64)
    queues[:, NOW] = np.arange(count)
    return queues


def _offer(plan: Plan, options: SimOptions) -> Offer:
    return Offer(
        arrivals=options.arrivals,
        rates_rps=rates_of(plan, options),
        low_rates_rps=low_rates_of(plan, options),
        duration_us=s_to_us(options.duration_s),
        seed=options.seed,
    )


def prepare(plan: Plan, options: SimOptions, *, timed: int = 0) -> World:
    """The world of a run before its first event."""
    world = new_world(
        _tables(plan, options),
        offered_requests(plan, _offer(plan, options)),
        _factors(options),
        _admission(plan, options),
        keep_uses=options.keep_uses,
        timed=timed,
    )
    world = world._replace(
        queues=_own_queues(first_low(world.tables.topology)),
        variants=new_variants(plan),
    )
    world = _with_jobs(world, plan, plan, options)
    if options.interference != "planned":
        world = _interfering(world, options, plan, _gpus(world, plan))
    world = _loading(world, plan)
    world = fit(world, spare=2 * len(plan.vgpus()) * len(options.failures))
    schedule_failures(world, plan, options.failures)
    world.cursor[0]["stop_us"] = FAR
    return world


def _with_jobs(world: World, offered: Plan, plan: Plan, options: SimOptions) -> World:
    """The world where jobs of the applications that were `offered` come, under a plan."""
    if not offered.applications:
        return world
    names = [planned.name for planned in offered.applications]
    known = [planned.name for planned in plan.applications]
    firsts = np.flatnonzero(unpack(world.tables.job_memory).modules["place"] == 0)
    return with_jobs(
        world,
        drawn_rows(plan, names, world.requests, options.rows, options.seed),
        np.asarray([firsts[known.index(n)] if n in known else NONE for n in names], dtype=np.int64),
        job_work(plan),
    )


def run_on(world: World, plan: Plan) -> World:
    """Run until the end or `stop_us`, making room where needed; returns the world that goes on.

    `plan` is the one in force.
    """
    while run(addresses(world)) == FULL:
        if len(world.variants) and world.cursor[0]["workers"]:
            world.cursor[0]["workers"] = 0
            rows = with_lost(world.variants, plan, lost=_lost(world, plan))
            world = world._replace(variants=rows)
        else:
            world = fit(world._replace(tables=fuller(world.tables)))
    return world


def _run_to(now: _Run, until_us: int) -> _Run:
    """Run to an instant, measuring on the way until the last request has come."""
    world, measures = now.world, now.measures
    if measures is not None:
        while measures.look_us < until_us and world.cursor[0]["arrival"] < len(world.requests):
            world.cursor[0]["stop_us"] = measures.look_us
            world = run_on(world, now.plans[-1])
            measures.look(world)
    world.cursor[0]["stop_us"] = until_us
    return now._replace(world=run_on(world, now.plans[-1]))


def _to_the_end(now: _Run, options: SimOptions) -> World:
    """Run to the end, or to where the verdict is sure; changed plans and variants do not look."""
    if not options.changes and not len(now.world.variants):
        for look_us in looks_us(options.duration_s, options.give_up_below):
            now = _run_to(now, look_us)
            if surely_below(now.world.requests, options.give_up_below):
                return now.world
    return _run_to(now, FAR).world


def _lost(world: World, plan: Plan) -> dict[str, int]:
    """Lost vGPUs by pool."""
    lost = world.tables.resources["lost"]
    return Counter(plan.pools[vgpu.pool].name for vgpu in plan.vgpus() if lost[vgpu.index])


def _tables(plan: Plan, options: SimOptions) -> Tables:
    topology = _topology(plan, options)
    rows = (module_rows(plan, topology), edge_rows(plan))
    return new_tables(topology, lead_of(options.late_binding), rows)


def _topology(plan: Plan, options: SimOptions) -> Topology:
    policies = queue_policies(plan, options.policy, partial(changed, options.late_binding))
    options.check_policies(policies)
    return build_topology(
        plan,
        options.nic,
        policies=policies,
        lead=lead_of(options.late_binding),
        count_io=options.count_io,
        shared_batches=options.shared_batches,
    )


def _admission(plan: Plan, options: SimOptions) -> Records:
    if not options.admission:
        return no_admission()
    return new_admission(plan, options.policy, late_too=True)


def _warm_up(world: World) -> None:
    """Have the loop compiled, or read from the cache, before anything is timed."""
    world.cursor[0]["stop_us"] = 0
    run(addresses(world))
    world.cursor[0]["stop_us"] = FAR


def _gpus(world: World, plan: Plan) -> list[Gpu | None]:
    """The GPU of every resource; links have none."""
    known = gpus_of(plan)
    return [*known, *[None] * (len(world.tables.resources) - len(known))]


def _interfering(
    world: World, options: SimOptions, plan: Plan, gpus: Sequence[Gpu | None]
) -> World:
    mode = INTERFERENCE[options.interference]
    return interfering(world, mode, seats_of(plan), beside(gpus))


def _loading(world: World, plan: Plan) -> World:
    """The world where stages of the plan are loaded on demand, if some are."""
    rows, sizes, rooms = loading_of(plan)
    return loading(world, rows, sizes, rooms) if len(sizes) else world


def _factors(options: SimOptions) -> Integers:
    """Factors of run times, as multiples of 1 / ONE.

    The factor asked for, times lognormal draws with mean 1 and the CV asked for, and with median 1
    and the 90th percentile asked for.
    """
    cv, off = options.latency_noise_cv, options.interference_noise
    if cv == 0 and off == 0:
        return np.full(1, round(options.latency_factor * ONE), dtype=np.int64)
    sigma = np.sqrt(np.log1p(cv * cv))
    rng = np.random.default_rng([options.seed, 1 << 20])
    draws = rng.lognormal(-sigma * sigma / 2, sigma, FACTORS)
    if off:
        draws *= rng.lognormal(0.0, np.log1p(off) / _P90, FACTORS)
    return np.rint(draws * options.latency_factor * ONE).astype(np.int64)


def _change_plan(now: _Run, options: SimOptions, change: PlanChange) -> _Run:
    """Run to the change and make it: requests that wait, and batches in flight, go on."""
    start_us = s_to_us(change.at_s)
    world = _run_to(now, start_us).world
    world = _drained(world, now.plans[-1]) if change.flush else world
    world.cursor[0]["stop_us"] = FAR
    swap_us = max(int(world.tables.counts[0]["now_us"]), start_us)
    world.tables.counts[0]["now_us"] = swap_us
    # A flush makes room for workers that are all new.
    inherited = () if change.flush else inherited_vgpus(now.plans[-1], change.plan)
    new = change.plan, _topology(change.plan, options)
    done = hand_over(world.tables, now.numbering, new, inherited, options.nic)
    left_out = [(world.tables.requests, left) for left in done.left_out]
    left_out += [(unpack(world.tables.job_memory).jobs, left) for left in done.jobs_left_out]
    for rows, (slot, reason) in left_out:
        record = world.requests[int(rows[slot]["id"])]
        record["outcome"] = DROPPED
        record["dispatch_us"] = record["batch_id"] = NONE
        record["reason"] = reason
        record["finish_us"] = swap_us
    changed = Changed(start_us, swap_us, len(inherited), int(done.tables.counts[0]["in_flight"]))
    renewed = _taken_over(world, options, now.plans[0], change.plan, done)
    gpus = _gpus(renewed, change.plan)
    for resource, gpu in enumerate(now.gpus):  # of former batches, which are on no vGPU of the plan
        if gpu is not None and done.resources[resource] != NONE:
            gpus[done.resources[resource]] = gpu
    if options.interference != "planned":
        renewed = _interfering(renewed, options, change.plan, gpus)
    renewed = _loading(renewed, change.plan)
    renewed = now.measures.adopt(change.plan, renewed) if now.measures else renewed
    return _Run(
        plans=(*now.plans, change.plan),
        world=renewed,
        gpus=gpus,
        numbering=done.numbering,
        seconds=_seconds(now),
        measures=now.measures,
        changes=(*now.changes, changed),
    )


def _drained(world: World, plan: Plan) -> World:
    """Let all that is in flight end, and nothing begin."""
    world.tables.counts[0]["paused"] = 1
    world.cursor[0]["again"] = 1
    world.cursor[0]["stop_us"] = FAR
    world.cursor[0]["draining"] = 1
    world = run_on(world, plan)
    world.cursor[0]["draining"] = 0
    return world


def _taken_over(
    world: World, options: SimOptions, offered: Plan, plan: Plan, done: HandOver
) -> World:
    """The world under a new plan; `offered` is the one whose models number the requests."""
    tables, now_us = done.tables, int(done.tables.counts[0]["now_us"])
    queues = matching_queues(offered, plan)
    was_lost = done.resources[np.flatnonzero(world.tables.resources["lost"])]
    world = with_tables(
        world,
        tables,
        _admission(plan, options),
        np.asarray([NONE if queue is None else queue for queue in queues], dtype=np.int64),
        done.resources,
    )
    world = _with_jobs(world, offered, plan, options)
    world = fit(world, spare=2 * len(tables.resources) * (1 + len(options.failures)))
    lost = reschedule_failures(world, plan, options.failures, done.resources, now_us)
    tables.resources["lost"][lost] = 1
    tables.resources["lost"][was_lost[was_lost != NONE]] = 1
    for vgpu in range(len(tables.topology.vgpus)):
        refresh(tables, vgpu)
    world.cursor[0]["again"] = 1
    return world._replace(variants=new_variants(plan, lost=_lost(world, plan)))


def _seconds(now: _Run) -> dict[str, float]:
    """Busy GPU-seconds per class so far."""
    busy_us, first = now.world.busy_us, resource_count(now.world.tables.topology)
    seconds = dict(now.seconds)
    for more in (
        class_seconds(now.plans[-1], busy_us),
        former_batch_seconds(now.plans, now.numbering, busy_us, first),
    ):
        for name, busy in more.items():
            seconds[name] = seconds.get(name, 0.0) + busy
    return seconds


def _result(
    plan: Plan, options: SimOptions, end: _Run, wall_seconds: float | None, cycle_us: float
) -> SimResult:
    world = end.world
    cursor, counts = world.cursor[0], world.tables.counts[0]
    span_us = max(s_to_us(options.duration_s), int(counts["now_us"]))
    topology = world.tables.topology
    if len(world.variants):
        _count_variants(plan, world.requests)
    tasks = tasks_of(world)
    served = with_tasks(plan, world.requests, tasks)
    links = world.busy_us[len(topology.vgpus) : resource_count(topology)]
    since_us = end.changes[-1].swap_us if end.changes else 0
    return SimResult(
        plan=plan,
        policy=options.policy_of(plan),
        seed=options.seed,
        duration_s=options.duration_s,
        requests=world.requests,
        uses=world.uses[: int(cursor["uses"])],
        models=model_results(plan, world.requests, tasks),
        entries=entry_results(plan, world.requests, world.queues),
        variants=variant_results(plan, world.requests),
        applications=application_results(
            [plan, *(change.plan for change in options.changes)], world.requests, tasks
        ),
        tasks=tasks,
        pools=pool_results(
            end.plans[-1],
            served[served["arrival_us"] >= since_us],
            world.queues[:, NOW],
            world.busy_us - world.low_busy_us,
            span_us - since_us,
            world.memory["loads"] if len(world.loading) else None,
        ),
        utilisation=utilisation(plan.cluster, _seconds(end), span_us),
        link_utilisation=tuple((links[links > 0] / span_us).tolist()),
        decisions=decision_cost(world, cycle_us),
        steps=int(cursor["steps"]),
        wall_seconds=wall_seconds,
        changes=end.changes,
    )


def _count_variants(plan: Plan, requests: Records) -> None:
    """Requests of names that have variants are those of the models that took them."""
    owner = np.repeat(np.arange(len(plan.models)), [len(queues) for queues in plan.queues()])
    known = requests["queue"] != NONE
    requests["model"][known] = owner[requests["queue"][known]]


def decision_cost(world: World, cycle_us: float) -> DecisionCost:
    """How many decisions there were and what they took; `cycle_us` is 0 if not timed."""
    counts = world.tables.counts[0]
    batches, decisions = int(counts["batches"]), int(world.cursor[0]["decisions"])
    ticks = world.ticks[:decisions]
    spans_us = (ticks >> 1) * cycle_us
    sending_us = spans_us[ticks % 2 == 1]
    timed = cycle_us > 0 and len(spans_us) > 0
    return DecisionCost(
        count=decisions,
        mean_us=float(spans_us.mean()) if timed else None,
        p99_us=float(np.percentile(spans_us, 99)) if timed else None,
        dispatch_p99_us=float(np.percentile(sending_us, 99)) if timed and len(sending_us) else None,
        probes_per_dispatch=float(counts["probes"]) / batches if batches else None,
    )
