"""The registry of policies: names, numbers, and the kernel that calls the right one.

A policy is a kernel `decide(tables, queue)` that dispatches, drops or waits for one queue at
`counts.now_us` and answers `SETTLED` or `NEEDS_ROOM`. Its module states it under its name:

    POLICIES = {"reservation": decide}

A policy of late binding states rules instead of a kernel (`late`): `{"deferred": LateRules(...)}`.
Every module of this folder is loaded, so a new policy is one new file and its test. A family of
policies that differ in parameters is one file with several names.
Not here: `SIMULATOR_ONLY` policies have no `decide`, because they need no reservations and so none
of the scheduler's tables; the simulator runs them by loops of its own.
"""

from collections.abc import Callable
from importlib import import_module
from pkgutil import iter_modules

from triton_backend.contract.errors import InputError, InvariantError
from triton_backend.contract.plan import Plan
from triton_backend.scheduler import policies
from triton_backend.scheduler.compiled import inlined
from triton_backend.scheduler.plan_rows import grows, unshared_pools
from triton_backend.scheduler.policies.late import LEAST_RECENT
from triton_backend.scheduler.tables import SETTLED, Tables
from triton_backend.scheduler.topology import LateRules, QueuePolicy

Decide = Callable[[Tables, int], int]

REACTIVE = "reactive"  # the ablation without reservations
SIMULATOR_ONLY = (REACTIVE, "nexus", "round-robin", "shepherd", "triton")
"""Comparison policies: modules of `triton_backend/simulator/papers/`, loaded on demand."""


def _load() -> dict[str, Decide | LateRules]:
    """Every policy that a module of this folder states, by file, then in stated order."""
    found: dict[str, Decide | LateRules] = {}
    for name in sorted(module.name for module in iter_modules(policies.__path__)):
        if f"{policies.__name__}.{name}" == __name__:
            continue
        stated = getattr(import_module(f"{policies.__name__}.{name}"), "POLICIES", {})
        if twice := sorted(set(stated) & {*found, *SIMULATOR_ONLY}):
            raise InvariantError(f"policy {twice[0]!r} of {name}.py has the name of another")
        found.update(stated)
    return found


_STATED = _load()
POLICIES = tuple(sorted(_STATED, key=lambda name: isinstance(_STATED[name], LateRules)))
"""Names of the policies that a scheduler can run, those of early binding first.

A policy's number is its. place here.
"""
EARLY_POLICIES = tuple(name for name in POLICIES if not isinstance(_STATED[name], LateRules))
"""Those that reserve a whole path when they dispatch."""


def policy_number(name: str) -> int:
    """Number of a policy in `POLICIES`, as the kernels know it.

    Raises:
        InputError: there is no such policy, or it runs in the simulator only.
    """
    if name in SIMULATOR_ONLY:
        raise InputError("policy", f"{name!r} runs in the simulator only, by `simulate`")
    if name not in POLICIES:
        raise InputError("policy", f"{name!r} is none of {', '.join(POLICIES)}")
    return POLICIES.index(name)


def queue_policies(
    plan: Plan,
    policy: str | None = None,
    adjust: Callable[[LateRules], LateRules] = lambda rules: rules,
) -> list[QueuePolicy]:
    """The policy of every model of a plan: what the plan says, or `policy` for all.

    `adjust` changes rules of late binding, for ablations.

    Raises:
        InputError: there is no such policy, or a model's pipelines cannot be run by it.
    """
    found: list[QueuePolicy] = []
    for model in plan.models:
        name = policy or model.policy
        number = policy_number(name)
        stated = _STATED[name]
        rules = adjust(stated) if isinstance(stated, LateRules) else None
        if rules is not None and rules.rank == LEAST_RECENT:
            longest = max((len(p.stages) for p in model.pipelines), default=0)
            if longest > 1:
                reason = f"{name!r} takes turns on one stage, a pipeline has {longest}"
                raise InputError(f"model {model.name!r}, policy", reason)
        found.append(QueuePolicy(number, rules))
    return found


def largest_batches(plan: Plan, policy: str | None = None) -> dict[str, tuple[int, ...]]:
    """By model, most samples of a batch of each of its pipelines: what engines and slots must hold.

    Most policies of late binding send what the latency table allows, `turns-window` where none
    else waits for a turn; all others send the planned batch at most.

    Raises:
        InputError: as `queue_policies`.
    """
    unshared = unshared_pools(plan)
    return {
        model.name: tuple(
            p.largest if grows(queue.rules, p, unshared) else p.batch for p in model.pipelines
        )
        for model, queue in zip(plan.models, queue_policies(plan, policy), strict=True)
    }


def _dispatching(first: int) -> Callable[[Tables, int, int], int]:
    """A kernel that calls the policy of its last argument, one of those numbered `first` ...

    Compiled it is a chain of comparisons: a kernel cannot be taken from a list by its number.
    """
    this = _STATED[POLICIES[first]]
    if isinstance(this, LateRules):
        return _nobody
    others = _dispatching(first + 1)

    @inlined
    def dispatch(tables: Tables, queue: int, policy: int) -> int:
        if policy == first:
            return this(tables, queue)
        return others(tables, queue, policy)

    return dispatch


@inlined
def _nobody(_tables: Tables, _queue: int, _policy: int) -> int:
    """The end of the chain; no number that `policy_number` gives comes here."""
    return SETTLED


decide = _dispatching(0)
"""The kernel `decide(tables, queue, policy number)` of all policies."""
