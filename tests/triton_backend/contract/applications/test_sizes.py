"""Modules of several sizes: what a workload states, what is refused, what others see of them."""

from copy import deepcopy
from typing import Any

import pytest

from triton_backend.contract.applications import Application, sent_bytes
from triton_backend.contract.applications.sizes import size_name
from triton_backend.contract.errors import InputError
from triton_backend.contract.fields import Fields
from triton_backend.contract.tensors import TensorSpec
from triton_backend.contract.workload import Workload, lines_of

NARROW, WIDE = "read@3x48x320", "read@3x48x640"
PAGES: dict[str, Any] = {
    "name": "pages",
    "slo_ms": 400,
    "rate_rps": 10,
    "modules": [
        {"name": "find", "model": "finder", "inputs": {"page": "request.page"}},
        {
            "name": "lines",
            "model": "cut",
            "rows_per_request": 8,
            "max_rows": 64,
            "inputs": {"box": "find.box"},
        },
        {
            "name": "read",
            "model": "reader",
            "rows_per_request": 8,
            "max_rows": 64,
            "inputs": {"x": "lines.line", "width": "lines.width"},
            "sizes": [
                {"input_shapes": {"x": "3x48x320"}, "share": 0.75},
                {"input_shapes": {"x": "3x48x640"}, "share": 0.25},
            ],
        },
        {
            "name": "spell",
            "model": "speller",
            "rows_per_request": 8,
            "max_rows": 64,
            "inputs": {"symbols": "read.symbols"},
        },
    ],
    "outputs": {"text": "spell.text", "certain": "read.certain"},
}
LINES, READ, SPELL = 1, 2, 3


def changed(module: int, **fields: Any) -> dict[str, Any]:
    """The application with fields of a module replaced; `...` removes one."""
    data = deepcopy(PAGES)
    for name, value in fields.items():
        data["modules"][module][name] = value
        if value is ...:
            del data["modules"][module][name]
    return data


def read(data: dict[str, Any] = PAGES) -> Application:
    return Application.read(Fields(data))


def test_each_size_is_a_module_with_its_share_of_the_rows() -> None:
    found = read()
    assert [(m.name, m.model, m.rows_per_request, m.max_rows) for m in found.modules] == [
        ("find", "finder", 1, 1),
        ("lines", "cut", 8, 64),
        (NARROW, "reader@3x48x320", 6, 64),
        (WIDE, "reader@3x48x640", 2, 64),
        ("spell", "speller", 8, 64),
    ]
    assert {m.size_by for m in found.makers("read")} == {"lines.line"}


def test_what_reads_all_sizes_runs_the_rows_of_the_module_that_chooses() -> None:
    found = read()
    spell = found.module("spell")
    assert spell.parents == ("lines", NARROW, WIDE)
    assert found.producers(spell) == (NARROW, WIDE)
    assert found.givers(spell) == ("lines",)
    assert found.givers(found.module(WIDE)) == ("lines",)
    assert all(found.rows_vary(m) for m in found.modules if m.name != "find")


def test_sizes_without_shares_have_equal_ones() -> None:
    sizes = [{"input_shapes": {"x": f"3x48x{n}"}} for n in (320, 480, 640, 960)]
    found = read(changed(READ, sizes=sizes))
    assert {m.rows_per_request for m in found.makers("read")} == {2.0}


def test_a_workload_with_sizes_is_read_again_as_it_was_written() -> None:
    workload = Workload.from_dict({"applications": [PAGES]})
    assert Workload.from_dict(workload.to_dict()) == workload
    lines = {line.name: line.rate_rps for line in lines_of(workload)}
    assert lines["reader@3x48x320"] == 60
    assert lines["reader@3x48x640"] == 20


def test_measured_rows_need_not_add_up() -> None:
    data = read().to_dict()
    data["modules"][2]["rows_per_request"] = 5.5
    assert read(data).module(NARROW).rows_per_request == 5.5


def test_sizes_may_be_those_of_a_model_that_is_served_too() -> None:
    sizes = [{"input_shapes": {"x": "3x48x320"}}, {"input_shapes": {"x": "3x48x640"}}]
    reader = {"name": "reader", "slo_ms": 300, "rate_rps": 40, "sizes": sizes}
    workload = Workload.from_dict({"models": [reader], "applications": [PAGES]})
    lines = {line.name: line.rate_rps for line in lines_of(workload)}
    assert lines["reader@3x48x320"] == 20 + 60


AT = "application 'pages', module"
ONE = {"input_shapes": {"x": "3x48x320"}}
WRONG: list[tuple[int, dict[str, Any], str]] = [
    (READ, {"sizes": []}, "lists none"),
    (READ, {"sizes": [ONE, ONE]}, "'reader@3x48x320' is listed twice"),
    (READ, {"sizes": [{"input_shapes": {"x": "wide"}}]}, "'wide' is no shape"),
    (READ, {"sizes": [{**ONE, "share": 0.5}]}, "shares are positive and add up to 1, not 0.5"),
    (
        READ,
        {"sizes": [{"input_shapes": {"x": "3x8", "width": "2"}}]},
        "give x, width; a row chooses its size by one tensor",
    ),
    (READ, {"sizes": [{"input_shapes": {"y": "3x8"}}]}, "rows choose by 'y', and a module must"),
    (READ, {"inputs": {"x": "request.page"}}, "rows choose by 'x', and a module must give it"),
    (READ, {"rows_per_request": 4}, "4, but 'lines', whose rows choose their size, runs 8"),
    (READ, {"max_rows": 32}, "its rows and those it reads are not one for each of 'lines'"),
    (READ, {"optional": True}, "is not served of several sizes"),
    (READ, {"max_rows_given": 3}, "is not served of several sizes"),
    (READ, {"inputs": {"x": "lines.line", "width": "find.width"}}, "are not one for each"),
    (READ, {"size_of": "read", "size_by": "lines.line"}, "is a size of another module itself"),
    (SPELL, {"rows_per_request": 4}, "rows_per_request: 4, but 'read' runs 8"),
    (SPELL, {"rows_per_request": 1, "max_rows": 1}, "rows_per_request: 1, but 'read' runs 8"),
    (SPELL, {"inputs": {"symbols": "reed.symbols"}}, "no module 'reed'; there are find, lines"),
    (SPELL, {"name": "read"}, "is another module's name"),
    (SPELL, {"size_of": "spells"}, "and size_by go together"),
    (SPELL, {"size_of": "spells", "size_by": "read.symbols"}, "is no tensor of a module of one"),
    (SPELL, {"size_of": "spells", "size_by": "lines.line"}, "is not among its inputs"),
    (SPELL, {"size_of": "read", "size_by": "lines.line"}, "names the module itself"),
]


@pytest.mark.parametrize(("module", "fields", "reason"), WRONG)
def test_what_does_not_hold_together_is_refused_in_one_line(
    module: int, fields: dict[str, Any], reason: str
) -> None:
    with pytest.raises(InputError) as caught:
        read(changed(module, **fields))
    assert reason in str(caught.value)
    assert "\n" not in str(caught.value)


def test_sizes_listed_apart_must_be_alike() -> None:
    data = read().to_dict()
    data["modules"][3]["inputs"] = {"x": "lines.line"}
    with pytest.raises(InputError, match=f"{WIDE}.*size_of: has other inputs, size_by or max"):
        read(data)


def test_a_module_that_names_a_model_of_several_sizes_may_list_them() -> None:
    reader = {"name": "reader", "slo_ms": 300, "sizes": [ONE]}
    alone = changed(READ, sizes=...)
    with pytest.raises(InputError, match=r"a module runs one: reader@3x48x320 \(or state `sizes`"):
        Workload.from_dict({"models": [reader], "applications": [alone]})


def test_bytes_are_sent_by_the_shares() -> None:
    specs = {"speller": (TensorSpec(name="symbols", dtype="INT64", shape=(-1, 10)),)}
    for model in ("reader@3x48x320", "reader@3x48x640"):
        sent = sent_bytes([read()], model, lambda name: specs.get(name, ()), {"pages": 10.0})
        assert sent == 80


def test_a_size_is_named_for_its_shapes() -> None:
    assert size_name("net", {"x": "3x48x320", "mask": "320"}) == "net@3x48x320+320"
