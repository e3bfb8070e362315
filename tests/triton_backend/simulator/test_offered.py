"""Offered load: processes, trace files, merging."""

import gzip
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.fakes.plans import Own, make_plan
from tests.triton_backend.simulator.test_results import with_entries
from triton_backend.contract.errors import InputError
from triton_backend.simulator.offered import (
    Arrivals,
    Counts,
    Deterministic,
    Gamma,
    Instant,
    Offer,
    Replay,
    Stated,
    StatedRequests,
    TraceFormat,
    instants,
    offered_requests,
    read_arrivals,
)

SECOND = 1_000_000


def times(spec: Arrivals, rate_rps: float) -> list[int]:
    return instants(spec, "m", rate_rps, 10 * SECOND, np.random.default_rng(0)).tolist()


def test_every_process_holds_its_rate() -> None:
    trace = Replay(by_model={"": np.asarray([0, 1, 5, 6, 9], dtype=np.int64) * SECOND})
    counts = Counts(by_model={"m": np.asarray([1.0, 3.0])}, interval_us=SECOND)
    for spec in (Gamma(), Gamma(shape=0.5), Deterministic(), trace, counts):
        assert len(times(spec, 1_000.0)) == pytest.approx(10_000, rel=0.05)
        assert times(spec, 0.0) == []


def test_stated_instants_need_no_rate() -> None:
    assert times(Instant(by_model={"m": np.asarray([5, 3])}), 0.0) == [3, 5]
    assert times(Instant(by_model={"other": np.asarray([5, 3])}), 9.0) == []


def test_a_trace_without_the_model_is_named() -> None:
    with pytest.raises(InputError, match="no series for model 'm'"):
        times(Replay(by_model={"other": np.asarray([0, SECOND])}), 1.0)


def test_requests_of_all_models_are_merged_by_arrival() -> None:
    plan = make_plan([[Own(latency_us=(10,))]], [[Own(latency_us=(10,))]], slo_us=500)
    arrivals = Instant(by_model={"m0": np.asarray([10, 30]), "m1": np.asarray([10, 20])})
    rows = offered_requests(plan, Offer(arrivals=arrivals))
    assert rows["arrival_us"].tolist() == [10, 10, 20, 30]
    assert rows["model"].tolist() == [0, 1, 1, 0]
    assert rows["deadline_us"].tolist() == [510, 510, 520, 530]


def test_entries_share_their_models_rate_as_planned_and_have_budgets_of_their_own() -> None:
    offer = Offer(rates_rps={"m": 7_500.0}, duration_us=10 * SECOND)
    rows = offered_requests(with_entries(), offer)
    counts = np.bincount(rows["queue"])
    assert counts.tolist() == pytest.approx([50_000, 25_000], rel=0.05)
    budgets = rows["deadline_us"] - rows["arrival_us"]
    assert set(budgets[rows["queue"] == 1].tolist()) == {7_000}


def test_stated_requests_keep_the_order_of_the_file_at_one_instant(tmp_path: Path) -> None:
    rows = "0.5,m1,,\n0.5,m0,2.5,3\n0.1,m0,,\n2.0,m0,,\n"
    (tmp_path / "trace.csv").write_text("arrival_s,model,deadline_ms,samples\n" + rows)
    stated = read_arrivals(tmp_path / "trace.csv", TraceFormat(as_is=True))
    plan = make_plan([[Own(latency_us=(10,))]], [[Own(latency_us=(10,))]], slo_us=500)
    offer = Offer(arrivals=stated, rates_rps={"m0": 1.0, "m1": 1.0}, duration_us=SECOND)
    found = offered_requests(plan, offer)
    assert found[["arrival_us", "model", "samples"]].tolist() == [
        (100_000, 0, 1),
        (500_000, 1, 1),
        (500_000, 0, 3),
    ]
    assert (found["deadline_us"] - found["arrival_us"]).tolist() == [500, 500, 2_500]
    alone = offered_requests(plan, replace(offer, rates_rps={"m1": 1.0}))
    assert alone["model"].tolist() == [1]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("arrival_s\n1\n", "a request names no model; the plan has m0, m1"),
        ("arrival_s,model\n1,m2\n", "no model 'm2'"),
        ("arrival_s,model,entry\n1,m0,cut\n", "no entry 'cut'; it lists none"),
    ],
)
def test_stated_requests_are_of_the_plan(text: str, reason: str, tmp_path: Path) -> None:
    (tmp_path / "trace.csv").write_text(text)
    stated = read_arrivals(tmp_path / "trace.csv", TraceFormat(as_is=True))
    plan = make_plan([[Own(latency_us=(10,))]], [[Own(latency_us=(10,))]], slo_us=500)
    with pytest.raises(InputError, match=reason):
        offered_requests(plan, Offer(arrivals=stated))


def test_a_request_of_a_model_with_entries_names_one() -> None:
    stated = StatedRequests(
        arrival_us=np.zeros(1, dtype=np.int64),
        deadline_us=np.full(1, -1),
        samples=np.ones(1, dtype=np.int64),
        models=("m",),
        entries=("",),
    )
    with pytest.raises(InputError, match="a request names no entry; it lists whole, cut"):
        offered_requests(with_entries(), Offer(arrivals=Stated(requests=stated)))


def test_a_trace_of_requests_is_read_also_compressed(tmp_path: Path) -> None:
    text = "t_s,service\n5.0,code\n5.5,conv\n6.0,code\n"
    (tmp_path / "trace.csv").write_text(text)
    (tmp_path / "trace.csv.gz").write_bytes(gzip.compress(text.encode()))
    trace = TraceFormat(time_column="t_s", model_column="service", names={"code": "m"})
    for name in ("trace.csv", "trace.csv.gz"):
        found = read_arrivals(tmp_path / name, trace)
        assert isinstance(found, Replay)
        assert {k: v.tolist() for k, v in found.by_model.items()} == {"m": [0, SECOND, 2 * SECOND]}


def test_counts_and_bare_intervals_are_read(tmp_path: Path) -> None:
    (tmp_path / "counts.csv").write_text("minute,f1,f2\n0,60,0\n1,120,5\n")
    counts = read_arrivals(tmp_path / "counts.csv", TraceFormat(interval_us=60 * SECOND))
    assert isinstance(counts, Counts)
    assert counts.by_model["f1"].tolist() == [60, 120]
    (tmp_path / "gaps.txt").write_text("100\n200\n300\n")
    gaps = read_arrivals(tmp_path / "gaps.txt")
    assert isinstance(gaps, Replay)
    assert gaps.by_model[""].tolist() == [0, 100, 300, 600]


def test_every_gap_of_an_interval_file_is_replayed_the_first_too(tmp_path: Path) -> None:
    # at its own rate: 3 requests in 600 µs
    (tmp_path / "gaps.txt").write_text("100\n200\n300\n")
    replayed = np.asarray(times(read_arrivals(tmp_path / "gaps.txt"), 5_000.0))
    assert replayed[:7].tolist() == [0, 100, 300, 600, 700, 900, 1_200]


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"missing\.csv"):
        read_arrivals(tmp_path / "missing.csv")
    (tmp_path / "bad.csv").write_text("a,b\n1,2\n")
    with pytest.raises(InputError, match="arrival_s"):
        read_arrivals(tmp_path / "bad.csv")


@pytest.mark.parametrize("name", ["t.csv", "t.csv.gz"])
def test_bytes_that_are_no_text_are_named(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    whole = gzip.compress(b"arrival_s\n" + b"1\n" * 999)
    for content in (b"\xff\xfe\x00", whole[:30], whole[:15] + b"zzzz" * 9):
        path.write_bytes(content)
        with pytest.raises(InputError, match=r"t\.csv.*(cannot be read|is not a text file)"):
            read_arrivals(path)


def test_a_mark_of_byte_order_is_no_part_of_the_first_column(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("arrival_s\n0\n1\n", encoding="utf-8-sig")
    assert isinstance(read_arrivals(path), Replay)
