"""Declared options become options of a command, and come back as values of their kind."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

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
        "profile_factor": 1.0,
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


Size = Annotated[int, typer.Option(min=1, max=9, help="How large it is drawn.")]


@dataclass(frozen=True, kw_only=True)
class Shape:
    """Options of every shape."""

    size: Size = 3


@dataclass(frozen=True, kw_only=True)
class Square(Shape):
    """The plain kind."""

    turned: Annotated[bool, typer.Option("--turned", help="Stand it on a corner.")] = False
    names: Annotated[list[str] | None, typer.Option("-n", "--name", help="Write it in.")] = None


@dataclass(frozen=True, kw_only=True)
class Circle(Shape):
    """Round."""

    reasons: ClassVar[Mapping[str, str]] = {"turned": "a circle has no corner"}
    arc_deg: Annotated[float | None, typer.Option(help="Draw an arc.")] = None
    filled: Annotated[bool, typer.Option(help="Fill it.")] = False

    def __post_init__(self) -> None:
        if self.arc_deg is None:
            raise InputError("--filled", "needs --arc-deg")


@dataclass(frozen=True, kw_only=True)
class Pen:
    """The drawing tool."""

    colour: Annotated[str, typer.Option(help="Its colour.")] = "black"


def draw(
    where: Annotated[str, typer.Argument()] = "here", *, what: Circle | Square, pen: Pen
) -> None:
    """Draw."""
    typer.echo(f"{what} {where} {pen.colour}")


def ran(*arguments: str) -> Any:
    app = typer.Typer(rich_markup_mode=None)
    app.command()(expanded(draw))
    return CliRunner().invoke(app, list(arguments))


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ((), "Square(size=3, turned=False, names=None) here black"),
        (
            ("there", "--size", "4", "-n", "a", "--name", "b", "--turned", "--colour", "red"),
            "Square(size=4, turned=True, names=['a', 'b']) there red",
        ),
        (
            ("--arc-deg", "90", "--size", "4"),
            "Circle(size=4, arc_deg=90.0, filled=False) here black",
        ),
    ],
)
def test_the_function_gets_the_kind_that_the_options_ask_for(
    arguments: tuple[str, ...], told: str
) -> None:
    assert ran(*arguments).output == f"{told}\n"


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("--arc-deg", "90", "--name", "a"), "--name: does not go with --arc-deg"),
        (
            ("--turned", "--filled", "--arc-deg", "90"),
            "--turned: does not go with --arc-deg; a circle has no corner",
        ),
        (("--filled", "--turned"), "--filled: needs --arc-deg"),
    ],
)
def test_an_option_of_another_kind_is_refused(arguments: tuple[str, ...], reason: str) -> None:
    error = ran(*arguments).exception
    assert isinstance(error, InputError)
    assert str(error) == reason


def test_ranges_defaults_and_help_are_those_of_the_fields() -> None:
    wrong = ran("--size", "10")
    assert wrong.exit_code == 2
    assert "9" in wrong.output
    page = re.sub(r"\s+", " ", ran("--help").output)
    assert page.count("--size") == 1
    for part in ("How large it is drawn.", "[default: 3;", "--filled", "--no-filled", "--name"):
        assert part in page


def test_a_function_without_options_of_a_class_stays_as_it_is() -> None:
    def plain(*, size: Size = 3) -> None:
        del size

    assert expanded(plain) is plain


def test_an_option_without_a_default_cannot_be_left_out() -> None:
    @dataclass(frozen=True)
    class Line:
        length: Annotated[int, typer.Option()]

    def lines(*, what: Line | Square) -> None:
        del what

    lines.__annotations__["what"] = Line | Square
    with pytest.raises(TypeError, match=r"Line\.length: an option needs a default"):
        expanded(lines)
