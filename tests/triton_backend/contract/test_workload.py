"""Workloads."""

from typing import Any

import pytest

from triton_backend.contract.entries import Entry
from triton_backend.contract.errors import InputError
from triton_backend.contract.workload import ModelDemand, Workload, lines_of

DEMAND = ModelDemand(name="m", slo_us=50_000, weight=0.3, batch_building_rate_rps=1_300.0)


def test_gathering_a_batch_takes_its_members_time() -> None:
    assert DEMAND.gathering_us(1) == 0
    assert DEMAND.gathering_us(3) == pytest.approx(2_000)
    assert ModelDemand(name="m", slo_us=1).gathering_us(8) == 0


def test_what_throughput_is_divided_by() -> None:
    assert DEMAND.normaliser() == 0.3
    assert ModelDemand(name="m", slo_us=1, rate_rps=7.0).normaliser() == 7.0
    assert ModelDemand(name="m", slo_us=1).normaliser() == 1.0
    assert ModelDemand(name="m", slo_us=1, weight=2.0, rate_rps=7.0).normaliser("cost") == 7.0


def test_the_plain_form_goes_there_and_back() -> None:
    workload = Workload(models=(DEMAND, ModelDemand(name="n", slo_us=1_500, rate_rps=5.0)))
    assert Workload.from_dict(workload.to_dict()) == workload


def test_bad_demands_are_named() -> None:
    with pytest.raises(InputError, match="slo_ms"):
        ModelDemand(name="m", slo_us=0)
    with pytest.raises(InputError, match="weight"):
        ModelDemand(name="m", slo_us=1, weight=-1.0)
    with pytest.raises(InputError, match="names no model"):
        Workload(models=())
    with pytest.raises(InputError, match="listed twice"):
        Workload(models=(DEMAND, DEMAND))


def demand(name: str, **known: Any) -> ModelDemand:
    return ModelDemand(name=name, slo_us=1, **known)


@pytest.mark.parametrize("field", ["weight", "rate_rps"])
def test_numbers_that_a_solver_would_lose_are_named(field: str) -> None:
    for value in (1e-12, 1e12):
        with pytest.raises(InputError, match=f"model 'm', {field}: 1e.12 is not within 1e-06 and"):
            demand("m", **{field: value})
    apart = [demand(n, **{field: v}) for n, v in (("m", 1e-3), ("n", 1e4))]
    with pytest.raises(InputError, match=f"workload, {field}: from 0.001 to 10000, more than 1e"):
        Workload(models=tuple(apart))


ENTRIES = (
    Entry(name="all", block=0, budget_us=20_500, rate_rps=30.0, clients=3),
    Entry(name="tail", block=2, budget_us=9_000, rate_rps=0.1, dtype="fp16"),
)


def test_a_model_with_entries_needs_no_rate_and_is_asked_for_all_of_theirs() -> None:
    workload = Workload(models=(demand("m", entries=ENTRIES),))
    data = workload.to_dict()
    assert data["models"][0]["entries"][0] == {
        "name": "all",
        "block": 0,
        "budget_ms": 20.5,
        "rate_rps": 30.0,
        "clients": 3,
    }
    assert Workload.from_dict(data) == workload
    assert workload.has_entries
    assert workload.models[0].normaliser("share") == workload.models[0].normaliser() == 30.1


def test_entries_of_rate_0_and_of_one_name_are_refused() -> None:
    with pytest.raises(InputError, match="model 'm', entry all, rate_rps: 0 is not within"):
        demand("m", entries=(Entry(name="all", block=0, budget_us=1, rate_rps=0.0),))
    with pytest.raises(InputError, match="a name is listed twice"):
        demand("m", entries=(ENTRIES[0], ENTRIES[0]))


def sized(**more: object) -> dict[str, object]:
    """A model of two sizes, as workload.yaml has it."""
    sizes = [
        {"input_shapes": {"x": "3x48x320"}, "share": 0.7},
        {"input_shapes": {"x": "3x48x640"}, "share": 0.3},
    ]
    return {"name": "reader", "slo_ms": 250, "sizes": sizes} | more


def test_sizes_of_a_model_are_models_with_its_shares() -> None:
    workload = Workload.from_dict({"models": [sized(rate_rps=40.0), {"name": "n", "slo_ms": 5}]})
    first, second, other = workload.models
    assert [m.name for m in workload.models] == ["reader@3x48x320", "reader@3x48x640", "n"]
    assert [m.size_of for m in workload.models] == ["reader", "reader", None]
    assert (first.rate_rps, second.rate_rps) == (pytest.approx(28.0), pytest.approx(12.0))
    assert {first.slo_us, second.slo_us} == {250_000}
    assert other.weight is None
    assert Workload.from_dict(workload.to_dict()) == workload


def test_one_size_is_named_as_one_of_several() -> None:
    (only,) = Workload.from_dict(of_sizes({"input_shapes": {"x": "4"}})).models
    assert (only.name, only.size_of) == ("reader@4", "reader")


def test_sizes_without_rate_or_weight_share_a_weight_of_one() -> None:
    plain = sized(sizes=[{"input_shapes": {"x": "4"}}, {"input_shapes": {"x": "8"}}])
    assert [m.weight for m in Workload.from_dict({"models": [plain]}).models] == [0.5, 0.5]


def of_sizes(*sizes: object) -> dict[str, object]:
    return {"models": [sized(sizes=list(sizes))]}


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (of_sizes(), "sizes: lists none"),
        (of_sizes(*[{"input_shapes": {"x": "4"}}] * 2), "'reader@4' is listed twice"),
        (of_sizes({"input_shapes": {}}, {"input_shapes": {"x": "4"}}), "names no input"),
        (of_sizes({"input_shapes": {"x": "4xw"}}), "x: '4xw' is no shape without the batch"),
        (
            of_sizes({"input_shapes": {"x": "4"}}, {"input_shapes": {"y": "8"}}),
            "'reader@8' gives y, another gives x",
        ),
        (
            of_sizes(*[{"input_shapes": {"x": n}, "share": 0.7} for n in ("4", "8")]),
            "shares are positive and add up to 1, not 0.7 [+] 0.7",
        ),
        (
            of_sizes({"input_shapes": {"x": "4"}, "share": 1}, {"input_shapes": {"x": "8"}}),
            "some have a share, others none",
        ),
        (
            {"models": [sized(), {"name": "reader", "slo_ms": 5}]},
            "size_of: 'reader' is the name of a model of its own too",
        ),
        (
            {"models": [sized(before="decode", model="net")]},
            "sizes: is of a model without before and after",
        ),
        (
            {"models": [sized(entries=[{"name": "e", "block": 0, "budget_ms": 1, "rate_rps": 1}])]},
            "a model has entries or several sizes",
        ),
        (
            {
                "models": [sized()],
                "applications": [
                    {"name": "a", "slo_ms": 9, "modules": [{"name": "m", "model": "reader"}]}
                ],
            },
            "'m'.model: 'reader' is several models, and a module runs one: reader@3x48x320, ",
        ),
    ],
)
def test_sizes_that_cannot_be_served_are_named(data: dict[str, object], said: str) -> None:
    with pytest.raises(InputError, match=said):
        Workload.from_dict(data)


def test_a_module_may_run_one_size() -> None:
    module = {"name": "m", "model": "reader@3x48x320"}
    application = {"name": "a", "slo_ms": 90, "rate_rps": 5, "modules": [module]}
    data = {"models": [sized(rate_rps=10)], "applications": [application]}
    lines = lines_of(Workload.from_dict(data), "cost")
    assert [(m.name, m.size_of) for m in lines] == [
        ("reader@3x48x320", "reader"),
        ("reader@3x48x640", "reader"),
    ]
    assert lines[0].rate_rps == pytest.approx(12.0)


def varied(*variants: object, **more: object) -> dict[str, object]:
    """A model with variants, as workload.yaml has it."""
    own = {"name": "net", "slo_ms": 50, "accuracy": 0.8, "variants": list(variants)}
    return {"models": [own | more]}


SMALL = {"name": "small", "accuracy": 0.7}
OF_SMALL = {"name": "m", "model": "small"}


def test_variants_of_a_model_answer_for_its_name() -> None:
    workload = Workload.from_dict(varied(SMALL, rate_rps=40.0))
    assert [m.name for m in workload.models] == ["net", "small"]
    assert [m.rate_rps for m in workload.models] == [40.0, 0.0]
    assert [m.slo_us for m in workload.models] == [50_000, 50_000]
    assert workload.variants == {"net": workload.models}
    assert workload.variant_of == {"small": "net"}
    assert Workload.from_dict(workload.to_dict()) == workload


def test_variants_with_shares_have_their_part_of_weight_and_rate() -> None:
    workload = Workload.from_dict(varied(SMALL | {"share": 0.25}, rate_rps=40.0, weight=2.0))
    assert [(m.rate_rps, m.weight) for m in workload.models] == [(30.0, 1.5), (10.0, 0.5)]


def test_a_model_with_an_accuracy_alone_is_one_model() -> None:
    workload = Workload.from_dict({"models": [{"name": "net", "slo_ms": 5, "accuracy": 0.5}]})
    assert workload.variants == {}
    assert workload.models[0].normaliser() == 1.0


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (varied(), "'net', variants: lists none"),
        (varied(SMALL, accuracy=1.5), "'net', accuracy: 1.5 is not within 0 and 1"),
        (varied(SMALL | {"accuracy": -1}), "'small', accuracy: -1 is not within 0 and 1"),
        (varied({"name": "small"}), "accuracy: is missing"),
        (varied({"accuracy": 0.5}), "name: is missing"),
        (varied(SMALL, SMALL), "models: 'small' is listed twice"),
        (varied(SMALL | {"name": "net"}), "'net', variants: 'net' is the model itself"),
        (varied(SMALL | {"share": 1.5}), "shares are positive and add up to 1"),
        (varied(SMALL, sizes=[]), "has variants, or several sizes"),
        (varied(SMALL, size_of="other"), "has variants, or several sizes"),
        (varied(SMALL, before="decode", model="m"), "variants: is of a model without before"),
        (
            {"models": [{"name": "net", "slo_ms": 5, "variants": [SMALL]}]},
            "'net', accuracy: is missing; variants have it",
        ),
        (
            {
                "models": [
                    {"name": "net", "slo_ms": 5, "accuracy": 0.5},
                    {"name": "small", "slo_ms": 9, "accuracy": 0.5, "size_of": "net"},
                ]
            },
            "'small', slo_ms: 9.0, but 5.0 of 'net'",
        ),
        (
            {
                "models": [
                    {"name": "net", "slo_ms": 5},
                    {"name": "small", "slo_ms": 5, "accuracy": 0.5, "size_of": "net"},
                ]
            },
            "'net', accuracy: is missing; variants have it",
        ),
        (
            varied(SMALL)
            | {
                "applications": [
                    {"name": "a", "slo_ms": 9, "modules": [{"name": "m", "model": "small"}]}
                ]
            },
            "'small' has variants, which a module does not choose from",
        ),
    ],
)
def test_variants_that_make_no_sense_are_refused(data: dict[str, object], said: str) -> None:
    with pytest.raises(InputError, match=said) as raised:
        Workload.from_dict(data)
    assert "\n" not in str(raised.value)


OLD, NEW = {"version": 1, "name": "net-2025"}, {"version": 2, "name": "net-2026"}


def versioned(*versions: object, **more: object) -> dict[str, object]:
    """A model with versions, as workload.yaml has it."""
    own = {"name": "net", "slo_ms": 50, "rate_rps": 40, "versions": list(versions)}
    return {"models": [own | more]}


def test_versions_of_a_model_are_models_with_its_shares() -> None:
    listed = NEW | {"share": 0.75}, OLD | {"share": 0.25}
    workload = Workload.from_dict(versioned(*listed))
    asked = [(m.name, m.size_of, m.version, m.rate_rps, m.slo_us) for m in workload.models]
    assert asked == [("net-2026", "net", 2, 30, 50_000), ("net-2025", "net", 1, 10, 50_000)]
    assert [*workload.versions["net"].items()] == [
        (1, workload.models[1]),
        (2, workload.models[0]),
    ]
    assert workload.variants == {}
    assert Workload.from_dict(workload.to_dict()) == workload


def test_versions_may_have_rates_and_slos_of_their_own() -> None:
    each = [
        {"name": one["name"], "version": one["version"], "size_of": "net"} | own
        for one, own in (
            (OLD, {"slo_ms": 80, "rate_rps": 5}),
            (NEW, {"slo_ms": 50, "rate_rps": 90}),
        )
    ]
    workload = Workload.from_dict({"models": each})
    assert [(v, m.rate_rps, m.slo_us) for v, m in workload.versions["net"].items()] == [
        (1, 5, 80_000),
        (2, 90, 50_000),
    ]


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (versioned(), "'net', versions: lists none"),
        (versioned(OLD, OLD), "models: 'net-2025' is listed twice"),
        (versioned(OLD, NEW | {"version": 1}), "version: 1 of 'net' is 'net-2025' already"),
        (versioned(OLD | {"version": 0}), "version: 0 is not within 1 and"),
        (versioned(OLD | {"version": "1"}), "version: '1' is not a whole number"),
        (versioned(OLD | {"version": 10**12}), "version: 1000000000000 is not within 1 and"),
        (versioned({"version": 1}), "name: is missing"),
        (versioned({"name": "net-2025"}), "version: is missing"),
        (versioned(OLD, NEW | {"share": 0.5}), "versions: some have a share, others none"),
        (versioned(OLD, variants=[SMALL]), "a model has versions, or several sizes or variants"),
        (versioned(OLD, sizes=[]), "a model has versions, or several sizes or variants"),
        (versioned(OLD, size_of="other"), "a model has versions, or several sizes or variants"),
        (versioned(OLD, accuracy=0.5), "'net-2025', accuracy: is of variants"),
        (versioned(OLD, version=3), "'net', version: needs size_of"),
        (versioned(OLD | {"name": "net"}, NEW), "'net' is the name of a model of its own too"),
        (versioned(OLD, before="decode", model="m"), "versions: is of a model without before"),
        (
            {
                "models": [
                    {"name": "net-2025", "slo_ms": 5, "size_of": "net", "version": 1},
                    {"name": "net-2026", "slo_ms": 5, "size_of": "net"},
                ]
            },
            "'net-2026', version: is missing: other models of 'net' have one",
        ),
        (
            versioned(OLD, NEW)
            | {
                "applications": [
                    {"name": "a", "slo_ms": 9, "modules": [{"name": "m", "model": "net"}]}
                ]
            },
            "'net' is several models, and a module runs one: net-2025, net-2026",
        ),
    ],
)
def test_versions_that_make_no_sense_are_refused(data: dict[str, object], said: str) -> None:
    with pytest.raises(InputError, match=said) as raised:
        Workload.from_dict(data)
    assert "\n" not in str(raised.value)


def test_shares_of_requests_are_no_part_of_a_workload() -> None:
    entries = tuple(
        Entry(name=name, block=0, budget_us=10, rate_rps=1.0, share=0.5) for name in ("a", "b")
    )
    with pytest.raises(InputError, match="entry a, share: is of plans"):
        ModelDemand(name="m", slo_us=10, entries=entries)
