"""Jobs in a gateway called by hand: what becomes of them when a host with their rows is lost."""

from pathlib import Path

import pytest

from tests.fakes.plans import hand_model, hand_pipeline
from tests.triton_backend.serving import small_plans
from tests.triton_backend.serving.gateway.gateways import HeldGateway, SentFrame, drops, serving
from tests.triton_backend.serving.served_applications import (
    SLO_US,
    application,
    module,
    one_stage,
    with_applications,
)
from tests.triton_backend.serving.system import deploy
from triton_backend.serve_folder.settings import ServeOptions
from triton_backend.serving.gateway.peers.addresses import FrontAddress, WorkerAddress
from triton_backend.serving.transport.wire import (
    HEADER_BYTES,
    ArrivalBody,
    BatchBody,
    Kind,
    RowSlice,
    TimesBody,
    parse_header,
    unpack_gather,
)

FRONT = FrontAddress("chain")
FAR = {"SLOW": "10.0.0.2"}


def gateway_of(folder: Path, hosts: dict[str, str]) -> HeldGateway:
    """A chain of two modules; the first runs on SLOW, and on FAST where that is gone."""
    ways = [
        hand_pipeline(
            small_plans.stage((0, 10), name, node), batch=small_plans.BATCH, rate_rps=50.0
        )
        for node, name in ((1, "SLOW"), (0, "FAST"))
    ]
    first = hand_model("m_a", *ways, slo_us=small_plans.SLO_US)
    graph = application("chain", module("x", model="m_a"), module("y", "x", model="m_b"))
    plan = with_applications(small_plans.plan(first, one_stage("m_b")), graph)
    return serving(deploy(folder, plan, ServeOptions(hosts=hosts)))


def gathers(frames: list[SentFrame]) -> list[tuple[int, BatchBody, tuple[RowSlice, ...]]]:
    return [
        (parse_header(sent.data).batch_id, *unpack_gather(sent.data[HEADER_BYTES:]))
        for sent in frames
        if parse_header(sent.data).kind is Kind.GATHER
    ]


def node_of(gateway: HeldGateway, vgpu: int) -> str:
    return gateway.deployment.node_name_of(vgpu)


def first_done(gateway: HeldGateway) -> int:
    """Run the first module of a job of as many samples as a batch has.

    The vGPU that has its rows.
    """
    tag = gateway.deployment.tag
    arrival = ArrivalBody(1, 10 + SLO_US, small_plans.BATCH, express_slot=0)
    gateway.requests.arrival(FRONT, arrival, 10, tag)
    ((batch, body, _),) = gathers(gateway.frames())
    vgpu = body.hops[0].vgpu
    assert node_of(gateway, vgpu) == "SLOW"
    gateway.reports.stage_done(batch, 0, TimesBody(vgpu, 20, 30), 30)
    ((_, second, pieces),) = gathers(gateway.frames())
    assert node_of(gateway, second.hops[0].vgpu) == "FAST"
    assert [piece.vgpu for piece in pieces] == [vgpu]
    return vgpu


def test_a_job_begins_anew_when_the_host_is_lost_that_has_its_rows(tmp_path: Path) -> None:
    gateway = gateway_of(tmp_path, FAR)
    lost = first_done(gateway)
    gateway.workers.lost(WorkerAddress(1, lost), 40)
    frames = gateway.frames()
    assert not drops(frames)
    ((batch, body, _),) = gathers(frames)
    vgpu = body.hops[0].vgpu
    assert (gateway.deployment.plan.models[body.model].name, node_of(gateway, vgpu)) == (
        "m_a",
        "FAST",
    )
    counters = gateway.status()["counters"]
    assert counters["jobs_begun_anew"] == 1
    assert counters["asked"] == {"chain": 1}  # once, however often it begins
    assert counters["module_samples"] == counters["module_rows"]  # each module runs a row of each
    assert counters["module_samples"]["chain/y"] == small_plans.BATCH
    gateway.reports.stage_done(batch, 0, TimesBody(vgpu, 50, 60), 60)
    ((_, _, pieces),) = gathers(gateway.frames())
    assert [piece.vgpu for piece in pieces] == [vgpu]


@pytest.mark.parametrize("hosts", [{}, {"FAST": "10.0.0.3"}])
def test_rows_on_the_gateways_host_outlive_their_worker(
    tmp_path: Path, hosts: dict[str, str]
) -> None:
    gateway = gateway_of(tmp_path, hosts)
    lost = first_done(gateway)
    gateway.workers.lost(WorkerAddress(1, lost), 40)
    assert not gateway.frames()
    assert gateway.status()["counters"]["jobs_begun_anew"] == 0
