"""Requests of a client whose server waits, refuses or is away.

With a server in the same process.
"""

import asyncio
import json
import math
from collections.abc import Callable
from typing import Any

import pytest

from tests.triton_backend.client.cut_models import heads_of, split_shrinking
from triton_backend.client.__main__ import show
from triton_backend.client.announcing import Announcement
from triton_backend.client.device import Arrays, Device, read_input
from triton_backend.client.heads import Head, Heads
from triton_backend.client.link import Trace
from triton_backend.client.run import Client, Record, RunOptions, summary
from triton_backend.client.server import Lease, Offer, OfferedCut, RefusedError

SLO_US = 2_000_000  # a busy machine is no fault


@pytest.fixture(scope="module")
def heads(tmp_path_factory: pytest.TempPathFactory) -> Heads:
    folder = tmp_path_factory.mktemp("cuts")
    # Blocks take long enough for the server's tails to be worth it.
    return heads_of(split_shrinking(folder), folder / "heads", [0, *[10**6] * 3, 1_500_000])


class FakeServer:
    """Answers as the whole model does, or as `act` says; a second adapter of `Server`."""

    def __init__(self, heads: Heads, act: Callable[[Head], None] = lambda _: None) -> None:
        self._act = act
        self._answer = Device(heads).run(heads.whole, read_input("random", heads.inputs))
        self.budgets_us: list[int] = []
        self.probes = 0
        self.offered = Offer(cuts={0: OfferedCut(half=True), 2: OfferedCut()}, plan_id="p")
        self.lease: Lease | None = Lease(plan_id="p", lease_us=10**7, closed=False)
        self.announced: list[Announcement] = []

    async def offer(self) -> Offer:
        return self.offered

    async def announce(self, client: str, said: Announcement) -> Lease:
        assert client == "client"
        self.announced.append(said)
        if self.lease is None:
            raise RefusedError("no room for another")
        return self.lease

    async def rtt_us(self) -> int:
        return 1_000

    async def probe(self, size: int) -> bool:
        self.probes += 1
        return size > 0

    async def infer(self, head: Head, tensors: Arrays, budget_us: int, wait_s: float) -> Arrays:
        del tensors, wait_s
        self.budgets_us.append(budget_us)
        await asyncio.sleep(0)
        self._act(head)
        return self._answer


def ran(heads: Heads, server: FakeServer, **options: Any) -> list[Record]:
    fields: dict[str, Any] = {"slo_us": SLO_US, **options}
    asked = RunOptions(rps=10, duration_s=0.5, **fields)
    inputs = read_input("random", heads.inputs)
    seen: list[Record] = []

    async def go() -> list[Record]:
        client = Client(heads, server, inputs, asked, seen.append)  # pyright: ignore[reportArgumentType]
        return await client.run()

    records = asyncio.run(go())
    assert sorted(r.request for r in seen) == [r.request for r in records] == [0, 1, 2, 3, 4]
    return records


@pytest.mark.slow
def test_the_server_gets_what_is_left_of_the_time(heads: Heads) -> None:
    server = FakeServer(heads)
    records = ran(heads, server, link=Trace([(0.0, 16.0)]))  # 110,592 bytes in 55 ms
    assert {(r.cut, r.on, r.outcome) for r in records} == {(0, "server", "served")}
    assert all(r.upload_us is not None and r.upload_us >= 55_296 for r in records)
    assert all(0 < budget <= SLO_US - 55_296 - 1_000 for budget in server.budgets_us)
    assert server.probes == 0  # the emulated link is probed without the server


@pytest.mark.slow
@pytest.mark.parametrize("closed", [True, False])
def test_a_refused_request_runs_on_the_device_and_its_cut_rests(
    heads: Heads, *, closed: bool
) -> None:
    def refuse(_: Head) -> None:
        raise RefusedError("no", closed=closed)

    server = FakeServer(heads, refuse)
    records = ran(heads, server)
    assert {(r.on, r.outcome) for r in records} == {("device", "served")}
    totals = summary(heads, records)
    assert (totals["on_device"], totals["served"]) == (5, 5)
    assert totals["refused"] == len(server.budgets_us) >= 2  # at each open cut
    assert not closed or totals["refused"] == 2  # both rest until the end
    assert totals["max_error"] == 0


@pytest.mark.slow
def test_what_cannot_leave_in_time_is_late_and_found_out(heads: Heads) -> None:
    broken = Trace([(0.0, 100.0), (0.006, 0.0)])  # the probe gets through, and nothing after it
    records = ran(heads, FakeServer(heads), link=broken, slo_us=200_000)
    assert {r.outcome for r in records} == {"late"}
    assert (records[0].cut, records[0].feasible) == (0, True)
    assert not any(r.feasible for r in records[1:])
    totals = summary(heads, records)
    assert (totals["offered"], totals["served"], totals["late"]) == (5, 0, 5)
    assert totals["unanswered"] == 5
    assert totals["tried"] > 0


@pytest.mark.slow
def test_a_request_that_nothing_answers_in_time_says_the_times(
    heads: Heads, capsys: pytest.CaptureFixture[str]
) -> None:
    server = FakeServer(heads)
    server.offered = Offer(cuts={0: OfferedCut(least_us=900_000)}, plan_id="p")
    records = ran(heads, server, slo_us=400_000, link=Trace([(0.0, 16.0)]))
    assert all(record.why for record in records)
    show(records[0])
    shown = capsys.readouterr().out
    assert "the device takes 1500.0 ms; cut 0: device 0.0, upload 5" in shown
    assert (
        "server 900.0 ms at least; a cut is taken where twice the server's time is left\n" in shown
    )


def test_a_request_whose_server_opens_no_cut_says_so(
    heads: Heads, capsys: pytest.CaptureFixture[str]
) -> None:
    server = FakeServer(heads)
    server.offered = Offer(cuts={}, plan_id="p", why_closed="model 'net' is not served")
    show(ran(heads, server, slo_us=400_000)[0])
    assert "takes 1500.0 ms; the server opens no cut: model 'net' is not served\n" in (
        capsys.readouterr().out
    )


@pytest.mark.slow
def test_it_announces_where_it_cuts_and_gives_its_lease_back(heads: Heads) -> None:
    server = FakeServer(heads)
    ran(heads, server)
    first, *_, last = server.announced
    assert (first.block, last.block, last.rate_rps) == (0, 0, 0.0)
    assert 0 < first.rate_rps <= 10
    assert 0 < first.budget_us <= SLO_US


@pytest.mark.slow
def test_a_run_that_is_interrupted_gives_its_lease_back(heads: Heads) -> None:
    server = FakeServer(heads)
    asked = RunOptions(rps=10, duration_s=600, slo_us=SLO_US)
    inputs = read_input("random", heads.inputs)

    async def go() -> None:
        client = Client(heads, server, inputs, asked, lambda _: running.cancel())  # pyright: ignore[reportArgumentType]
        running = asyncio.ensure_future(client.run())
        with pytest.raises(asyncio.CancelledError):
            await running
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(go())
    assert [said.rate_rps > 0 for said in server.announced] == [True, False]


def test_a_request_that_fails_by_a_defect_ends_the_run_and_gives_its_lease_back(
    heads: Heads,
) -> None:
    def fail(_: Head) -> None:
        raise ZeroDivisionError

    server = FakeServer(heads, fail)
    with pytest.raises(ZeroDivisionError):
        ran(heads, server)
    assert server.announced[-1].rate_rps == 0.0


def test_who_may_not_announce_is_served_all_the_same(heads: Heads) -> None:
    server = FakeServer(heads)
    server.lease = None
    records = ran(heads, server)
    assert {(r.cut, r.on, r.outcome) for r in records} == {(0, "server", "served")}
    assert len(server.announced) == 1  # for a second nothing is announced after that


@pytest.mark.slow
def test_a_cut_that_is_called_closed_rests_and_the_next_best_is_taken(heads: Heads) -> None:
    server = FakeServer(heads)
    server.lease = Lease(plan_id="p", lease_us=10**7, closed=True)
    records = ran(heads, server)
    assert [r.cut for r in records][:2] == [0, 2]
    assert {r.outcome for r in records} == {"served"}
    assert server.announced[0].block == 0


@pytest.mark.slow
def test_what_the_server_quotes_decides_not_what_heads_were_exported_with(heads: Heads) -> None:
    server = FakeServer(heads)
    slow = {block: OfferedCut(least_us=SLO_US) for block in (0, 2)}
    server.offered = Offer(cuts=slow, plan_id="p")
    assert {(r.cut, r.on) for r in ran(heads, server)} == {(4, "device")}
    assert server.announced == []


def test_an_infinite_error_is_a_word_of_json(heads: Heads) -> None:
    records = [Record(request=n, due_us=0, error=error) for n, error in enumerate((0.5, math.inf))]
    totals = json.loads(json.dumps(summary(heads, records), allow_nan=False))
    assert totals["max_error"] == "inf"
    assert [row["error"] for row in totals["requests"]] == [0.5, "inf"]
