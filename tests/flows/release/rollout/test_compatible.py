"""Plans that may follow another, and those that may not."""

from dataclasses import replace

import pytest

from flows.planning import PlanOptions, make_plan
from flows.release.rollout.change import check_changes
from flows.release.rollout.compatible import check_artifacts, check_names, check_tensors
from flows.release.rollout.options import RolloutOptions
from tests.fakes.plans import hand_model, hand_pipeline, hand_plan, hand_stage
from tests.flows.planning.entries.entry_cases import entry, made, profile
from tests.triton_backend.serving.one_name.sized_plans import NAME, sized_plan
from tests.triton_backend.serving.one_name.variant_plans import CHEAP, variant_plan
from tests.triton_backend.serving.one_name.variant_plans import NAME as NET
from tests.triton_backend.serving.one_name.versioned_plans import NAME as VERSIONED
from tests.triton_backend.serving.one_name.versioned_plans import versioned_plan
from tests.triton_backend.serving.small_plans import model, plan, stage, tensor
from triton_backend.contract.cluster import NodeGroup
from triton_backend.contract.entries import Entry
from triton_backend.contract.errors import InputError
from triton_backend.contract.plan import PlacementRun, Plan
from triton_backend.contract.workload import Workload
from triton_backend.runtimes.stage_tensors import complete_tensors

GIVEN = (tensor("image", 3, 16), tensor("mask", 4, dtype="UINT8"))
OTHERWISE = "give it another name, or stop and serve the new plan"
ANSWER = (tensor("boxes", 4), tensor("scores", 10))


def test_clients_know_tensors_by_name_whatever_their_order() -> None:
    one = model("m", (stage((0, 10), "FAST", 0),), inputs=GIVEN, outputs=ANSWER)
    served = one.model
    turned = one.replaced(inputs=GIVEN[::-1], outputs=ANSWER[::-1])
    check_tensors(served, plan(turned))
    check_tensors(served, plan(one.replaced(name="another", outputs=ANSWER[:1])))
    wider = (replace(ANSWER[0], shape=(-1, 5)), ANSWER[1])
    for other in (ANSWER[:1], (*ANSWER, tensor("more", 1)), wider):
        with pytest.raises(InputError, match="model 'm': has other inputs or outputs"):
            check_tensors(served, plan(one.replaced(outputs=other)))


def entered(block: int) -> Plan:
    """A plan of clients that cut at one block, whose tensor is named for it."""
    problem = made(profile(7), [entry("a", block, 60, 30)])
    options = PlanOptions(planner="graft", objective="share")
    made_plan = make_plan(problem.profiles, problem.cluster, problem.workload, options)
    (net,) = made_plan.models
    opened = tuple(replace(e, inputs=(tensor(f"t{block}", 4),)) for e in net.entries)
    return replace(made_plan, models=(replace(net, entries=opened),))


def test_a_cut_that_no_rollout_can_open_is_refused_with_what_opens_all() -> None:
    first, moved = entered(0), entered(1)
    check_tensors(first.models[0], first)
    with pytest.raises(
        InputError, match=r"cannot open or close a cut .* --shadow-rps has all open"
    ):
        check_tensors(first.models[0], moved)


def test_an_emulated_cut_keeps_its_size_wherever_the_new_plan_splits_the_model() -> None:
    entries = (
        Entry(name="whole", block=0, budget_us=90_000, rate_rps=5.0),
        Entry(name="tails", block=1, budget_us=90_000, rate_rps=5.0),
    )
    head, tail = (PlacementRun(node=0, gpu=gpu, slot=0) for gpu in (0, 1))
    first = hand_stage((0, 1), "GPU", head, (10_000,), boundary_bytes_per_sample=1_000)
    second = hand_stage((1, 2), "GPU", tail, (5_000,))
    both = hand_stage((0, 2), "GPU", head, (15_000,))
    tails = hand_pipeline(second, batch=1, rate_rps=5.0, entry="tails")
    one_stage, two_stages = (
        hand_plan(
            hand_model(
                "m",
                hand_pipeline(*stages, batch=1, rate_rps=5.0, entry="whole"),
                tails,
                slo_us=90_000,
                entries=entries,
            ),
            nodes=[NodeGroup(count=1, gpu_class="GPU", gpus=2, nic_gbps=10.0)],
        )
        for stages in ((both,), (first, second))
    )
    two_stages = replace(two_stages, plan_id="another")
    for plans in ((one_stage, two_stages), (two_stages, one_stage)):
        check_changes(plans, RolloutOptions(), {})
        served = complete_tensors(plans[0])
        new = complete_tensors(plans[1], served)
        assert new.models[0].entries == served.models[0].entries
        assert complete_tensors(new) == new


def test_a_model_that_is_computed_is_not_followed_by_dummy_outputs() -> None:
    emulated = plan(model("m", (stage((0, 10), "FAST", 0),), inputs=GIVEN, outputs=ANSWER))
    (net,) = emulated.models
    (pipeline,) = net.pipelines
    stages = tuple(replace(one, artifact="a0") for one in pipeline.stages)
    built = replace(net, pipelines=(replace(pipeline, stages=stages),))
    computed = replace(emulated, models=(built,))
    for old, new in ((emulated, computed), (computed, computed), (emulated, emulated)):
        check_artifacts(old, new)
    with pytest.raises(InputError, match=r"model 'm': blocks 0 to 9 are not built, .*--cluster"):
        check_artifacts(computed, emulated)


def unsized(width: int = 32, *, dtype: str = "FP32") -> Plan:
    """A plan of the model of `sized_plan` without sizes."""
    given, answer = tensor("x", 3, width), tensor("y", 8, dtype=dtype)
    return plan(model(NAME, (stage((0, 10), "FAST", 0),), inputs=(given,), outputs=(answer,)))


def renumbered(plan: Plan) -> Plan:
    """The same models, of which each has the version of another."""
    models = plan.workload.models
    others = reversed([demand.version for demand in models])
    swapped = (replace(one, version=v) for one, v in zip(models, others, strict=True))
    return replace(plan, workload=Workload(models=tuple(swapped)))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (sized_plan((32, 64)), sized_plan((64, 128, 256))),
        (sized_plan((32, 64)), sized_plan((16,))),
        (sized_plan((32, 64)), unsized()),
        (variant_plan(), variant_plan(names=(NET,))),
        (variant_plan(names=(NET,)), variant_plan()),
        (unsized(), variant_plan()),
        (versioned_plan((1, 2)), versioned_plan((2, 3))),
        (versioned_plan((1, 2)), versioned_plan((1,))),
    ],
)
def test_what_answers_for_a_name_may_change(old: Plan, new: Plan) -> None:
    check_names(old, new)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        (
            unsized(),
            sized_plan((32, 64)),
            "model 'reader': is served with 'x' of shape 3x32 alone, which a rollout cannot open; "
            + OTHERWISE,
        ),
        (unsized(), unsized(64), "is served with 'x' of shape 3x32 alone"),
        (
            plan(model(VERSIONED, (stage((0, 1), "FAST", 0),), inputs=GIVEN, outputs=ANSWER)),
            versioned_plan(),
            "model 'net': is served without versions, which a rollout cannot change; " + OTHERWISE,
        ),
        (
            versioned_plan(),
            plan(model(VERSIONED, (stage((0, 1), "FAST", 0),), inputs=GIVEN, outputs=ANSWER)),
            "model 'net': is served with versions, which a rollout cannot change; " + OTHERWISE,
        ),
        (
            versioned_plan((1, 2)),
            versioned_plan((3,)),
            "keeps no version of those being served (1, 2); add the new ones first, and remove",
        ),
        (
            versioned_plan((1, 2)),
            renumbered(versioned_plan((1, 2))),
            "model 'net': 'net-v2' is version 2 in the plan being served; remove it first",
        ),
        (sized_plan(), unsized(dtype="FP16"), "has other outputs than the one being served"),
        (
            plan(model(CHEAP, (stage((0, 1), "FAST", 0),), inputs=GIVEN, outputs=ANSWER)),
            variant_plan(),
            f"model '{NET}': '{CHEAP}' answers for '{CHEAP}' in the plan being served; remove it",
        ),
    ],
)
def test_what_triton_would_have_to_load_again_is_refused(old: Plan, new: Plan, said: str) -> None:
    with pytest.raises(InputError) as refused:
        check_names(old, new)
    assert said in str(refused.value)
    assert "\n" not in str(refused.value)
