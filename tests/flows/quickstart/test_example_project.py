"""The quickstart's load by default, and as given."""

from dataclasses import replace
from pathlib import Path

import pytest

from flows.planning import make_plan
from flows.preparation.splitting.split import SplitChoices
from flows.quickstart.example_project import (
    LOAD_FACTOR,
    MOST_RPS,
    OfferedModel,
    offered_share,
    own_models,
    workload_of,
)
from tests.flows.planning.small import cluster, profile, workload
from triton_backend.contract.errors import InputError


def test_a_plan_beyond_what_one_machine_offers_is_loaded_with_that_at_most() -> None:
    plan = make_plan({"net": profile()}, cluster(), workload())
    model = plan.models[0]
    slow = replace(plan, models=(replace(model, throughput_rps=10.0),))
    fast = replace(plan, models=(replace(model, throughput_rps=10_000.0),))
    assert offered_share(slow, None) == LOAD_FACTOR
    assert offered_share(fast, None) == pytest.approx(MOST_RPS / 10_000)
    assert offered_share(fast, 0.9) == 0.9


def test_several_models_are_served_with_one_slo_or_one_each() -> None:
    paths = [Path("a.onnx"), Path("in/b c.onnx")]
    assert own_models(paths, [80.0]) == (
        OfferedModel(name="a", path=paths[0], slo_us=80_000),
        OfferedModel(name="b_c", path=paths[1], slo_us=80_000),
    )
    assert [model.slo_us for model in own_models(paths, [80.0, 0.5])] == [80_000, 500]


def test_sizes_of_a_model_are_offered_by_their_shares() -> None:
    sizes = [SplitChoices(input_shapes={"x": (3, w)}, size_inputs=("x",)) for w in (32, 64)]
    plain = SplitChoices()
    found = own_models([Path("a.onnx"), Path("b.onnx")], [80.0], [sizes, [plain]], [0.7, 0.3])
    assert [(m.name, m.size_of, m.share) for m in found] == [
        ("a@3x32", "a", 0.7),
        ("a@3x64", "a", 0.3),
        ("b", None, 1.0),
    ]
    demands = workload_of(found).models
    assert [(m.name, m.weight, m.size_of) for m in demands] == [
        ("a@3x32", 0.7, "a"),
        ("a@3x64", 0.3, "a"),
        ("b", 1.0, None),
    ]
    equal = own_models([Path("a.onnx")], [80.0], [sizes])
    assert [m.share for m in equal] == [0.5, 0.5]
    with pytest.raises(InputError, match="--size-share: shares are positive and add up to 1"):
        own_models([Path("a.onnx")], [80.0], [sizes], [0.7, 0.7])


@pytest.mark.parametrize(
    ("paths", "slos_ms", "reason"),
    [
        ([], [5.0], "--model and --slo-ms go together"),
        (["a.onnx"], [], "--model and --slo-ms go together"),
        (["a.onnx"], [1.0, 2.0], "2 for 1 models; give one for all, or one each"),
        (["a.onnx", "b.onnx", "c.onnx"], [1.0, 2.0], "2 for 3 models"),
        (["x/a.onnx", "y/a.onnx"], [1.0], "y/a.onnx: x/a.onnx is called 'a' too"),
        (["a.onnx"], [0.0], "0.0 is not positive"),
    ],
)
def test_models_and_slos_that_do_not_go_together_are_refused(
    paths: list[str], slos_ms: list[float], reason: str
) -> None:
    with pytest.raises(InputError, match=reason):
        own_models([Path(path) for path in paths], slos_ms)
