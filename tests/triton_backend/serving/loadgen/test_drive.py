"""Whole runs against real endpoints on loopback, over both protocols."""

import asyncio
import json
import socket
import sys
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.fakes.kserve import RefusedError, Reply, doubled, grpc_sink, http_sink
from triton_backend.contract.errors import InputError
from triton_backend.contract.tensors import TensorSpec
from triton_backend.serving.loadgen.client import Answer, Client
from triton_backend.serving.loadgen.client_grpc import GrpcClient
from triton_backend.serving.loadgen.client_http import MAX_CONNECTIONS, HttpClient
from triton_backend.serving.loadgen.drive import Drive, ModelLoad, run_precisely
from triton_backend.serving.loadgen.payload import Payload, turns_of
from triton_backend.serving.loadgen.record import LoadRun
from triton_backend.serving.loadgen.schedule import Offer, make_schedule

pytestmark = pytest.mark.slow

FAILING = 8  # attempts
PROTOCOLS = {"grpc": (grpc_sink, GrpcClient), "http": (http_sink, HttpClient)}
GENEROUS_US = 20_000_000


def drive(protocol: str, reply: Reply = doubled, *, retries: int = 0, **changes: Any) -> LoadRun:
    """Half a second of two models at 100 and 20 requests/s."""
    sink, client_type = PROTOCOLS[protocol]
    x = np.arange(4, dtype=np.float32).reshape(1, 4)
    fields: dict[str, Any] = {
        "requests": [Payload(inputs={"x": x + i}, expected={"y": (x + i) * 2}) for i in range(3)],
        "deadline_us": GENEROUS_US,
    }
    fields |= changes

    async def run() -> LoadRun:
        async with sink(reply) as address:
            client = client_type(address)
            try:
                await client.connect()
                loads = [ModelLoad(name=name, **fields) for name in ("a", "b")]
                offer = Offer(rates_rps={"a": 100, "b": 20}, numbers=(0, 1))
                schedule = make_schedule(offer, duration_s=0.5, seed=0)
                return await Drive(
                    client=client,
                    schedule=schedule,
                    loads=loads,
                    duration_us=500_000,
                    retries=retries,
                ).run()
            finally:
                await client.close()

    return run_precisely(run())


def totals(run: LoadRun) -> dict[str, int]:
    """Sums over models; checks on the way that every request has one outcome."""
    models = run.summary()["models"].values()
    names = ("served", "late", "dropped", "failed")
    sums = {name: sum(model[name] for model in models) for name in names}
    assert sum(sums.values()) == sum(model["offered"] for model in models) == len(run.records)
    return {name: count for name, count in sums.items() if count}


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_right_answers_in_time_are_served(protocol: str) -> None:
    run = drive(protocol)
    assert totals(run) == {"served": len(run.records)}
    checked = run.summary()["models"]["a"]["checked"]
    assert checked["responses"] == run.summary()["models"]["a"]["offered"] > 10
    assert checked["wrong"] == 0
    assert checked["max_relative_error"] == 0


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_wrong_answers_fail(protocol: str) -> None:
    run = drive(protocol, lambda inputs, _: inputs["x"] * np.float32(2.001))
    assert totals(run) == {"failed": len(run.records)}
    assert run.summary()["models"]["a"]["checked"]["max_relative_error"] == pytest.approx(5e-4, 0.1)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_refusals_for_the_deadlines_sake_are_drops_and_others_fail(protocol: str) -> None:
    def refuse(inputs: dict[str, np.ndarray], timeout_us: int | None) -> np.ndarray:
        del inputs
        raise RefusedError(
            "the deadline cannot be met" if timeout_us is None else "its worker died"
        )

    run = drive(protocol, refuse)
    assert totals(run) == {"dropped": len(run.records)}

    def give_up(inputs: dict[str, np.ndarray], _: int | None) -> np.ndarray:
        del inputs
        message = "model 'a': given up 17 ms after the deadline, in flight"
        raise RefusedError(message)

    assert totals(drive(protocol, give_up)) == {"dropped": len(run.records)}
    run = drive(protocol, refuse, send_deadline=True)
    assert totals(run) == {"failed": len(run.records)}
    assert any("its worker died" in text for text in run.messages)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_what_fails_is_sent_again_as_often_as_is_said_and_counts_once(protocol: str) -> None:
    seen = count()

    def at_first(inputs: dict[str, np.ndarray], _: int | None) -> np.ndarray:
        if next(seen) < FAILING:
            message = "its worker died"
            raise RefusedError(message)
        return inputs["x"] * 2

    run = drive(protocol, at_first, retries=FAILING)
    assert totals(run) == {"served": len(run.records)}
    assert run.summary()["sent_again"] == next(seen) - len(run.records) == FAILING

    def never(inputs: dict[str, np.ndarray], _: int | None) -> np.ndarray:
        del inputs
        message = "its worker died"
        raise RefusedError(message)

    run = drive(protocol, never, retries=1)
    assert totals(run) == {"failed": len(run.records)}
    assert run.summary()["sent_again"] == len(run.records)
    assert sum(run.messages.values()) == len(run.records)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_answers_after_the_deadline_are_late(protocol: str) -> None:
    run = drive(protocol, deadline_us=1)
    assert totals(run) == {"late": len(run.records)}
    assert run.summary()["models"]["a"]["attainment"] == 0


def test_entries_have_their_own_tensors_shares_and_deadlines() -> None:
    x = np.ones((1, 4), np.float32)
    requests = [
        Payload(inputs={"x": x}, entry=0, expected={"y": 2 * x}),
        Payload(inputs={"x": 3 * x}, entry=1, expected={"y": 6 * x}, deadline_us=1),
    ]
    turns = turns_of(requests, [3.0, 1.0], np.random.default_rng(0))
    run = drive("grpc", requests=requests, entries=("whole", "tail"), turns=turns)
    assert totals(run).keys() == {"served", "late"}
    for model, entries in run.summary()["entries"].items():
        offered = run.summary()["models"][model]["offered"]
        assert sum(row["offered"] for row in entries.values()) == offered
        assert entries["whole"]["attainment"] == 1
        assert entries["tail"]["attainment"] == 0
    assert np.mean(np.asarray(turns) == 0) == pytest.approx(0.75, abs=0.03)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_the_deadline_travels_as_the_timeout_parameter(protocol: str) -> None:
    seen: set[int | None] = set()

    def note(inputs: dict[str, np.ndarray], timeout_us: int | None) -> np.ndarray:
        seen.add(timeout_us)
        return doubled(inputs, timeout_us)

    drive(protocol, note, send_deadline=True)
    assert seen == {GENEROUS_US}


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_latency_counts_from_the_intended_instant(protocol: str) -> None:
    run = drive(protocol)
    rows = run.records
    assert np.all(rows["sent_us"] >= rows["intended_us"])
    assert np.all(rows["done_us"] > rows["sent_us"])
    latency_ms = (rows["done_us"] - rows["intended_us"])[rows["model"] == 0] / 1e3
    summary = run.summary()["models"]["a"]
    assert summary["latency_ms"]["p50"] == pytest.approx(float(np.median(latency_ms)), abs=1e-3)
    assert sum(summary["histogram"]["counts"]) == len(latency_ms)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_the_servers_metadata_names_inputs_and_unknown_models(protocol: str) -> None:
    sink, client_type = PROTOCOLS[protocol]

    async def describe(model: str) -> tuple[TensorSpec, ...]:
        async with sink() as address:
            client = client_type(address)
            try:
                await client.connect()
                return await client.describe(model)
            finally:
                await client.close()

    assert run_precisely(describe("a")) == (TensorSpec(name="x", dtype="FP32", shape=(-1, 4)),)
    with pytest.raises(InputError, match="no such model"):
        run_precisely(describe("unknown"))


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_an_endpoint_that_is_not_there_is_the_callers_fault(protocol: str) -> None:
    async def connect() -> None:
        client = PROTOCOLS[protocol][1]("127.0.0.1:9", connect_s=0.2)
        try:
            await client.connect()
        finally:
            await client.close()

    with pytest.raises(InputError, match=r"127\.0\.0\.1:9: nothing answers"):
        run_precisely(connect())


@pytest.mark.parametrize(
    "answer",
    [b"nonsense\r\n\r\n", b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", b""],
    ids=["no status", "no length", "closed"],
)
def test_a_server_that_breaks_http_fails_requests_one_by_one(answer: bytes) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)
        writer.close()
        await writer.wait_closed()

    async def run() -> list[str]:
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        async with server:
            client = HttpClient(f"127.0.0.1:{server.sockets[0].getsockname()[1]}")
            request = client.encode("a", {"x": np.zeros((1, 4), np.float32)}, deadline_us=None)
            answers = [await ask(client, request, give_up_s=5) for _ in range(2)]
            await client.close()
        return [answer.message for answer in answers]

    assert all(text.startswith("connection:") for text in run_precisely(run()))


async def ask(client: Client, request: bytes, *, give_up_s: float) -> Answer:
    answered: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
    client.send(request, give_up_s=give_up_s, done=answered.set_result)
    return await answered


def test_requests_above_the_limit_of_connections_wait_and_those_never_answered_are_given_up() -> (
    None
):
    async def run(port: int) -> list[Answer]:
        client = HttpClient(f"127.0.0.1:{port}")
        request = client.encode("a", {"x": np.zeros((1, 4), np.float32)}, deadline_us=None)
        calls = [ask(client, request, give_up_s=0.5) for _ in range(MAX_CONNECTIONS + 5)]
        answers = await asyncio.gather(*calls)
        await client.close()
        return answers

    with socket.socket() as silent:  # the kernel takes connections, and no process answers
        silent.bind(("127.0.0.1", 0))
        silent.listen(2 * MAX_CONNECTIONS)
        answers = run_precisely(run(silent.getsockname()[1]))
    assert len(answers) == MAX_CONNECTIONS + 5
    assert {answer.message for answer in answers} == {"no answer within 0.5 s"}


def test_the_command_line_prints_one_object_and_writes_records(tmp_path: Path) -> None:
    plan = {
        "plan_id": "p", "planner": "pool", "options": {}, "solver": "highs", "solve_seconds": 0.1,
        "objective": {"name": "throughput", "value": 1, "upper_bound": 1, "gap": 0},
        "cluster": {"gpu_classes": {"A": {}}, "nodes": [
            {"count": 1, "gpu_class": "A", "gpus": 1, "nic_gbps": 1}]},
        "workload": {"models": [{"name": "m", "slo_ms": 5000}]}, "gpus_used": {"A": 1},
        "models": [{"name": "m", "slo_ms": 5000, "throughput_rps": 200, "pipelines": []}],
    }  # fmt: skip
    (tmp_path / "plan.json").write_text(json.dumps(plan))
    x = np.ones((3, 4), np.float32)
    np.savez(tmp_path / "m.npz", **{"inputs/x": x, "outputs/y": x * 2})

    async def run() -> tuple[int, bytes, bytes]:
        async with grpc_sink() as address:
            arguments = [
                *("--plan", "plan.json", "--url", address, "--json", "--records", "records.npz"),
                *("--duration", "0.5", "--load-factor", "0.5", "--check", "m=m.npz"),
            ]
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "triton_backend.serving.loadgen", *arguments),
                cwd=tmp_path,
                env={"PYTHONPATH": str(Path.cwd())},
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
            )
            out, err = await process.communicate()
            return process.returncode or 0, out, err

    code, out, err = asyncio.run(run())
    assert (code, err) == (0, b"")
    summary = json.loads(out)
    model = summary["models"]["m"]
    assert model["offered"] == model["served"] == model["checked"]["responses"] > 20
    with np.load(tmp_path / "records.npz") as saved:
        assert len(saved["records"]) == model["offered"]
        assert saved["models"].tolist() == ["m"]
