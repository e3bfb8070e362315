"""A linear program that keeps its basis while columns join, in HiGHS.

    minimise   cost · x     lower ≤ A x ≤ upper,   0 ≤ x_j ≤ upper_j

Rows are fixed from the start. Not here: integer programs, and the choice of a solver (`solve`).
"""

import highspy
import numpy as np

from flows.planning.solver.arrays import Floats, Ints
from flows.planning.solver.record import note_solver
from flows.planning.solver.solve import HIGHS, SEED


class WarmProgram:
    """The program; solved again, it starts from the basis before.

    Args:
        lower, upper: [rows] bounds, infinite where there is none.
    """

    def __init__(self, lower: Floats, upper: Floats) -> None:
        self._highs = highspy.Highs()
        self._highs.silent()
        for name, value in (("random_seed", SEED), ("threads", 1), ("presolve", "off")):
            self._highs.setOptionValue(name, value)
        self._rows = len(lower)
        self._free_rows = not ((lower > 0) | (upper < 0)).any()
        begin, none = np.zeros(self._rows, dtype=np.int32), np.zeros(0, dtype=np.int32)
        self._highs.addRows(self._rows, _finite(lower), _finite(upper), 0, begin, none, np.zeros(0))

    def add(
        self,
        cost: Floats,
        upper: Floats,
        entries: tuple[Ints, Ints, Floats],
    ) -> None:
        """Let columns join.

        Args:
            cost: [n].
            upper: [n] bounds.
            entries: starts [n + 1], rows and values, column by column.
        """
        if not len(cost):
            return
        starts, rows, values = entries
        self._highs.addCols(
            len(cost),
            cost,
            np.zeros(len(cost)),
            _finite(upper),
            len(rows),
            starts[:-1].astype(np.int32),
            rows.astype(np.int32),
            values,
        )

    def solve(self) -> tuple[float, Floats, Floats] | None:
        """The cost of an optimum, x in the order in which columns joined, and duals of the rows.

        None without one.
        """
        note_solver(HIGHS, integer=False)
        self._highs.run()
        status, solution = self._highs.getModelStatus(), self._highs.getSolution()
        duals = np.array(solution.row_dual)
        if status == highspy.HighsModelStatus.kModelEmpty and self._free_rows:
            duals = np.zeros(self._rows)
        elif status != highspy.HighsModelStatus.kOptimal:
            return None
        value = float(self._highs.getInfo().objective_function_value)
        return value, np.array(solution.col_value), duals


def _finite(bounds: Floats) -> Floats:
    """Bounds with HiGHS's own infinity."""
    return np.clip(bounds.astype(np.float64), -highspy.kHighsInf, highspy.kHighsInf)
