"""Applications: what is read, what is refused, and what paths sum up to."""

from copy import deepcopy
from typing import Any

import pytest

from triton_backend.contract.applications import (
    Application,
    Module,
    check_tensors,
)
from triton_backend.contract.errors import InputError
from triton_backend.contract.fields import Fields
from triton_backend.contract.tensors import TensorSpec
from triton_backend.contract.workload import Workload, lines_of

TRAFFIC: dict[str, Any] = {
    "name": "traffic",
    "slo_ms": 400,
    "rate_rps": 50,
    "modules": [
        {"name": "detect", "model": "ssd", "inputs": {"image": "request.image"}},
        {
            "name": "cars",
            "model": "resnet",
            "after": ["detect"],
            "rows_per_request": 2.4,
            "max_rows": 16,
            "inputs": {"crops": "detect.car_crops"},
            "optional": True,
        },
        {
            "name": "people",
            "model": "reid",
            "rows_per_request": 0.7,
            "max_rows": 8,
            "inputs": {"crops": "detect.person_crops"},
        },
    ],
    "outputs": {"boxes": "detect.boxes", "person": "people.embedding"},
}


def changed(*changes: tuple[tuple[Any, ...], Any]) -> dict[str, Any]:
    """The traffic application with values at paths replaced; `...` removes one."""
    data = deepcopy(TRAFFIC)
    for path, value in changes:
        at: Any = data
        for step in path[:-1]:
            at = at[step]
        if value is ...:
            del at[path[-1]]
        elif path[-1] == "+":
            at.append(value)
        else:
            at[path[-1]] = value
    return data


def read(data: dict[str, Any]) -> Application:
    return Application.read(Fields(data))


CARS, DETECT, PEOPLE = ("modules", 1), ("modules", 0), ("modules", 2)
AT = "application 'traffic'"
WRONG: list[tuple[list[tuple[tuple[Any, ...], Any]], str]] = [
    ([(("name",), "")], "applications.name: is empty"),
    ([(("name",), ...)], "name: is missing"),
    ([(("slo_ms",), ...)], f"{AT}.slo_ms: is missing"),
    ([(("slo_ms",), 0)], f"{AT}.slo_ms: 0.0 is not positive"),
    ([(("slo_ms",), "soon")], f"{AT}.slo_ms: 'soon' is not a number"),
    ([(("rate_rps",), -1)], f"{AT}.rate_rps: -1 is not a positive number"),
    ([(("weight",), 0)], f"{AT}.weight: 0 is not a positive number"),
    ([(("modules",), [])], f"{AT}.modules: there is none"),
    ([(("modules",), {})], f"{AT}.modules: {{}} is not a list"),
    ([(("slo",), 3)], f"{AT}.slo: is not known here; an application has name,"),
    ([((*CARS, "name"), "detect")], f"{AT}.modules: module 'detect' is listed twice"),
    ([((*CARS, "name"), ...)], f"{AT}.modules[1].name: is missing"),
    ([((*CARS, "name"), "")], f"{AT}.modules.name: is empty"),
    ([((*CARS, "name"), "request")], f"{AT}, module 'request'.name: 'request' and names"),
    ([((*CARS, "name"), "a.b")], f"{AT}, module 'a.b'.name: 'request' and names with a dot"),
    ([((*CARS, "model"), ...)], f"{AT}, module 'cars'.model: is missing"),
    ([((*CARS, "model"), "")], f"{AT}, module 'cars'.model: is empty"),
    ([((*CARS, "rows"), 2)], f"{AT}, module 'cars'.rows: is not known here; a module has"),
    ([((*CARS, "after"), "detect")], f"{AT}, module 'cars'.after: 'detect' is not a list"),
    ([((*CARS, "after"), ["cars"])], f"{AT}, module 'cars'.after: names the module itself"),
    ([((*CARS, "after"), ["dog"])], f"{AT}, module 'cars'.after: no module 'dog'; there are"),
    ([((*CARS, "after"), ["detect"] * 2)], f"{AT}, module 'cars'.after: 'detect' is listed twice"),
    ([((*CARS, "after"), ["people"])], f"{AT}, module 'cars'.after: misses 'detect'"),
    ([((*CARS, "rows_per_request"), 0)], f"{AT}, module 'cars'.rows_per_request: 0 is not in"),
    ([((*CARS, "rows_per_request"), ...)], f"{AT}, module 'cars'.rows_per_request: is missing"),
    ([((*CARS, "rows_per_request"), 17)], f"{AT}, module 'cars'.rows_per_request: 17 on average"),
    ([((*CARS, "max_rows"), ...)], f"{AT}, module 'cars'.max_rows: is missing; rows_per_req"),
    ([((*CARS, "max_rows"), 0)], f"{AT}, module 'cars'.max_rows: 0 is not within 1 and"),
    ([((*DETECT, "max_rows_given"), 0)], f"{AT}, module 'detect'.max_rows_given: 0 is not within"),
    (
        [((*DETECT, "max_rows_given"), 100_001)],
        f"{AT}, module 'detect'.max_rows_given: 100001 is not within 1 and 100000",
    ),
    ([((*CARS, "max_rows"), 2.5)], f"{AT}, module 'cars'.max_rows: 2.5 is not a whole number"),
    ([((*CARS, "optional"), "yes")], f"{AT}, module 'cars'.optional: 'yes' is neither true"),
    ([((*CARS, "inputs", "crops"), "detect")], f"{AT}, module 'cars'.inputs.crops: 'detect' is n"),
    ([((*CARS, "inputs", "crops"), "dog.x")], f"{AT}, module 'cars'.inputs.crops: no module 'do"),
    ([((*CARS, "inputs", "crops"), 3)], f"{AT}, module 'cars'.inputs.crops: 3 is not a text"),
    ([((*CARS, "batch_building_rate_rps"), 0)], f"{AT}, module 'cars'.batch_building_rate_rps: 0"),
    (
        [((*DETECT, "after"), ["people"]), ((*PEOPLE, "after"), ["detect"])],
        f"{AT}, module 'detect'.after: runs in a circle: detect -> people -> detect",
    ),
    (
        [((*DETECT, "rows_per_request"), 2), ((*DETECT, "max_rows"), 2)],
        f"{AT}, module 'detect'.rows_per_request: 2, but a module after none runs the request",
    ),
    (
        [((*PEOPLE, "after"), ["detect", "cars"])],
        f"{AT}, module 'people'.optional: must be true: 'cars' before it is",
    ),
    (
        [((*PEOPLE, "inputs", "more"), "cars.scores"), ((*PEOPLE, "optional"), True)],
        f"{AT}, module 'people'.inputs: reads rows that do not pair up, 1 of detect and 2.4",
    ),
    (
        [(("modules", "+"), {"name": "sound", "model": "vad"})],
        f"{AT}, module 'sound'.inputs: must name request",
    ),
    ([(("outputs", "boxes"), "boxes")], f"{AT}.outputs.boxes: 'boxes' is not module.tensor"),
    ([(("outputs", "boxes"), "dog.boxes")], f"{AT}.outputs.boxes: no module 'dog'"),
    ([(("outputs", "boxes"), "request.image")], f"{AT}.outputs.boxes: 'request.image' is no"),
]


@pytest.mark.parametrize(("changes", "message"), WRONG, ids=[text for _, text in WRONG])
def test_what_is_wrong_is_named_in_one_line(
    changes: list[tuple[tuple[Any, ...], Any]], message: str
) -> None:
    with pytest.raises(InputError) as raised:
        read(changed(*changes))
    assert str(raised.value).startswith(message)
    assert "\n" not in str(raised.value)


def test_the_plain_form_goes_there_and_back() -> None:
    workload = Workload.from_dict({"applications": [TRAFFIC]})
    assert workload.applications[0] == read(TRAFFIC)
    assert Workload.from_dict(workload.to_dict()) == workload
    assert "models" not in workload.to_dict()


def test_modules_come_after_those_that_they_read() -> None:
    application = read(TRAFFIC)
    assert application.module("people").parents == ("detect",)
    assert application.module("detect").parents == ()
    assert application.module("detect").max_rows == 1
    with pytest.raises(InputError, match="no module 'dog'; there are detect, cars, people"):
        application.module("dog")


def test_paths_of_unequal_depth_meet_at_a_join() -> None:
    def module(name: str, *after: str) -> Module:
        return Module(name=name, model=name, after=after)

    application = Application(
        name="a",
        slo_us=100,
        modules=(
            module("join", "left2", "right"),
            module("left2", "left1"),
            module("left1"),
            module("right"),
        ),
    )
    times = {"left1": 3, "left2": 4, "right": 20, "join": 5}
    assert [m.name for m in application.ordered()] == ["left1", "right", "left2", "join"]
    assert application.heads(times) == {"left1": 0, "left2": 3, "right": 0, "join": 20}
    assert application.tails(times) == {"left1": 9, "left2": 5, "right": 5, "join": 0}
    assert application.through(times) == {"left1": 12, "left2": 12, "right": 25, "join": 25}
    assert application.longest(times) == 25


def test_models_that_modules_share_become_one_line() -> None:
    other = {
        "name": "gate",
        "slo_ms": 200,
        "rate_rps": 10,
        "modules": [{"name": "who", "model": "reid"}],
    }
    models = [{"name": "ssd", "slo_ms": 90, "rate_rps": 5}]
    workload = Workload.from_dict({"models": models, "applications": [TRAFFIC, other]})
    lines = {line.name: line for line in lines_of(workload, "cost")}
    assert list(lines) == ["ssd", "resnet", "reid"]
    assert lines["reid"].rate_rps == pytest.approx(50 * 0.7 + 10)
    assert lines["reid"].slo_us == 200_000
    assert lines["ssd"].rate_rps == 55
    assert lines["ssd"].slo_us == 90_000
    assert lines["resnet"].weight == pytest.approx(120)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({}, "models: is missing"),
        ({"applications": []}, "workload: names no model and no application"),
        ({"applications": [TRAFFIC, TRAFFIC]}, "application 'traffic'.name: is listed twice"),
        (
            {"models": [{"name": "traffic", "slo_ms": 1}], "applications": [TRAFFIC]},
            "application 'traffic'.name: is a model's name too",
        ),
        (
            {"applications": [TRAFFIC | {"rate_rps": 1e9}]},
            "application 'traffic'.rate_rps: 1e+09 is not within",
        ),
    ],
)
def test_workloads_that_cannot_be_are_named(data: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError) as raised:
        Workload.from_dict(data)
    assert str(raised.value).startswith(message)


def spec(name: str, *shape: int, dtype: str = "FP32") -> TensorSpec:
    return TensorSpec(name=name, dtype=dtype, shape=(-1, *shape))


TENSORS = {
    "ssd": (
        (spec("image", 3, 300, 300),),
        (spec("boxes", 4), spec("car_crops", 3, 8, 8), spec("person_crops", 3, 8, 8)),
    ),
    "resnet": ((spec("crops", 3, 8, 8),), (spec("scores", 9),)),
    "reid": ((spec("crops", 3, 8, 8),), (spec("embedding", 64),)),
}


def test_tensors_that_fit_give_the_request() -> None:
    request = check_tensors(read(TRAFFIC), TENSORS.__getitem__)
    assert request == (spec("image", 3, 300, 300),)
    assert check_tensors(read(TRAFFIC), lambda _: ((), ())) == ()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            [((*CARS, "inputs", "crops"), "detect.dogs")],
            f"{AT}, module 'cars'.inputs.crops: ssd gives boxes, car_crops, person_crops, not",
        ),
        (
            [((*CARS, "inputs", "crops"), "detect.boxes")],
            f"{AT}, module 'cars'.inputs.crops: detect.boxes is FP32 [4] per row, FP32 [3, 8, 8]",
        ),
        (
            [((*CARS, "inputs"), {"pixels": "detect.car_crops"})],
            f"{AT}, module 'cars'.inputs.pixels: resnet reads crops alone",
        ),
        ([(("outputs", "boxes"), "detect.x")], f"{AT}.outputs.boxes: ssd gives boxes"),
    ],
)
def test_tensors_that_do_not_fit_are_named(
    changes: list[tuple[tuple[Any, ...], Any]], message: str
) -> None:
    with pytest.raises(InputError) as raised:
        check_tensors(read(changed(*changes)), TENSORS.__getitem__)
    assert str(raised.value).startswith(message)


def test_a_tensor_that_nothing_feeds_is_named() -> None:
    inputs, outputs = TENSORS["ssd"]
    tensors = TENSORS | {"ssd": ((*inputs, spec("mask", 1)), outputs)}
    with pytest.raises(InputError, match=r"'detect'\.inputs\.mask: is missing; ssd reads"):
        check_tensors(read(TRAFFIC), tensors.__getitem__)


def test_rows_vary_where_givers_that_agree_say_them() -> None:
    """A join of rows that do not pair up runs one row a request, whatever its `max_rows`."""

    def module(name: str, rows: float, most: int, *after: str, **inputs: str) -> Module:
        return Module(
            name=name, model="m", after=after, rows_per_request=rows, max_rows=most, inputs=inputs
        )

    modules = (
        module("a", 1, 16),
        module("b", 2, 16, "a"),
        module("c", 1.3, 16, "a"),
        module("d", 1, 16, "b", "c"),
        module("e", 2, 16, "b"),
        module("f", 2, 16, "b", "c", x="b.y"),
        module("g", 3, 3, "a"),
    )
    application = Application(name="app", slo_us=1, modules=modules)
    assert [m.name for m in modules if application.rows_vary(m)] == ["b", "c", "e", "f"]
