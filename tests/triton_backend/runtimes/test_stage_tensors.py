from dataclasses import replace
from pathlib import Path

import pytest

from tests.triton_backend.serving import served_applications, small_plans
from tests.triton_backend.serving.served_applications import (
    application,
    module,
    one_stage,
    sized_plan,
    two_stage,
)
from tests.triton_backend.serving.shared.shared_plans import with_tail
from triton_backend.contract.errors import InputError
from triton_backend.contract.plan import Plan
from triton_backend.contract.tensors import TensorSpec
from triton_backend.runtimes.stage_tensors import (
    EMULATED_INPUT_BYTES,
    complete_tensors,
    served_model,
    served_models,
)


def tensor_rows() -> TensorSpec:
    return TensorSpec(name="rows", dtype="INT64", shape=(-1,))


def diamond() -> Plan:
    models = [one_stage("m_a"), two_stage("m_b"), one_stage("m_c"), one_stage("m_d")]
    return served_applications.with_applications(
        small_plans.plan(*models), served_applications.diamond(), alone=("m_a",)
    )


def test_an_application_without_tensors_is_completed_so_that_every_edge_fits() -> None:
    plan = complete_tensors(diamond())
    graph = plan.applications[0].application
    assert [dict(one.inputs) for one in graph.modules] == [
        {"input": "request.input"},
        {"input": "a.output"},
        {"input": "a.output"},
        {"input_0": "b.output", "input_1": "c.output"},
    ]
    assert graph.outputs == {"d.output": "d.output"}
    assert [spec.name for spec in plan.applications[0].inputs] == ["input"]
    assert complete_tensors(plan) == plan


def test_tensors_that_modules_name_are_those_of_their_models() -> None:
    graph = application(
        "traffic",
        module("a", inputs={"image": "request.image"}),
        module("b", "a", inputs={"crops": "a.cars", "image": "request.image"}),
        outputs={"type": "b.scores"},
    )
    plan = complete_tensors(
        served_applications.with_applications(
            small_plans.plan(one_stage("m_a"), one_stage("m_b")), graph
        )
    )
    assert [spec.name for spec in plan.model("m_a").outputs] == ["cars"]
    assert [spec.name for spec in plan.model("m_b").inputs] == ["crops", "image"]
    seen = served_model(plan, "traffic")
    assert [(spec.name, spec.shape) for spec in (*seen.inputs, *seen.outputs)] == [
        ("image", (-1, EMULATED_INPUT_BYTES)),
        ("type", (-1, EMULATED_INPUT_BYTES)),
    ]


def test_clients_see_applications_and_the_models_that_are_asked_for_by_themselves() -> None:
    plan = complete_tensors(diamond())
    assert [model.name for model in served_models(plan)] == ["m_a", "actdet"]
    with pytest.raises(InputError, match="no model 'm_b'; it serves m_a, actdet"):
        served_model(plan, "m_b")


def test_what_comes_to_a_shared_stage_has_one_name_wherever_it_comes_from(tmp_path: Path) -> None:
    named = small_plans.plan(with_tail(tmp_path, boards=True))
    (model,) = named.models
    pipelines = tuple(
        replace(p, stages=tuple(replace(s, boundary=None, artifact=None) for s in p.stages))
        for p in model.pipelines
    )
    bare = replace(model, pipelines=pipelines, inputs=(), outputs=())
    (made,) = complete_tensors(replace(named, models=(bare,))).models
    assert made.stage_inputs(0, 1) == made.stage_inputs(1, 0) == made.entries[1].inputs
    assert [spec.name for spec in made.entries[1].inputs] == ["cut_1"]


def test_rows_that_nobody_bounds_are_refused() -> None:
    plan = diamond()
    stated = small_plans.tensor("output", 4096, dtype="UINT8"), tensor_rows()
    models = [replace(m, outputs=stated) if m.name == "m_d" else m for m in plan.models]
    with pytest.raises(
        InputError, match="model 'm_d', output 'output': has rows that 'rows' counts"
    ):
        complete_tensors(replace(plan, models=tuple(models)))


def test_a_model_by_itself_answers_one_row_per_sample() -> None:
    outputs = (TensorSpec(name="boxes", dtype="FP32", shape=(-1, 4)), tensor_rows())
    plan = small_plans.plan(one_stage("detector"))
    plan = replace(plan, models=(replace(plan.models[0], outputs=outputs),))
    with pytest.raises(
        InputError, match=r"'detector', output 'boxes': has as many rows as 'rows' says"
    ):
        complete_tensors(plan)


def test_rows_that_would_be_made_up_are_refused(tmp_path: Path) -> None:
    """A module after a real detector runs as many rows as there are, up to its maximum."""
    plan = served_applications.onnx_plan(tmp_path)
    (graph,) = (one for one in plan.applications if one.application.name == "crops")
    detect, classify = graph.application.modules
    always = replace(
        graph,
        application=replace(
            graph.application, modules=(detect, replace(classify, rows_per_request=4.0))
        ),
    )
    with pytest.raises(
        InputError,
        match=r"module 'classify'.max_rows: is 4, as rows_per_request is, .* 'crops_rows' says",
    ):
        complete_tensors(replace(plan, applications=(always,)))


def test_an_edge_whose_ends_differ_is_refused_by_name() -> None:
    plan = diamond()
    stated = (small_plans.tensor("wide", 7),)
    models = [replace(m, inputs=stated) if m.name == "m_c" else m for m in plan.models]
    with pytest.raises(
        InputError, match=r"module 'c'.inputs.wide: is missing, and 'a' gives nothing"
    ):
        complete_tensors(replace(plan, models=tuple(models)))


def test_rows_that_no_module_reads_are_bounded_by_the_module_that_gives_them() -> None:
    """A detector alone: its answer is its rows, and how many each sample gave."""
    given = module("find", model="m", max_rows_given=5)
    plan = served_applications.with_applications(
        small_plans.plan(one_stage("m")), application("alone", given)
    )
    made = complete_tensors(plan)
    assert [(s.name, s.dtype) for s in made.models[0].outputs] == [
        ("output", "UINT8"),
        ("output_rows", "INT64"),
    ]
    assert complete_tensors(Plan.from_dict(made.to_dict())) == made


def test_an_answer_of_several_sizes_has_the_shape_of_the_widest() -> None:
    served = {model.name: model for model in served_models(complete_tensors(sized_plan()))}
    assert [(spec.name, spec.shape) for spec in served["sized"].outputs] == [
        ("y", (-1, 4)),
        ("z", (-1, 1)),
    ]


def test_two_modules_that_choose_by_one_tensor_list_the_same_sizes() -> None:
    plan = sized_plan()
    (planned,) = plan.applications
    graph = planned.application
    narrow = tuple(m for m in graph.modules if m.name in {"fit", "read@2"})
    other = replace(graph, name="other", modules=narrow, outputs={"y": "read.y"})
    also = replace(planned, application=other)
    workload = replace(plan.workload, applications=(graph, other))
    both = replace(plan, applications=(planned, also), workload=workload)
    with pytest.raises(InputError, match=r"'other', module 'read'\.sizes: are not those of 'read'"):
        complete_tensors(both)


def test_rows_of_a_number_of_their_own_do_not_choose_a_size() -> None:
    plan = sized_plan()
    counts = TensorSpec(name="x_rows", dtype="INT64", shape=(-1,))
    models = tuple(
        replace(model, outputs=(*model.outputs, counts)) if model.name == "m_a" else model
        for model in plan.models
    )
    with pytest.raises(InputError, match="has rows of a number of its own, which several sizes"):
        complete_tensors(replace(plan, models=models))


def test_a_plan_without_tensors_serves_no_sizes() -> None:
    plan = sized_plan()
    models = tuple(replace(model, inputs=(), outputs=()) for model in plan.models)
    with pytest.raises(InputError, match="by which rows choose their size, needs an output 'x_sh"):
        complete_tensors(replace(plan, models=models))
