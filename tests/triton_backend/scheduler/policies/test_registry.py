"""A policy is one file.

The registry finds it, and everything that takes a policy's name runs it.
"""

from ast import literal_eval
from pathlib import Path
from pkgutil import iter_modules

import pytest

from tests.fakes.plans import Own, make_plan, two_stages
from tests.interpreters import printed_by
from triton_backend.contract.decisions import Decision, Dispatch, SetTimer
from triton_backend.contract.errors import InputError
from triton_backend.contract.events import Arrival, Timer
from triton_backend.contract.plan import DEFAULT_POLICY
from triton_backend.scheduler.policies.registry import (
    EARLY_POLICIES,
    POLICIES,
    SIMULATOR_ONLY,
    policy_number,
)
from triton_backend.scheduler.scheduler import Scheduler
from triton_backend.simulator import papers
from triton_backend.simulator.scenario import from_papers

FOLDER = Path(__file__).parents[4] / "triton_backend/scheduler/policies"
FEW = (
    "advice",
    "company",
    "head",
    "heaps",
    "late",
    "late_rules",
    "low",
    "registry",
    "reservation",
    "variants",
)
"""Files of the folder beside which a policy is compiled.

One other that reserves, and what all need.
"""

POLICY = '''
"""Policy `alone`: every request at once and alone on the first pipeline of its model."""

from triton_backend.scheduler.compiled import NONE, kernel
from triton_backend.scheduler.policies.head import dispatch_head, out_of_room
from triton_backend.scheduler.reservations.probe import BY_FINISH, probe
from triton_backend.scheduler.tables import NEEDS_ROOM, SETTLED


@kernel
def decide(tables, model):
    while tables.queues[model]["first"] != NONE:
        if out_of_room(tables):
            return NEEDS_ROOM
        pipeline = tables.topology.queues[model]["first_pipeline"]
        probe(tables, pipeline, 1, tables.counts[0]["now_us"], BY_FINISH)
        dispatch_head(tables, model, pipeline, 1, BY_FINISH)
    return SETTLED


POLICIES = {"alone": decide}
'''

PROGRAM = """
import sys
from triton_backend.scheduler import policies
policies.__path__[:] = sys.argv[1].split(":")
from tests.fakes.plans import two_stages
from triton_backend.contract.events import Arrival
from triton_backend.scheduler.policies.registry import EARLY_POLICIES, POLICIES
from triton_backend.scheduler.scheduler import Scheduler
from triton_backend.simulator.run import simulate
from triton_backend.simulator.scenario import SimOptions
print(POLICIES)
if sys.argv[2] == "compiled":
    sys.path.append(sys.argv[3])
    from chain import decide
    from triton_backend.scheduler import kernel_api
    from triton_backend.scheduler import scheduler as caller
    kernel_api.decide = decide
    caller.handle_event = caller.handle_event.py_func
for policy in [name for name in POLICIES[:3] if name in EARLY_POLICIES]:
    scheduler = Scheduler(two_stages(), policy=policy)
    arrivals = [Arrival(now_us=0, request_id=n, model=0, deadline_us=100_000) for n in range(4)]
    print([type(d).__name__ for event in arrivals for d in scheduler.handle(event)])
    if sys.argv[2] == "plain":
        result = simulate(two_stages(), SimOptions(policy=policy, duration_s=0.1, load_factor=0.5))
        print(result.attainment, result.models[0].mean_batch)
if sys.argv[2] == "compiled":
    print("compiled", len(decide.signatures))
"""

# The registry's kernel with an entry, in whose code that of every policy is.
CHAIN = """
from triton_backend.scheduler.compiled import entry
from triton_backend.scheduler.policies import registry

chosen = registry.decide


@entry
def decide(tables, queue, policy):
    return chosen(tables, queue, policy)
"""


@pytest.mark.slow
@pytest.mark.parametrize("compiled", [False, True], ids=["plain", "compiled"])
def test_a_policy_in_one_new_file_runs_everywhere(tmp_path: Path, *, compiled: bool) -> None:
    added, few = tmp_path / "added", tmp_path / "few"
    for folder in (added, few):
        folder.mkdir()
    (added / "alone.py").write_text(POLICY)
    (tmp_path / "chain.py").write_text(CHAIN)
    for name in FEW:
        (few / f"{name}.py").symlink_to(FOLDER / f"{name}.py")
    # Of a scheduler all but its policies runs as plain Python, and most of these are left out:
    # compiled, all of it would take a minute.
    more = ["compiled" if compiled else "plain", str(tmp_path)]
    cache = str(tmp_path / "cache")
    folders = f"{added}:{few if compiled else FOLDER}"
    said = printed_by(PROGRAM, folders, *more, compiled=compiled, NUMBA_CACHE_DIR=cache)
    names, alone, *others = said.splitlines()
    if compiled:
        assert others.pop() == "compiled 1"
        assert {"alone", "reservation"} < set(literal_eval(names)) < {"alone", *POLICIES}
    else:
        assert set(literal_eval(names)) == {"alone", *POLICIES}
    assert alone == "['Dispatch', 'Dispatch', 'Dispatch', 'Dispatch']"
    if not compiled:
        assert others.pop(0) == "1.0 1.0"
    waits = "['SetTimer', 'SetTimer', 'SetTimer', 'Dispatch']"
    assert [line for line in others if "[" in line] == [waits] * (1 if compiled else 2)


def test_policies_have_numbers_and_the_one_served_by_default_is_among_them() -> None:
    assert {"reservation", "reservation-ahead", "throughput-cost"} <= set(EARLY_POLICIES)
    assert {"deferred", "eager", "latest", "timeout", "turns"} <= set(POLICIES) - set(
        EARLY_POLICIES
    )
    assert POLICIES[: len(EARLY_POLICIES)] == EARLY_POLICIES
    assert [policy_number(name) for name in POLICIES] == list(range(len(set(POLICIES))))
    assert DEFAULT_POLICY in POLICIES


def test_a_policy_for_the_simulator_only_cannot_be_served() -> None:
    assert SIMULATOR_ONLY == ("reactive", "nexus", "round-robin", "shepherd", "triton")
    modules = [module.name for module in iter_modules(papers.__path__)]
    found = {m.replace("_", "-") for m in modules if hasattr(from_papers(m), "simulate")}
    assert found == set(SIMULATOR_ONLY)
    for name in SIMULATOR_ONLY:
        with pytest.raises(InputError, match="runs in the simulator only"):
            Scheduler(two_stages(), policy=name)


def test_turns_are_taken_on_one_stage_only() -> None:
    one, two = Own(latency_us=(1_000,)), Own(latency_us=(2_000,))
    Scheduler(make_plan([[one], [two]]), policy="turns")
    with pytest.raises(InputError, match="'turns' takes turns on one stage, a pipeline has 2"):
        Scheduler(make_plan([[one], [one, two]]), policy="turns")


def sent_us(scheduler: Scheduler, decided: list[Decision]) -> int:
    """When the first batch is sent, where nothing happens but that time passes."""
    now_us = 0
    while not any(isinstance(one, Dispatch) for one in decided):
        (timer,) = [one for one in decided if isinstance(one, SetTimer)]
        now_us = timer.at_us
        decided = scheduler.handle(Timer(now_us=now_us))
    return now_us


@pytest.mark.parametrize("low", [0, 1])
@pytest.mark.parametrize("policy", POLICIES)
def test_a_longer_timeout_makes_no_request_wait_longer_for_others(policy: str, low: int) -> None:
    """It is time for what is late, not for a batch to fill: vGPUs are free here."""
    slo_us = 100_000
    plan = make_plan([[Own(latency_us=(5_000, 6_000, 7_000, 8_000))]], slo_us=slo_us)

    def waits_us(deadline_us: int) -> int:
        scheduler = Scheduler(plan, policy=policy)
        came = Arrival(now_us=0, request_id=0, model=0, deadline_us=deadline_us, low=low)
        return sent_us(scheduler, scheduler.handle(came))

    assert waits_us(100 * slo_us) == waits_us(slo_us)
    assert waits_us(slo_us // 2) <= waits_us(slo_us)
