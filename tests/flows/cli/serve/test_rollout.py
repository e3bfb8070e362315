import os
import re
from datetime import UTC, datetime
from pathlib import Path

import pytest

from flows.files import read_plan, write_plan
from flows.release.rollout import generations
from flows.release.rollout.lock import one_change
from flows.workspace import workspace
from tests.flows.cli.conftest import WAREHOUSE, Command, giving
from tests.triton_backend.contract.transition.full_gpus import full_gpus
from triton_backend.serve_folder.settings import ServeOptions, ServeSettings
from warehouse.db import open_warehouse
from warehouse.observations import Rollout, begin_rollout


@pytest.mark.usefixtures("planned")
@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ((), "takes a plan, --rollback or --status, one of them"),
        (("plan.json", "--rollback"), "one of them"),
        (("plan.json",), "nothing is being served from here"),
        (("--rollback",), "nothing is being served from here"),
        (("none.json",), "none.json: no such file"),
        (("plan.json", "--dry-run"), "nothing is being served from here"),
        (("--status", "--dry-run"), "--dry-run takes a plan"),
        (("plan.json", "--flush", "--in-place-only"), "a flush is no change in place"),
        (("plan.json", "--previous", "plan.json"), "--previous goes with --dry-run"),
    ],
)
def test_a_rollout_that_cannot_be_is_refused(
    arguments: tuple[str, ...], reason: str, poolpipe: Command
) -> None:
    ran = poolpipe("rollout", *arguments)
    assert (ran.code, ran.out) == (2, "")
    assert reason in ran.err
    assert ran.err.count("\n") == 1


@pytest.mark.usefixtures("planned")
def test_the_history_of_rollouts_begins_empty(poolpipe: Command) -> None:
    document = poolpipe("rollout", "--status", "--json").document
    assert document == {"rollouts": [], "under_way": None}
    assert poolpipe("rollout", "--status").out == "no rollout so far\n"


def store_rollout(state: str, outcome: str | None) -> None:
    began = datetime(2026, 11, 1, 12, 0, 1, 234567, tzinfo=UTC)
    rollout = Rollout(
        rollout_id="rollout-1",
        plan_id="new",
        former_plan_id="old",
        state=state,
        requested_by="user",
        reason="more cars",
        outcome=outcome,
        started_at=began,
        changed_at=began,
    )
    with open_warehouse(WAREHOUSE) as warehouse:
        begin_rollout(warehouse, rollout)


@pytest.mark.usefixtures("planned")
def test_the_history_tells_a_rollout_under_way_from_one_whose_process_died(
    poolpipe: Command,
) -> None:
    store_rollout("baking", None)
    assert "its process died; the next rollout" in poolpipe("rollout", "--status").out
    work = workspace(Path(WAREHOUSE))
    with one_change(work.state.change_lock, wait=False):
        shown = poolpipe("rollout", "--status").out
        document = poolpipe("rollout", "--status", "--json").document
    assert f"under way: process {os.getpid()} (" in shown
    assert f"process {os.getpid()} (" in document["under_way"]


@pytest.mark.usefixtures("planned")
def test_the_history_of_rollouts_gives_instants_to_the_second(poolpipe: Command) -> None:
    store_rollout("done", "attained its targets for 30 s")
    shown = poolpipe("rollout", "--status").out
    assert "2026-11-01 12:00:01 " in shown
    assert all(text in shown for text in ("more cars", "attained its targets for 30 s", "old"))
    (stored,) = poolpipe("rollout", "--status", "--json").document["rollouts"]
    assert stored["started_at"].startswith("2026-11-01T12:00:01.234567")


@pytest.mark.usefixtures("planned")
def test_a_dry_run_shows_what_would_start_stay_and_end(poolpipe: Command) -> None:
    arguments = ("rollout", "plan.json", "--dry-run", "--previous", "plan.json")
    document = poolpipe(*arguments, "--json").document
    (step,) = document["steps"]
    assert document["from"] == document["to"] == step["plan_id"]
    assert (step["stay"] > 0, document["seconds"]) == (True, None)
    assert (step["start"], step["end"], step["load"], step["bytes_loaded"]) == ([], [], {}, {})
    # A plan file can be looked at without a warehouse, too.
    shown = poolpipe(*arguments, "--warehouse", "none.duckdb")
    assert (shown.code, "memory not known" in shown.out) == (0, True)
    assert re.search(r"workers stay +of them load stages +start +end", shown.out)


def write_full_gpus() -> None:
    """Two plans of which GPUs do not hold both: `before.json`, `after.json`."""
    gib = {"x": 6, "y": 5}
    write_plan(Path("before.json"), full_gpus({"x": [0], "y": [1, 2]}, gib, plan_id="before"))
    write_plan(Path("after.json"), full_gpus({"x": [1], "y": [2, 0]}, gib, plan_id="after"))


def test_a_dry_run_refuses_plans_between_where_answers_are_compared(poolpipe: Command) -> None:
    write_full_gpus()
    arguments = ("rollout", "after.json", "--dry-run", "--previous", "before.json", "--json")
    assert len(poolpipe(*arguments).document["steps"]) > 1
    refused = poolpipe(*arguments, "--compare-requests", "4")
    assert refused.code == 2
    assert "it is to be made at once" in refused.err


def test_a_dry_run_of_a_canary_is_of_the_gateways_that_serve(
    poolpipe: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_full_gpus()
    in_force = read_plan(Path("before.json"))
    options = ServeOptions(gateways=2, standby=True)
    settings = ServeSettings.begin(Path("serve"), in_force, options)
    monkeypatch.setattr(generations, "plan_in_force", giving(in_force))
    monkeypatch.setattr(ServeSettings, "read", giving(settings))
    refused = poolpipe("rollout", "after.json", "--dry-run", "--canary", "10")
    assert refused.code == 2
    assert "two gateways (--gateways 2) serve no canary" in refused.err
