"""Squishy bin packing.

Every GPU keeps its duty cycle, every request its SLO, all rates are served.
"""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flows.planning.papers.symphony.squishy import PackedGpu, Session, Turn, pack
from triton_backend.contract.errors import InfeasibleError


def session(alpha_us: int, beta_us: int, slo_us: int, rate_rps: float) -> Session:
    table = tuple(alpha_us * b + beta_us for b in range(1, 33))
    return Session(name="net", rate_rps=rate_rps, latency_us=table, limit_us=slo_us)


sessions = st.lists(
    st.builds(
        session,
        st.integers(100, 2_000),
        st.integers(500, 9_000),
        st.integers(25_000, 80_000),
        st.floats(1, 3_000),
    ),
    min_size=1,
    max_size=6,
)


@given(sessions)
def test_every_gpu_serves_its_turns_in_time(asked: list[Session]) -> None:
    packed = pack(asked)
    served = np.zeros(len(asked))
    for gpu in packed:
        assert sum(turn.latency_us for turn in gpu.turns) <= gpu.duty_cycle_us
        assert gpu.count == 1 or len(gpu.turns) == 1
        for turn in gpu.turns:
            mine = asked[turn.session]
            assert turn.latency_us == mine.latency_us[turn.batch - 1]
            assert gpu.duty_cycle_us + turn.latency_us <= mine.limit_us
            most = gpu.count * turn.batch * 1e6 / gpu.duty_cycle_us
            assert turn.rate_rps <= most * (1 + 1e-9)
            served[turn.session] += turn.rate_rps
    assert served == pytest.approx([s.rate_rps for s in asked])


def test_two_models_that_leave_time_share_a_gpu_at_the_shorter_duty_cycle() -> None:
    # b / rate + l(b) <= SLO: 5 in 10 ms + 2 ms <= 12; 8 in 16 ms + 4 ms <= 20, 5 of them in 10 ms
    one, other = session(200, 1_000, 12_000, 500), session(300, 1_600, 20_000, 500)
    assert pack([one, other]) == [
        PackedGpu(
            duty_cycle_us=10_000,
            turns=(
                Turn(session=1, batch=5, latency_us=3_100, rate_rps=500),
                Turn(session=0, batch=5, latency_us=2_000, rate_rps=500),
            ),
        )
    ]
    assert len(pack([one, other], lambda numbers: len(numbers) < 2)) == 2


def test_a_model_fills_whole_gpus_first() -> None:
    # 2 l(8) = 20 ms: 800 requests/s a GPU
    packed = pack([session(1_000, 2_000, 20_000, 1_700)])
    assert (packed[0].count, packed[0].turns[0].batch) == (2, 8)
    assert packed[1].turns[0].rate_rps == pytest.approx(100)


def test_a_batch_of_one_may_take_the_whole_slo_on_a_gpu_of_its_own() -> None:
    packed = pack([session(1_000, 9_000, 12_000, 50), session(100, 400, 30_000, 50)])
    assert sorted(len(gpu.turns) for gpu in packed) == [1, 1]


def test_a_model_that_is_too_slow_is_named() -> None:
    with pytest.raises(InfeasibleError, match=r"'net': the whole model takes at least 3.000 ms"):
        pack([session(1_000, 2_000, 2_500, 1)])
