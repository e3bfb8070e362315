"""Planners are listed with their options, which `plan` takes as they are listed."""

import re

import pytest

from flows.cli.plan.planners import own_options
from flows.planning.registry import planners, product_planners
from tests.flows.cli.conftest import PLAN, Command
from triton_backend.contract.errors import InputError


def test_every_planner_is_listed_with_its_options(poolpipe: Command) -> None:
    found = poolpipe("planners", "--json").document["planners"]
    assert [planner["name"] for planner in found] == list(planners())
    pool = next(planner for planner in found if planner["name"] == "pool")
    assert {name: pool["options"][0][name] for name in ("name", "kind", "default")} == {
        "name": "overflow",
        "kind": "bool",
        "default": False,
    }
    assert [planner["name"] for planner in found if not planner["comparison"]] == list(
        product_planners()
    )


def test_comparison_planners_stand_apart_and_no_option_is_listed_twice(poolpipe: Command) -> None:
    shown = poolpipe("planners").out
    heading = "Comparison planners, from papers"
    products, comparisons, options = re.split(rf"{heading}\n|\nOptions of ", shown, maxsplit=2)
    assert all(f"\n{name} " in products for name in ("pool", "graft", "piccolo", "no-partitioning"))
    assert all(
        f"\n{name} " in comparisons for name in ("sbp", "static-plus", "dart-r", "clipper", "nexus")
    )
    assert "--overflow/--no-overflow" in options
    lines = [line for line in options.splitlines() if line.startswith("  --")]
    assert len(lines) == len(set(lines))
    assert "(default )" not in shown


@pytest.mark.long
@pytest.mark.usefixtures("profiled")
def test_a_plan_takes_options_of_its_planner(poolpipe: Command) -> None:
    assert poolpipe(*PLAN, "--overflow", "--json").document["options"]["overflow"] is True
    assert "overflow" not in poolpipe(*PLAN, "--no-overflow", "--json").document["options"]


@pytest.mark.usefixtures("profiled")
@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("--loud",), "--loud: no such option; planner pool takes --overflow"),
        (("--overflow=yes",), "--overflow: takes no value, not 'yes'"),
        (("plan.json",), "plan.json: unexpected argument"),
        (("--planner", "dart-r", "--overflow"), "planner dart-r takes none of its own"),
        (("--planner", "magic"), "'magic' is none of"),
    ],
)
def test_what_a_planner_does_not_take_is_named(
    arguments: tuple[str, ...], reason: str, poolpipe: Command
) -> None:
    ran = poolpipe(*PLAN, *arguments)
    assert (ran.code, ran.out) == (2, "")
    assert reason in ran.err
    assert ran.err.count("\n") == 1


def test_an_option_without_a_value_is_named() -> None:
    assert own_options("pool", ["--overflow"]) == {"overflow": True}
    assert own_options("pool", []) == {}
    with pytest.raises(InputError, match="no such option"):
        own_options("pool", ["--no-such"])
