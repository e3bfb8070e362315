"""GPUs and memory that models beside the plan hold."""

from pathlib import Path
from typing import Any

import pytest

from flows.operations.adoption.taken import (
    Taken,
    check_gpus,
    check_stated,
    in_words,
    parse_taken,
    taken_beside,
    without_taken,
)
from flows.preparation.triton_repository.repository import Found, read_repository
from triton_backend.contract.cluster import Cluster
from triton_backend.contract.errors import InputError

GROUPS = {
    "python": 'backend: "python"',
    "auto": 'backend: "python" instance_group [ { count: 2 } ]',
    "cpu": 'backend: "vllm" instance_group [ { kind: KIND_CPU } ]',
    "named": 'backend: "python" instance_group [ { kind: KIND_GPU gpus: [ 0, 2 ] } ]',
    "every": 'backend: "python" instance_group [ { kind: KIND_GPU } ]',
    "engine": 'platform: "tensorrt_plan"',
    "llm": 'backend: "vllm" instance_group [ { kind: KIND_MODEL } ]',
    "broken": 'backend: "vllm" instance_group [ {',
    "chain": 'platform: "ensemble" ensemble_scheduling { step { model_name: "python" } }',
}
CLASSES = {"L4": {"memory_gib": 24}, "T4": {"memory_gib": 16}}


@pytest.fixture
def found(tmp_path: Path) -> tuple[Found, ...]:
    for name, text in GROUPS.items():
        (tmp_path / name / "1").mkdir(parents=True)
        (tmp_path / name / "config.pbtxt").write_text(text)
    return read_repository(tmp_path)


def document(*nodes: dict[str, Any]) -> dict[str, Any]:
    groups = [{"count": 1, "gpu_class": "L4", "gpus": 4, "nic_gbps": 10} | n for n in nodes]
    return {"gpu_classes": CLASSES, "nodes": groups}


def left(taken: dict[int, float | None], *nodes: dict[str, Any], **names: str) -> Cluster:
    by_number = {int(key[1:]): frozenset([value]) for key, value in names.items()}
    return Cluster.from_dict(without_taken(document(*nodes), taken, by_number, "c.yaml"))


def test_instance_groups_say_which_gpus_are_taken_whole(found: tuple[Found, ...]) -> None:
    taken, unknown = taken_beside(found, {})
    assert taken == {0: None, 2: None}
    assert sorted(unknown) == ["engine", "every", "llm"]


def test_memory_that_is_stated_is_added_up(found: tuple[Found, ...]) -> None:
    given = {"named": "0:6", "llm": "0,1:8.5", "every": "none", "engine": "3"}
    taken, unknown = taken_beside(found, parse_taken(given))
    assert (taken, unknown) == ({0: 14.5, 1: 8.5, 3: None}, ())
    assert in_words(taken) == "14.5 GiB of GPU 0, 8.5 GiB of GPU 1, GPU 3"


@pytest.mark.parametrize("text", ["", "gpu0", "0:", "0:0", "0,", "-1", "0:1:2", "0:nan", "²"])
def test_texts_that_hold_nothing_are_named(text: str) -> None:
    with pytest.raises(InputError, match=r"--taken llm=.*is not GPUS, GPUS:GIB or none"):
        parse_taken({"llm": text})
    assert parse_taken({"llm": "none"}) == {"llm": Taken(())}
    with pytest.raises(InputError, match="--taken, model 'x': is not left beside the plan: llm"):
        check_stated(["x"], ["llm"])


@pytest.mark.parametrize(
    ("nodes", "gpus", "has"),
    [
        ([{}], (0, 4), "4 is not in c.yaml; GPUs of this host: 0, 1, 2, 3"),
        ([{"gpus": 1}, {"gpus": 2}], (2, 7), "7 is not in c.yaml; GPUs of this host: 0, 1, 2"),
        ([{"host": "10.0.0.2"}], (0,), "0 is not in c.yaml; GPUs of this host: none"),
        (
            [{"gpus": 2, "devices": ["1", "3"]}],
            (3, 2),
            "2 is not in c.yaml; GPUs of this host: 1, 3",
        ),
        (
            [{"gpus": 1, "devices": ["GPU-a"]}],
            (6, 7),
            "7 is not in c.yaml; GPUs of this host: GPU-a",
        ),
        (None, (6, 5), "5 is not in c.yaml; GPUs of this host: 6"),
    ],
)
def test_a_gpu_that_the_option_names_and_the_cluster_lacks_is_refused(
    nodes: list[dict[str, Any]] | None, gpus: tuple[int, ...], has: str
) -> None:
    given = None if nodes is None else document(*nodes)
    names = {6: frozenset(["GPU-6"])}  # of this machine, and left out of the file
    *there, absent = gpus
    check_gpus({"llm": Taken(tuple(there))}, given, names, "c.yaml")
    with pytest.raises(InputError, match=f"^--taken llm={absent}: GPU {has}$"):
        check_gpus({"llm": Taken(gpus, 8.0)}, given, names, "c.yaml")


def test_gpus_that_are_held_are_left_out_of_their_node() -> None:
    one = left({0: None, 2: None}, {})
    assert (one.gpus("L4"), one.nodes[0].devices) == (2, ("1", "3"))
    named = {"devices": ["GPU-a", "GPU-b", "GPU-c", "GPU-d"]}
    assert left({1: None}, named, _1="GPU-b").nodes[0].devices == ("GPU-a", "GPU-c", "GPU-d")
    # Counted through the nodes of this host; nodes of others are not concerned.
    elsewhere = {"host": "10.0.0.2", "name": "far"}
    two = left({4: None}, elsewhere, {"name": "a"}, {"name": "b", "gpu_class": "T4", "gpus": 2})
    assert [(g.name, g.gpus) for g in two.nodes] == [("far", 4), ("a", 4), ("b", 1)]
    gone = left({0: None, 1: None}, {"gpus": 2}, {"gpu_class": "T4", "name": "t"})
    assert [g.name for g in gone.nodes] == ["t"]


def test_a_gpu_that_a_file_leaves_out_already_is_not_taken_twice() -> None:
    already = {"gpus": 2, "devices": ["1", "3"]}
    assert left({0: None}, already).nodes[0].devices == ("1", "3")


def test_memory_that_is_held_is_taken_from_the_class() -> None:
    cluster = left({0: 8.0, 1: 6.0}, {})
    assert cluster.gpus("L4") == 4
    assert [(c.taken_gib, c.usable_gib) for c in cluster.gpu_classes] == [(8.0, 16.0), (None, 16)]


@pytest.mark.parametrize(
    ("taken", "nodes", "reason"),
    [
        ({4: None}, [{}], r"c.yaml, nodes: a model beside the plan holds GPU 4, .* have 4 GPUs"),
        ({0: None}, [{"gpus": 1}], "c.yaml, nodes: models beside the plan hold every GPU"),
        ({0: None}, [{"count": 2}], "holds GPU 0, nodes of this host have 0 GPUs"),
        ({0: 24.0}, [{}], r"gpu_classes.L4.taken_gib: 24 of 24 GiB leaves nothing to plan with"),
        ({0: 1.0}, [{"gpu_class": "P4"}], r"gpu_classes.P4.memory_gib: is missing: 1 GiB"),
    ],
)
def test_what_cannot_be_taken_out_is_named(
    taken: dict[int, float | None],
    nodes: list[dict[str, Any]],
    reason: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(CLASSES, "P4", {})
    with pytest.raises(InputError, match=reason):
        left(taken, *nodes)
