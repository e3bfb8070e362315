"""The registry of policies: names, numbers, and the kernel that calls the right one.

A policy is a kernel `decide(tables, model)` that dispatches, drops or waits for one model's queue at
`counts.now_us` and answers `SETTLED` or `NEEDS_ROOM`. Its module states it under its name:

    POLICIES = {"reservation": decide}

Every module of this folder is loaded, so a new policy is one new file and its test. A family of
policies that differ in parameters is one file with several names.
Not here: `SIMULATOR_ONLY` policies have no `decide`, because they need no reservations and so none
of the scheduler's tables; the simulator runs them by a loop of their own.
"""

from collections.abc import Callable
from importlib import import_module
from pkgutil import iter_modules

from triton_backend.contract.errors import InputError, InvariantError
from triton_backend.scheduler import policies
from triton_backend.scheduler.compiled import inlined
from triton_backend.scheduler.tables import SETTLED, Tables

Decide = Callable[[Tables, int], int]

REACTIVE = "reactive"  # the ablation without reservations: `triton_backend/simulator/reactive.py`
SIMULATOR_ONLY = (REACTIVE,)


def _load() -> dict[str, Decide]:
    """Every policy that a module of this folder states, in the order of files and then as stated."""
    found: dict[str, Decide] = {}
    for name in sorted(module.name for module in iter_modules(policies.__path__)):
        if f"{policies.__name__}.{name}" == __name__:
            continue
        stated = getattr(import_module(f"{policies.__name__}.{name}"), "POLICIES", {})
        if twice := sorted(set(stated) & {*found, *SIMULATOR_ONLY}):
            raise InvariantError(f"policy {twice[0]!r} of {name}.py has the name of another")
        found.update(stated)
    return found


_DECIDE = _load()
POLICIES = tuple(_DECIDE)
"""Names of the policies that a scheduler can run; a policy's number is its place here."""


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


def _dispatching(first: int) -> Callable[[Tables, int, int], int]:
    """A kernel that calls the policy of its last argument, one of those numbered `first` ...

    Compiled it is a chain of comparisons: a kernel cannot be taken from a list by its number.
    """
    if first == len(POLICIES):
        return _nobody
    this, others = _DECIDE[POLICIES[first]], _dispatching(first + 1)

    @inlined
    def dispatch(tables: Tables, model: int, policy: int) -> int:
        if policy == first:
            return this(tables, model)
        return others(tables, model, policy)

    return dispatch


@inlined
def _nobody(_tables: Tables, _model: int, _policy: int) -> int:
    """The end of the chain; no number that `policy_number` gives comes here."""
    return SETTLED


decide = _dispatching(0)
"""The kernel `decide(tables, model, policy number)` of all policies."""
