"""`python -m triton_backend.serving.loadgen`: options in, one JSON object or a table out.

The command line of the load generator, which `poolpipe load` starts as a process. Exit codes: 0
when the run was made (whatever its attainment), 2 on bad input (with `--json` an object says where
and why), 130 when interrupted (what was measured until then is still printed).
"""

import argparse
import asyncio
import json
import os
import signal
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from triton_backend.contract.errors import InputError
from triton_backend.contract.fields import check_name
from triton_backend.contract.plan import ModelPlan, Plan
from triton_backend.contract.units import ms_to_us, s_to_us
from triton_backend.runtimes.stage_tensors import (
    asked_as,
    complete_tensors,
    optional_outputs,
    served_model,
    served_models,
)
from triton_backend.serving.loadgen.client import Client
from triton_backend.serving.loadgen.client_grpc import GrpcClient, Tls
from triton_backend.serving.loadgen.client_http import HttpClient
from triton_backend.serving.loadgen.drive import Drive, ModelLoad, run_precisely
from triton_backend.serving.loadgen.options import (
    arrivals_of,
    make_parser,
    pairs,
)
from triton_backend.serving.loadgen.payload import (
    RIGHT,
    Payload,
    random_requests,
    requests_from_file,
    tolerance_of,
    turns_of,
)
from triton_backend.serving.loadgen.record import LoadRun
from triton_backend.serving.loadgen.schedule import Offer, make_schedule, rates_of

INTERRUPTED = 130
STOPS = (signal.SIGINT, signal.SIGTERM)
PAYLOAD_STREAM = 1_000_000  # keeps the draw of inputs apart from the draw of arrivals


def main(argv: list[str] | None = None) -> int:
    """Run once. Returns the exit code.

    A caller may start us with Ctrl-C blocked: while Python imports, it would print a trace.
    """
    try:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
        return _main(make_parser().parse_args(argv))
    except KeyboardInterrupt:  # before anything was sent
        return INTERRUPTED


def _main(options: argparse.Namespace) -> int:
    try:
        result, interrupted = run_precisely(_run(options))
    except InputError as error:
        if options.json:  # stderr may be the user's terminal, where the caller has a line to say
            print(json.dumps({"where": error.where, "reason": error.reason}))  # noqa: T201
        else:
            print(error, file=sys.stderr)  # noqa: T201 - this is a command line
        return 2
    summary = result.summary() | {
        "url": options.url,
        "protocol": options.protocol,
        "arrivals": options.arrivals,
        "seed": options.seed,
        "interrupted": interrupted,
    }
    if options.records is not None:
        try:
            result.save(options.records)
        except OSError as error:
            reason = f"{options.records}: cannot be written: {error.strerror}"
            summary["records_lost"] = reason
    print(json.dumps(summary) if options.json else _table(summary))  # noqa: T201 - see above
    return INTERRUPTED if interrupted else 0


async def _run(options: argparse.Namespace) -> tuple[LoadRun, bool]:
    plan = _plan(options.plan)
    _check_files(options, plan)
    offer = _offer(options, plan)
    schedule = make_schedule(offer, duration_s=options.duration, seed=options.seed)
    client = _client(options)
    try:
        await client.connect()
        # An entry is opened by its tensors, which a plan need not name.
        named = complete_tensors(plan) if any(model.entries for model in plan.models) else plan
        loads = [
            replace(
                await _model_load(client, served_model(named, name), asked_as(plan, name), options),
                optional=optional_outputs(plan, name),
                asked_as=_on_the_wire(plan, name),
            )
            for name in schedule.models
        ]
        drive = Drive(
            client=client,
            schedule=schedule,
            loads=loads,
            duration_us=s_to_us(options.duration),
            give_up_s=options.give_up_s,
            retries=options.retries,
            progress=_progress if sys.stderr.isatty() else None,
        )
        return await _until_stopped(drive)
    finally:
        await client.close()


async def _until_stopped(drive: Drive) -> tuple[LoadRun, bool]:
    """Run; an interrupt stops the sending and keeps what was measured."""
    loop = asyncio.get_running_loop()
    stopped: list[int] = []

    def stop(number: int) -> None:
        stopped.append(number)
        drive.stop()

    for number in STOPS:
        loop.add_signal_handler(number, stop, number)
    try:
        return await drive.run(), bool(stopped)
    finally:
        # A second one (a terminal's, and then our caller's) must not end us while we tell.
        signal.pthread_sigmask(signal.SIG_BLOCK, STOPS)
        for number in STOPS:
            loop.remove_signal_handler(number)
            if stopped:
                signal.signal(number, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPS)


def _check_files(options: argparse.Namespace, plan: Plan) -> None:
    """Checks of faults that would show only after the run or after waiting."""
    for name, path in pairs("--check", options.check).items():
        served_model(plan, name)
        if not Path(path).is_file():
            raise InputError(f"--check {name}", f"{path}: no such file")
    records = options.records
    if records is None:
        return
    if records.is_dir() or not os.access(records if records.exists() else records.parent, os.W_OK):
        raise InputError("--records", f"{records}: cannot be written")


def _client(options: argparse.Namespace) -> Client:
    tls = None
    if options.ca is None and (options.cert is not None or options.key is not None):
        raise InputError("--cert and --key", "need --ca")
    if options.client:
        check_name("--client", options.client)
    if options.retries < 0 or options.connections < 1:
        raise InputError("--retries and --connections", "are at least 0 and 1")
    if (options.cert is None) != (options.key is None):
        raise InputError("--cert and --key", "one needs the other")
    if options.ca is not None:
        tls = Tls(authority=options.ca, certificate=options.cert, key=options.key)
    if options.protocol == "grpc":
        return GrpcClient(
            options.url, connect_s=options.connect_s, tls=tls, connections=options.connections
        )
    if tls is not None:
        raise InputError("--ca", "TLS is for gRPC; Triton speaks plain HTTP")
    return HttpClient(options.url, connect_s=options.connect_s)


def _plan(path: Path) -> Plan:
    try:
        return Plan.from_dict(json.loads(path.read_text()))
    except (OSError, ValueError) as error:
        raise InputError(str(path), f"cannot be read as a plan: {error}") from error


def _offer(options: argparse.Namespace, plan: Plan) -> Offer:
    reference = plan if options.reference_plan is None else _plan(options.reference_plan)
    rates = rates_of(
        reference, options.model, load_factor=options.load_factor, rate_rps=options.rate
    )
    names = [model.name for model in served_models(reference)]
    arrivals = arrivals_of(options)
    return Offer(
        rates_rps=rates,
        numbers=tuple(names.index(name) for name in rates),
        arrivals=arrivals,
        shape=options.shape,
        as_recorded=options.load_factor is None and options.rate is None,
    )


def _on_the_wire(plan: Plan, name: str) -> str:
    """The name by which requests of a model are sent, with its version where it is one."""
    versions = {demand.name: demand.version for demand in plan.workload.models}
    version = versions.get(name)
    return asked_as(plan, name) + (f":{version}" if version else "")


async def _model_load(
    client: Client, model: ModelPlan, asked: str, options: argparse.Namespace
) -> ModelLoad:
    samples_file = pairs("--check", options.check).get(model.name)
    own_deadline = options.deadline_ms is not None
    rng = np.random.default_rng([options.seed, PAYLOAD_STREAM])
    tolerance = options.tolerance or RIGHT
    if samples_file is not None and options.tolerance is None:
        tolerance = tolerance_of(Path(samples_file))
    requests: list[Payload] = []
    for number, entry in enumerate(model.queues):
        specs = entry.inputs or model.inputs or await client.describe(asked)
        if samples_file is not None:
            made = requests_from_file(Path(samples_file), specs, samples=options.samples)
        else:
            made = random_requests(specs, samples=options.samples, rng=rng)
        budget_us = entry.budget_us if model.entries and not own_deadline else None
        requests += [replace(one, entry=number, deadline_us=budget_us) for one in made]
    shares = [entry.rate_rps for entry in model.entries]
    return ModelLoad(
        name=model.name,
        requests=requests,
        deadline_us=ms_to_us(options.deadline_ms) if own_deadline else model.slo_us,
        send_deadline=own_deadline,
        priority=options.priority,
        client=options.client,
        tolerance=tolerance,
        entries=tuple(entry.name for entry in model.entries),
        turns=turns_of(requests, shares, rng) if model.entries else (),
    )


def _progress(seconds: float, sent: int, answered: int) -> None:
    print(  # noqa: T201 - progress of a command line
        f"\r{seconds:6.1f} s  sent {sent:,}  answered {answered:,} ", end="", file=sys.stderr
    )


def _table(summary: dict[str, Any]) -> str:
    head = f"{'model':<24}{'offered':>9}{'served':>9}{'late':>7}{'dropped':>9}{'failed':>8}"
    lines = [head + f"{'attainment':>12}{'p50 ms':>9}{'p99 ms':>9}"]
    for name, row in summary["models"].items():
        counts = f"{row['offered']:>9}{row['served']:>9}{row['late']:>7}{row['dropped']:>9}"
        share = "-" if row["attainment"] is None else f"{row['attainment']:.2%}"
        latency = row["latency_ms"]
        times = "".join(f"{'-' if v is None else f'{v:.1f}':>9}" for v in latency.values())
        lines.append(f"{name:<24}{counts}{row['failed']:>8}{share:>12}{times}")
    lines.extend(f"{count} x {text}" for text, count in summary["messages"].items())
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
