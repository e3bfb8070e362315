"""Piccolo's planner on the paper's tables."""

from dataclasses import replace

import pytest

from flows.planning.applications.division import Separate, divide
from flows.planning.applications.heuristics import ABLATIONS, PICCOLO, Rules, solve
from flows.planning.applications.splitting import per_latency, switched
from flows.planning.pool.applications.exact import line_steps
from tests.flows.planning.applications.paper import TABLES, application, chain, rates_of


def cost_of(slo_ms: float, rules: Rules) -> float | None:
    lines = chain(slo_ms)
    found = solve(lines, [TABLES[d.name] for d in lines.demands], rates_of(lines), rules)
    return None if found is None else found.cost


def test_a_switch_is_worth_its_saving_per_latency() -> None:
    table = {m.batch: m for m in TABLES["M1"]}
    before = table[5]

    def worth(batch: int) -> float:
        saved = (before.unit_cost - table[batch].unit_cost) * 100
        return saved / (table[batch].latency_us("tc", 100, 100) - before.latency_us("tc", 100, 100))

    assert worth(20) * 1e6 == pytest.approx(2.50)
    assert worth(100) * 1e6 == pytest.approx(0.5405, rel=1e-4)
    lines = application(500, ("only", "M1", 1, ()))
    found = switched(lines, [TABLES["M1"]], [100.0], "tc", per_latency)
    assert found is not None
    assert found[1][0].batch == 20


@pytest.mark.parametrize(
    ("slo_ms", "piccolo", "exact"),
    [(500, 6.0, 6.0), (900, 3.75, 3.75), (1000, 3.55, 3.55)],
)
def test_the_chain_of_section_2(slo_ms: float, piccolo: float, exact: float) -> None:
    assert cost_of(slo_ms, PICCOLO) == pytest.approx(piccolo)
    lines = chain(slo_ms)
    steps = [line_steps("tc-tail", TABLES[d.name], d.rate_rps or 0, dummies=True)
             for d in lines.demands]  # fmt: skip
    found = divide(lines, Separate(steps))
    assert found is not None
    assert found.cost == pytest.approx(exact)


@pytest.mark.parametrize(("most", "cost"), [(None, 3.75), (1, 4.0), (2, 3.75)])
def test_a_module_has_at_most_so_many_configurations(most: int | None, cost: float) -> None:
    rules = replace(PICCOLO, most_configurations=most)
    lines = chain(900)
    found = solve(lines, [TABLES[d.name] for d in lines.demands], rates_of(lines), rules)
    assert found is not None
    assert found.cost == pytest.approx(cost)
    for chosen in found.sets:
        assert len({group.machine for group in chosen.groups}) <= (most or 2)


def test_without_dummies_the_heuristic_misses_the_optimum() -> None:
    rules = replace(PICCOLO, dummies=False)
    lines = chain(1500)
    steps = [line_steps("tc-tail", TABLES[d.name], d.rate_rps or 0, dummies=False)
             for d in lines.demands]  # fmt: skip
    found = divide(lines, Separate(steps))
    assert found is not None
    assert cost_of(1500, rules) == pytest.approx(3.41667, rel=1e-5)
    assert found.cost == pytest.approx(3.40, rel=1e-5)


@pytest.mark.parametrize("slo_ms", [700, 900, 1100, 1500])
def test_no_part_left_out_makes_the_example_cheaper(slo_ms: float) -> None:
    whole = cost_of(slo_ms, PICCOLO)
    assert whole is not None
    less = {name: cost_of(slo_ms, replace(PICCOLO, **cut)) for name, cut in ABLATIONS.items()}
    assert [name for name, cost in less.items() if cost is None] == ["batching"]
    planned = {name: cost for name, cost in less.items() if cost is not None}
    assert {name for name, cost in planned.items() if cost < whole - 1e-9} == set()


def test_lines_keep_their_paths_in_a_diamond() -> None:
    lines = application(
        1600,
        ("a", "M2", 1, ()),
        ("b", "M3", 0.8, ("a",)),
        ("c", "M1", 2, ("a",)),
        ("d", "M2", 1, ("b", "c")),
    )
    found = solve(lines, [TABLES[d.name] for d in lines.demands], rates_of(lines), PICCOLO)
    assert found is not None
    assert lines.fit(found.times)
