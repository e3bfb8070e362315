"""Common behaviour of commands: help, exit codes, errors in one line."""

import errno
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer.main

from flows.cli import main
from flows.cli.main import app
from tests.flows.cli.conftest import PLAN, Command
from tests.flows.test_system_metrics import answering
from triton_backend.contract.errors import InputError
from warehouse.db import open_warehouse
from warehouse.parquet import write_columns

LAZY = (
    "numba",
    "duckdb",
    "prefect",
    "onnx",
    "onnxruntime",
    "highspy",
    "numpy",
    "flows.planning.registry",
)
PLANNING = ("numba", "highspy", "scipy", "onnx", "flows.planning.registry")


def every_command() -> list[tuple[str, ...]]:
    def below(group: Any, path: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
        for name, command in group.commands.items():
            if hasattr(command, "commands"):
                yield from below(command, (*path, name))
            else:
                yield (*path, name)

    return list(below(typer.main.get_command(app), ()))


@pytest.mark.parametrize("command", every_command(), ids=" ".join)
def test_every_command_has_help_with_an_example(
    command: tuple[str, ...], poolpipe: Command
) -> None:
    ran = poolpipe(*command, "--help")
    assert ran.code == 0
    assert "Example:" in ran.out
    assert f"poolpipe {' '.join(command)}" in ran.out.partition("Example:")[2]


def test_without_a_command_the_help_is_shown_every_line_whole(poolpipe: Command) -> None:
    ran = poolpipe()
    assert ran.code == 0
    assert "quickstart" in ran.out
    assert "..." not in ran.out.partition("Commands:")[2]


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("fly",), "No such command 'fly'"),
        (("profiles",), "Missing command"),
        (("plan",), "missing: --cluster, --workload"),
        (("report",), "report: needs a RUN; `poolpipe warehouse runs` lists them"),
        (("rollout", ""), "PLAN: name a plan.json, the id of a stored plan, or its beginning"),
        (("verify",), "PLAN: name a plan.json, the id of a stored plan, or its beginning"),
        (("verify", "a", "--plan", "b"), "--plan: 'b', but PLAN is 'a'; name one plan"),
        (("verify", "a", "--loud"), "No such option: --loud"),
        (("simulate", "--plan", "a", "--duration", "0"), "--duration"),
        (("simulate", "--plan", "a", "--seed", "x"), "--seed"),
    ],
)
def test_wrong_usage_is_one_line_and_exit_2(
    arguments: tuple[str, ...], reason: str, poolpipe: Command
) -> None:
    ran = poolpipe(*arguments)
    assert ran.code == 2
    assert ran.out == ""
    assert reason in ran.err
    assert ran.err.count("\n") == 1


@pytest.mark.slow
def test_help_loads_nothing_heavy() -> None:
    code = (
        "import sys; from flows.cli.main import run; run(['--help']); run(['plan', '--help']);"
        f"sys.exit(','.join(set({LAZY!r}) & set(sys.modules)) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.slow
def test_a_plan_is_looked_for_without_what_makes_plans() -> None:
    code = (
        "import sys; from flows.cli.main import run; code = run(['serve', 'none.json']);"
        f"sys.exit(','.join(set({PLANNING!r}) & set(sys.modules)) or code)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (2, "poolpipe: none.json: no such file\n")


@pytest.mark.slow
def test_a_reader_that_goes_away_is_no_traceback(tmp_path: Path) -> None:
    code = "from flows.cli.main import main; main()"
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        [sys.executable, "-c", code, "--help"],
        stdout=writer,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
        env={**os.environ, "POOLPIPE_HOME": str(tmp_path)},
    )
    os.close(writer)
    assert done.returncode == 1
    assert done.stderr == ""


def test_a_copy_that_finds_no_room_names_the_file_that_was_not_written(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def copies(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", "kept.onnx", None, "bundle/a.onnx")

    monkeypatch.setattr(main, "app", copies)
    assert main.run(["render"]) == 1
    assert capsys.readouterr().err.startswith("poolpipe: bundle/a.onnx: No space left on device (")


@pytest.mark.slow
def test_output_that_cannot_be_written_is_no_traceback(planned: Path) -> None:
    code = "from flows.cli.main import main; main()"
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-c", code, "warehouse", "plans", "--json"],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
            cwd=planned.parent,
        )
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert "output: No space left on device (" in done.stderr
    assert f"{planned.parent}: " in done.stderr
    assert " bytes free" in done.stderr


@pytest.mark.slow
def test_names_and_terminals_need_not_be_utf_8(planned: Path, poolpipe: Command) -> None:
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            "from flows.cli.main import main; main()",
            *PLAN,
            "-o",
            "odd\udcff.json",
        ],
        capture_output=True,
        text=True,
        check=False,
        cwd=planned.parent,
        env={**os.environ, "PYTHONIOENCODING": "ascii"},
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert poolpipe("verify", "odd\udcff.json").code == 0


def test_a_name_that_duckdb_cannot_open_is_said(tmp_path: Path) -> None:
    odd = tmp_path / "odd\udcff"
    with pytest.raises(InputError, match="its name is not UTF-8"):
        open_warehouse(odd)
    with pytest.raises(InputError, match="its name is not UTF-8"):
        write_columns(odd, {"number": np.arange(3)})


def test_a_folder_that_cannot_be_made_is_no_traceback(
    project: Path, poolpipe: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    (project / "file").write_text("")
    monkeypatch.setenv("POOLPIPE_HOME", str(project / "file"))
    ran = poolpipe("quickstart", "--duration", "1")
    assert (ran.code, ran.out) == (1, "")
    assert ran.err.count("\n") == 1
    assert "file" in ran.err


@pytest.mark.slow
@pytest.mark.usefixtures("planned")
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interrupted_command_ends_cleanly(number: signal.Signals, code: int) -> None:
    program = (
        "import os, typer; import flows.cli.main as c\n"
        "@c.app.command()\n"
        "def wait():\n"
        "    try:\n"
        f"        os.kill(os.getpid(), {int(number)})\n"
        "        import time; time.sleep(60)\n"
        "    finally:\n"
        "        print('cleaned', flush=True)\n"
        "c.main()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, "wait"],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])},
    )
    assert (done.returncode, done.stdout, done.stderr) == (code, "cleaned\n", "")


@pytest.mark.slow
def test_a_command_asks_the_system_on_this_machine_past_a_proxy() -> None:
    program = (
        "import sys; import flows.cli.main as c; from flows.system_metrics import read_metrics\n"
        "@c.app.command()\n"
        "def look(url: str):\n"
        "    print(read_metrics(url, 5.0))\n"
        "c.main()\n"
    )
    text = b"poolpipe_requests_served_total 5\n"
    answer = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(text), text)
    root, proxy = str(Path(__file__).parents[3]), "http://127.0.0.1:9"
    with answering(answer) as url:
        done = subprocess.run(
            [sys.executable, "-c", program, "look", url],
            capture_output=True,
            text=True,
            check=False,
            env={**os.environ, "PYTHONPATH": root, "http_proxy": proxy},
        )
    assert (done.stdout, done.stderr) == ("{'requests_served': {(): 5.0}}\n", "")
