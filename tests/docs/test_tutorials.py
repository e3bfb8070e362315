"""Every command of the tutorials runs, in order, in a project of its own.

That on nights is run by `tests/flows/deployments/orchestration/test_nightly.py`, beside its Prefect
server.
"""

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.pages import EXAMPLES, console_lines
from tests.flows.deployments.prefect_database import give_database
from tests.flows.preparation.splitting.tiny_models import chain
from tests.ports import free_ports

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
# A tiny model, few latencies, short loads; whether a busy machine is in time is not judged.
CHEAPER = {
    "poolpipe quickstart": "--model=mymodel.onnx --slo-ms=500 --duration=2 --load-factor=0.02"
    " --attainment-target=0",
    "poolpipe split": "--blocks=2 --max-batch=2",
    "poolpipe profile": "--seconds=0.02",
    "poolpipe load": "--duration=2 --load-factor=0.1",
}
LISTENS = ("poolpipe quickstart", "poolpipe serve")
PORTS = ("--http-port", "--grpc-port", "--metrics-port")


def words_of(line: str, ports: list[int]) -> list[str]:
    """A line's words on free ports, with what makes it cheap."""
    start = " ".join(line.split()[:2])
    more = shlex.split(CHEAPER.get(start, ""))
    if start in LISTENS:
        more += [f"{name}={port}" for name, port in zip(PORTS, ports, strict=True)]
    words = shlex.split(line.replace(":8001", f":{ports[1]}"))
    programs = {
        "poolpipe": str(Path(sys.executable).with_name("poolpipe")),
        "python": sys.executable,
    }
    return [programs[words[0]], *words[1:], *more]


@pytest.mark.parametrize("name", ["quickstart", "own-model", "application"])
def test_every_command_of_a_tutorial_runs(tmp_path: Path, name: str) -> None:
    shutil.copytree(EXAMPLES, tmp_path, dirs_exist_ok=True)
    chain(tmp_path / "mymodel.onnx")
    give_database(tmp_path / ".poolpipe" / "prefect")
    lines = console_lines(f"tutorials/{name}.md")
    assert lines[-1] == "poolpipe stop"
    ports = free_ports(3)
    plain = {k: v for k, v in os.environ.items() if not k.startswith(("PREFECT_", "POOLPIPE_"))}
    left = lines.copy()
    try:
        while left:
            done = subprocess.run(
                words_of(left.pop(0), ports),
                cwd=tmp_path,
                env=plain,
                capture_output=True,
                text=True,
                check=False,
                stdin=subprocess.DEVNULL,
            )
            assert done.returncode == 0, f"{done.args}\n{done.stdout}\n{done.stderr}"
    finally:
        if left:  # it failed before its own `stop`
            subprocess.run(words_of(lines[-1], ports), cwd=tmp_path, env=plain, check=False)
