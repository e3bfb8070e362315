"""Latency split by the rules of Scrooge, InferLine and Clipper, on the paper's tables."""

from flows.planning.papers.piccolo.splitting import by_duration, even, saving
from tests.flows.planning.applications.paper import TABLES, application, chain, rates_of

LINES = chain(900)
CHAIN = (LINES, [TABLES[d.name] for d in LINES.demands], rates_of(LINES), "2d")


def test_even_shares_the_limit_among_the_modules_of_the_longest_path() -> None:
    assert even(*CHAIN) == [450_000, 450_000]
    fork = application(900, ("a", "M1", 1, ()), ("b", "M2", 1, ("a",)), ("c", "M3", 1, ("b",)))
    assert even(fork, [], [], "2d") == [300_000] * 3


def test_by_duration_steps_back_until_every_share_holds_its_configuration() -> None:
    """Batches of 8 and 8, then 8 and 4, last longer than their shares.

    4 and 4 take 160 and 200 ms.
    """
    assert by_duration(*CHAIN) == [400_000, 500_000]


def test_by_duration_finds_nothing_where_the_smallest_batches_do_not_fit() -> None:
    lines = chain(500)  # twice 125 and 167 ms
    assert by_duration(lines, CHAIN[1], CHAIN[2], "2d") is None


def test_saving_takes_the_dearest_switch_that_fits_first() -> None:
    """A batch of 8 on the second module saves most (1.73), and leaves the first its batch of 2."""
    budgets = saving(*CHAIN)
    assert budgets is not None
    assert budgets[1] >= 640_000
    assert 250_000 <= budgets[0] < 320_000
    assert sum(budgets) <= 900_000
