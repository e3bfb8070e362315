"""One rule for plans.

Every command that takes one takes a file, an id, or the beginning of an id.
"""

import errno
import json
from pathlib import Path

import pytest
import typer.main

from flows.cli import project
from flows.cli.main import app
from flows.cli.registry import GROUPS
from flows.files import write_plan
from flows.planning import make_plan
from tests.flows.cli.conftest import WAREHOUSE, Command
from tests.flows.planning.small import cluster, profile, workload
from warehouse.db import open_warehouse

TAKING_ONE = ("engines", "verify", "simulate", "serve", "load", "render", "rollout", "tolerance")


def test_these_commands_take_a_plan_and_no_other_does() -> None:
    commands = typer.main.get_command(app).commands  # type: ignore[attr-defined]  # of a group
    both = [
        name
        for name, command in commands.items()
        if {"plan", "plan_option"} <= {parameter.name for parameter in command.params}
    ]
    assert sorted(both) == sorted(TAKING_ONE)


@pytest.mark.long
@pytest.mark.parametrize("option", [(), ("--plan",)], ids=["argument", "option"])
@pytest.mark.parametrize("form", ["file", "id", "beginning"])
def test_a_plan_is_named_in_every_way(
    form: str, option: tuple[str, ...], planned: Path, poolpipe: Command
) -> None:
    plan_id = json.loads(planned.read_text())["plan_id"]
    name = {"file": "plan.json", "id": plan_id, "beginning": plan_id[:5]}[form]
    assert poolpipe("verify", *option, name, "--json").document["plan_id"] == plan_id
    ran = poolpipe("simulate", *option, name, "--duration", "0.5", "--reference-plan", name)
    assert ran.code == 0, ran.err
    for command in ("load", "rollout"):  # beyond the plan, what is missing is a running system
        assert "nothing is being served from here" in poolpipe(command, *option, name).err


def test_a_folder_is_no_plan_and_the_plans_in_it_are_named(
    project: Path, poolpipe: Command
) -> None:
    folder = project / "plans.json"
    (folder / "empty").mkdir(parents=True)
    (folder / "notes.json").write_text("{}")
    plan = make_plan({"net": profile()}, cluster(), workload())
    for name in ("a.json", "b.json"):
        write_plan(folder / name, plan)
    cases = {
        "plans.json": "is a folder; name a file in it: plans.json/a.json, plans.json/b.json",
        "plans.json/empty": "is a folder; no plan lies in it",
    }
    for create in (False, True):
        if create:
            open_warehouse(project / WAREHOUSE).close()
        for text, reason in cases.items():
            for command in ("verify", "load"):
                assert poolpipe(command, text).err == f"poolpipe: {text}: {reason}\n"


@pytest.mark.long
@pytest.mark.usefixtures("planned")
def test_an_unknown_plan_is_named_with_the_warehouse(poolpipe: Command) -> None:
    for command in (name for name in TAKING_ONE if name != "render"):
        ran = poolpipe(command, "ffff")
        assert (ran.code, ran.out) == (2, ""), command
        assert ran.err == "poolpipe: plan 'ffff': none of that id in poolpipe.duckdb\n"
    ran = poolpipe("verify", "ffff", "--warehouse", "none.duckdb")
    assert "neither a file nor, as there is no none.duckdb, a stored plan" in ran.err


def test_a_command_is_one_file_of_its_group() -> None:
    import flows.cli  # noqa: PLC0415 - only where it lies

    folder = Path(flows.cli.__file__).parent
    helpers = {
        "choices",
        "selection",
        "request",
        "epochs",
        "clients",
        "watching",
        "options",
        "runs",
    }
    files = {
        path.stem.replace("_", "-")
        for group in GROUPS
        for path in (folder / group).glob("[a-z]*.py")
        if path.stem not in helpers
    }
    assert files == set(typer.main.get_command(app).commands)  # type: ignore[attr-defined]


@pytest.mark.long
@pytest.mark.usefixtures("planned")
def test_a_disk_without_room_does_not_spoil_a_run(
    poolpipe: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: Path) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", str(path))

    monkeypatch.setattr(project, "open_warehouse", full)
    ran = poolpipe("simulate", "plan.json", "--duration", "0.5")
    assert (ran.code, "not stored" in ran.out) == (0, True)
    assert "note: not stored: poolpipe.duckdb: No space left on device" in ran.err
