"""Plans chosen by what they serve in the simulator, not by what they promise.

A margin leaves room for waiting that the plan does not see; too much of it wastes GPUs, too little
misses deadlines. The batch-building rate says how long batches gather. Candidates differ in both;
each is planned, then offered Poisson arrivals in proportion to the weights. The plan kept is the
one with the highest *robust goodput*: the largest normalised rate at which every model answers 99 %
of its requests in time.

Short simulations come first: margins for all models together are tried for a tenth of the time, the
better half for a third, the best and the default for all of it (successive halving). Then margin
and rate change model by model; a change must pay in a short simulation before it gets a long one.
The wall-clock budget ends the search between two candidates with the best plan so far.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from flows.clock import Stopwatch
from flows.planning.api import make_plan, with_rates
from flows.planning.certificate import plan_identity
from flows.planning.engine.level import last
from flows.planning.promises.headroom import promising_less, without_headroom
from flows.planning.registry import PlanOptions, planner_named
from triton_backend.contract.cluster import Cluster
from triton_backend.contract.errors import InfeasibleError, InputError
from triton_backend.contract.plan import DEFAULT_POLICY, Plan
from triton_backend.contract.profiles import InterferenceModel, ModelProfile
from triton_backend.contract.workload import Workload
from triton_backend.simulator.run import simulate
from triton_backend.simulator.scenario import SimOptions

MARGINS = (0.4, 0.3, 0.2, 0.5, 0.1)  # tried after the planner's default, which they must beat
MARGIN_STEPS = (-0.1, 0.1)
RATE_FACTORS = (0.7, 1.4)
GRID = 20  # load factors are multiples of 1 / GRID of the plan's own rate
_RUNGS = (0.1, 0.3)  # shares of the duration that candidates must survive before the whole
_CANDIDATE_GAP = 2e-3  # simulated goodput is far coarser than this
_WORTH = 1.005  # an improvement below this is noise of one simulation


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """How candidates are tried out: seconds of arrivals, and of wall time for all together.

    `policy` is that of plans made for the default policy; others are tried under their own.
    """

    duration_s: float = 30.0
    seed: int = 0
    attainment: float = 0.99
    nic: str = "shared"
    policy: str = "reservation"
    budget_s: float = 120.0


@dataclass(frozen=True, slots=True)
class _Candidate:
    margins: Mapping[str, float]
    workload: Workload
    plan: Plan
    goodput: float


def make_robust_plan(
    profiles: Mapping[str, ModelProfile],
    cluster: Cluster,
    workload: Workload,
    options: PlanOptions | None = None,
    trial: Trial | None = None,
    *,
    interference: Mapping[str, InterferenceModel] | None = None,
) -> Plan:
    """The pool plan with the highest robust goodput among candidate margins and rates.

    The certificate's `robust` holds the goodput (normalised like the objective), the margins and
    batch-building rates chosen, and how many candidates were tried.

    Raises:
        InputError: another objective than throughput is asked for.
        InfeasibleError: no candidate margin leaves a model any pipeline.
    """
    options = options or PlanOptions()
    if options.objective != "throughput":
        raise InputError("--slo-margin auto", "needs the objective 'throughput'")
    if workload.applications:
        raise InputError("--slo-margin auto", "is for models alone; the workload has applications")
    asked, options = options, without_headroom(options)
    search = _Search(profiles, cluster, options, trial or Trial(), interference or {})
    rated, _ = with_rates(options.expected(profiles), cluster, workload, options)
    best, default = _common_margin(search, rated)
    for model in [m.name for m in workload.models]:
        best = _improved(search, best, model)
    robust = {
        "goodput": best.goodput,
        "default_goodput": default,
        "slo_margins": dict(best.margins),
        "batch_building_rate_rps": {
            m.name: m.batch_building_rate_rps for m in best.workload.models
        },
        "candidates": search.tried,
        "budget_spent": search.spent(),
    }
    plan = replace(best.plan, certificate={**best.plan.certificate, "robust": robust})
    return promising_less(replace(plan, plan_id=plan_identity(plan)), asked)


@dataclass(slots=True)
class _Search:
    profiles: Mapping[str, ModelProfile]
    cluster: Cluster
    options: PlanOptions
    trial: Trial
    interference: Mapping[str, InterferenceModel]
    tried: int = 0
    watch: Stopwatch = field(default_factory=Stopwatch)

    def spent(self) -> bool:
        """True if the budget is."""
        return self.watch.seconds() >= self.trial.budget_s

    def planned(self, margins: Mapping[str, float], workload: Workload) -> _Candidate | None:
        """A candidate that was not tried out yet; None where there is no plan."""
        self.tried += 1
        options = replace(
            self.options,
            slo_margins=dict(margins),
            gap=max(self.options.gap, _CANDIDATE_GAP),
        )
        try:
            plan = make_plan(
                self.profiles, self.cluster, workload, options, interference=self.interference
            )
        except InfeasibleError:
            return None
        return _Candidate(margins, workload, plan, 0.0)

    def tried_out(self, candidate: _Candidate, share: float, beat: float = 0.0) -> _Candidate:
        """The candidate with its goodput over a share of the trial's duration."""
        trial = replace(self.trial, duration_s=self.trial.duration_s * share)
        return replace(candidate, goodput=robust_goodput(candidate.plan, trial, beat))


def _common_margin(search: _Search, workload: Workload) -> tuple[_Candidate, float | None]:
    """The best margin for all models, and what the default margin serves (None: no plan)."""
    default: _Candidate | None = None
    rivals: list[_Candidate] = []
    usual = planner_named(search.options.planner).slo_margin
    for margin in dict.fromkeys((usual, *MARGINS)):
        if rivals and search.spent():
            break
        candidate = search.planned({m.name: margin for m in workload.models}, workload)
        if candidate is not None:
            default = default or (candidate if margin == usual else None)
            rivals.append(search.tried_out(candidate, _RUNGS[0]))
    for share in _RUNGS[1:]:
        rivals.sort(key=lambda c: -c.goodput)
        rivals = rivals[: -(-len(rivals) // 2)]
        if len(rivals) > 1 and not search.spent():
            rivals = [search.tried_out(c, share) for c in rivals]
    finals = rivals[:1]
    if default is not None and rivals[0].plan is not default.plan:
        finals.append(default)
    finals = [search.tried_out(c, 1.0) for c in finals]
    best = max(finals, key=lambda c: c.goodput, default=None)
    if best is None or not best.goodput:
        raise InfeasibleError("--slo-margin auto", "no candidate serves 99 % at any load")
    served = [c.goodput for c in finals if default is not None and c.plan is default.plan]
    return best, served[0] if served else None


def _improved(search: _Search, best: _Candidate, model: str) -> _Candidate:
    """Change the margin, then the batch-building rate, of one model, where that pays."""
    changes: list[Callable[[_Candidate], tuple[Mapping[str, float], Workload]]] = [
        *(lambda c, step=step: (_shifted(c, model, step), c.workload) for step in MARGIN_STEPS),
        *(lambda c, by=by: (c.margins, _rescaled(c.workload, model, by)) for by in RATE_FACTORS),
    ]
    for change in changes:
        margins, workload = change(best)
        if search.spent() or not all(0 <= margin < 1 for margin in margins.values()):
            continue
        candidate = search.planned(margins, workload)
        beat = best.goodput * _WORTH
        if candidate is None or candidate.plan.objective.value <= beat:
            continue
        if search.tried_out(candidate, _RUNGS[0], beat).goodput > beat:
            candidate = search.tried_out(candidate, 1.0, beat)
            best = candidate if candidate.goodput > beat else best
    return best


def _shifted(now: _Candidate, model: str, step: float) -> dict[str, float]:
    return {**now.margins, model: round(now.margins[model] + step, 6)}


def _rescaled(workload: Workload, model: str, factor: float) -> Workload:
    return replace(
        workload,
        models=tuple(
            replace(m, batch_building_rate_rps=m.batch_building_rate_rps * factor)
            if m.name == model and m.batch_building_rate_rps is not None
            else m
            for m in workload.models
        ),
    )


def robust_goodput(plan: Plan, trial: Trial, beat: float = 0.0) -> float:
    """Largest normalised rate, in steps of the plan's own, at which every model attains.

    Requests arrive in proportion to the weights. Halving assumes that what attains at some load
    attains below it. A plan that does not attain just above `beat` is not looked at further.
    """
    value = plan.objective.value
    low = int(beat / value * GRID)
    if low >= GRID or not _attains(plan, trial, value * (low + 1) / GRID):
        return value * low / GRID
    highest = last(lambda step: _attains(plan, trial, value * step / GRID), low + 1, GRID + 1)
    return value * highest / GRID


def _attains(plan: Plan, trial: Trial, rate: float) -> bool:
    """True if every model attains when `rate` × weight requests/s of each arrive."""
    weights = {m.name: m.normaliser() for m in plan.workload.models}
    offered = replace(
        plan,
        models=tuple(replace(m, throughput_rps=rate * weights[m.name]) for m in plan.models),
    )
    options: dict[str, Any] = {
        "duration_s": trial.duration_s,
        "seed": trial.seed,
        "nic": trial.nic,
        "policy": trial.policy if plan.models[0].policy == DEFAULT_POLICY else None,
    }
    result = simulate(plan, SimOptions(**options, reference=offered, keep_uses=False))
    return min(model.attainment for model in result.models) >= trial.attainment
