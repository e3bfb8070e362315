"""Numbers of fronts and of their requests."""

from pathlib import Path

import pytest

from tests.triton_backend.serving.small_plans import plan, two_stage
from tests.triton_backend.serving.system import deploy
from triton_backend.contract.errors import InputError
from triton_backend.serving.gateway.peers.addresses import FrontAddress
from triton_backend.serving.gateway.peers.fronts import Fronts, fronts_in
from triton_backend.serving.transport.wire import LOCALS


def test_fronts_keep_their_numbers_when_plans_change(tmp_path: Path) -> None:
    first = deploy(tmp_path / "first", plan(two_stage("pair")))
    second = deploy(tmp_path / "second", plan(two_stage("one"), two_stage("pair")))
    fronts = Fronts()
    fronts.add(first)
    before = fronts.number_of(FrontAddress("pair"), 5)
    fronts.add(second)
    assert fronts.number_of(FrontAddress("pair"), 5) == before
    number = fronts.number_of(FrontAddress("one"), LOCALS - 1)
    assert fronts.front_of(number) == FrontAddress("one")
    assert fronts.front_of(before) == FrontAddress("pair")


def test_a_front_of_no_plan_has_no_requests_and_fronts_count_only_so_far(
    tmp_path: Path,
) -> None:
    fronts = Fronts()
    fronts.add(deploy(tmp_path, plan(two_stage("pair"))))
    assert fronts.number_of(FrontAddress("other"), 0) < 0
    for local in (-1, LOCALS):
        with pytest.raises(InputError, match=f"request {local}: fronts count from 0 to"):
            fronts.number_of(FrontAddress("pair"), local)


def test_every_name_has_a_front_in_each_gateway_and_none_is_listed_twice(tmp_path: Path) -> None:
    deployment = deploy(tmp_path, plan(two_stage("pair")))
    listed = fronts_in(2, deployment, deployment)
    assert listed == [FrontAddress("pair", 0), FrontAddress("pair", 1)]
