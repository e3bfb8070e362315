"""Whole simulations: laws with known answers, promises kept, everything accounted for."""

from itertools import count

import numpy as np
import pytest

from tests.fakes.plans import Own, make_plan, two_stages
from triton_backend.contract.errors import InputError
from triton_backend.contract.plan import Plan
from triton_backend.scheduler.policies.registry import POLICIES, REACTIVE
from triton_backend.simulator.failures import Failure
from triton_backend.simulator.offered import Deterministic, Gamma, Instant
from triton_backend.simulator.results import SimResult
from triton_backend.simulator.run import simulate
from triton_backend.simulator.scenario import PlanChange, SimOptions, rates_of
from triton_backend.simulator.world import DROPPED, LATE, SERVED

RESERVING = ("reservation", "reservation-ahead")


def two_models(slo_us: int = 60_000) -> Plan:
    """Two models whose pools share no GPU; three pipelines, the NICs carry both directions."""
    big = Own(latency_us=(4_000, 6_000, 7_500), gpus=4, gpus_per_node=2, bytes_out=800_000)
    small = Own(latency_us=(1_500, 2_600, 3_600), gpus=2, gpus_per_node=2)
    whole = Own(latency_us=(5_000, 7_000), gpus=2)
    return make_plan([[big, small], [whole]], [[big, small]], slo_us=slo_us)


def outcomes(result: SimResult) -> tuple[int, int, int]:
    rows = result.requests["outcome"]
    served, late, dropped = (int((rows == outcome).sum()) for outcome in (SERVED, LATE, DROPPED))
    return served, late, dropped


@pytest.mark.parametrize(
    "policy", [name for name in (*POLICIES, REACTIVE) if not name.startswith("turns")]
)
@pytest.mark.parametrize("load_factor", [0.3, 0.95, 1.5])
def test_every_request_has_one_outcome(policy: str, load_factor: float) -> None:
    result = simulate(
        two_models(), SimOptions(policy=policy, load_factor=load_factor, duration_s=5)
    )
    assert sum(outcomes(result)) == len(result.requests)
    for model in result.models:
        assert model.offered == model.served + model.late + model.dropped


@pytest.mark.parametrize("nic", ["shared", "isolated"])
@pytest.mark.parametrize("policy", RESERVING)
@pytest.mark.parametrize("load_factor", [0.5, 1.0, 2.0])
def test_no_accepted_request_is_late_when_latencies_are_exact(
    policy: str, nic: str, load_factor: float
) -> None:
    for count_io in (False, True):
        options = SimOptions(
            policy=policy, nic=nic, load_factor=load_factor, duration_s=4, count_io=count_io
        )
        result = simulate(two_models(), options)
        assert outcomes(result)[1] == 0
        assert outcomes(result)[0] > 0


def test_what_runs_is_what_was_reserved() -> None:
    result = simulate(two_stages(), SimOptions(load_factor=0.9, duration_s=3))
    for vgpu in np.unique(result.uses["vgpu"]):
        rows = np.sort(result.uses[result.uses["vgpu"] == vgpu], order="start_us")
        assert (rows["start_us"][1:] >= rows["end_us"][:-1]).all()
    served = result.requests[result.requests["outcome"] == SERVED]
    last = result.uses[result.uses["vgpu"] >= 4]
    ends = dict(zip(last["batch_id"].tolist(), last["end_us"].tolist(), strict=True))
    assert [ends[b] for b in served["batch_id"].tolist()] == served["finish_us"].tolist()


@pytest.mark.long
def test_the_wait_in_a_queue_of_deterministic_service_follows_pollaczek_and_khinchine() -> None:
    # M/D/1: mean wait = rho x service / (2 (1 - rho)); none is dropped with so long an SLO
    service_us, rho = 1_000, 0.7
    plan = make_plan([[Own(latency_us=(service_us,))]], slo_us=10_000_000)
    result = simulate(plan, SimOptions(load_factor=rho, duration_s=600))
    rows = result.requests
    waits = rows["finish_us"] - rows["arrival_us"] - service_us
    assert outcomes(result) == (len(rows), 0, 0)
    assert float(waits.mean()) == pytest.approx(rho * service_us / (2 * (1 - rho)), rel=0.03)


def test_busy_time_follows_littles_law() -> None:
    plan = make_plan([[Own(latency_us=(10_000,), gpus=8)]], slo_us=1_000_000)
    result = simulate(plan, SimOptions(load_factor=0.6, duration_s=120))
    rate_rps = len(result.requests) / 120
    assert result.utilisation["GPU"] == pytest.approx(rate_rps * 0.010 / 8, rel=0.01)


def test_regular_arrivals_at_the_planned_rate_are_all_served() -> None:
    plan = make_plan([[Own(latency_us=(10_000,), gpus=4)]], slo_us=20_000)
    result = simulate(plan, SimOptions(arrivals=Deterministic(), duration_s=5))
    assert result.attainment == 1.0


def test_overload_serves_what_the_plan_can_and_drops_the_rest() -> None:
    plan = make_plan([[Own(latency_us=(10_000,), gpus=4)]], slo_us=50_000)
    result = simulate(plan, SimOptions(load_factor=3.0, duration_s=20))
    assert outcomes(result)[0] == pytest.approx(400 * 20, rel=0.02)
    assert result.attainment == pytest.approx(1 / 3, rel=0.03)


def test_burstier_arrivals_attain_less() -> None:
    attained = [
        simulate(
            two_stages(),
            SimOptions(arrivals=Gamma(shape=shape), load_factor=0.9, duration_s=30),
        ).attainment
        for shape in (4.0, 0.1, 0.02)
    ]
    assert attained == sorted(attained, reverse=True)
    assert attained[0] > attained[-1]


def test_the_same_seed_gives_the_same_run_and_another_seed_another() -> None:
    options = SimOptions(duration_s=3, latency_noise_cv=0.1, load_factor=1.1)
    one, two = simulate(two_models(), options), simulate(two_models(), options)
    assert one.requests.tobytes() == two.requests.tobytes()
    assert one.uses.tobytes() == two.uses.tobytes()
    other = simulate(
        two_models(), SimOptions(duration_s=3, latency_noise_cv=0.1, load_factor=1.1, seed=1)
    )
    assert other.requests.tobytes() != one.requests.tobytes()


def test_latency_noise_keeps_the_mean_and_nothing_overlaps() -> None:
    plan = make_plan([[Own(latency_us=(1_000,), gpus=2)]], slo_us=100_000)
    result = simulate(plan, SimOptions(latency_noise_cv=0.2, load_factor=0.5, duration_s=20))
    spans = result.uses["end_us"] - result.uses["start_us"]
    assert float(spans.mean()) == pytest.approx(1_000, rel=0.01)
    assert float(spans.std()) == pytest.approx(200, rel=0.05)
    for vgpu in (0, 1):
        rows = np.sort(result.uses[result.uses["vgpu"] == vgpu], order="start_us")
        assert (rows["start_us"][1:] >= rows["end_us"][:-1]).all()


@pytest.mark.long
def test_noisy_transfers_never_share_a_link() -> None:
    result = simulate(two_models(), SimOptions(latency_noise_cv=0.3, load_factor=0.9))
    assert max(result.link_utilisation) <= 1.0
    assert sum(outcomes(result)) == len(result.requests)


def test_a_failed_gpu_runs_nothing_and_its_requests_find_another() -> None:
    failure = Failure(start_s=1.0, end_s=2.0, node="n0-0")
    plan = make_plan([[Own(latency_us=(10_000,), gpus=4)]], slo_us=100_000)
    result = simulate(plan, SimOptions(load_factor=0.6, duration_s=4, failures=(failure,), seed=2))
    gone = result.uses[result.uses["vgpu"] == 0]
    inside = (gone["end_us"] > 1_000_000) & (gone["start_us"] < 2_000_000)
    assert not inside.any()
    assert (gone["start_us"] >= 2_000_000).any()
    assert result.attainment == 1.0


def test_a_failure_that_takes_everything_drops_what_comes_meanwhile() -> None:
    failure = Failure(start_s=1.0, end_s=2.0, vgpu=0)
    plan = make_plan([[Own(latency_us=(1_000,))]], slo_us=10_000)
    result = simulate(plan, SimOptions(load_factor=0.5, duration_s=3, failures=(failure,)))
    came = result.requests["arrival_us"]
    during = result.requests[(came > 1_000_000) & (came < 2_000_000)]
    assert set(during["outcome"].tolist()) == {DROPPED}


def test_a_change_of_plan_flushes_within_one_slo_and_loses_nothing() -> None:
    before = make_plan([[Own(latency_us=(10_000,), gpus=4)]], slo_us=100_000)
    after = make_plan([[Own(latency_us=(5_000,), gpus=4)]], slo_us=100_000, plan_id="after")
    change = PlanChange(at_s=1.0, plan=after, flush=True)
    result = simulate(before, SimOptions(load_factor=0.6, duration_s=2, changes=(change,)))
    (changed,) = result.changes
    assert 0 <= changed.swap_us - changed.start_us <= 100_000
    assert (changed.inherited, changed.in_flight) == (0, 0)
    assert result.attainment == 1.0
    assert set(result.uses["plan"].tolist()) == {0, 1}
    old = result.uses[result.uses["plan"] == 0]
    assert (old["end_us"] <= changed.swap_us).all()


def test_requests_of_a_model_that_the_new_plan_lacks_are_dropped() -> None:
    pool = [[Own(latency_us=(1_000,))]]
    change = PlanChange(at_s=1.0, plan=make_plan(pool, names=["b"]))
    result = simulate(
        make_plan(pool, pool, names=["a", "b"]),
        SimOptions(load_factor=0.5, duration_s=2, changes=(change,)),
    )
    gone, kept = result.models
    assert (gone.dropped > 0, gone.late) == (True, 0)
    assert kept.attainment > 0.99


def test_a_run_longer_than_its_first_arrays_makes_room() -> None:
    plan = make_plan([[Own(latency_us=(100,), gpus=400)]], slo_us=100_000)
    times = np.zeros(5_000, dtype=np.int64)
    result = simulate(plan, SimOptions(arrivals=Instant(by_model={"m0": times})))
    assert outcomes(result) == (5_000, 0, 0)


def test_only_chosen_models_get_load_and_their_arrivals_stay_the_same() -> None:
    options = SimOptions(duration_s=2)
    alone = SimOptions(duration_s=2, models=("m1",))
    both = simulate(two_models(), options).requests
    one = simulate(two_models(), alone).requests
    arrived = both["arrival_us"][both["model"] == 1]
    assert one["arrival_us"].tolist() == arrived.tolist()


def test_rates_come_from_the_reference_plan_and_are_shared_by_it() -> None:
    plan, reference = two_stages(), make_plan([[Own(latency_us=(1_000,))]])
    assert rates_of(plan, SimOptions(reference=reference, load_factor=0.5)) == {"m0": 500.0}
    assert rates_of(plan, SimOptions(reference=reference, rate_rps=7.0)) == {"m0": 7.0}


def test_a_clock_that_is_handed_in_changes_nothing_but_the_times() -> None:
    ticks = count(step=1_000_000_000)
    options = SimOptions(duration_s=1)
    timed = simulate(two_stages(), options, clock_ns=lambda: next(ticks))
    plain = simulate(two_stages(), options)
    assert timed.wall_seconds == 1.0
    assert plain.wall_seconds is None
    assert timed.requests.tobytes() == plain.requests.tobytes()
    cost = timed.decisions
    assert cost.mean_us is not None
    assert cost.count >= len(timed.requests)


def test_the_plain_form_has_the_documented_fields() -> None:
    out = simulate(two_stages(), SimOptions(duration_s=1)).to_dict()
    assert set(out) == {
        "policy",
        "seed",
        "duration_s",
        "offered_rps",
        "attainment",
        "models",
        "entries",
        "applications",
        "pools",
        "utilisation",
        "decisions",
        "wall_seconds",
    }
    assert set(out["models"]["m0"]) == {
        "offered",
        "served",
        "late",
        "dropped",
        "attainment",
        "latency_ms",
        "queueing_ms",
        "mean_batch",
        "batches",
    }


def test_options_that_make_no_sense_are_named() -> None:
    with pytest.raises(InputError, match="duration"):
        SimOptions(duration_s=0)
    with pytest.raises(InputError, match="load_factor"):
        SimOptions(load_factor=-1)
    with pytest.raises(InputError, match="no model"):
        simulate(two_stages(), SimOptions(models=("other",)))
    with pytest.raises(InputError, match="failure"):
        Failure(start_s=1, vgpu=1, node="n")
    with pytest.raises(InputError, match="no vGPU 99"):
        simulate(two_stages(), SimOptions(failures=(Failure(start_s=0, vgpu=99),)))


def test_a_golden_run() -> None:
    result = simulate(two_models(), SimOptions(duration_s=2, load_factor=1.1, seed=7))
    assert (outcomes(result), int(result.requests["finish_us"].sum())) == GOLDEN


GOLDEN = ((5419, 0, 2842), 8591868057)
