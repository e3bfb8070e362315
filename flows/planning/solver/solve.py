"""The one door to solvers: HiGHS always, Gurobi where its package and licence allow.

Both take the same `Program`. Random seeds and thread counts are fixed, so that a run that ends by
proof or by its node limit repeats itself exactly.
"""

import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import highspy
import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csc_array

from flows.planning.solver.arrays import Floats
from flows.planning.solver.program import Program
from flows.planning.solver.record import note_solver

HIGHS, GUROBI = "highs", "gurobi"
SEED = 0
FEW_NODES, SEARCH_NODES, PROOF_NODES = 400, 2_000, 20_000
"""Nodes of the tree of a program that is one of many, of one that shall find something, and of a
small one to be proven."""
PROOF_GAP = 1e-6
"""Relative gap within which a small program is proven."""
_FREE_SIZE = 2_000  # variables, and rows, that gurobipy's own licence allows
_TOO_LARGE = 10010  # Gurobi's number of the error that says so


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """When an integer program may stop: proof within `relative_gap`, nodes, seconds.

    `cutoff` is a score that solutions of interest exceed, -infinity where none is known; a
    solution of the score `enough` ends the search.
    """

    relative_gap: float
    nodes: int
    seconds: float | None = None
    cutoff: float = -np.inf
    enough: float = np.inf


@dataclass(frozen=True, slots=True, kw_only=True)
class Solution:
    """Best solution found (None where there is none), and a bound no solution exceeds.

    `nodes` and `iterations` (of the simplex method) tell the effort, the same on every machine.
    """

    values: NDArray[Any] | None
    bound: float
    status: str
    nodes: int
    iterations: int


def solve_linear(program: Program, seconds: float | None = None) -> tuple[Floats, Floats] | None:
    """Values and row duals (not negative for `≤` rows of a maximisation).

    None if infeasible, or if so many seconds do not suffice.
    """
    note_solver(HIGHS, integer=False)
    highs = _highs(program)
    highs.setOptionValue("presolve", "off")
    if seconds is not None:
        highs.setOptionValue("time_limit", seconds)
    highs.run()
    if highs.getModelStatus() != highspy.HighsModelStatus.kOptimal:
        return None
    solution = highs.getSolution()
    return np.array(solution.col_value), np.array(solution.row_dual)


class Relaxation:
    """A program without its whole-number demands, kept warm to ask for extremes of variables."""

    def __init__(self, program: Program) -> None:
        free = replace(
            program, whole=np.zeros_like(program.whole), cost=np.zeros_like(program.cost)
        )
        note_solver(HIGHS, integer=False)
        self._highs = _highs(free)
        self._highs.setOptionValue("presolve", "off")

    def extreme(self, variable: int, sign: float) -> float | None:
        """Largest (sign 1) or smallest (sign -1) value of a variable; None if nothing fits."""
        self._highs.changeColCost(variable, sign)
        self._highs.run()
        status = self._highs.getModelStatus()
        value = self._highs.getSolution().col_value[variable]
        self._highs.changeColCost(variable, 0.0)
        if status == highspy.HighsModelStatus.kInfeasible:
            return None
        if status != highspy.HighsModelStatus.kOptimal:
            return sign * np.inf
        return float(value)

    def bound(self, variable: int, lower: float, upper: float) -> None:
        """Narrow a variable."""
        self._highs.changeColBounds(variable, lower, upper)


def solve_integer(
    program: Program, limits: Limits, solver: str = HIGHS, start: Floats | None = None
) -> Solution:
    """Solve; solutions that do not beat the cutoff may be cut off.

    HiGHS begins with the solution `start`, where one is given.

    Where Gurobi's package is absent or its licence refuses the program, HiGHS takes over and the
    record says so.
    """
    answer, note = None, None
    if solver == GUROBI:
        answer, refusal = _with_gurobi(program, limits)
        note = f"solved with HiGHS: {refusal}" if answer is None else None
    by = HIGHS if answer is None else GUROBI
    note_solver(by, integer=bool(program.whole.any()), note=note)
    return answer or _with_highs(program, limits, start)


def _with_highs(program: Program, limits: Limits, start: Floats | None) -> Solution:
    highs = _highs(program)
    if start is not None:
        solution = highspy.HighsSolution()
        solution.col_value = start.tolist()
        highs.setSolution(solution)
    highs.setOptionValue("mip_rel_gap", limits.relative_gap)
    highs.setOptionValue("mip_abs_gap", 0.0)
    highs.setOptionValue("mip_max_nodes", limits.nodes)
    if np.isfinite(limits.cutoff):
        highs.setOptionValue("objective_bound", -limits.cutoff)  # of the negated, minimised form
    if np.isfinite(limits.enough):
        highs.setOptionValue("objective_target", limits.enough)
    if limits.seconds is not None:
        highs.setOptionValue("time_limit", limits.seconds)
    highs.run()
    info = highs.getInfo()
    found = info.primal_solution_status == highspy.SolutionStatus.kSolutionStatusFeasible
    status = highs.modelStatusToString(highs.getModelStatus())
    infeasible = highs.getModelStatus() == highspy.HighsModelStatus.kInfeasible
    return Solution(
        values=np.array(highs.getSolution().col_value) if found else None,
        bound=-np.inf if infeasible else float(info.mip_dual_bound),
        status=status.lower(),
        nodes=int(info.mip_node_count),
        iterations=int(info.simplex_iteration_count),
    )


def _with_gurobi(program: Program, limits: Limits) -> tuple[Solution | None, str]:
    """The answer, or why there is none."""
    try:
        import gurobipy  # noqa: PLC0415 - an optional extra, loaded only when asked for
    except ImportError:
        return None, "gurobipy is not installed"
    rows, variables = program.shape
    matrix: Any = csc_array((program.values, program.rows, program.starts), shape=(rows, variables))
    try:
        with gurobipy.Env(params={"OutputFlag": 0}) as env, gurobipy.Model(env=env) as model:
            x = model.addMVar(
                variables,
                lb=program.lower,
                ub=program.upper,
                vtype=np.where(program.whole, "I", "C").tolist(),
            )
            model.setObjective(program.cost @ x, gurobipy.GRB.MAXIMIZE)
            model.addMConstr(matrix, x, "<", program.row_upper)
            _limit_gurobi(model, limits)
            model.optimize()
            return _gurobi_answer(model, x), ""
    except gurobipy.GurobiError as error:
        if error.errno == _TOO_LARGE:
            return None, f"Gurobi's licence is limited to programs of {_FREE_SIZE:,} variables"
        return None, f"Gurobi refused: {error}"


def gurobi_licence() -> str:
    """Gurobi's message on its licence, or the reason why it does not start.

    Raises:
        ImportError: it is not installed.
    """
    import gurobipy  # noqa: PLC0415 - as above

    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log"
        try:
            with gurobipy.Env(empty=True) as env:
                env.setParam("LogToConsole", 0)
                env.setParam("LogFile", str(log))
                env.start()
        except gurobipy.GurobiError as error:
            return str(error)
        lines = [line for line in log.read_text().splitlines() if "icense" in line]
    return lines[-1].strip() if lines else "says nothing of a licence"


def _limit_gurobi(model: Any, limits: Limits) -> None:
    model.Params.Threads = 1
    model.Params.Seed = SEED
    model.Params.MIPGap = limits.relative_gap
    model.Params.NodeLimit = limits.nodes
    if np.isfinite(limits.cutoff):
        model.Params.Cutoff = limits.cutoff
    if np.isfinite(limits.enough):
        model.Params.BestObjStop = limits.enough
    if limits.seconds is not None:
        model.Params.TimeLimit = limits.seconds


def _gurobi_answer(model: Any, x: Any) -> Solution:
    names = {2: "optimal", 3: "infeasible", 4: "infeasible", 6: "infeasible"}
    names |= {8: "solution limit reached", 9: "time limit reached", 15: "enough"}
    status = names.get(model.Status, f"gurobi status {model.Status}")
    bound = -np.inf if status == "infeasible" else float(model.ObjBound)
    return Solution(
        values=np.array(x.X) if model.SolCount else None,
        bound=bound,
        status=status,
        nodes=int(model.NodeCount),
        iterations=int(model.IterCount),
    )


def _highs(program: Program) -> highspy.Highs:
    rows, variables = program.shape
    lp = highspy.HighsLp()
    lp.num_col_, lp.num_row_ = variables, rows
    lp.sense_ = highspy.ObjSense.kMaximize
    lp.col_cost_ = program.cost
    lp.col_lower_, lp.col_upper_ = program.lower, program.upper
    lp.row_lower_, lp.row_upper_ = np.full(rows, -np.inf), program.row_upper
    lp.a_matrix_.format_ = highspy.MatrixFormat.kColwise
    lp.a_matrix_.num_col_, lp.a_matrix_.num_row_ = variables, rows
    lp.a_matrix_.start_ = program.starts
    lp.a_matrix_.index_ = program.rows
    lp.a_matrix_.value_ = program.values
    if program.whole.any():
        kinds = (highspy.HighsVarType.kContinuous, highspy.HighsVarType.kInteger)
        lp.integrality_ = [kinds[int(w)] for w in program.whole]
    highs = highspy.Highs()
    highs.silent()
    highs.setOptionValue("random_seed", SEED)
    highs.setOptionValue("threads", 1)
    highs.setOptionValue("parallel", "off")
    highs.passModel(lp)
    return highs
