"""Options as fields of a dataclass: what is derived from them, and what they refuse."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import isnan, nan
from typing import Any

import pytest

from flows.options import Option, check_options, option, options_given, options_of, plain_options
from triton_backend.contract.errors import InputError


@dataclass(frozen=True, slots=True, kw_only=True)
class Bake:
    """Options of an oven."""

    minutes: int = option(30, help="How long.", least=1, most=600)
    margin: float = option(nan, help="Time kept free.", least=0.0, most=0.99)
    limit_s: float | None = option(None, help="Until when.", least=0.1, spelled="--limit")
    mode: str = option("fan", help="Heat.", choices=("fan", "grill"))
    steam: bool = option(default=False, help="With water.")
    weights: Mapping[str, float] = option({}, help="By loaf.", least=0.0, spelled="")
    kept: Mapping[str, tuple[str, ...]] = option({}, help="Trays by loaf.")
    pinned: tuple[str, ...] = option((), help="Loaves that stay.")
    oven: str = "left"  # no option

    def __post_init__(self) -> None:
        """Check."""
        check_options(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Slow(Bake):
    """The same, and one more."""

    hours: float = option(1.0, help="Also.", most=9.0)


def test_a_class_declares_its_options_in_order() -> None:
    found = options_of(Slow)
    assert [*found] == [*options_of(Bake), "hours"]
    assert "oven" not in found
    limit = found["limit_s"]
    assert (limit.kind, limit.default, limit.flag) == (float, None, "--limit")
    assert found["minutes"].flag == "--minutes"
    assert not found["weights"].flag
    assert {n for n, o in found.items() if o.unset} == {
        *("margin", "limit_s", "weights", "kept", "pinned")
    }


def test_an_option_of_a_planner_is_of_the_kind_of_its_default() -> None:
    assert Option(name="minutes", default=30, help="How long.").kind is int
    with pytest.raises(InputError, match="option steam: 1 is not of type bool"):
        Option(name="steam", default=False, help="With water.").checked(1)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"minutes": 0}, "option minutes: 0 is not within 1 and 600"),
        ({"minutes": True}, "option minutes: True is not of type int"),
        ({"minutes": 2.5}, "option minutes: 2.5 is not of type int"),
        ({"margin": 1}, "option margin: 1 is not within 0 and 0.99"),
        ({"margin": None}, "option margin: None is not of type float"),
        ({"limit_s": 0}, "option limit_s: 0 is not at least 0.1"),
        ({"limit_s": nan}, "option limit_s: nan is no finite number"),
        ({"hours": 10}, "option hours: 10 is not at most 9"),
        ({"mode": "off"}, "option mode: 'off' is none of fan, grill"),
        ({"steam": 1}, "option steam: 1 is not of type bool"),
        ({"weights": {"rye": -1}}, "option weights.rye: -1 is not at least 0"),
        ({"weights": 3}, "option weights: 3 is no table"),
        ({"kept": {"rye": "top"}}, "option kept.rye: 'top' is no list"),
        ({"pinned": "rye"}, "option pinned: 'rye' is no list"),
    ],
)
def test_a_value_that_does_not_fit_is_said_in_one_line(given: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError) as refused:
        Slow(**given)
    assert str(refused.value) == said


def test_values_come_in_their_kind() -> None:
    made = Bake(pinned=["rye"], kept={"rye": ["top", "low"]})  # type: ignore[arg-type]  # as JSON has it
    assert made == Bake(pinned=("rye",), kept={"rye": ("top", "low")})
    assert isnan(made.margin)


def test_the_plain_form_comes_back_as_it_was() -> None:
    made = Bake(margin=0.2, limit_s=5, weights={"rye": 2.0, "oat": 1.0}, kept={"oat": ("top",)})
    plain = plain_options(made)
    assert plain == {
        "minutes": 30,
        "margin": 0.2,
        "limit_s": 5,
        "mode": "fan",
        "steam": False,
        "weights": {"oat": 1.0, "rye": 2.0},
        "kept": {"oat": ["top"]},
    }
    assert Bake(**options_given(Bake, plain | {"unknown": 1})) == made
