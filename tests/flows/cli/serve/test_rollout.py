from datetime import UTC, datetime

import pytest

from tests.flows.cli.conftest import WAREHOUSE, Command
from warehouse.db import open_warehouse
from warehouse.observations import Rollout, begin_rollout


@pytest.mark.usefixtures("planned")
@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ((), "takes a plan, --rollback or --status, one of them"),
        (("plan.json", "--rollback"), "one of them"),
        (("plan.json",), "nothing is being served from here"),
        (("--rollback",), "no finished rollout to go back from"),
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
    assert poolpipe("rollout", "--status", "--json").document == {"rollouts": []}
    assert poolpipe("rollout", "--status").out == "no rollout so far\n"


@pytest.mark.usefixtures("planned")
def test_the_history_of_rollouts_gives_instants_to_the_second(poolpipe: Command) -> None:
    began = datetime(2026, 11, 1, 12, 0, 1, 234567, tzinfo=UTC)
    rollout = Rollout(
        rollout_id="rollout-1",
        plan_id="new",
        former_plan_id="old",
        state="done",
        requested_by="user",
        reason="more cars",
        outcome="attained its targets for 30 s",
        started_at=began,
        changed_at=began,
    )
    with open_warehouse(WAREHOUSE) as warehouse:
        begin_rollout(warehouse, rollout)
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
