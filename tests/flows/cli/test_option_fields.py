"""Declared options become options of a command, and come back as values of their kind."""

from dataclasses import dataclass
from typing import Annotated, Any

import pytest
import typer
from typer.testing import CliRunner

from flows.cli.option_fields import expanded
from flows.options import asked, option
from flows.planning.options import CommonOptions
from triton_backend.contract.errors import InputError


@dataclass(frozen=True, slots=True, kw_only=True)
class Heat:
    """Options of an oven."""

    degrees: int = option(180, help="How hot the oven is.", least=50, most=250)
    fan: bool = option(default=True, help="Let the air go round.")


def values(*arguments: str) -> dict[str, Any]:
    found: dict[str, Any] = {}

    def bake(
        *,
        heat: Heat,
        planning: Annotated[dict[str, Any], asked(CommonOptions)],
        gap: str = "own",
    ) -> None:
        found.update(heat=heat, gap=gap, planning=planning)

    app = typer.Typer()
    app.command()(expanded(bake))
    done = CliRunner().invoke(app, arguments)
    if isinstance(done.exception, InputError):
        raise done.exception
    return found if done.exit_code == 0 else {"said": done.output}


def test_what_is_not_given_has_its_default_or_no_value() -> None:
    found = values()
    assert (found["heat"], found["gap"]) == (Heat(), "own")
    assert found["planning"] == {
        "planner": "pool",
        "objective": "throughput",
        "max_partitions": 2,
        "solver": "highs",
    }


def test_tables_lists_and_flags_are_read_in_their_kind() -> None:
    found = values(
        "--no-fan", "--degrees", "200", "--allow", "net=fast,slow", "--exclude", "*=old",
        "--keep", "net=2.5", "--pin", "net", "--pin", "web", "--time-limit", "5",
    )  # fmt: skip
    assert found["heat"] == Heat(degrees=200, fan=False)
    planning = found["planning"]
    assert planning["allowed_classes"] == {"net": ("fast", "slow")}
    assert planning["excluded_classes"] == {"*": ("old",)}
    assert planning["minimum_rps"] == {"net": 2.5}
    assert planning["pinned_models"] == ("net", "web")
    assert planning["time_limit_s"] == 5.0


def test_an_option_of_the_command_itself_stands_in_place_of_a_declared_one() -> None:
    found = values("--gap", "wide")
    assert found["gap"] == "wide"
    assert "gap" not in found["planning"]


def test_a_value_out_of_range_is_refused_by_its_flag() -> None:
    assert "--degrees" in values("--degrees", "20")["said"]
    with pytest.raises(InputError, match="--keep: 'net' is not NAME=VALUE"):
        values("--keep", "net")
