"""The interference fit recovers what made the data, and refuses what a constant does as well."""

import numpy as np
import pytest

from flows.preparation.interference.fit import PairRows, fit
from triton_backend.contract.errors import InputError

TRUE = np.array([0.2, 0.4, 0.1, 0.3, 0.95])


def rows(count: int, noise: float, seed: int = 1, slopes: float = 1.0) -> PairRows:
    """`count` pairs, two rows each."""
    random = np.random.default_rng(seed)
    one, other = random.uniform(0, 1, (2, count, 2))  # L2 and DRAM of both sides
    features = np.empty((2 * count, 4))
    features[0::2] = np.column_stack([one[:, 0], other[:, 0], one[:, 1], other[:, 1]])
    features[1::2] = np.column_stack([other[:, 0], one[:, 0], other[:, 1], one[:, 1]])
    exact = features @ (slopes * TRUE[:4]) + TRUE[4]
    return PairRows(
        features=features,
        slowdown=exact * (1 + random.normal(0, noise, 2 * count)),
        pair=np.repeat(np.arange(count), 2),
        group=np.zeros(2 * count, dtype=np.int64),
        names=tuple(f"row {i}" for i in range(2 * count)),
    )


def test_exact_data_give_back_the_constants() -> None:
    report = fit(rows(60, 0.0))
    found = report.model
    assert not report.refused
    assert [
        found.c1_l2_self,
        found.c2_l2_other,
        found.c3_dram_self,
        found.c4_dram_other,
        found.c5,
    ] == pytest.approx(TRUE)
    assert report.linear.largest < 1e-9 < report.constant.mean
    assert (report.trained, report.validated) == (84, 36)


def test_noise_that_utilisation_does_not_explain_leaves_the_constant() -> None:
    data = rows(40, 0.3, slopes=0.0)
    reports = [fit(data, seed) for seed in range(10)]
    refused = [report for report in reports if report.refused]
    assert refused
    for report in reports:
        assert report.refused == (report.linear.p95 >= report.constant.p95)
    for report in refused:
        found = report.model
        assert (found.c1_l2_self, found.c2_l2_other) == (0, 0)
        assert found.c5 == pytest.approx(data.slowdown.mean(), rel=0.2)


def test_both_directions_of_a_pair_stand_on_one_side_of_the_split() -> None:
    data = rows(30, 0.0)
    report = fit(data)
    assert report.trained % 2 == report.validated % 2 == 0


def test_outliers_are_listed_and_weigh_less_when_robust() -> None:
    data = rows(60, 0.01)
    spoiled = data.slowdown.copy()
    spoiled[::20] *= 4
    with_outliers = PairRows(
        features=data.features,
        slowdown=spoiled,
        pair=data.pair,
        group=data.group,
        names=data.names,
    )
    plain, robust = fit(with_outliers), fit(with_outliers, robust=True)
    assert {f"row {i}" for i in range(0, 120, 20)} <= {line.split(":")[0] for line in plain.odd}
    away = [abs(r.model.c5 - TRUE[4]) + abs(r.model.c2_l2_other - TRUE[1]) for r in (plain, robust)]
    assert away[1] < away[0] / 3


def test_too_little_data_is_refused() -> None:
    with pytest.raises(InputError, match="pairs: 18 rows, at least 20 are needed"):
        fit(rows(9, 0.0))
    same = rows(30, 0.0)
    flat = PairRows(
        features=np.full_like(same.features, 0.5),
        slowdown=same.slowdown,
        pair=same.pair,
        group=same.group,
        names=same.names,
    )
    with pytest.raises(InputError, match="vary too little"):
        fit(flat)
    alone = PairRows(
        features=same.features,
        slowdown=same.slowdown,
        pair=np.zeros_like(same.pair),
        group=same.group,
        names=same.names,
    )
    with pytest.raises(InputError, match="one pair alone"):
        fit(alone)
