"""`poolpipe doctor`: findings for people and programs; an exit code for monitors."""

from pathlib import Path

from tests.flows.cli.conftest import Command


def test_a_new_project_has_no_problem(project: Path, poolpipe: Command) -> None:
    project.chmod(0o700)
    ran = poolpipe("doctor", "--json")
    assert ran.code == 0
    findings = ran.document["findings"]
    assert {f["severity"] for f in findings} <= {"good", "advice"}
    assert all((f["remedy"] is None) == (f["severity"] == "good") for f in findings)


def test_a_problem_ends_with_1_and_says_what_to_do(project: Path, poolpipe: Command) -> None:
    home = project / ".poolpipe"
    home.mkdir()
    home.chmod(0o777)
    ran = poolpipe("doctor")
    assert ran.code == 1
    assert "problem: file modes: chmod go-w .poolpipe" in ran.out.splitlines()
