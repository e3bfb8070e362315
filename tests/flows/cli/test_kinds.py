"""Kinds of run: options from dataclasses, each once; what is given says which kind is meant."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import pytest
import typer
from typer.testing import CliRunner

from flows.cli.kinds import of_kinds
from triton_backend.contract.errors import InputError

Size = Annotated[int, typer.Option(min=1, max=9, help="How large it is drawn.")]


@dataclass(frozen=True, kw_only=True)
class Shape:
    """What every shape has."""

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
    """What draws."""

    colour: Annotated[str, typer.Option(help="Its colour.")] = "black"


@of_kinds
def draw(
    where: Annotated[str, typer.Argument()] = "here", *, what: Circle | Square, pen: Pen
) -> None:
    """Draw."""
    typer.echo(f"{what} {where} {pen.colour}")


def ran(*arguments: str) -> Any:
    app = typer.Typer(rich_markup_mode=None)
    app.command()(draw)
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


def test_a_function_without_kinds_is_not_one_of_them() -> None:
    def plain(*, size: Size = 3) -> None:
        del size

    with pytest.raises(TypeError, match="plain has no parameter"):
        of_kinds(plain)


def test_an_option_without_a_default_cannot_be_left_out() -> None:
    @dataclass(frozen=True)
    class Line:
        length: Annotated[int, typer.Option()]

    def lines(*, what: Line | Square) -> None:
        del what

    lines.__annotations__["what"] = Line | Square
    with pytest.raises(TypeError, match=r"Line\.length: an option needs a default"):
        of_kinds(lines)
