"""Clients of the Graft paper behind a real Triton server, measured beside the simulator.

A fleet of 20 clients of one model, drawn as `fleets.py` draws it, is planned exactly; their tails
run on emulated vGPUs of a V100, in slow motion, and run together where they meet. Every
client sends by itself what the simulator had it send. Tensors are small: what is measured is when
batches run, not what the network of this machine carries.

    .venv/bin/python scripts/paper/graft/served.py --data DIR [--model Inc] [--loads 0.5 0.8 0.95]
        [--seconds 30]
"""

import argparse
import os
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import tritonclient.grpc as grpc_client
from numpy.typing import NDArray

from flows.planning import PlanOptions, make_plan
from scripts.benchmarks.figures import Figure, add_destinations, conclude
from scripts.benchmarks.served import Served, emulated_answer
from scripts.paper.graft.fleets import FLEETS, MODELS, fleet, inputs_of
from triton_backend.contract.entries import Entry
from triton_backend.contract.plan import Plan, Stage, StageRow
from triton_backend.contract.profiles import ModelProfile, ProfileTable
from triton_backend.runtimes.clock import SystemClock
from triton_backend.runtimes.stage_tensors import complete_tensors
from triton_backend.serve_folder.settings import ServeOptions
from triton_backend.simulator.results import SimResult
from triton_backend.simulator.run import simulate
from triton_backend.simulator.scenario import SimOptions

TARGET_POINTS = 2.0
TENSOR_BYTES = 4_096
PATIENCE_US = 5_000_000


def planned(options: argparse.Namespace) -> Plan:
    """The exact plan of a fleet, in slow motion."""
    entries, _ = fleet(
        options.data, options.model, FLEETS["homogeneous"][1], np.random.default_rng(options.seed)
    )
    slow = options.slow

    def slower(entry: Entry) -> Entry:
        return replace(
            entry, budget_us=round(entry.budget_us * slow), rate_rps=entry.rate_rps / slow
        )

    inputs = inputs_of(options.data, options.model, tuple(map(slower, entries)))
    profile: ModelProfile = inputs.profiles[options.model]
    tables = {
        key: ProfileTable(latency_us=table.latency_us * slow)
        for key, table in profile.tables.items()
    }
    small = (TENSOR_BYTES,) * len(profile.boundary_bytes)
    profiles = {options.model: replace(profile, tables=tables, boundary_bytes=small)}
    asked = PlanOptions(planner="pool", objective="share", slo_margin=0.5)
    return complete_tensors(make_plan(profiles, inputs.cluster, inputs.workload, asked))


def simulated(plan: Plan, load_factor: float, options: argparse.Namespace) -> SimResult:
    """Poisson arrivals of every client; of their budgets the gateway keeps its guard back."""
    guard_us = ServeOptions(guard_fraction=options.guard).guard_us
    (model,) = plan.models
    kept = tuple(replace(e, budget_us=e.budget_us - guard_us(e.budget_us)) for e in model.entries)
    return simulate(
        replace(plan, models=(replace(model, entries=kept),)),
        SimOptions(
            load_factor=load_factor,
            duration_s=options.seconds,
            seed=options.seed,
            admission=True,
        ),
    )


class Clients:
    """Send requests when they are due, whatever became of those before."""

    def __init__(self, plan: Plan, url: str, seed: int) -> None:
        (self._model,) = plan.models
        self._url = url
        self._random = np.random.default_rng(seed)
        self._lock = threading.Lock()
        self._clock = SystemClock()
        self._left = 0
        self.in_time = self.late = self.refused = self.wrong = 0

    def run(self, due_us: NDArray[np.int64], entries: NDArray[np.int32]) -> None:
        """Send all, and wait for their ends."""
        self._left = len(due_us)
        with grpc_client.InferenceServerClient(self._url) as client:
            began_us = self._clock.now_us() + 100_000
            for at_us, entry in zip(due_us.tolist(), entries.tolist(), strict=True):
                self._clock.sleep_until_us(began_us + at_us)
                self._send(client, self._model.entries[entry], began_us + at_us)
            give_up_us = self._clock.now_us() + PATIENCE_US
            while self._left and self._clock.now_us() < give_up_us:
                self._clock.sleep_until_us(self._clock.now_us() + 50_000)

    def _send(self, client: Any, entry: Entry, due_us: int) -> None:
        (spec,) = entry.inputs
        sample = self._random.integers(0, 256, size=(1, *spec.shape[1:]), dtype=np.uint8)
        given = grpc_client.InferInput(spec.name, list(sample.shape), spec.dtype)
        given.set_data_from_numpy(sample)
        right = {
            int(emulated_answer(sample, [TENSOR_BYTES] * (len(pipeline.stages) - 1))[0])
            for pipeline in self._model.pipelines
            if pipeline.entry == entry.name
        }

        def ended(result: Any, error: Exception | None) -> None:
            took_us = self._clock.now_us() - due_us
            with self._lock:
                self._left -= 1
                if error is not None:
                    self.refused += 1
                    return
                (answer,) = self._model.outputs
                self.wrong += int(result.as_numpy(answer.name).flat[0]) not in right
                self.in_time += took_us <= entry.budget_us
                self.late += took_us > entry.budget_us

        client.async_infer(self._model.name, [given], ended, parameters={"entry": entry.name})


def shared_batches(counters: dict[str, Any]) -> NDArray[np.float64]:
    """Totals of the gateway: shared batches, and samples and entries in them."""
    names = ("shared_batches", "shared_batch_samples", "shared_batch_entries")
    return np.array([sum(counters[name].values()) for name in names], dtype=np.float64)


def joint(plan: Plan, result: SimResult) -> float:
    """Mean samples of a simulated shared batch."""
    pools = {row.pool for row in plan.stage_rows() if stage_of(plan, row).boards}
    boards = [vgpu.index for vgpu in plan.vgpus() if vgpu.pool in pools]
    uses = result.uses
    return float(np.mean(uses["samples"][np.isin(uses["vgpu"], boards)]))


def stage_of(plan: Plan, row: StageRow) -> Stage:
    """A row's planned values."""
    return plan.models[row.model].pipelines[row.pipeline].stages[row.stage]


def points(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Every load."""
    plan = planned(options)
    serve = ServeOptions(guard_fraction=options.guard)
    with Served(plan, options.port, serve) as served:
        for load_factor in options.loads:
            expected = simulated(plan, load_factor, options)
            requests = expected.requests
            before = shared_batches(served.state.control("status")["counters"])
            clients = Clients(plan, served.state.grpc_url, options.seed)
            clients.run(requests["arrival_us"], requests["queue"])
            counters = served.state.control("status")["counters"]
            runs, samples, entries = shared_batches(counters) - before
            row = {
                "load_factor": load_factor,
                "offered": len(requests),
                "vgpus": len(plan.vgpus()),
                "measured": clients.in_time / len(requests),
                "simulated": expected.attainment,
                "late": clients.late,
                "refused": clients.refused,
                "wrong": clients.wrong,
                "shared_batches": runs,
                "samples": samples / max(runs, 1),
                "entries": entries / max(runs, 1),
                "simulated_samples": joint(plan, expected),
                "lost": counters["batches_lost"],
                "load_average": os.getloadavg()[0],
            }
            print(row, file=sys.stderr, flush=True)
            yield row


def figures_of(rows: list[dict[str, Any]]) -> list[Figure]:
    """How far each point lies from the simulator's."""
    found: list[Figure] = []
    for row in rows:
        where = f"load {row['load_factor']}"
        note = f"measured {row['measured']:.2%}, machine load {row['load_average']:.1f}"
        found += [
            Figure(
                name=f"{where}: attainment less simulated",
                value=100 * (row["measured"] - row["simulated"]),
                unit="points",
                least=-TARGET_POINTS,
                most=TARGET_POINTS,
                note=note,
            ),
            Figure(name=f"{where}: wrong answers", value=row["wrong"], most=0),
            Figure(
                name=f"{where}: samples in a shared batch",
                value=row["samples"],
                note=f"{row['entries']:.2f} entries; simulated "
                f"{row['simulated_samples']:.2f} samples",
            ),
        ]
    return found


def main() -> int:
    """Run, print, store."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--data", type=Path, required=True, metavar="DIR")
    add("--model", choices=MODELS, default=MODELS[0])
    add("--loads", nargs="+", type=float, default=[0.5, 0.8, 0.95])
    add("--seconds", type=float, default=30.0)
    add("--slow", type=float, default=10.0, help="factor of slow motion")
    add("--guard", type=float, default=0.1)
    add("--seed", type=int, default=0)
    add("--port", type=int, default=18_740)
    add_destinations(parser)
    options = parser.parse_args()
    rows = list(points(options))
    figures = figures_of(rows)
    return conclude(options, "graft served", figures, {"rows": rows})


if __name__ == "__main__":
    sys.exit(main())
