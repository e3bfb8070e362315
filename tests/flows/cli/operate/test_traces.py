"""`poolpipe traces`: what it sends, and what it says of wrong input."""

import json
from pathlib import Path

import pytest

from tests.fakes.otlp_receiver import otlp_receiver
from tests.flows.cli.conftest import Command
from tests.flows.operations.fake_gateway import Log, the_plan, workspace_of
from tests.ports import free_ports


@pytest.fixture
def folder(project: Path) -> Path:
    """A serve folder with a request."""
    work, log = workspace_of(project, the_plan()), Log()
    log.plan("one", 1)
    log.serve(1_000)
    log.write(work)
    return work.state.serve


def test_requests_are_sent_and_counted(folder: Path, poolpipe: Command) -> None:
    with otlp_receiver() as received:
        options = ("--otlp", received.url, "--folder", str(folder), "--sample", "1")
        ran = poolpipe("traces", *options, "--json")
        assert ran.code == 0
        counts = {"traces": 1, "left_out": 0, "alone": 0, "skipped": 0}
        assert json.loads(ran.out) == counts
        assert [span.name for span in received.roots()] == ["infer a"]
        followed = poolpipe("traces", *options, "--follow", "--looks", "1")
        assert (followed.code, len(received.roots())) == (0, 1)
        assert followed.out == "0 traces sent, 0 of them without events, 0 lines skipped\n"


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ((), "missing: --otlp"),
        (("--otlp", "localhost"), "--otlp: 'localhost' is no URL such as http://localhost:4318"),
        (("--otlp", "http://a", "--looks", "2"), "--looks: needs --follow"),
        (("--otlp", "http://a", "--folder", "nowhere"), "nowhere: has no event files"),
        (("--otlp", "http://a", "--sample", "1.5"), "--sample"),
        (("--otlp", "http://a", "--sample", "nan"), "--sample"),
    ],
)
def test_wrong_input_is_one_line(
    project: Path, poolpipe: Command, options: tuple[str, ...], complaint: str
) -> None:
    del project
    ran = poolpipe("traces", *options)
    assert (ran.code, ran.out) == (2, "")
    assert complaint in ran.err
    assert ran.err.count("\n") == 1


def test_a_receiver_that_is_not_there_is_one_line(folder: Path, poolpipe: Command) -> None:
    (port,) = free_ports(1)
    url = f"http://127.0.0.1:{port}"
    options = ("--folder", str(folder), "--sample", "1", "--patience", "0.3")
    ran = poolpipe("traces", "--otlp", url, *options)
    assert (ran.code, ran.out, ran.err.count("\n")) == (1, "", 1)
    assert f"--otlp {url}/v1/traces: nothing is received: " in ran.err
