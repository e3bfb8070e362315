import pytest

from tests.flows.cli.conftest import Command


@pytest.mark.usefixtures("planned")
@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ((), "takes a plan, --rollback or --status, one of them"),
        (("plan.json", "--rollback"), "one of them"),
        (("plan.json",), "nothing is being served from here"),
        (("--rollback",), "no finished rollout to go back from"),
        (("none.json",), "none.json: no such file"),
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
