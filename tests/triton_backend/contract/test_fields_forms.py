"""Objects of files whose fields are described once."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

import pytest

from triton_backend.contract.errors import InputError
from triton_backend.contract.fields import (
    About,
    FieldForm,
    Fields,
    Form,
    check_form,
    form_fields,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Wheel(Form):
    """Part of a cart."""

    spokes: Annotated[int, About("Spokes.", 8, least=1, most=100)]

    def __post_init__(self) -> None:
        check_form("wheel", self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cart(Form):
    """An object with a field of every kind; `colour` stands in no file."""

    name: Annotated[str, About("Name.", "red")]
    load_kg: Annotated[float, About("Load.", 3.5, key="load", least=0)]
    wheels: Annotated[tuple[Wheel, ...], About("Wheels.", [])]
    spare: Annotated[Wheel | None, About("One more.", {"spokes": 8})] = None
    seats: Annotated[tuple[int, ...], About("Seats by row.", [2], written=False)] = ()
    speed: Annotated[int, About("Speed.", 5, missing=4)]
    bell: Annotated[bool, About("It has one.", example=True)] = False
    goods: Annotated[Mapping[str, int], About("Pieces.", {"hay": 1})]
    colour: str = "brown"


LEAST = {"name": "a", "load": 1.5, "wheels": [{"spokes": 6}], "goods": {"hay": 2}}
MOST = LEAST | {"spare": {"spokes": 8}, "seats": [2, 3], "speed": 5, "bell": True}


def test_an_object_is_read_and_written_by_the_same_description() -> None:
    assert Cart.read(Fields(MOST)).to_dict() == MOST
    cart = Cart.read(Fields(LEAST))
    assert cart.wheels == (Wheel(spokes=6),)
    assert (cart.spare, cart.seats, cart.speed, cart.bell) == (None, (), 4, False)
    assert cart.to_dict() == LEAST | {"speed": 4}


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"load": -1}, "load: -1 is not within 0"),
        ({"load": "much"}, "load: 'much' is not a number"),
        ({"wheels": [{"spokes": 0}]}, r"wheels\[0\].spokes: 0 is not within 1 and 100"),
        ({"wheels": [{}]}, r"wheels\[0\].spokes: is missing"),
        ({"seats": [2.5]}, r"seats\[0\]: 2.5 is not a whole number"),
        ({"bell": 1}, "bell: 1 is neither true nor false"),
        ({"goods": {"hay": -1}}, "goods.hay: -1 is not within 0"),
    ],
)
def test_what_a_description_excludes_is_refused_with_its_place(
    change: dict[str, Any], complaint: str
) -> None:
    with pytest.raises(InputError, match=complaint):
        Cart.read(Fields(MOST | change))


@pytest.mark.parametrize(("spokes", "reason"), [(0, "is not positive"), (101, "is too large")])
def test_bounds_hold_for_objects_that_come_from_no_file(spokes: int, reason: str) -> None:
    with pytest.raises(InputError, match=f"wheel, spokes: {spokes} {reason}"):
        Wheel(spokes=spokes)


@pytest.mark.parametrize("spokes", [1, 100])
def test_bounds_are_within(spokes: int) -> None:
    assert Wheel(spokes=spokes).spokes == spokes


def test_the_reference_lists_what_is_described() -> None:
    listed = {field.key: field for field in form_fields(Cart)}
    assert listed["load"] == FieldForm("load", "number", "Load.", 3.5)
    assert {key: field.kind for key, field in listed.items()} == {
        "name": "text",
        "load": "number",
        "wheels": "wheel[]",
        "spare": "wheel",
        "seats": "integers",
        "speed": "integer",
        "bell": "flag",
        "goods": "table",
    }
    assert [key for key, field in listed.items() if not field.required] == [
        "spare", "seats", "speed", "bell",
    ]  # fmt: skip
