"""Watching a plan that was rolled out: what is a breach, and what is only a look that failed."""

import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from flows.clock import now_utc
from flows.release.rollout import canary, change, guarded, outcomes
from flows.release.rollout.canary import canary_plan
from flows.release.rollout.change import PlanChange
from flows.release.rollout.guarded import (
    DONE,
    FAILED,
    ROLLED_BACK,
    RolloutOptions,
    bake,
    finish_interrupted,
    roll_back,
    roll_out,
)
from flows.release.rollout.outcomes import Outcomes, breach_of, outcomes_of
from flows.release.server.running import ServerError, ServerState
from flows.state import ProjectState
from flows.system_metrics import Metrics, MetricsError, parse_metrics
from flows.workspace import Workspace
from tests.fakes.applications import hand_application, hand_module, with_applications
from tests.fakes.plans import two_stages
from tests.flows.release.rollout.test_canary import begin_and_die, of_stages, verified
from tests.triton_backend.contract.transition.full_gpus import full_gpus
from tests.triton_backend.serving.artifacts import affine
from tests.triton_backend.serving.small_plans import plan, two_stage
from triton_backend.contract.errors import InputError
from triton_backend.contract.plan import Plan
from triton_backend.contract.transition.steps import steps
from triton_backend.runtimes.stage_tensors import complete_tensors
from triton_backend.serve_folder.settings import ServeOptions, ServeSettings
from warehouse.db import WarehouseInUseError
from warehouse.observations import list_rollouts
from warehouse.plans import add_plan

PLAN = two_stages()
NAME = PLAN.models[0].name
OPTIONS = RolloutOptions(bake_seconds=0.3, poll_seconds=0.02)


@contextmanager
def counting(served: int, late: int) -> Generator[ServerState]:
    """A system whose metrics say this; every other answer is cut short."""

    class Metrics(BaseHTTPRequestHandler):
        looks = 0

        def do_GET(self) -> None:
            type(self).looks += 1
            lines = (("served", served), ("late", late))
            body = "".join(
                f'poolpipe_requests_{name}{{model="{NAME}"}} {count}\n' for name, count in lines
            ).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body) + 100 * (self.looks % 2)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base's name
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Metrics)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    ports = {"metrics": server.server_address[1]}
    yield ServerState({"address": "127.0.0.1", "ports": ports})
    server.shutdown()
    server.server_close()
    thread.join()


def test_a_breach_is_seen_between_answers_that_are_cut_short() -> None:
    with counting(50, 50) as state:
        assert "attains 50.00% of 100 requests" in str(bake(state, PLAN, {}, OPTIONS)[1])


def test_a_plan_that_does_well_passes_though_looks_fail() -> None:
    with counting(100, 0) as state:
        seen, breach = bake(state, PLAN, {}, OPTIONS)
    assert breach is None
    assert [each.ended for each in seen.values()] == [100]


def test_a_watch_that_sees_nothing_says_so() -> None:
    gone = ServerState({"address": "127.0.0.1", "ports": {"metrics": 9}})
    with pytest.raises(MetricsError, match="no metrics"):
        bake(gone, PLAN, {}, OPTIONS)


def test_requests_over_a_quota_are_no_breach() -> None:
    """Their client is to blame, not the plan."""
    lines = [
        f'poolpipe_requests_served_total{{model="{NAME}"}} 100',
        f'poolpipe_requests_dropped_total{{model="{NAME}",reason="quota"}} 900',
        f'poolpipe_requests_dropped_total{{model="{NAME}",reason="overload"}} 2',
    ]
    seen = outcomes_of(parse_metrics("\n".join(lines)))[NAME]
    assert (seen.served, seen.dropped) == (100, 2)
    assert breach_of(NAME, 10.0, seen, OPTIONS) is None


LOADING_SECONDS = 10


def giving(value: object) -> Callable[..., object]:
    """A function that returns this, whatever it is asked."""

    def given(*_: object) -> object:
        return value

    return given


class Overloaded:
    """A system whose first plan answers every request late, and every other plan in time.

    Its metrics lack what ended in the last second, as those of fronts that publish once a second.
    """

    def __init__(self, first: Plan) -> None:
        self.plans = [first]
        self.folder = Path()
        self.metrics_urls = ["http://127.0.0.1:9/metrics"]
        self._ended: list[Plan] = []  # the plan in force in each second

    def pass_seconds(self, seconds: float) -> None:
        self._ended += [self.plans[-1]] * round(seconds)

    def seconds(self) -> float:
        return len(self._ended)

    def change(self, folder: Path, following: Plan, *given: object, **options: object) -> None:
        """The first plan goes on while the workers of the next one load."""
        del folder, given, options
        self.pass_seconds(LOADING_SECONDS)
        self.plans.append(following)

    def metrics(self, *_: object) -> Metrics:
        counts = {"late": 0, "served": 0}
        taken = 0
        for in_force in self._ended[:-1]:
            counts["late" if in_force is self.plans[0] else "served"] += 100
            taken += 10 if in_force.shares_requests else 0
        model = f'model="{self.plans[0].models[0].name}"'
        lines = [
            f"poolpipe_requests_{name}_total{{{model}}} {count}" for name, count in counts.items()
        ]
        lines.append(
            f'poolpipe_shared_requests_total{{{model},entry="canary",outcome="served"}} {taken}'
        )
        return parse_metrics("\n".join(lines))


def system_in_memory(system: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have rollouts change and watch this one."""

    def in_force(_: Path) -> Plan:
        return system.plans[-1]

    for module in (change, guarded):
        for name in ("plan_in_force", "finish_or_undo_change"):
            monkeypatch.setattr(module, name, in_force)
    monkeypatch.setattr(guarded, "read_state", giving(system))
    monkeypatch.setattr(guarded, "check_plan", giving(None))
    settings = ServeSettings.begin(Path(), system.plans[-1], ServeOptions())
    monkeypatch.setattr(guarded.ServeSettings, "read", giving(settings))


@pytest.mark.long
@pytest.mark.parametrize("shares", [None, "10"])
def test_what_the_plan_before_missed_until_the_swap_is_no_breach_of_the_new_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shares: str | None
) -> None:
    served = verified(plan(affine(tmp_path / "artifacts"), plan_id="served"))
    system = Overloaded(served)

    class Watch:
        def __init__(self) -> None:
            self._begun = system.seconds()

        def seconds(self) -> float:
            return system.seconds() - self._begun

    system_in_memory(system, monkeypatch)
    monkeypatch.setattr(guarded, "change_plan", system.change)
    monkeypatch.setattr(outcomes, "Stopwatch", Watch)
    monkeypatch.setattr(outcomes.time, "sleep", system.pass_seconds)
    for module in (canary, outcomes):
        monkeypatch.setattr(module, "read_all_metrics", system.metrics)
    work = Workspace(state=ProjectState(home=tmp_path), warehouse=tmp_path / "w.duckdb")
    new = of_stages(served, artifact="other")
    options = RolloutOptions(bake_seconds=10)
    if shares:
        options = replace(options, canary=shares, canary_seconds=10)
    result = roll_out(work, new, options)
    assert (result.state, result.outcome) == (DONE, "attained its targets for 10 s")
    assert system.plans[-1].plan_id == "new"


def test_stages_without_artifacts_take_those_in_force_or_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    served = verified(plan(affine(tmp_path / "artifacts"), plan_id="served"))
    system = Overloaded(served)
    system_in_memory(system, monkeypatch)
    monkeypatch.setattr(guarded, "change_plan", system.change)
    monkeypatch.setattr(guarded, "read_outcomes", giving({}))
    work = Workspace(state=ProjectState(home=tmp_path), warehouse=tmp_path / "w.duckdb")
    options = RolloutOptions(bake_seconds=0)
    bare = of_stages(served, artifact=None)
    assert roll_out(work, bare, options).state == DONE
    built = [placed[2].artifact for placed in served.placed_stages()]
    assert None not in built
    assert [placed[2].artifact for placed in system.plans[-1].placed_stages()] == built
    longest = max(placed[2].largest for placed in served.placed_stages())
    larger = of_stages(bare, latency_us_by_batch=tuple(range(1, longest + 2)))
    with pytest.raises(InputError, match="are not built, so that dummy outputs would follow"):
        roll_out(work, larger, options)
    assert len(system.plans) == 2


def test_what_is_refused_before_anything_runs_is_recorded_nowhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A comparison of applications is refused as their canary is."""
    whole = plan(two_stage("net"), plan_id="served")
    served = with_applications(whole, hand_application("app", [hand_module("one", "net")]))
    system = Overloaded(served)
    system_in_memory(system, monkeypatch)
    work = Workspace(state=ProjectState(home=tmp_path), warehouse=tmp_path / "w.duckdb")
    new = of_stages(served, artifact="other")
    for name, value in (("check_artifacts", None), ("read_outcomes", {})):
        monkeypatch.setattr(guarded, name, giving(value))
    monkeypatch.setattr(guarded, "change_plan", system.change)
    for options in (
        RolloutOptions(bake_seconds=0, compare_requests=4),
        RolloutOptions(bake_seconds=0, canary="10"),
    ):
        with pytest.raises(InputError, match="a plan has applications") as refused:
            roll_out(work, new, options)
        assert "\n" not in str(refused.value)
    with work.open() as warehouse:
        assert list_rollouts(warehouse) == []
    assert not work.state.rollout_under_way.exists()
    assert system.plans == [served]


class Followed(Overloaded):
    """A system that changes plans at once, and may be watched or not."""

    def change(self, folder: Path, following: Plan, *given: object, **options: object) -> None:
        del folder, given, options
        self.plans.append(following)


@pytest.fixture
def followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Followed:
    system = Followed(verified(plan(affine(tmp_path / "artifacts"), plan_id="served")))
    system_in_memory(system, monkeypatch)
    monkeypatch.setattr(guarded, "change_plan", system.change)
    for name, value in (("read_outcomes", {}), ("look_before", ({}, {})), ("bake", ({}, None))):
        monkeypatch.setattr(guarded, name, giving(value))
    return system


def raising(error: BaseException) -> Callable[..., object]:
    """A function that raises this, whatever it is asked."""

    def raised(*_: object) -> object:
        raise error

    return raised


@pytest.fixture
def project(tmp_path: Path) -> Workspace:
    return Workspace(state=ProjectState(home=tmp_path), warehouse=tmp_path / "w.duckdb")


def stored(work: Workspace, given: Plan) -> Plan:
    with work.open() as warehouse:
        add_plan(warehouse, given, now_utc())
    return given


def rollouts(work: Workspace) -> list[tuple[str, str, str | None]]:
    with work.open(read_only=True) as warehouse:
        return [(each.plan_id, each.state, each.outcome) for each in list_rollouts(warehouse)]


GONE = "no metrics from h"


def test_where_metrics_cannot_be_read_nothing_begins(
    followed: Followed, project: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    with project.open():
        pass
    monkeypatch.setattr(guarded, "read_outcomes", raising(MetricsError(GONE)))
    with pytest.raises(MetricsError, match=GONE):
        roll_out(project, of_stages(followed.plans[0], artifact="other"), OPTIONS)
    assert [each.plan_id for each in followed.plans] == ["served"]
    assert rollouts(project) == []
    assert not project.state.rollout_under_way.exists()


@pytest.mark.parametrize("call", ["look_before", "bake"])
def test_a_plan_that_was_not_watched_is_recorded_as_that(
    followed: Followed, project: Workspace, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    monkeypatch.setattr(guarded, call, raising(MetricsError(GONE)))
    with pytest.raises(MetricsError, match=GONE):
        roll_out(project, of_stages(followed.plans[0], artifact="other"), OPTIONS)
    assert rollouts(project) == [("new", DONE, f"in force, its attainment not observed: {GONE}")]
    assert not project.state.rollout_under_way.exists()


def test_a_breach_is_answered_before_the_warehouse_is_asked_for(
    followed: Followed,
    project: Workspace,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The next rollout records how this one ended."""
    free = Workspace.open

    def held(*_: object, **__: object) -> object:
        raise WarehouseInUseError("w.duckdb", "is in use by another process")

    def breach(*_: object) -> tuple[dict[str, Outcomes], str]:
        monkeypatch.setattr(Workspace, "open", held)
        return {}, "net attains 50.00%"

    monkeypatch.setattr(guarded, "bake", breach)
    result = roll_out(project, of_stages(followed.plans[0], artifact="other"), OPTIONS)
    assert [each.plan_id for each in followed.plans] == ["served", "new", "served"]
    assert (result.state, result.plan_id) == (ROLLED_BACK, "served")
    said = "w.duckdb: is in use by another process; the next rollout records how this one ended\n"
    assert capsys.readouterr().err == said
    monkeypatch.setattr(Workspace, "open", free)
    assert finish_interrupted(project).plan_id == "served"
    ((plan_id, state, outcome),) = rollouts(project)
    assert (plan_id, state) == ("new", FAILED)
    assert "plan served is in force" in str(outcome)


def test_rolling_back_begins_at_a_rollout_that_was_cut_off(
    followed: Followed, project: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    served = stored(project, followed.plans[0])
    monkeypatch.setattr(guarded, "plan_served_before", giving(None))
    second = of_stages(served, "second", artifact="other")
    assert roll_out(project, second, OPTIONS).state == DONE
    monkeypatch.setattr(guarded, "bake", raising(KeyboardInterrupt()))
    with pytest.raises(KeyboardInterrupt):
        roll_out(project, of_stages(served, "third", artifact="another"), OPTIONS)
    monkeypatch.setattr(guarded, "bake", giving(({}, None)))
    assert roll_back(project, OPTIONS).plan_id == "second"
    assert followed.plans[-1].plan_id == "second"


def test_rolling_back_goes_no_further_than_before_a_rollout_that_died(
    followed: Followed, project: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The plan before the last rollout is what the user asks for."""
    first = stored(project, followed.plans[0])
    second = of_stages(first, "second", artifact="other")
    assert roll_out(project, second, OPTIONS).state == DONE
    third = of_stages(first, "third", artifact="another")
    begin_and_die(project, second, third, "rollout-died")
    followed.plans.append(canary_plan(second, third, 0.2))

    def served_before(_: Path, plan_id: str) -> Plan | None:
        return second if plan_id == "second" else None

    monkeypatch.setattr(guarded, "plan_served_before", served_before)
    done = roll_back(project, OPTIONS)
    assert (done.state, done.plan_id) == (DONE, "second")
    assert done.rollout_id == "rollout-died"
    assert followed.plans[-1].plan_id == "second"
    assert roll_back(project, OPTIONS).plan_id == "served"


@pytest.mark.parametrize("ended", [KeyboardInterrupt(), SystemExit(143)])
def test_a_rollout_interrupted_while_it_observes_says_what_is_in_force(
    followed: Followed,
    project: Workspace,
    monkeypatch: pytest.MonkeyPatch,
    ended: BaseException,
) -> None:
    monkeypatch.setattr(guarded, "bake", raising(ended))
    said: list[str] = []
    with pytest.raises(type(ended)):
        roll_out(project, of_stages(followed.plans[0], artifact="other"), OPTIONS, said.append)
    outcome = "in force, its attainment not observed: interrupted"
    assert rollouts(project) == [("new", DONE, outcome)]
    assert not project.state.rollout_under_way.exists()
    assert f"  plan new is {outcome}" in said


def test_without_a_rollout_there_is_none_to_go_back_from(
    followed: Followed, project: Workspace
) -> None:
    with pytest.raises(InputError, match="no finished rollout to go back from"):
        roll_back(project, OPTIONS)
    assert len(followed.plans) == 1


NOT_READY = "workers of plan after are not ready"
BACK_NOT_READY = (
    "because the way back failed, too: workers of plan before-after.2-before.1 are not ready"
)


class FullGpus:
    """A system whose GPUs do not hold two plans; these changes to the next plan fail."""

    def __init__(self, first: Plan, failing: set[int]) -> None:
        self.plans = [first]
        self.folder = Path()
        self.metrics_urls = ["http://127.0.0.1:9/metrics"]
        self._failing, self._changes = failing, 0

    def change_at_once(self, folder: Path, following: Plan, *_: object) -> PlanChange:
        del folder
        self._changes += 1
        if self._changes in self._failing:
            raise ServerError(f"workers of plan {following.plan_id} are not ready")
        self.plans.append(following)
        return PlanChange(plan_id=following.plan_id, generation=self._changes, steps=())


def of_full_gpus() -> tuple[Plan, Plan]:
    """Two plans with plans between."""
    gib = {"x": 6, "y": 5}
    before = full_gpus({"x": [0], "y": [1, 2]}, gib, plan_id="before")
    after = full_gpus({"x": [1], "y": [2, 0]}, gib, plan_id="after")
    return complete_tensors(before), complete_tensors(after)


def change_in_memory(system: FullGpus, monkeypatch: pytest.MonkeyPatch) -> None:
    system_in_memory(system, monkeypatch)
    monkeypatch.setattr(change, "_change_at_once", system.change_at_once)
    monkeypatch.setattr(guarded, "read_outcomes", giving({}))


@pytest.mark.long
@pytest.mark.parametrize(
    ("failing", "in_force", "said"),
    [
        ({3}, "before", NOT_READY),
        (
            {3, 4},
            "before-after.2",
            f"{NOT_READY}; plan before-after.2 is in force, {BACK_NOT_READY}",
        ),
    ],
)
def test_a_change_in_several_steps_that_fails_puts_the_former_plan_back(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    failing: set[int],
    in_force: str,
    said: str,
) -> None:
    before, after = of_full_gpus()
    system = FullGpus(before, failing)
    change_in_memory(system, monkeypatch)
    work = Workspace(state=ProjectState(home=tmp_path), warehouse=tmp_path / "w.duckdb")
    with pytest.raises(ServerError) as failed:
        roll_out(work, after, RolloutOptions(bake_seconds=0))
    assert (str(failed.value), system.plans[-1].plan_id) == (said, in_force)
    with work.open(read_only=True) as warehouse:
        (last,) = list_rollouts(warehouse)
    ended = f"{said}; the former plan goes on" if in_force == "before" else None
    assert last.outcome == ended


@pytest.mark.long
@pytest.mark.parametrize("changes", [1, 2])
def test_a_rollout_that_died_under_a_plan_between_is_taken_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changes: int
) -> None:
    before, after = of_full_gpus()
    system = FullGpus(before, set())
    change_in_memory(system, monkeypatch)
    monkeypatch.setattr(guarded, "plan_served_before", giving(before))
    work = Workspace(state=ProjectState(home=tmp_path), warehouse=tmp_path / "w.duckdb")
    begin_and_die(work, before, after, "rollout-died")
    for between in steps(before, after)[:changes]:
        system.change_at_once(tmp_path, between)
    assert system.plans[-1].plan_id == f"before-after.{changes}"
    assert finish_interrupted(work).plan_id == "before"
    assert system.plans[-1].plan_id == "before"
    with work.open(read_only=True) as warehouse:
        (last,) = list_rollouts(warehouse)
    assert (last.state, last.outcome) == (
        FAILED,
        "interrupted after 'begun'; plan before is in force",
    )
