"""A guarded rollout: checked before, recorded at every step, watched after, undone on breach.

States in the warehouse, in order: `checked`, the steps of the change (`render` .. `unload`), of a
canary before it those of each share and `canary`, and at the end `done`, `rolled back` or `failed`.
A rollout that was cut off is finished or undone first: the running system itself says which plan is
in force, and a canary that is takes its way back. Rolling out the plan in force,
with the artifacts in force, is no error and changes nothing; it does not even open the warehouse,
which takes most of 50 ms on a busy machine, where the state folder says that no rollout is under
way.

Rollouts exclude each other (`lock`): a second one waits for the end of the first one's bake, or is
refused. So what is found unfinished under the lock is of a process that died.
"""

import getpass
import json
import os
import uuid
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial

from flows.clock import Stopwatch, now_utc
from flows.planning.verify.numbers import verify_plan
from flows.progress import Say, quiet, say_on_stderr
from flows.release.artifacts import with_artifacts_in_force
from flows.release.rollout.canary import canary_plans, look_before, watch_canary
from flows.release.rollout.change import (
    AS_USUAL,
    StepDone,
    change_plan,
    check_changes,
    finish_or_undo_change,
)
from flows.release.rollout.compatible import check_artifacts
from flows.release.rollout.generations import (
    is_same_plan,
    plan_in_force,
    plan_served_before,
)
from flows.release.rollout.lock import one_change
from flows.release.rollout.options import CLIENTS, RolloutOptions
from flows.release.rollout.outcomes import Outcomes, breach_of, judgement, looks, read_outcomes
from flows.release.server.running import ServerError, ServerState, read_state
from flows.system_metrics import MetricsError
from flows.workspace import Workspace
from triton_backend.contract.errors import InputError, PoolPipeError
from triton_backend.contract.plan import Plan
from triton_backend.runtimes.base import MANIFEST_NAME
from triton_backend.runtimes.stage_tensors import served_models
from triton_backend.serve_folder.files import write_whole
from triton_backend.serve_folder.repository import check_beside
from triton_backend.serve_folder.settings import SETTINGS_NAME, ServeSettings
from warehouse.db import Warehouse, WarehouseInUseError
from warehouse.observations import (
    Rollout,
    RolloutStep,
    add_rollout_step,
    begin_rollout,
    end_rollout,
    list_rollouts,
    unfinished_rollout,
)
from warehouse.plans import add_plan, read_plan

DONE, ROLLED_BACK, FAILED = "done", "rolled back", "failed"
NOT_OBSERVED = "in force, its attainment not observed"


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutResult:
    """How it ended; `plan_id` is the plan in force now."""

    rollout_id: str | None
    plan_id: str
    state: str
    outcome: str


def roll_out(
    work: Workspace, plan: Plan, options: RolloutOptions, say: Say = quiet
) -> RolloutResult:
    """Bring a plan into force on the system served from this project.

    Raises:
        InputError: nothing is being served, the plan fails a check, or another rollout is under way
            and not to be waited for; the old plan goes on.
        PoolPipeError: a step failed before the swap, or its answers differ; the old plan goes on,
            or the error names the one that does.
    """
    read_state(work.state.serve)  # where nothing is served, nothing is waited for
    with one_change(work.state.change_lock, wait=options.wait):
        return _roll_out(work, plan, options, say)


def _roll_out(
    work: Workspace,
    plan: Plan,
    options: RolloutOptions,
    say: Say,
    *,
    may_emulate: bool = False,
) -> RolloutResult:
    """Under the lock.

    Stages without an artifact take that of the plan in force, where it has them too. With
    `may_emulate` dummy outputs may follow computed answers, as they came before them.
    """
    settled = not work.state.rollout_under_way.exists()
    if settled and is_same_plan(plan_in_force(work.state.serve), plan):
        return _nothing_to_do(plan)
    in_force, _ = _finish_interrupted(work, say)
    if not may_emulate:
        plan = with_artifacts_in_force(plan, in_force)
        check_artifacts(in_force, plan)
    if is_same_plan(in_force, plan):
        return _nothing_to_do(plan)
    check_plan(work, plan)
    settings = ServeSettings.read(work.state.serve / SETTINGS_NAME)
    check_beside(settings, plan)
    canaries = canary_plans(in_force, plan, options, settings.gateways)
    check_changes((in_force, *canaries, plan), options, settings.hosts)
    # Where nothing can be watched, nothing is changed.
    read_outcomes(read_state(work.state.serve).metrics_urls)
    write_whole(work.state.rollout_under_way, json.dumps(plan.to_dict()))
    rollout = _begin(plan.plan_id, in_force.plan_id, options)
    with work.open() as warehouse:
        add_plan(warehouse, plan, now_utc())
        begin_rollout(warehouse, rollout)
        record_step(warehouse, rollout, "checked", "plan verified, artifacts present", 0.0)
    try:
        return _carry_out(work, rollout, (in_force, *canaries, plan), options, say)
    except BaseException as error:
        # Nothing but this process would ever end a canary.
        if canaries and finish_or_undo_change(work.state.serve).shares_requests:
            reason = str(error) if isinstance(error, Exception) else "interrupted"
            _taken_back(work, rollout, in_force, reason, say)
        raise


def _carry_out(
    work: Workspace, rollout: Rollout, plans: Sequence[Plan], options: RolloutOptions, say: Say
) -> RolloutResult:
    """Every step after the checks.

    Args:
        work: the project.
        rollout: its record.
        plans: the one in force, those of a canary's steps, the one that is to follow.
        options: how to change and watch.
        say: called with each step.

    Raises:
        PoolPipeError: a change failed before the swap, and the former plan goes on; or metrics
            could not be read, and the plan that is in force then does.
    """
    in_force, *canaries, plan = plans
    for canary in canaries:
        breach = _canary_step(work, rollout, (in_force, canary), options, say)
        if breach is not None:
            return _taken_back(work, rollout, in_force, breach, say)
        options = options.following()
    failure = _change_plan(work, rollout, plan, say, options)
    if failure is not None:
        # The running system itself knows whether the step that failed came before the swap.
        if is_same_plan(finish_or_undo_change(work.state.serve), plan):
            return _end(work, rollout, DONE, f"{failure}; the new plan is in force all the same")
        raise _failed(work, rollout, in_force, failure, say)
    if not options.bake_seconds:
        return _end(work, rollout, DONE, NOT_OBSERVED)
    state = read_state(work.state.serve)
    try:
        before, _ = look_before(state)
        seen, breach = bake(state, plan, before, options)
    except MetricsError as error:
        _end(work, rollout, DONE, f"{NOT_OBSERVED}: {error}")
        raise
    except (KeyboardInterrupt, SystemExit):
        outcome = f"{NOT_OBSERVED}: interrupted"
        say(f"  plan {plan.plan_id} is {outcome}")
        _end(work, rollout, DONE, outcome)
        raise
    if breach is None:
        return _end(work, rollout, DONE, judgement(seen, options.bake_seconds))
    say("  (a busy machine, or few requests? try again with a longer --bake-seconds)")
    return _taken_back(work, rollout, in_force, breach, say)


def _canary_step(
    work: Workspace,
    rollout: Rollout,
    plans: tuple[Plan, Plan],
    options: RolloutOptions,
    say: Say,
) -> str | None:
    """One share of a canary: the breach that was seen, if any.

    Args:
        work: the project.
        rollout: its record.
        plans: the former one, and the canary's of this share.
        options: how to change and watch.
        say: called with each step.

    Raises:
        PoolPipeError: the change failed, and the former plan goes on; or metrics cannot be read.
    """
    former, canary = plans
    state = read_state(work.state.serve)
    say(f"  plan {canary.plan_id}")
    failure = _change_plan(work, rollout, canary, say, options)
    if failure is not None:
        finish_or_undo_change(work.state.serve)
        raise _failed(work, rollout, former, failure, say)
    before = look_before(state)
    watch = Stopwatch()
    seen, breach = watch_canary(state, canary, before, options)
    for one in seen:
        say(f"  {one}")
    detail = "; ".join([f"plan {canary.plan_id}", *map(str, seen)])
    with work.open() as warehouse:
        record_step(warehouse, rollout, "canary", detail, watch.seconds())
    return None if breach is None else f"{canary.plan_id}: {breach}"


def _failed(
    work: Workspace, rollout: Rollout, former: Plan, failure: PoolPipeError, say: Say
) -> PoolPipeError:
    """A change's failure, after the way back from a canary or a plan between that is in force."""
    served = plan_in_force(work.state.serve)
    if not is_same_plan(served, former):
        say(f"  plan {served.plan_id} is in force; putting plan {former.plan_id} back")
        back = _put_back(work, rollout, former, say)
        served = former if back is None else finish_or_undo_change(work.state.serve)
        if not is_same_plan(served, former):  # the next rollout ends this one
            reason = f"is in force, because the way back failed, too: {back}"
            return ServerError(f"{failure}; plan {served.plan_id} {reason}")
    _end(work, rollout, FAILED, f"{failure}; the former plan goes on")
    return failure


def _taken_back(
    work: Workspace, rollout: Rollout, former: Plan, breach: str, say: Say
) -> RolloutResult:
    """The former plan is in force again, for this reason."""
    say(f"  {breach}; putting plan {former.plan_id} back")
    failure = _put_back(work, rollout, former, say)
    if failure is not None:
        raise failure  # the next rollout asks the running system how far it came
    return _end(work, rollout, ROLLED_BACK, breach)


def _put_back(work: Workspace, rollout: Rollout, former: Plan, say: Say) -> PoolPipeError | None:
    """Change to the former plan, then record how; what it failed with, if it did.

    Nothing keeps the way back waiting: the warehouse may be in use.
    """
    done, failure = list[StepDone](), None
    try:
        change_plan(work.state.serve, former, done.append)
    except PoolPipeError as error:
        failure = error
    with suppress(WarehouseInUseError), work.open() as warehouse:
        for step in done:
            _record_change(warehouse, rollout, say, step)
    return failure


def _nothing_to_do(plan: Plan) -> RolloutResult:
    outcome = "is in force already"
    return RolloutResult(rollout_id=None, plan_id=plan.plan_id, state=DONE, outcome=outcome)


def roll_back(work: Workspace, options: RolloutOptions, say: Say = quiet) -> RolloutResult:
    """Bring the plan before the last finished rollout into force again.

    Where the last one was cut off before its plan came into force, that plan is the one before it.

    Raises:
        InputError: no rollout to go back from, or one of the same plan with artifacts that are not
            known any more, or as `roll_out`.
    """
    with one_change(work.state.change_lock, wait=options.wait):
        in_force, ended = _finish_interrupted(work, say)
        if ended is not None and ended.state == FAILED and ended.plan_id == in_force.plan_id:
            return replace(ended, state=DONE, outcome="the rollout that was interrupted is undone")
        with work.open(read_only=True) as warehouse:
            done = [r for r in list_rollouts(warehouse) if r.state == DONE and r.former_plan_id]
            if not done:
                raise InputError("rollout --rollback", "no finished rollout to go back from")
        former_id = str(done[0].former_plan_id)
        served = plan_served_before(work.state.serve, former_id)
        with work.open(read_only=True) as warehouse:
            former = read_plan(warehouse, former_id)
        if served is None and former_id == done[0].plan_id:  # the system was started again since
            reason = f"plan {former_id} had other artifacts then, which are not known any more"
            raise InputError("rollout --rollback", reason)
        if served is not None and not is_same_plan(former, served):
            former = served
        return _roll_out(work, former, options, say, may_emulate=True)


def finish_interrupted(work: Workspace, say: Say = quiet) -> Plan:
    """End a rollout whose process died, whatever it had reached; returns the plan in force.

    One whose process lives is waited for.

    Raises:
        InputError: nothing is being served.
    """
    with one_change(work.state.change_lock, wait=True):
        return _finish_interrupted(work, say)[0]


def _finish_interrupted(work: Workspace, say: Say) -> tuple[Plan, RolloutResult | None]:
    """Under the lock: the plan in force, and how a rollout ended whose process died."""
    with work.open() as warehouse:
        unfinished = unfinished_rollout(warehouse)
    if unfinished is None:
        work.state.rollout_under_way.unlink(missing_ok=True)  # its process died before it began
        return plan_in_force(work.state.serve), None
    in_force = finish_or_undo_change(work.state.serve)
    swapped = _is_plan_under_way(work, unfinished, in_force)
    former_id = unfinished.former_plan_id
    if not swapped and former_id is not None and in_force.plan_id != former_id:
        # A canary or a plan between. None is kept where the system was started again since.
        former = plan_served_before(work.state.serve, former_id)
        if former is not None:
            change_plan(work.state.serve, former)
            in_force = former
    outcome = f"interrupted after {unfinished.state!r}; plan {in_force.plan_id} is in force"
    ended = _end(work, unfinished, DONE if swapped else FAILED, outcome)
    say(f"  rollout {unfinished.rollout_id} was {outcome}")
    return in_force, ended


def _is_plan_under_way(work: Workspace, rollout: Rollout, plan: Plan) -> bool:
    """True if it is the plan that a rollout was to bring, with the same artifacts."""
    try:
        brought = Plan.from_dict(json.loads(work.state.rollout_under_way.read_text()))
    except (OSError, ValueError, InputError):  # written by an older version
        return plan.plan_id == rollout.plan_id != rollout.former_plan_id
    return is_same_plan(plan, brought)


def check_plan(work: Workspace, plan: Plan) -> None:
    """Checks before any change.

    Raises:
        InputError: the plan does not verify, or an artifact is missing.
    """
    differences = verify_plan(plan, None)
    if differences:
        raise InputError(f"plan {plan.plan_id}", f"does not verify: {differences[0]}")
    for model, _, stage, pool in plan.placed_stages():
        if stage.artifact is None:
            continue
        if not (work.state.artifacts / stage.artifact / MANIFEST_NAME).is_file():
            raise InputError(
                f"plan {plan.plan_id}",
                f"artifact {stage.artifact} of {model.name} {list(stage.blocks)} on"
                f" {pool.gpu_class} is missing; build it first",
            )


def _begin(plan_id: str, former: str, options: RolloutOptions) -> Rollout:
    now = now_utc()
    return Rollout(
        rollout_id=f"rollout-{uuid.uuid4().hex[:8]}",
        plan_id=plan_id,
        former_plan_id=former,
        state="begun",
        requested_by=_user(),
        reason=options.reason,
        outcome=None,
        started_at=now,
        changed_at=now,
    )


def _user() -> str:
    """The user's name, or number in a container whose user has none."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return f"uid {os.getuid()}"


def record_step(
    warehouse: Warehouse, rollout: Rollout, step: str, detail: str, seconds: float
) -> None:
    """Write down that a step has ended."""
    done = RolloutStep(step=step, detail=detail, seconds=seconds, done_at=now_utc())
    add_rollout_step(warehouse, rollout.rollout_id, done)


def _change_plan(
    work: Workspace, rollout: Rollout, plan: Plan, say: Say, options: RolloutOptions = AS_USUAL
) -> PoolPipeError | None:
    """Every step recorded when it has ended; what it failed with, if it did."""
    # Open throughout: nothing may make the rollout wait between flush and swap.
    with work.open() as warehouse:
        record = partial(_record_change, warehouse, rollout, say)
        if options.compare_from == CLIENTS:
            say(f"  copying requests of clients, for {options.compare_seconds:g} s at most")
        try:
            change_plan(work.state.serve, plan, record, options=options)
        except PoolPipeError as error:
            return error
    return None


def _record_change(warehouse: Warehouse, rollout: Rollout, say: Say, step: StepDone) -> None:
    say(f"  {step.step} {step.seconds:.2f} s")
    detail = f"plan {step.plan_id}, generation {step.generation}"
    for compared in step.compared:
        say(f"    {compared}")
        detail += f"; {compared}"
    record_step(warehouse, rollout, str(step.step), detail, step.seconds)


def _end(work: Workspace, rollout: Rollout, state: str, outcome: str) -> RolloutResult:
    """How it ended, recorded unless the warehouse is in use."""
    try:
        with work.open() as warehouse:
            end_rollout(warehouse, rollout.rollout_id, state, outcome, now_utc())
        work.state.rollout_under_way.unlink(missing_ok=True)
    except WarehouseInUseError as error:
        say_on_stderr(f"{error}; the next rollout records how this one ended")
    in_force = rollout.plan_id if state == DONE else str(rollout.former_plan_id)
    return RolloutResult(
        rollout_id=rollout.rollout_id, plan_id=in_force, state=state, outcome=outcome
    )


def bake(
    state: ServerState, plan: Plan, before: Mapping[str, Outcomes], options: RolloutOptions
) -> tuple[dict[str, Outcomes], str | None]:
    """Watch the new plan: outcomes by model, and the breach that was seen, if any.

    Raises:
        MetricsError: the end was not seen.
    """
    urls = state.metrics_urls
    seen: dict[str, Outcomes] = {}
    for after in looks(lambda: read_outcomes(urls), options.bake_seconds, options.poll_seconds):
        for model in served_models(plan):
            none = Outcomes()
            seen[model.name] = after.get(model.name, none).since(before.get(model.name, none))
            breach = breach_of(model.name, model.slo_us / 1e3, seen[model.name], options)
            if breach:
                return seen, breach
    return seen, None
