"""Plans on cards that MIG divides: what is written, and what is refused."""

from dataclasses import replace
from pathlib import Path

import pytest

from flows.files import read_cluster
from flows.planning.verify.numbers import verify_plan
from tests.fakes.slices import slice_plan
from triton_backend.contract.errors import InputError
from triton_backend.contract.plan import Plan, StageMemory
from triton_backend.contract.shares import Mig
from triton_backend.contract.transition.steps import steps

GIB = 1 << 30


def test_a_plan_names_slices_and_processes_in_them() -> None:
    plan = slice_plan(("3g", [(0, 0, 0)]), ("4g/2", [(0, 0, 1), (0, 0, 2)]), gpus=2)
    data = plan.to_dict()
    assert [pool["vgpu_mig"] for pool in data["pools"]] == ["3g", "4g/2"]
    assert data["cluster"]["gpu_classes"]["G"] == {"mig": {"card": "A100-40GB", "processes": 4}}
    assert Plan.from_dict(data) == plan
    assert [text for text in verify_plan(plan) if "GPU" in text] == []


def test_slices_that_do_not_fit_a_card_are_refused() -> None:
    """3/7 + 3/7 + 1/7 is a whole card, but a 3g takes half of the memory."""
    reason = r"GPU 0, slices: cut into \['1g.5gb', '3g.20gb', '3g.20gb'\], which do not fit"
    with pytest.raises(InputError, match=reason):
        slice_plan(("1g", [(0, 0, 0)]), ("3g/2", [(0, 0, n) for n in (1, 2, 3)]))


def test_a_whole_card_is_no_slice() -> None:
    plan = slice_plan(("7g", [(0, 0, 0)]))
    whole = replace(plan.pools[0], share=300)
    with pytest.raises(InputError, match="vGPUs of 1/1, but class G lists 1g, 1g/2"):
        replace(plan, pools=(whole,))


def test_memory_of_a_slice_is_shared_by_its_processes() -> None:
    plan = slice_plan(("3g", [(0, 0, 0)]), memory=StageMemory(static=15 * GIB, dynamic=0))
    with pytest.raises(InputError, match=r"15\.000 GiB needed, 3g/2 of a A100-40GB has 9\.81"):
        replace(plan, pools=(replace(plan.pools[0], share=64),))


@pytest.mark.parametrize(
    ("mig", "text"),
    [
        (Mig(card="A100-40GB", processes=1), "4g/2 is no part of a MIG slice of its class"),
        (
            Mig(card="A100-40GB", processes=2, geometries=(("3g.20gb", "3g.20gb"),)),
            "cut into ['3g.20gb', '4g.20gb'], no such division is listed",
        ),
        (
            Mig(card="A100-80GB", processes=2, profiles=("4g.40gb", "3g.40gb")),
            "",
        ),
    ],
)
def test_how_a_card_is_divided_is_derived_again(mig: Mig, text: str) -> None:
    plan = slice_plan(("3g", [(0, 0, 0)]), ("4g/2", [(0, 0, 1), (0, 0, 2)]))
    kind = replace(plan.cluster.gpu_classes[0], mig=mig)
    object.__setattr__(plan.cluster, "gpu_classes", (kind,))  # behind the back of the form's checks
    found = [said for said in verify_plan(plan) if said.startswith("GPU")]
    assert found == ([f"GPU (0, 0): {text}"] if text else [])


def test_memory_of_slices_is_derived_again() -> None:
    plan = slice_plan(("3g", [(0, 0, 0)]), memory=StageMemory(static=12 * GIB, dynamic=0))
    object.__setattr__(plan.pools[0], "share", 64)
    assert "pool g-0.0.0: a 3g slice needs 24 GiB, it has 19.62" in verify_plan(plan)


def test_a_change_of_slices_is_not_made_while_serving() -> None:
    before = slice_plan(("3g", [(0, 0, 0)]), ("4g", [(0, 0, 1)]))
    same = slice_plan(("4g", [(0, 0, 1)]), ("3g", [(0, 0, 0)]))
    assert steps(before, same) == (same,)
    after = slice_plan(("3g", [(0, 0, 0)]), ("3g", [(0, 0, 1)]))
    with pytest.raises(InputError, match="node G: its MIG slices change"):
        steps(before, after)


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ("mig: {card: B100}", r"gpu_classes\.G\.mig\.card: 'B100' is none of A100-40GB, A100-80GB"),
        ("mig: {card: A100-40GB, profiles: [3g.40gb]}", r"mig\.profiles: '3g\.40gb' is none of 1g"),
        ("mig: {card: A100-40GB, profiles: [1g.5gb, 1g.10gb]}", "one profile of each compute size"),
        ("mig: {card: A100-40GB, processes: 5}", r"mig\.processes: 5 is not within 1 and 4"),
        (
            "mig: {card: A100-40GB}, partitions: [[4g.20gb, 4g.20gb]]",
            r"partitions\[0\]: \['4g.20gb', '4g.20gb'\] do not fit a A100-40GB together",
        ),
        (
            "mig: {card: A100-40GB, profiles: [3g.20gb]}, partitions: [[4g.20gb]]",
            r"partitions\[0\]: 4g\.20gb is not among the profiles of the class",
        ),
        ("mig: {card: A100-40GB}, vgpu_percents: [50]", r"G\.mig: stands beside vgpu_divisors"),
        ("mig: {card: A100-40GB}, partitions: [[20, 80]]", "20 is not a text"),
        ("vgpu_percents: [50], partitions: [[3g.20gb]]", "'3g.20gb' is not a whole number"),
    ],
)
def test_an_illegal_division_is_one_line(tmp_path: Path, given: str, text: str) -> None:
    path = tmp_path / "cluster.yaml"
    path.write_text(
        f"gpu_classes:\n  G: {{{given}}}\n"
        "nodes: [{count: 1, gpu_class: G, gpus: 1, nic_gbps: 10}]\n"
    )
    with pytest.raises(InputError, match=text) as caught:
        read_cluster(path)
    assert "\n" not in str(caught.value)


def test_a_division_is_read_and_written(tmp_path: Path) -> None:
    path = tmp_path / "cluster.yaml"
    path.write_text(
        "gpu_classes:\n"
        "  G: {mig: {card: A100-80GB, profiles: [3g.40gb, 1g.20gb], processes: 3},\n"
        "      partitions: [[3g.40gb, 3g.40gb], [1g.20gb, 3g.40gb]], hourly_cost: 2}\n"
        "nodes: [{count: 1, gpu_class: G, gpus: 1, nic_gbps: 10}]\n"
    )
    cluster = read_cluster(path)
    (kind,) = cluster.gpu_classes
    assert kind.mig == Mig(
        card="A100-80GB",
        profiles=("3g.40gb", "1g.20gb"),
        processes=3,
        geometries=(("3g.40gb", "3g.40gb"), ("1g.20gb", "3g.40gb")),
    )
    assert (kind.basis, kind.most_vgpus, len(kind.shares)) == ("solo", 21, 6)
    assert type(cluster).from_dict(cluster.to_dict()) == cluster
