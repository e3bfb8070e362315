"""Names: one pattern for all, checked when read, refused in one line."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from tests.fakes.applications import hand_application, hand_module, with_applications
from tests.fakes.plans import Own, Way, make_boarding_plan, two_stages
from triton_backend.contract.cluster import Cluster, GpuClass, NodeGroup
from triton_backend.contract.entries import Entry
from triton_backend.contract.errors import InputError
from triton_backend.contract.fields import LONGEST_NAME, check_name
from triton_backend.contract.plan import Plan, next_pool_name
from triton_backend.contract.profiles import ModelProfile
from triton_backend.contract.workload import ModelDemand

HOSTILE = (
    "",
    "two\nlines",
    "line\n",
    "../../../../outside/evil",
    "a..b",
    "..",
    ".hidden",
    "-rf",
    "$(reboot)",
    "a;b",
    "a`b`",
    'a"b',
    "a b",
    "a/b",
    "a\\b",
    "a\0b",
    "modèle",
    "n" * (LONGEST_NAME + 1),
)
NAMED: dict[str, Callable[[str], object]] = {
    "model of a workload": lambda name: ModelDemand(name=name, slo_us=1_000),
    "entry": lambda name: Entry(name=name, block=0, budget_us=1_000, rate_rps=1.0),
    "application": lambda name: hand_application(name, [hand_module("a", "m")]),
    "module": lambda name: hand_application("app", [hand_module(name, "m")]),
    "model of a module": lambda name: hand_application("app", [hand_module("a", name)]),
    "GPU class": lambda name: GpuClass(name=name),
    "node group": lambda name: NodeGroup(count=1, gpu_class="A", gpus=1, nic_gbps=1, name=name),
    "profile": lambda name: ModelProfile(name=name, boundary_bytes=(), tables={}),
}
IN_A_PLAN: dict[str, tuple[str | int, ...]] = {
    "plan": ("plan_id",),
    "pool": ("pools", 0, "name"),
    "GPU class of a pool": ("pools", 0, "gpu_class"),
    "model": ("models", 0, "name"),
    "demand": ("workload", "models", 0, "name"),
    "entry": ("models", 0, "entries", 0, "name"),
    "application": ("applications", 0, "name"),
    "module": ("applications", 0, "modules", 0, "name"),
    "model of a module": ("applications", 0, "modules", 0, "model"),
    "node": ("cluster", "nodes", 0, "name"),
    "artifact": ("models", 0, "pipelines", 0, "stages", 0, "artifact"),
}


def plan_with(kind: str) -> Plan:
    if kind == "entry":
        way, pool = Way(pools=(0,)), Own(latency_us=(1_000,))
        return make_boarding_plan([((0, 1), pool)], way, way)
    return with_applications(two_stages(), hand_application("app", [hand_module("a", "m0")]))


@pytest.mark.parametrize("kind", NAMED)
@pytest.mark.parametrize("name", HOSTILE)
def test_a_name_that_could_be_a_path_or_a_command_is_refused_in_one_line(
    kind: str, name: str
) -> None:
    with pytest.raises(InputError) as told:
        NAMED[kind](name)
    assert "\n" not in str(told.value)
    assert len(str(told.value)) < 400


@pytest.mark.parametrize("kind", IN_A_PLAN)
@pytest.mark.parametrize("name", HOSTILE)
def test_a_stored_plan_with_such_a_name_is_refused_in_one_line(kind: str, name: str) -> None:
    data: Any = json.loads(json.dumps(plan_with(kind).to_dict()))
    Plan.from_dict(data)
    *path, last = IN_A_PLAN[kind]
    place = data
    for step in path:
        place = place[step]
    place[last] = name
    with pytest.raises(InputError) as told:
        Plan.from_dict(data)
    assert "\n" not in str(told.value)


@pytest.mark.parametrize(
    "name",
    [
        "L4",
        "_private",
        "rtmdet_x_8xb32-300e_coco",
        "efficientnet-b8_3rdparty_8xb32-aa-advprop_in1k",
        "encnet_r101-d8_4xb2-40k_cityscapes-512x1024",
        "googlenet-v3-pytorch",
        "1g.10gb+me",
        "client@host.example",
        "1080Ti",
        "a" * LONGEST_NAME,
    ],
)
def test_names_as_published_tables_have_them_are_legal(name: str) -> None:
    check_name("model", name)
    for named in NAMED.values():
        if "." not in name:  # which a module's name may not have: `module.tensor`
            named(name)


def test_names_of_nodes_and_pools_made_from_a_class_are_legal() -> None:
    longest = "A" * LONGEST_NAME
    check_name("pool", next_pool_name(longest, {longest.lower(): 10_000_000}))
    group = NodeGroup(count=1, gpu_class="A.", gpus=1, nic_gbps=1)
    with pytest.raises(InputError, match=r"cluster 'c', nodes\[1\]: 'A\.\.1' is no name"):
        Cluster(name="c", gpu_classes=(GpuClass(name="A."),), nodes=(group, group))


def test_a_class_whose_name_is_none_is_named_in_one_line_whatever_else_is_wrong_of_it() -> None:
    data = {"gpu_classes": {"a\nb": {"vgpu_divisors": "none"}}, "nodes": []}
    with pytest.raises(InputError, match=r"gpu_classes: 'a\\nb' is no name") as told:
        Cluster.from_dict(data)
    assert "\n" not in str(told.value)
