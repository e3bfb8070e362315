"""The change from the plan being served to another one, without a request lost, step by step.

1. *render*: the next generation's plan is written beside the old one, on every host, with models of
   new nodes.
2. *preload*: nodes hear of the generation (its workers start); each host's Triton loads the models
   of new nodes, fronts of added models too.
3. *prepare*: scheduler and fronts read the plan; wait until every new worker is ready.
   With requests to compare, the old plan has answered them before step 1, and the new workers
   answer them here (`comparing`); a difference ends the change.
4. *flush*, only where it is asked for (PPipe's migration): nothing more is dispatched; requests
   wait; what is in flight ends (at most one SLO).
5. *swap*: the scheduler goes on under the new plan; what is in flight ends under the old one.
   Versions of a name that go are unloaded first, and answer what they took.
6. *settle*: configurations on disk name the new generation, for the next restart. Versions that are
   added to a name are loaded, so that no request reaches one before its plan is in force.
7. *unload*: once nothing is in flight on them, the old workers end, and nodes and fronts that only
   the old plan has go.

Whatever fails before the swap is undone: the old plan goes on. Each step is reported to a callback
with its duration, so that a flow can record where a rollout stands. A change whose process died is
finished or undone by `finish_or_undo_change`: until its swap the scheduler says that the old plan
is in force, after it the new one, and what belongs to another generation goes. Doing it twice
changes nothing.
"""

import contextlib
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Any

from flows.clock import Stopwatch
from flows.release.rollout.comparing import (
    Compared,
    Expected,
    ask_in_force,
    check_comparable,
    compare,
)
from flows.release.rollout.compatible import check_names, check_tensors
from flows.release.rollout.generations import (
    is_same_plan,
    note_never_served,
    plan_in_force,
    plan_of_generation,
)
from flows.release.rollout.hosts import OtherHosts, have_look
from flows.release.rollout.options import RolloutMode, RolloutOptions
from flows.release.server.running import (
    RefusedError,
    ServerError,
    ServerState,
    note_plan,
    read_state,
)
from triton_backend.contract.errors import InputError, PoolPipeError
from triton_backend.contract.plan import Plan
from triton_backend.contract.transition.steps import steps
from triton_backend.contract.units import US_PER_S
from triton_backend.runtimes.stage_tensors import (
    complete_tensors,
    endpoints,
    served_models,
)
from triton_backend.serve_folder.names import RESERVED_PREFIX
from triton_backend.serve_folder.repository import (
    OFFLOAD_MODEL,
    GenerationNames,
    check_beside,
    check_node_models,
    check_served_names,
    end_versions,
    for_clients,
    front_ports,
    gateway_folders,
    is_node_model,
    node_model,
    read_front_ports,
    read_workers,
    remove_model,
    remove_old_generations,
    render_control,
    render_for_clients,
    render_fronts,
    render_generation,
    render_node_generations,
    rendered_generations,
    used_nodes,
)
from triton_backend.serve_folder.settings import SETTINGS_NAME, ServeSettings
from triton_backend.serve_folder.versions import process_file

READY_SECONDS = 120.0
READY_POLL_SECONDS = 0.1
FLUSH_POLL_SECONDS = 0.005
# No process waits for the old workers' end, and each question costs milliseconds of what serves.
DRAIN_POLL_SECONDS = 0.05
FLUSH_SLOS = 5
UNLOAD_SECONDS = 10.0  # of a version's process, beside its requests
# A gateway that was killed is loaded again within seconds; meanwhile the plan served is unknown.
GATEWAY_SECONDS = 60.0
GATEWAY_POLL_SECONDS = 0.1
AS_USUAL = RolloutOptions()


class Step(StrEnum):
    """Steps of a rollout in order; ABORT instead of the rest where one fails before the swap."""

    RENDER = "render"
    PRELOAD = "preload"
    PREPARE = "prepare"
    COMPARE = "compare"
    FLUSH = "flush"
    SWAP = "swap"
    SETTLE = "settle"
    UNLOAD = "unload"
    ABORT = "abort"


@dataclass(frozen=True, slots=True, kw_only=True)
class StepDone:
    """One step that has ended; `compared` has what was compared, where something was."""

    step: Step
    seconds: float
    plan_id: str
    generation: int
    compared: tuple[Compared, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanChange:
    """A change that succeeded."""

    plan_id: str
    generation: int
    steps: tuple[StepDone, ...]

    @property
    def seconds(self) -> float:
        """All steps."""
        return sum(s.seconds for s in self.steps)


@dataclass(frozen=True, slots=True)
class _Change:
    state: ServerState
    old: Plan
    old_generation: int
    new: Plan
    generation: int
    names: GenerationNames
    hosts: OtherHosts

    @property
    def folder(self) -> Path:
        return self.state.folder

    def added(self) -> list[str]:
        """Names of models and applications that the old plan does not serve."""
        known = endpoints(self.old)
        return [name for name in endpoints(self.new) if name not in known]

    def new_fronts(self) -> set[str]:
        """Models that only the new plan serves: of new names, and sizes and variants of others.

        No versions of others: these come after the swap.
        """
        known = {model.name for model in served_models(self.old)}
        later = {
            self.new.workload.versions[name][version].name
            for name, versions in self.added_versions().items()
            for version in versions
        }
        return {model.name for model in served_models(self.new)} - known - later

    def added_versions(self) -> dict[str, set[int]]:
        """By name, versions that only the new plan has of a name that both have."""
        return _versions_beyond(self.new, self.old)

    def removed_versions(self) -> dict[str, set[int]]:
        """By name, versions that only the old plan has of a name that both have."""
        return _versions_beyond(self.old, self.new)

    def removed(self) -> list[str]:
        """Names of models and applications that the new plan no longer serves."""
        kept = endpoints(self.new)
        return [name for name in endpoints(self.old) if name not in kept]

    def begun_for_clients(self) -> list[str]:
        """Models beside those served that the old plan does not have."""
        return self._only_in(self.new, self.old)

    def ended_for_clients(self) -> list[str]:
        """Models beside those served that the new plan does not have."""
        return self._only_in(self.old, self.new)

    def _only_in(self, plan: Plan, other: Plan) -> list[str]:
        cut_models = _settings(self.folder).cut_models
        others = for_clients(other, cut_models=cut_models)
        return [name for name in for_clients(plan, cut_models=cut_models) if name not in others]

    def render_for_clients(self) -> None:
        """The models beside those served, of the new plan."""
        cut_models = _settings(self.folder).cut_models
        render_for_clients(self.folder, self.new, self.generation, cut_models=cut_models)

    def added_nodes(self) -> list[str]:
        """Nodes of the gateway's host that only the new plan has."""
        return [node for node in self.nodes(self.new) if node not in self.nodes(self.old)]

    def kept_nodes(self) -> list[str]:
        """Nodes of the gateway's host that both plans have."""
        return [node for node in self.nodes(self.new) if node in self.nodes(self.old)]

    def removed_nodes(self) -> list[str]:
        """Nodes of the gateway's host that only the old plan has."""
        return [node for node in self.nodes(self.old) if node not in self.nodes(self.new)]

    def nodes(self, plan: Plan) -> list[str]:
        """Nodes of a plan on the gateway's host."""
        return [node for node in used_nodes(plan) if node not in self.hosts.addresses]


def _versions_beyond(plan: Plan, other: Plan) -> dict[str, set[int]]:
    """By name, versions that a plan has and another one, which has the name too, has not."""
    others = other.workload.versions
    beyond = {
        name: {*versions} - {*others[name]}
        for name, versions in plan.workload.versions.items()
        if name in others
    }
    return {name: versions for name, versions in beyond.items() if versions}


def change_plan(
    folder: Path,
    plan: Plan,
    on_step: Callable[[StepDone], None] = lambda _: None,
    *,
    ready_seconds: float = READY_SECONDS,
    options: RolloutOptions = AS_USUAL,
) -> PlanChange:
    """Bring another plan into force on the system served from `folder`.

    Args:
        folder: the serve folder.
        plan: what is served from then on.
        on_step: called with each step when it has ended.
        ready_seconds: how long the new workers may take to come up.
        options: its `way` and what is compared; after `FLUSH` nothing is dispatched until all that
            is in flight has ended.

    Raises:
        InputError: nothing is served there, the plan cannot follow the one being served, or GPUs
            cannot hold both, not even step by step (`IN_PLACE_ONLY`, or with requests to compare:
            not at once); or they cannot be compared.
        DifferenceError: the plans answer differently; the one before is being served as before.
        ServerError: a step failed; before the swap, the plan before it is being served as before:
            with plans between, the last one that came into force.
    """
    before = plan_in_force(folder)
    check_beside(_settings(folder), plan)
    *between, last = steps(before, complete_tensors(plan, before), at_once=options.at_once)
    done: list[StepDone] = []
    for following in between:
        change = _change_at_once(folder, following, on_step, (ready_seconds, options))
        done += change.steps
    change = _change_at_once(folder, last, on_step, (ready_seconds, options))
    return replace(change, steps=(*done, *change.steps))


def check_changes(
    plans: Sequence[Plan], options: RolloutOptions, elsewhere: Mapping[str, str]
) -> None:
    """Check what is known before anything runs: that each plan can follow the one before it.

    Args:
        plans: the one in force, those of a canary's steps, the one that is to follow.
        options: of the first of these changes.
        elsewhere: addresses of nodes on other hosts.

    Raises:
        InputError: one cannot, or they cannot be compared.
    """
    old = complete_tensors(plans[0])
    for plan in plans[1:]:
        new = complete_tensors(plan, old)
        check_follows(old, new)
        if options.compare_requests:
            check_comparable(old, new, elsewhere)
        steps(old, new, at_once=options.at_once)
        old, options = new, options.following()


def check_follows(old: Plan, new: Plan) -> None:
    """Check that clients of a plan find what they know in another one; both are completed.

    Raises:
        InputError: they do not, or a name is taken.
    """
    check_served_names(new)
    for model in served_models(old):
        check_tensors(model, new)
    check_names(old, new)
    check_node_models((*used_nodes(old), *used_nodes(new)))


def _change_at_once(
    folder: Path, plan: Plan, on_step: Callable[[StepDone], None], how: tuple[float, RolloutOptions]
) -> PlanChange:
    """Bring a plan into force that every GPU holds beside the one in force."""
    ready_seconds, options = how
    change = _plan_change(folder, plan)
    expected = _expected(change, options)
    done: list[StepDone] = []

    def run(step: Step, work: Callable[[_Change], tuple[Compared, ...] | None]) -> None:
        watch = Stopwatch()
        compared = work(change) or ()
        done.append(
            StepDone(
                step=step,
                seconds=watch.seconds(),
                plan_id=plan.plan_id,
                generation=change.generation,
                compared=compared,
            )
        )
        on_step(done[-1])

    try:
        run(Step.RENDER, _render)
        run(Step.PRELOAD, _preload)
        run(Step.PREPARE, lambda change: _prepare(change, ready_seconds))
        if expected:
            run(Step.COMPARE, lambda change: compare(change.state, change.new, expected, options))
        if options.way is RolloutMode.FLUSH:
            run(Step.FLUSH, _flush)
        run(Step.SWAP, _swap)
    except BaseException:
        run(Step.ABORT, _abort)
        raise
    run(Step.SETTLE, _settle)
    run(Step.UNLOAD, _unload)
    return PlanChange(plan_id=plan.plan_id, generation=change.generation, steps=tuple(done))


def _expected(change: _Change, options: RolloutOptions) -> dict[str, Expected]:
    """Answers of the plan in force to the requests that are compared; empty where none are."""
    if not options.compare_requests:
        return {}
    check_comparable(change.old, change.new, change.hosts.addresses)
    return ask_in_force(change.state, change.old, change.new, options)


def _plan_change(folder: Path, plan: Plan) -> _Change:
    state = read_state(folder)
    old_generation = int(state.control("status")["generation"])
    old = plan_of_generation(state.folder, old_generation)
    if is_same_plan(old, plan):
        raise InputError(f"plan {plan.plan_id}", "is being served already")
    new = complete_tensors(plan, old)
    check_follows(old, new)
    hosts = OtherHosts.of(state)
    hosts.check(old, new)
    hosts.missing_artifacts(old, new)
    settings = _settings(state.folder)
    ports = front_ports(new, settings, read_front_ports(state.folder, old_generation))
    generation = rendered_generations(state.folder)[-1] + 1
    workers = read_workers(state.folder, old_generation).following(
        old, new, (old_generation, generation), settings.base_port
    )
    names = GenerationNames(ports, workers)
    return _Change(state, old, old_generation, new, generation, names, hosts)


def _render(change: _Change) -> None:
    nodes = change.nodes(change.new)
    render_generation(change.folder, change.new, change.generation, nodes=nodes, names=change.names)
    render_fronts(change.folder, change.new, change.generation, names=change.added())
    change.hosts.put_generation(change.old, change.new, change.generation, change.names)


def _preload(change: _Change) -> None:
    generations = change.old_generation, change.generation
    change.hosts.begin(change.old, change.new, generations)
    kept, added = change.kept_nodes(), change.added_nodes()
    render_node_generations(change.folder, added, generations[1:])
    render_node_generations(change.folder, kept, generations)
    for node in kept:
        have_look(change.state, node)
    begun = change.begun_for_clients()
    if begun:
        change.render_for_clients()
    for name in [*map(node_model, added), *change.added(), *begun]:
        change.state.load(name)


def _prepare(change: _Change, ready_seconds: float) -> None:
    status = change.state.control(
        "prepare", plan_id=change.new.plan_id, generation=change.generation
    )
    watch = Stopwatch()
    new = change.new_fronts()
    while True:
        ready = status["prepared"]
        if ready is None:
            raise ServerError(f"the gateway no longer knows plan {change.new.plan_id}: restarted")
        missing = sorted(new.intersection(status.get("missing_fronts", ())))
        if ready["up"] >= ready["total"] and not missing:
            return
        if watch.seconds() > ready_seconds:
            fronts = f", no fronts of {', '.join(missing)}" if missing else ""
            raise ServerError(
                f"workers of plan {change.new.plan_id} are not ready: {ready}{fronts}"
            )
        time.sleep(READY_POLL_SECONDS)
        status = change.state.control("status")


def _flush(change: _Change) -> None:
    slowest_us = max(model.slo_us for model in served_models(change.old))
    watch = Stopwatch()
    status = change.state.control("flush", plan_id=change.new.plan_id)
    while status["state"] != "flushed":
        if watch.seconds() > FLUSH_SLOS * slowest_us / US_PER_S:
            raise ServerError(f"{status['in_flight']} batches did not end: {status}")
        time.sleep(FLUSH_POLL_SECONDS)
        status = change.state.control("status")


def _swap(change: _Change) -> None:
    """Versions that go are unloaded first: requests without one then go to another that stays."""
    for name, versions in change.removed_versions().items():
        end_versions(change.folder, name, {*change.new.workload.versions[name]})
        change.state.load(name)
        _wait_for_answers(change, name, versions)
    change.state.control("swap", plan_id=change.new.plan_id, generation=change.generation)


def _settle(change: _Change) -> None:
    render_control(change.folder, change.generation, standby=_settings(change.folder).standby)
    change.render_for_clients()
    render_fronts(change.folder, change.new, change.generation)
    note_plan(change.folder, change.new.plan_id, change.generation)
    for name in change.added_versions():
        change.state.load(name)
    # One that restarted between swap and now has come back under the old plan and needs its nodes.
    if change.state.control("status")["generation"] != change.generation:
        raise ServerError(f"the gateway restarted under plan {change.old.plan_id}")


def _unload(change: _Change) -> None:
    _drain(change)
    _keep_generation(change.state, change.kept_nodes(), change.generation)
    gone = [*change.removed(), *change.ended_for_clients()]
    for name in [*map(node_model, change.removed_nodes()), *gone]:
        change.state.unload(name)
        remove_model(change.folder, name)
    change.hosts.end(change.old, change.new, change.generation)
    remove_old_generations(change.folder, change.generation)


def _keep_generation(state: ServerState, nodes: Iterable[str], generation: int) -> None:
    """Have nodes of the gateway's host go on with one generation alone.

    Workers that only others have end.
    """
    for node in nodes:
        render_node_generations(state.folder, [node], [generation])
        with contextlib.suppress(RefusedError):
            have_look(state, node)


def _wait_for_answers(change: _Change, name: str, versions: Iterable[int]) -> None:
    """Wait until versions that are unloaded have answered what they took: their processes end."""
    files = [
        place / "pids" / process_file(name, version)
        for place in gateway_folders(change.folder)
        for version in versions
    ]
    slo_us = max(model.slo_us for model in endpoints(change.old)[name])
    watch = Stopwatch()
    while any(file.exists() for file in files):
        if watch.seconds() > UNLOAD_SECONDS + FLUSH_SLOS * slo_us / US_PER_S:
            return  # it hangs; what it holds is refused
        time.sleep(DRAIN_POLL_SECONDS)


def _drain(change: _Change) -> None:
    """Wait until nothing is in flight under the old plan, or should not be any more."""
    slowest_us = max(model.slo_us for model in served_models(change.old))
    watch = Stopwatch()
    while change.state.control("status")["former_batches"]:
        if watch.seconds() > FLUSH_SLOS * slowest_us / US_PER_S:
            return  # their workers hang: the scheduler gives those batches up
        time.sleep(DRAIN_POLL_SECONDS)


def _abort(change: _Change) -> None:
    """Back to the old plan, unless the swap was done and only its answer got lost.

    Where the gateway does not say which, nothing is taken away: `finish_or_undo_change` asks again.
    """
    try:
        status = change.state.control("abort", plan_id=change.new.plan_id)
    except PoolPipeError:
        return
    if status["generation"] == change.generation:
        return
    note_never_served(change.folder, change.generation)
    _keep_generation(change.state, change.kept_nodes(), change.old_generation)
    render_fronts(change.folder, change.old, change.old_generation, names=change.removed_versions())
    for name in change.removed_versions():
        with contextlib.suppress(PoolPipeError):
            change.state.load(name)
    added = [*map(node_model, change.added_nodes()), *change.added()]
    for name in [*added, *change.begun_for_clients()]:
        with contextlib.suppress(PoolPipeError):
            change.state.unload(name)
        remove_model(change.folder, name)
    change.hosts.end(change.new, change.old, change.old_generation)


def finish_or_undo_change(folder: Path) -> Plan:
    """Undo or finish what an interrupted change left; returns the plan in force.

    Raises:
        InputError: nothing is being served from `folder`.
        ServerError: the system does not answer for a minute.
    """
    state = read_state(folder)
    status = _status_when_back(state)
    if status["state"] != "serving" or status["prepared"]:
        prepared = status["prepared"] or {}
        state.control("abort", plan_id=prepared.get("plan_id", ""))
        status = state.control("status")
    generation = int(status["generation"])
    for number in rendered_generations(folder):
        if number > generation:
            note_never_served(folder, number)
    plan = plan_of_generation(folder, generation)
    served = {*endpoints(plan)}
    served |= {*for_clients(plan, cut_models=_settings(folder).cut_models)}
    hosts = OtherHosts.of(state)
    nodes = [node for node in used_nodes(plan) if node not in hosts.addresses]
    served |= set(map(node_model, nodes))
    _keep_generation(state, nodes, generation)
    for entry in sorted((folder / "repository").iterdir()):
        if _left_over(entry.name, served):
            with contextlib.suppress(ServerError):  # it may never have been loaded
                state.unload(entry.name)
            remove_model(folder, entry.name)
    hosts.tidy(plan, generation)
    render_control(folder, generation, standby=_settings(folder).standby)
    render_fronts(folder, plan, generation)
    note_plan(folder, plan.plan_id, generation)
    for name, versions in plan.workload.versions.items():
        end_versions(folder, name, versions)
        state.load(name)
    remove_old_generations(folder, generation)
    return plan


def _settings(folder: Path) -> ServeSettings:
    return ServeSettings.read(folder / SETTINGS_NAME)


def _left_over(name: str, served: set[str]) -> bool:
    """True if a model of the repository belongs to a plan that is not in force."""
    scheduler = name.startswith(RESERVED_PREFIX) and name != OFFLOAD_MODEL
    return name not in served and (is_node_model(name) or not scheduler)


def _status_when_back(state: ServerState) -> dict[str, Any]:
    """The gateway's answer, after waiting for one that is being reloaded."""
    watch = Stopwatch()
    while True:
        try:
            return state.control("status")
        except ServerError:
            if watch.seconds() > GATEWAY_SECONDS:
                raise
        time.sleep(GATEWAY_POLL_SECONDS)


def steps_to_dicts(change: PlanChange) -> list[dict[str, Any]]:
    """Plain form of the steps, for records."""
    return [{"step": str(s.step), "seconds": s.seconds} for s in change.steps]
