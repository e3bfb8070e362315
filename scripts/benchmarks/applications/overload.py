"""An application beside single models at three times their planned rates.

Does goodput stay, is nothing left over.

    .venv/bin/python scripts/benchmarks/applications/overload.py [--seconds 60] [--out FILE]

A diamond, clients of its first model and a model of its own are offered 1, 1.25, 1.5 and 2 times
their planned rates, then 3 times for `--seconds`, all emulated behind a real Triton. Goodput at 3 x
must be at least 95 % of the highest seen, of all together and of the application; afterwards no job
and no slot for retained outputs may be held.
"""

import argparse
import os
import sys
from typing import Any

from scripts.benchmarks.applications.attainment import jobs_and_slots
from scripts.benchmarks.applications.plans import SHAPES, application, guarded, plan_of, requests_of
from scripts.benchmarks.figures import Figure, add_destinations, conclude
from scripts.benchmarks.overload import FLAT, OVERLOAD
from scripts.benchmarks.served import SERVED, Load, Loaded, Served
from triton_backend.contract.plan import Plan
from triton_backend.contract.units import s_to_us
from triton_backend.serve_folder.settings import ServeSettings
from triton_backend.simulator.run import simulate
from triton_backend.simulator.scenario import SimOptions

STEPS = (1.0, 1.25, 1.5, 2.0)
STEP_SECONDS = 15.0
WARM_S = 1.0
NAME, SHARED, OTHER = "actdet", "a", "other"
RATES = {SHARED: 12.0, OTHER: 30.0}
JOBS_RPS = 20.0


def overload_plan() -> Plan:
    """A diamond at half of what its vGPUs serve, of its first model also clients of its own."""
    planned = application(NAME, SHAPES["diamond"], rate_rps=JOBS_RPS)
    return plan_of(planned, alone_rps=RATES)


def overload(options: argparse.Namespace) -> dict[str, Any]:
    """Goodput by offered rate, measured and simulated; what is held afterwards."""
    plan = overload_plan()
    goodput: dict[float, dict[str, float]] = {}
    with Served(plan, options.port) as served:
        requests = requests_of(served.folder, NAME)
        expected = guarded(plan, ServeSettings.read(served.folder / "settings.json"))
        path, url = served.write_plan(plan, "plan"), served.state.grpc_url
        wrong = failed = 0
        waited_ms: list[float] = []
        for step in (*STEPS, OVERLOAD):
            seconds = options.seconds if step == OVERLOAD else STEP_SECONDS
            loaded = Load(
                url,
                path,
                f"--load-factor={step}",
                f"--duration={seconds}",
                f"--check={NAME}={requests.path}",
                "--give-up-s=1",
            ).result()
            goodput[step] = served_rps(loaded, seconds)
            wrong += loaded.summary["models"][NAME]["checked"]["wrong"]
            failed += sum(row["failed"] for row in loaded.summary["models"].values())
            waited_ms.append(float(loaded.waited_past_deadline_us().max()) / 1000)
            print(step, goodput[step], loaded.summary["messages"], file=sys.stderr, flush=True)
        left_over = jobs_and_slots(served)
    return {
        "goodput_rps": goodput,
        "simulated_rps": {step: simulated_rps(expected, step) for step in goodput},
        "wrong": wrong,
        "failed": failed,
        "in_hand": left_over,
        "waited_longest_ms": max(waited_ms),
        "load_average": os.getloadavg()[0],
    }


def served_rps(loaded: Loaded, seconds: float) -> dict[str, float]:
    """Requests/s in time by model or application and of all, after the first `WARM_S`."""
    rows = loaded.records
    good = (rows["outcome"] == SERVED) & (rows["intended_us"] >= s_to_us(WARM_S))
    found = {
        name: float((good & (rows["model"] == number)).sum()) / (seconds - WARM_S)
        for number, name in enumerate(loaded.summary["models"])
    }
    return found | {"all": float(good.sum()) / (seconds - WARM_S)}


def simulated_rps(plan: Plan, load_factor: float) -> dict[str, float]:
    """The simulator's share of that load."""
    options = SimOptions(load_factor=load_factor, duration_s=60, admission=True, keep_uses=False)
    result = simulate(plan, options)
    found = {model.name: model.served / 60 for model in result.models if model.offered}
    found[NAME] = result.applications[NAME].outcome.served / 60
    return found | {"all": sum(found.values())}


def figures_of(row: dict[str, Any]) -> list[Figure]:
    """Goodput under overload, and resources left over."""
    goodput, simulated = row["goodput_rps"], row["simulated_rps"]
    found = [
        Figure(
            name=f"goodput at {step:g} x the planned rates, all and {NAME}",
            value=rps["all"],
            unit="1/s",
            note=f"{NAME} {rps[NAME]:.1f}; simulated {simulated[step]['all']:.1f} and"
            f" {simulated[step][NAME]:.1f}",
        )
        for step, rps in goodput.items()
    ]
    for name in ("all", NAME):
        peak = max(rps[name] for rps in goodput.values())
        share = goodput[OVERLOAD][name] / peak
        found.append(
            Figure(
                name=f"goodput of {name} at {OVERLOAD:g} x, of its peak", value=share, least=FLAT
            )
        )
    note = f"machine load {row['load_average']:.1f}"
    return [
        *found,
        Figure(name="jobs and slots of retained held afterwards", value=row["in_hand"], most=0),
        Figure(name="wrong answers", value=row["wrong"], most=0, note=note),
        Figure(name="failed requests", value=row["failed"], most=0),
        Figure(name="waited past deadline, longest", value=row["waited_longest_ms"], unit="ms"),
    ]


def main() -> int:
    """Run, print, store."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--port", type=int, default=18_760)
    add_destinations(parser)
    options = parser.parse_args()
    row = overload(options)
    figures = figures_of(row)
    return conclude(options, "overload of applications", figures, row)


if __name__ == "__main__":
    sys.exit(main())
