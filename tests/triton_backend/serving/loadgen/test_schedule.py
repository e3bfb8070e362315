"""Schedules: rates, seeds, traces."""

import gzip
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.fakes.plans import two_stages
from tests.triton_backend.serving import small_plans
from tests.triton_backend.serving.served_applications import (
    application,
    module,
    one_stage,
    with_applications,
)
from triton_backend.contract.errors import InputError
from triton_backend.serving.loadgen.schedule import Offer, make_schedule, rates_of
from triton_backend.serving.loadgen.series import TraceFile
from triton_backend.simulator.offered import instants, read_arrivals


def offer(**changes: object) -> Offer:
    fields: dict[str, object] = {"rates_rps": {"a": 300.0, "b": 100.0}, "numbers": (0, 1)}
    return Offer(**(fields | changes))  # type: ignore[arg-type]  # fields by name


def counts(changes: dict[str, object], *, duration_s: float = 100) -> list[int]:
    schedule = make_schedule(offer(**changes), duration_s=duration_s, seed=1)
    assert np.all(np.diff(schedule.intended_us) >= 0)
    return np.bincount(schedule.model, minlength=2).tolist()


@pytest.mark.parametrize("process", ["poisson", "gamma", "deterministic"])
def test_every_process_offers_each_models_rate(process: str) -> None:
    a, b = counts({"arrivals": process})
    assert a == pytest.approx(30_000, rel=0.05)
    assert b == pytest.approx(10_000, rel=0.05)


def test_load_is_offered_to_applications_and_to_models_what_they_leave() -> None:
    graph = application("chain", module("first", model="m_a"), module("then", "first", model="m_b"))
    models = small_plans.plan(one_stage("m_a"), one_stage("m_b"))
    plan = with_applications(models, graph, alone=("m_b",))
    assert rates_of(plan, load_factor=0.5) == {
        "m_b": small_plans.RATE_RPS / 2 - 20.0,
        "chain": 20.0,
    }
    with pytest.raises(InputError, match="no model 'm_a'; it serves m_b, chain"):
        rates_of(plan, ["m_a"])


def test_a_model_sees_the_same_instants_alone_and_with_others() -> None:
    both = make_schedule(offer(), duration_s=10, seed=3)
    alone = make_schedule(offer(rates_rps={"b": 100.0}, numbers=(1,)), duration_s=10, seed=3)
    assert np.array_equal(both.intended_us[both.model == 1], alone.intended_us)


def test_a_request_trace_by_model_is_scaled_to_the_rates(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv.gz"
    path.write_bytes(gzip.compress(b"t,who\n0,x\n1,x\n1.5,y\n4,x\n5,y\n"))
    trace = TraceFile(path=path, time_column="t", model_column="who", names={"x": "a", "y": "b"})
    assert counts({"arrivals": trace}) == [30_000, 10_000]
    assert counts({"arrivals": trace, "as_recorded": True}, duration_s=5.5) == [3, 2]


@pytest.mark.parametrize(
    ("text", "replayed_ms"),
    [
        ("arrival_s\n1\n2\n4\n", [0, 1_000, 3_000, 4_500, 5_500, 7_500, 9_000, 10_000]),
        ("1000000\n2000000\n", [0, 1_000, 3_000, 4_000, 6_000, 7_000, 9_000, 10_000]),
    ],
)
def test_a_short_trace_starts_over_as_in_the_simulator(
    tmp_path: Path, text: str, replayed_ms: list[int]
) -> None:
    """After requests their mean gap passes, after gaps none beside them."""
    path = tmp_path / "trace.csv"
    path.write_text(text)
    asked = offer(rates_rps={"a": 8 / 12}, numbers=(0,), arrivals=TraceFile(path=path))
    offered = make_schedule(asked, duration_s=12, seed=0).intended_us
    simulated = instants(read_arrivals(path), "a", 8 / 12, 12_000_000, np.random.default_rng(0))
    assert offered.tolist() == simulated.tolist()
    assert (offered / offered[-1] * replayed_ms[-1]).round().tolist() == replayed_ms


def test_a_trace_without_models_is_dealt_out_by_their_rates(tmp_path: Path) -> None:
    path = tmp_path / "intervals"
    path.write_text("1000\n3000\n")
    a, b = counts({"arrivals": TraceFile(path=path), "as_recorded": True})
    assert a + b == 50_000
    assert a == pytest.approx(37_500, rel=0.03)


def test_a_trace_of_counts_needs_its_interval(tmp_path: Path) -> None:
    path = tmp_path / "counts.csv"
    path.write_text("minute,a,b\n0,600,0\n1,0,1200\n")
    trace = TraceFile(path=path, interval_s=60)
    a, b = counts({"arrivals": trace, "as_recorded": True}, duration_s=60)
    assert a == pytest.approx(600, rel=0.15)
    assert b == 0
    a, b = counts({"arrivals": trace}, duration_s=120)
    assert a == pytest.approx(36_000, rel=0.05)
    assert b == pytest.approx(12_000, rel=0.05)


def test_faults_of_a_trace_name_the_file(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"none\.csv.*cannot be read"):
        counts({"arrivals": TraceFile(path=tmp_path / "none.csv")})
    path = tmp_path / "t.csv"
    path.write_text("arrival_s,who\n0,a\n1,a\n")
    with pytest.raises(InputError, match=r"t\.csv.*no series for 'b'"):
        counts({"arrivals": TraceFile(path=path, model_column="who")})
    torn = tmp_path / "torn.csv.gz"
    torn.write_bytes(gzip.compress(b"arrival_s\n" + b"1\n" * 999)[:30])
    with pytest.raises(InputError, match=r"torn\.csv\.gz.*cannot be read as a trace"):
        counts({"arrivals": TraceFile(path=torn)})


def test_an_empty_run_is_refused() -> None:
    with pytest.raises(InputError, match="no request falls"):
        make_schedule(offer(rates_rps={"a": 0.001}, numbers=(0,)), duration_s=0.01, seed=0)


def test_a_plan_that_serves_nothing_shares_no_rate() -> None:
    plan = two_stages()
    idle = replace(plan, models=tuple(replace(model, throughput_rps=0.0) for model in plan.models))
    with pytest.raises(InputError, match="the plan serves nothing"):
        rates_of(idle, rate_rps=5.0)
