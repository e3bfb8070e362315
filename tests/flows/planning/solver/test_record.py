"""Which solvers answered is noted, in the block that asks for it alone."""

import numpy as np

from flows.planning.solver.program import Program, ProgramBuilder
from flows.planning.solver.record import note_solver, recorded
from flows.planning.solver.solve import (
    GUROBI,
    HIGHS,
    Limits,
    solve_integer,
    solve_linear,
)

EXACT = Limits(relative_gap=0.0, nodes=1_000)


def program(variables: int, *, whole: bool) -> Program:
    """Maximise the sum of variables of which one may be 1."""
    builder = ProgramBuilder()
    x = builder.variables("x", variables, upper=1.0, cost=1.0, whole=whole)
    row = builder.rows("row", 1, upper=1.0)
    builder.entries(np.repeat(row, variables), x, 1.0)
    return builder.build()


def test_nothing_solved_is_named_none() -> None:
    with recorded() as record:
        pass
    assert record.named() == "none"


def test_the_solver_of_integer_programs_is_named_before_that_of_linear_ones() -> None:
    with recorded() as record:
        solve_linear(program(2, whole=False))
        assert record.named() == "highs"
        note_solver(GUROBI, integer=True)
        assert record.named() == "gurobi"
        solve_integer(program(2, whole=True), EXACT)
    assert record.named() == "gurobi+highs"


def test_blocks_have_records_of_their_own_and_outside_nothing_is_noted() -> None:
    solve_integer(program(2, whole=True), EXACT)
    with recorded() as outer:
        with recorded() as inner:
            solve_integer(program(2, whole=True), EXACT)
        assert (outer.named(), inner.named()) == ("none", "highs")


def test_a_program_beyond_gurobis_licence_is_solved_with_highs_which_is_said_once() -> None:
    """As large as no free licence allows; with a full licence Gurobi answers."""
    with recorded() as record:
        for variables in (2_001, 2_002):
            answer = solve_integer(program(variables, whole=True), EXACT, GUROBI)
            assert answer.bound == 1.0
    assert record.integer in ({GUROBI}, {HIGHS})
    assert len(record.notes) == (1 if HIGHS in record.integer else 0)
