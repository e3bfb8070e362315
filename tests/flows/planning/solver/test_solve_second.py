"""Bounds and infeasibilities of small golden problems, repeated with SCIP.

Every integer program that HiGHS is asked while a golden problem is planned is kept, with what HiGHS
said. SCIP solves the small ones again: no solution of it may be above HiGHS's bound, its proof may
not be below HiGHS's solution, and what HiGHS says cannot be solved, SCIP cannot either.
"""

from typing import Any

import numpy as np
import pytest

from flows.planning.solver import solve
from flows.planning.solver.program import Program, ProgramBuilder
from flows.planning.solver.solve import Limits, Solution
from scripts.golden.problems import named

pyscipopt: Any = pytest.importorskip("pyscipopt")

SAMPLE = (
    "one-model-00", "one-model-05", "one-model-09", "two-stages-01", "scarce-01", "gpulets-00",
    "gpulets-04", "mig-02", "sub-clusters-02", "percents-01", "open-seats-02",
    "applications-fixed-00", "power-03",
)  # fmt: skip
MOST_CELLS = 4_000  # entries of a program that SCIP solves again
MOST_PROGRAMS = 12  # of one problem, spread over its run
LIMIT_S = 3.0
CLOSE = 1e-5

Asked = tuple[Program, Limits, Solution]


def scip(program: Program) -> tuple[str, float, float]:
    """Status, best score and bound of SCIP, one thread, no heuristics of ours."""
    model = pyscipopt.Model()
    model.hideOutput()
    model.setParam("limits/time", LIMIT_S)
    names = ("C", "I")
    x = [
        model.addVar(
            vtype=names[int(whole)],
            lb=None if np.isneginf(lower) else lower,
            ub=None if np.isposinf(upper) else upper,
        )
        for whole, lower, upper in zip(
            program.whole.tolist(), program.lower.tolist(), program.upper.tolist(), strict=True
        )
    ]
    rows: list[list[Any]] = [[] for _ in program.row_upper]
    for column, variable in enumerate(x):
        for at in range(program.starts[column], program.starts[column + 1]):
            rows[program.rows[at]].append(float(program.values[at]) * variable)
    for row, most in zip(rows, program.row_upper.tolist(), strict=True):
        if row:
            model.addCons(pyscipopt.quicksum(row) <= most)
        elif most < 0:
            return "infeasible", -np.inf, -np.inf
    cost = program.cost.tolist()
    model.setObjective(
        pyscipopt.quicksum(c * v for c, v in zip(cost, x, strict=True)), sense="maximize"
    )
    model.optimize()
    if model.getStatus() == "infeasible":
        return "infeasible", -np.inf, -np.inf
    score = model.getObjVal() if model.getNSols() else -np.inf
    return model.getStatus(), score, model.getDualbound()


def contradictions(program: Program, limits: Limits, said: Solution) -> list[str]:
    """Where SCIP's answer and HiGHS's cannot both be true; HiGHS looks above the cutoff alone."""
    _, score, bound = scip(program)
    step = CLOSE * max(1.0, abs(score) if np.isfinite(score) else 1.0)
    known = max(said.bound, limits.cutoff, limits.enough if np.isfinite(limits.enough) else -np.inf)
    found: list[str] = []
    if score > known + step:
        found.append(f"SCIP has {score}, HiGHS says none is above {known} ({said.status})")
    if said.values is not None:
        value = float(program.cost @ said.values)
        if value > bound + step:
            found.append(f"HiGHS has {value}, SCIP says none is above {bound}")
    return found


def asked_while_planning(name: str, monkeypatch: pytest.MonkeyPatch) -> list[Asked]:
    kept: list[Asked] = []
    with_highs: Any = getattr(solve, "_with_highs")  # noqa: B009 - private

    def keeping(program: Program, limits: Limits, start: Any) -> Solution:
        answer = with_highs(program, limits, start)
        if len(program.values) + len(program.cost) <= MOST_CELLS:
            kept.append((program, limits, answer))
        return answer

    monkeypatch.setattr(solve, "_with_highs", keeping)
    named(name).make().plan()
    return [kept[at] for at in np.unique(np.linspace(0, len(kept) - 1, MOST_PROGRAMS).astype(int))]


@pytest.mark.slow
@pytest.mark.parametrize("name", SAMPLE)
def test_scip_repeats_what_highs_said_of_a_golden_problem(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = asked_while_planning(name, monkeypatch)
    assert asked
    found = [text for program in asked for text in contradictions(*program)]
    assert found == []


def test_a_wrong_bound_and_a_wrong_infeasibility_are_noticed() -> None:
    builder = ProgramBuilder()
    x = builder.variables("x", 3, upper=1.0, cost=[3.0, 2.0, 1.0], whole=True)
    row = builder.rows("row", 1, upper=2.0)
    builder.entries(np.repeat(row, 3), x, 1.0)
    limits = Limits(relative_gap=0.0, nodes=100)
    program = builder.build()
    right = solve.solve_integer(program, limits)
    assert contradictions(program, limits, right) == []
    below = Solution(values=None, bound=4.5, status="optimal", nodes=0, iterations=0)
    none = Solution(values=None, bound=-np.inf, status="infeasible", nodes=0, iterations=0)
    above = Solution(values=np.ones(3), bound=6.0, status="optimal", nodes=0, iterations=0)
    for wrong in (below, none, above):
        assert len(contradictions(program, limits, wrong)) == 1
