"""Values that the page derives from metrics and event files."""

import json
from pathlib import Path

import pytest

from flows.reporting.ui.live import LiveView, Sample, percentile_ms
from flows.reporting.ui.vgpus import VGpuWatch
from flows.system_metrics import parse_metrics
from tests.flows.reporting.example import example_plan, shared_plan


def metrics(offered: int, **others: float) -> str:
    values = {"served": offered, "late": 0, "failed": 0, "dropped": 0} | others
    lines = [f'poolpipe_requests_offered{{model="m"}} {offered}']
    lines += [
        f'poolpipe_requests_{name}{{model="m"}} {values[name]}'
        for name in ("served", "late", "failed")
    ]
    lines.append(f'poolpipe_requests_dropped{{model="m",reason="deadline"}} {values["dropped"]}')
    lines.append(f'poolpipe_latency_ms_bucket{{model="m",le="10"}} {values["served"]}')
    lines.append(f'poolpipe_latency_ms_bucket{{model="m",le="+Inf"}} {values["served"]}')
    lines.append(f'poolpipe_latency_ms_sum{{model="m"}} {5 * values["served"]}')
    lines.append('poolpipe_pool_vgpus{pool="fast-0",gpu_class="fast"} 2')
    busy = values.get("busy_us", 0)
    own = 'model="m",pipeline="0",gpu_class="fast",stage="0",pool="fast-0"'
    lines.append(f"poolpipe_stage_busy_us{{{own}}} {busy}")
    lines.append('poolpipe_plan{plan_id="p1",generation="3"} 1')
    lines.append('poolpipe_rollout_state{state="serving"} 1')
    return "\n".join(lines)


def sample(at_s: float, offered: int, **others: float) -> Sample:
    return Sample(at_s, parse_metrics(metrics(offered, **others)))


def test_rates_attainment_and_latency_come_from_the_window() -> None:
    view = LiveView()
    view.add(sample(100, 1_000))
    assert view.now()["models"] == {}
    view.add(sample(110, 1_100, served=1_095, dropped=5, busy_us=5e6))
    now = view.now()
    model = now["models"]["m"]
    assert (model["offered_rps"], model["attainment"]) == (10, 0.95)
    assert (model["p50_ms"], model["mean_ms"]) == (5, pytest.approx(5))
    assert now["pools"] == {"m|0|fast|0": 0.25}
    assert now["plan"] == {"plan_id": "p1", "generation": "3"}
    assert now["rollout"] == "serving"
    assert now["drops"] == [{"model": "m", "reason": "deadline", "count": 5}]


def test_samples_older_than_the_window_are_forgotten() -> None:
    view = LiveView(window_s=10)
    for at_s in range(0, 40, 2):
        view.add(sample(at_s, 100 * at_s if at_s < 20 else 2_000))
    assert view.now()["models"]["m"]["offered_rps"] == 0
    assert view.now()["models"]["m"]["attainment"] is None


def test_a_counter_that_starts_over_counts_from_zero() -> None:
    view = LiveView()
    view.add(sample(0, 5_000))
    view.add(sample(10, 50))
    assert view.now()["models"]["m"]["offered_rps"] == 5


def test_whole_minutes_are_kept_and_partial_ones_are_not() -> None:
    view = LiveView()
    for at_s in range(90, 310, 2):
        view.add(sample(at_s, at_s))
    assert [row["minute"] for row in view.closed_minutes()] == [120, 180, 240]
    assert view.closed_minutes()[0]["models"]["m"]["offered"] == 60


def test_percentiles_are_interpolated_and_bounded_by_the_last_finite_bucket() -> None:
    buckets = {10.0: 50, 20.0: 100, float("inf"): 200}
    assert percentile_ms(buckets, 0.25) == 10
    assert percentile_ms(buckets, 0.375) == pytest.approx(15)
    assert percentile_ms(buckets, 0.99) == 20
    assert percentile_ms({}, 0.5) is None


def event(kind: str, **fields: object) -> str:
    return json.dumps({"t": kind} | fields) + "\n"


def test_vgpus_are_told_busy_slow_lost_and_back(tmp_path: Path) -> None:
    watch = VGpuWatch(tmp_path, example_plan(), "2")
    assert {row["batches"] for row in watch.read()} == {0}
    path = tmp_path / "events-0-0000.jsonl"
    hops = [{"vgpu": 0}, {"vgpu": 3}]
    lines = [
        event("Plan", now_us=0, generation=1, plan_id="old"),
        event("WorkerLost", now_us=1, vgpu=4),
        event("Plan", now_us=2, generation=2, plan_id="p1"),
        event("Dispatch", batch_id=1, model=0, pipeline=0, hops=hops, samples=2),
        event("StageDone", now_us=30_000, batch_id=1, stage=0, start_us=0, end_us=30_000),
        event("WorkerLost", now_us=40_000, vgpu=1),
        "nonsense\n",
    ]
    path.write_text("".join(lines))
    rows = watch.read()
    assert rows[0]["drift"] == pytest.approx(1.5)
    assert rows[0]["busy"] == pytest.approx(0.75)
    assert [row["lost"] for row in rows] == [False, True] + [False] * 6
    with path.open("a") as file:
        done = event(
            "StageDone", now_us=60_000, batch_id=1, stage=1, start_us=40_000, end_us=50_000
        )
        file.write(done + event("WorkerBack", now_us=61_000, vgpu=1) + '{"t": "Ab')
    rows = watch.read()
    assert rows[3]["batches"] == 1
    assert rows[3]["drift"] == pytest.approx(1)
    assert not rows[1]["lost"]
    (tmp_path / "events-0-0001.jsonl").write_text(event("WorkerLost", now_us=70_000, vgpu=5))
    assert watch.read()[5]["lost"]


def test_a_shared_vgpu_tells_its_time_and_profile_by_the_batches_models(tmp_path: Path) -> None:
    lines: list[str] = []
    for number, (model, took_us) in enumerate(((0, 20_000), (1, 40_000))):
        batch = {"model": model, "pipeline": 0, "hops": [{"vgpu": 0}], "samples": 2}
        times = {"start_us": 50_000 * number, "end_us": 50_000 * number + took_us}
        lines.append(event("Dispatch", batch_id=number, **batch))
        lines.append(event("StageDone", now_us=100_000, batch_id=number, stage=0, **times))
    (tmp_path / "events-0.jsonl").write_text("".join(lines))
    row = VGpuWatch(tmp_path, shared_plan(), "1").read()[0]
    assert row["by_model"] == [[0, pytest.approx(0.2)], [1, pytest.approx(0.4)]]
    assert row["drift"] == pytest.approx(60 / 40)


def test_uses_older_than_a_minute_are_forgotten(tmp_path: Path) -> None:
    batch = {"model": 0, "pipeline": 0, "hops": [{"vgpu": 0}], "samples": 1}
    lines = [event("Dispatch", batch_id=1, **batch)]
    lines.append(event("StageDone", now_us=10, batch_id=1, stage=0, start_us=0, end_us=10))
    lines.append(event("Arrival", now_us=100_000_000))
    (tmp_path / "events-0.jsonl").write_text("".join(lines))
    row = VGpuWatch(tmp_path, example_plan(), "1").read()[0]
    assert (row["batches"], row["drift"], row["idle_s"]) == (0, None, None)


def test_vgpus_are_told_of_a_life_after_the_hosts_restart(tmp_path: Path) -> None:
    """Its clock begins again, and so did the names of files of an earlier form."""
    batch = {"batch_id": 1, "model": 0, "pipeline": 0, "hops": [{"vgpu": 0}], "samples": 2}

    def life(now_us: int) -> None:
        header = event("Plan", now_us=now_us, generation=1, plan_id="p1", rollout=False)
        times = {"start_us": now_us + 10, "end_us": now_us + 20_010}
        done = event("StageDone", now_us=now_us + 20_020, batch_id=1, stage=0, **times)
        path = tmp_path / f"events-{now_us:020d}-0000.jsonl"
        path.write_text(header + event("Dispatch", **batch) + done)

    watch = VGpuWatch(tmp_path, example_plan(), "1")
    life(10**12)
    assert watch.read()[0]["batches"] == 1
    life(10**9)
    row = watch.read()[0]
    assert (row["batches"], row["drift"], row["busy"]) == (1, 1.0, pytest.approx(1, rel=1e-3))


def test_shared_batches_without_members_are_forgotten(tmp_path: Path) -> None:
    watch = VGpuWatch(tmp_path, example_plan(), "1")
    capacity = [[1, 0, 0, 1]]
    lines = [{"t": "Plan", "generation": 1}]
    lines += [{"t": "SharedBatch", "shared_batch_id": n, "members": capacity} for n in range(3)]
    lines += [{"t": "SharedBatch", "shared_batch_id": n, "members": []} for n in range(2)]
    (tmp_path / "events-1-0.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    watch.read()
    assert list(watch._shared_batches) == [2]
