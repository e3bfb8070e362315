from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from tests.fakes.minutes import model_minute
from triton_backend.contract.errors import InputError
from warehouse.db import Warehouse
from warehouse.observations import (
    DropMinute,
    ModelMinute,
    Rollout,
    RolloutStep,
    StatisticsFile,
    VGpuMinute,
    add_rollout_step,
    add_statistics,
    begin_rollout,
    drops_between,
    end_rollout,
    find_rollout,
    list_rollouts,
    rates_between,
    rollout_steps,
    unfinished_rollout,
)

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
DAY = (NOON - timedelta(hours=12), NOON + timedelta(hours=12))


def minute(at: int, *, offered: int, served: int) -> ModelMinute:
    others = {"dropped": offered - served, "batches": 10, "latency_sum_us": 1000 * served}
    return model_minute(NOON + timedelta(minutes=at), offered, served=served, **others)


def vgpu_minute(vgpu: int, busy_us: int) -> VGpuMinute:
    return VGpuMinute(
        instance="i",
        plan_id="p",
        vgpu=vgpu,
        pool="l4-0",
        model="m",
        stage=0,
        gpu_class="L4",
        share=150,
        minute=NOON,
        batches=5,
        busy_us=busy_us,
        profiled_us=30_000_000,
    )


def rollout(name: str, *, at: datetime = NOON) -> Rollout:
    return Rollout(
        rollout_id=name,
        plan_id="new",
        former_plan_id="old",
        state="requested",
        requested_by="operator",
        reason="more load",
        outcome=None,
        started_at=at,
        changed_at=at,
    )


def test_minutes_become_rates_and_attainment(store: Warehouse) -> None:
    rows = [minute(0, offered=120, served=90), minute(1, offered=60, served=60)]
    assert add_statistics(store, StatisticsFile(path="f", digest="1", models=rows), NOON)
    rates = rates_between(store, *DAY)
    assert [(r["offered_rps"], r["served_rps"]) for r in rates] == [(2.0, 1.5), (1.0, 1.0)]
    (hour,) = store.rows("SELECT * FROM attainment_by_hour")
    assert (hour["hour"], hour["offered"], hour["attainment"]) == (NOON, 180, 150 / 180)


def test_a_file_read_twice_changes_nothing_and_one_that_grew_says_its_minutes_anew(
    store: Warehouse,
) -> None:
    first = StatisticsFile(path="f", digest="1", models=[minute(0, offered=60, served=60)])
    grown = replace(first, digest="2", models=[minute(0, offered=120, served=120)])
    assert [add_statistics(store, file, NOON) for file in (first, first, grown)] == [
        True,
        False,
        True,
    ]
    assert [row["offered_rps"] for row in rates_between(store, *DAY)] == [2.0]


def test_statistics_that_cannot_be_stored_leave_no_trace(store: Warehouse) -> None:
    bad = replace(minute(0, offered=1, served=1), plan_id=None)
    with pytest.raises(Exception, match="NOT NULL"):
        add_statistics(store, StatisticsFile(path="f", digest="1", models=[bad]), NOON)
    assert store.rows("SELECT * FROM ingested_files") == []


def test_drift_is_measured_over_profiled_time(store: Warehouse) -> None:
    rows = [vgpu_minute(0, 30_000_000), vgpu_minute(1, 45_000_000)]
    add_statistics(store, StatisticsFile(path="f", digest="1", vgpus=rows), NOON)
    found = store.rows("SELECT * FROM latency_drift ORDER BY measured_over_profiled DESC")
    assert [(r["vgpu"], r["measured_over_profiled"]) for r in found] == [(1, 1.5), (0, 1.0)]


def test_a_half_gpu_that_is_always_busy_counts_as_half_a_gpu(store: Warehouse) -> None:
    add_statistics(
        store, StatisticsFile(path="f", digest="1", vgpus=[vgpu_minute(0, 60_000_000)]), NOON
    )
    (row,) = store.rows("SELECT * FROM gpus_by_hour")
    assert (row["gpu_class"], row["gpus_busy"], row["gpus_planned"]) == ("L4", 0.5, None)


def test_a_shared_vgpu_has_a_row_per_model_and_is_busy_with_both(store: Warehouse) -> None:
    rows = [replace(vgpu_minute(0, 15_000_000), model=name) for name in ("m", "n")]
    add_statistics(store, StatisticsFile(path="f", digest="1", vgpus=rows), NOON)
    found = store.rows("SELECT * FROM latency_drift")
    assert sorted((r["model"], r["measured_over_profiled"]) for r in found) == [
        ("m", 0.5),
        ("n", 0.5),
    ]
    (hour,) = store.rows("SELECT * FROM gpus_by_hour")
    assert hour["gpus_busy"] == 0.25


def test_drops_are_summed_by_reason(store: Warehouse) -> None:
    rows = [
        DropMinute(
            instance="i",
            model="m",
            minute=NOON + timedelta(minutes=at),
            reason=reason,
            dropped=count,
        )
        for at, reason, count in ((0, "deadline", 1), (1, "deadline", 2), (1, "cancelled", 9))
    ]
    add_statistics(store, StatisticsFile(path="f", digest="1", drops=rows), NOON)
    assert [(r["reason"], r["dropped"]) for r in drops_between(store, *DAY)] == [
        ("cancelled", 9),
        ("deadline", 3),
    ]


def test_a_rollout_keeps_its_steps_and_its_end(store: Warehouse) -> None:
    begin_rollout(store, rollout("r"))
    steps = [
        RolloutStep(step=name, detail="", seconds=1.5, done_at=NOON + timedelta(seconds=number))
        for number, name in enumerate(("preload", "flush", "swap"))
    ]
    for step in steps:
        add_rollout_step(store, "r", step)
    running = unfinished_rollout(store)
    assert running is not None
    assert (running.state, running.outcome) == ("swap", None)
    later = NOON + timedelta(minutes=1)
    end_rollout(store, "r", "done", "serving the new plan", later)
    ended = replace(rollout("r"), state="done", outcome="serving the new plan", changed_at=later)
    assert find_rollout(store, "r") == ended
    assert rollout_steps(store, "r") == steps
    assert unfinished_rollout(store) is None


def test_a_second_rollout_waits_for_the_first_to_end(store: Warehouse) -> None:
    begin_rollout(store, rollout("first"))
    with pytest.raises(InputError, match="first has not ended; it reached 'requested'"):
        begin_rollout(store, rollout("second"))
    end_rollout(store, "first", "aborted", "a worker failed", NOON)
    begin_rollout(store, rollout("second", at=NOON + timedelta(hours=1)))
    assert [r.rollout_id for r in list_rollouts(store)] == ["second", "first"]


def test_a_step_of_an_unknown_rollout_is_refused(store: Warehouse) -> None:
    step = RolloutStep(step="flush", detail="", seconds=0.0, done_at=NOON)
    with pytest.raises(InputError, match="rollout 'r': is not in"):
        add_rollout_step(store, "r", step)
    assert rollout_steps(store, "r") == []
