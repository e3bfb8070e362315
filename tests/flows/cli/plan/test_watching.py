"""How far planning is, on the command line; what Ctrl-C does."""

import json
import os
import signal

import pytest

from flows.cli.plan.watching import in_words, share_of_proof, watched
from flows.planning.watch import Progress
from tests.flows.cli.conftest import PLAN, Command


@pytest.mark.usefixtures("profiled")
def test_progress_as_json_is_a_line_per_betterment(poolpipe: Command) -> None:
    ran = poolpipe(*PLAN, "--json", "--progress", "json")
    lines = [json.loads(line) for line in ran.err.splitlines() if line.startswith("{")]
    assert lines
    for line in lines:
        assert line.keys() == {"seconds", "value", "bound", "gap"}
    assert [line["seconds"] for line in lines] == sorted(line["seconds"] for line in lines)
    values = [line["value"] for line in lines if line["value"] is not None]
    assert values == sorted(values)
    assert values[-1] == pytest.approx(ran.document["objective"]["value"])


@pytest.mark.usefixtures("profiled")
def test_nothing_is_shown_where_no_terminal_is(poolpipe: Command) -> None:
    assert poolpipe(*PLAN, "--json").err == ""


@pytest.mark.usefixtures("profiled")
def test_another_form_of_progress_is_refused(poolpipe: Command) -> None:
    ran = poolpipe(*PLAN, "--progress", "xml")
    assert ran.code == 2
    assert "--progress" in ran.err


def test_the_first_interrupt_ends_the_run_and_the_second_the_command(
    capsys: pytest.CaptureFixture[str],
) -> None:
    before = signal.getsignal(signal.SIGINT)
    with watched(None, 1e-4, as_json=False) as watch:
        assert not watch.over()
        os.kill(os.getpid(), signal.SIGINT)
        assert watch.stopped()
        assert watch.over()
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is before
    assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.parametrize(
    ("gap", "wanted", "share"),
    [(None, 0.01, 0.0), (5.0, 0.01, 0.0), (0.1, 0.01, 0.5), (0.01, 0.01, 1.0), (0.0, 0.0, 1.0)],
)
def test_the_bar_grows_with_the_digits_proven(
    gap: float | None, wanted: float, share: float
) -> None:
    assert share_of_proof(gap, wanted) == pytest.approx(share)


def test_progress_in_words() -> None:
    assert in_words(Progress(seconds=1.0, value=None, bound=5.0, gap=None)) == "no plan yet"
    told = Progress(seconds=1.0, value=1234.5, bound=1240.0, gap=0.00446)
    assert in_words(told) == "1,234.5, at most 0.45% from the best"
