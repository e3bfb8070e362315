"""Complaints about options name them as they are typed, wherever the check stands."""

import pytest

from flows.cli.registry import as_typed
from tests.flows.cli.conftest import PLAN, Command
from triton_backend.contract.errors import InputError

SIMULATE = ("simulate", "plan.json", "--duration", "1")
OPTIONS = {"minimum_rps": "--keep", "time_limit_s": "--time-limit", "seed": "--seed"}


@pytest.mark.usefixtures("planned")
@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (
            (*SIMULATE, "--low-load-factor", "0.1", "--policy", "reactive"),
            "--low-load-factor: is not of the policy reactive",
        ),
        ((*SIMULATE, "--policy", "best"), "--policy: 'best' is none of"),
        (
            (*SIMULATE, "--batch-timeout-ms", "1", "--batch-timeout-share", "0.1"),
            "--batch-timeout-share: stands beside --batch-timeout-ms; one is allowed",
        ),
        (
            (*SIMULATE, "--interference-noise", "0.1"),
            "--interference-noise: is of interference overlap",
        ),
        (
            (*PLAN, "--planner", "no-partitioning", "--objective", "cost"),
            "--objective: no-partitioning is defined for throughput alone",
        ),
        ((*PLAN, "--solver", "glpk"), "--solver: 'glpk' is none of highs, gurobi"),
    ],
)
def test_an_option_of_a_command_is_named_as_it_is_typed(
    poolpipe: Command, arguments: tuple[str, ...], said: str
) -> None:
    ran = poolpipe(*arguments)
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.startswith(f"poolpipe: {said}")


@pytest.mark.usefixtures("project")
@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((*SIMULATE, "--load-factor", "-1"), "--load-factor: -1 is not within 0.0001 and 1000000"),
        ((*SIMULATE, "--load-factor", "abc"), "--load-factor: 'abc' is no number"),
        ((*SIMULATE, "--seed", "1.5"), "--seed: '1.5' is no whole number"),
        ((*SIMULATE[:2], "--duration", "1e8"), "--duration: 1e8 is not within 0.001 and 10000000"),
        (
            ("load", "--plan", "none.json", "--deadline-ms", "nan"),
            "--deadline-ms: nan is no finite number",
        ),
        (("serve", "none.json", "--noise", "inf"), "--noise: inf is no finite number"),
        (("quickstart", "--slo-ms", "nan"), "--slo-ms: nan is no finite number"),
        ((*SIMULATE, "--batch-timeout-ms", "inf"), "--batch-timeout-ms: inf is no finite number"),
        ((*PLAN, "--slo-margin", "nan"), "--slo-margin: nan is no finite number"),
        ((*PLAN, "--slo-margin=-inf"), "--slo-margin: -inf is no finite number"),
        (("serve", "none.json", "--http-port", "nan"), "--http-port: 'nan' is no whole number"),
        (("serve", "none.json", "--http-port", "0"), "--http-port: 0 is not within 1 and 65535"),
        (("split", "a.onnx", "--blocks", "0"), "--blocks: 0 is not at least 1"),
        (("render", "a", "--target", "moon"), "--target: 'moon' is not one of 'container'"),
    ],
)
def test_a_value_that_an_option_cannot_have_is_given_with_the_option_and_its_range(
    poolpipe: Command, arguments: tuple[str, ...], said: str
) -> None:
    ran = poolpipe(*arguments)
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.startswith(f"poolpipe: {said}")
    assert ran.err.count("\n") == 1


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (InputError("option time_limit_s", "0 is not positive"), "--time-limit: 0 is not positive"),
        (InputError("option minimum_rps.net", "-1 is negative"), "--keep net: -1 is negative"),
        (InputError("seed", "as time_limit_s, and seed"), "--seed: as --time-limit, and seed"),
        (InputError("plan.json, seed", "as time_limit_s"), "plan.json, seed: as time_limit_s"),
        (InputError("seed.yaml", "as time_limit_s"), "seed.yaml: as time_limit_s"),
        (InputError("option colour", "as time_limit_s"), "option colour: as time_limit_s"),
    ],
)
def test_complaints_about_anything_else_stay_as_they_are(error: InputError, said: str) -> None:
    assert str(as_typed(error, OPTIONS)) == said


def test_a_command_that_takes_more_options_names_them_too() -> None:
    own, other = InputError("option edge_count", "0"), InputError("plan.json", "edge_count")
    assert str(as_typed(own, OPTIONS, more=True)) == "--edge-count: 0"
    assert as_typed(other, OPTIONS, more=True) is other
