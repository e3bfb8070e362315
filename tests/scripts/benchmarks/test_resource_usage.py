"""Resources of a running system: how a growth is named, which process is which part."""

from typing import Any

import pytest

from scripts.benchmarks.resource_usage import (
    descriptor_kind,
    growth_figures,
    most_links,
    part_of,
)
from tests.triton_backend.serving.small_plans import plan, two_stage

LOOK: dict[str, Any] = {
    "rss_mb": 100.0,
    "own_mb": 60.0,
    "processes": 9,
    "segments": 5,
    "sockets": 3,
    "files": 4,
    "descriptors": {"worker-#: socket unix without a name": 3, "worker-#: anon_inode": 1},
    "lasting files": 1,
    "lasting sockets": 0,
    "links": 3,
    "most_links": 6,
    "series": 2,
    "series_names": ["drops{reason=late}", "plan{generation=1,plan_id=a}"],
}


def test_what_grew_is_named() -> None:
    later = {
        **LOOK,
        "sockets": 5,
        "files": 7,
        "descriptors": {"worker-#: socket unix without a name": 5, "worker-#: anon_inode": 2},
        "lasting files": 2,
        "links": 5,
        "series": 3,
        "series_names": [
            "drops{reason=late}",
            "drops{reason=worker}",
            "plan{generation=2,plan_id=b}",
        ],
    }
    figures = growth_figures(LOOK, later, 0.01, [])
    notes = {figure.name: figure.note for figure in figures}
    assert notes["sockets more than after warm-up"] == "worker-#: socket unix without a name +2"
    files = "worker-#: socket unix without a name +2; worker-#: anon_inode +1"
    assert notes["files more than after warm-up"] == files
    assert notes["lasting files more than after warm-up"] == "worker-#: anon_inode +1"
    assert notes["lasting sockets more than after warm-up"] == ""
    assert notes["series more than after warm-up"] == "drops{reason=worker} +1"


def test_links_of_a_plan_are_bounded_by_its_pairs_of_workers() -> None:
    """Two pools of one and two vGPUs, a front: 1 + 2 + 2 links, and 4 with the scheduler."""
    assert most_links(plan(two_stage())) == 2 * (1 + 2 + 2 + 4) + 2 * 4


def test_descriptors_are_of_one_kind_whatever_their_numbers() -> None:
    sockets = {"socket:[12]": "unix /tmp/poolpipe-0a1b2c3d/g4-worker-7"}
    kinds = [
        descriptor_kind(target, sockets)
        for target in (
            "socket:[12]",
            "socket:[13]",
            "pipe:[9]",
            "anon_inode:[eventpoll]",
            "/dev/shm/poolpipe-0a1b2c3d-g4-worker-7 (deleted)",
            "/dev/shm/poolpipe-0a1b2c3d-stub1c2f-93d-11ee",
            "/serve/logs/requests-62ed0f8ad1-12-9.jsonl",
        )
    ]
    assert kinds == [
        "socket unix /tmp/poolpipe-#/g#-worker-#",
        "socket of another kind",
        "pipe",
        "anon_inode:[eventpoll]",
        "poolpipe-#-g#-worker-# (deleted)",
        "poolpipe-#-stub#",
        "logs/requests-#.jsonl",
    ]


@pytest.mark.parametrize(
    ("role", "part"),
    [
        ("tritonserver", "tritonserver"),
        ("stub sink", "front"),
        ("stub poolpipe_control", "scheduler"),
        ("worker-#-#", "workers"),
        ("stub poolpipe_node", "others"),
        ("stub from_thread", "others"),
        ("python", "others"),
    ],
)
def test_a_process_is_a_part_by_its_role(role: str, part: str) -> None:
    assert part_of(role, "sink") == part
