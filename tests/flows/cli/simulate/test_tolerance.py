"""`tolerance` of a stored plan."""

import pytest

from tests.flows.cli.conftest import Command

pytestmark = pytest.mark.usefixtures("planned")


def test_every_case_has_a_share_of_the_planned_rate(poolpipe: Command) -> None:
    asked = ("tolerance", "plan.json", "--duration", "2", "--step", "0.25")
    kept = poolpipe(*asked, "--json").document["kept"]
    assert [row["case"] for row in kept] == [
        "latencies x 1", "latencies x 1.1", "latencies x 1.2", "latencies x 1.5",
        "net: rate x 1.2",
    ]  # fmt: skip
    shares = [row["load_factor"] for row in kept[:4]]
    assert shares == sorted(shares, reverse=True)
    assert shares[0] > 0
    assert "latencies x 1.5" in poolpipe(*asked).out


def test_a_plan_that_is_not_there_is_named(poolpipe: Command) -> None:
    ran = poolpipe("tolerance", "none.json")
    assert (ran.code, ran.out, ran.err.count("\n")) == (2, "", 1)
    assert "none.json" in ran.err
