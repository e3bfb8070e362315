import os
import signal
import socket
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.flows.cli.conftest import Command
from tests.ports import free_ports


@contextmanager
def taken_port() -> Generator[str]:
    with socket.socket() as busy:
        busy.bind(("127.0.0.1", 0))
        busy.listen()
        yield str(busy.getsockname()[1])


@pytest.mark.usefixtures("profiled")
def test_tables_survive_export_and_import(poolpipe: Command) -> None:
    assert poolpipe("profiles", "export", "first").code == 0
    assert poolpipe("profiles", "import", "first", "--warehouse", "copy.duckdb").code == 0
    poolpipe("profiles", "export", "second", "--warehouse", "copy.duckdb")
    for name in ("block_latency_us.csv", "boundary_bytes.csv"):
        assert Path("first", name).read_text() == Path("second", name).read_text()


@pytest.mark.usefixtures("project")
@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("split", "none.onnx"), "none.onnx: no such file"),
        (("split", "cluster.yaml"), "cluster.yaml: is not an ONNX file"),
        (("profiles", "import", "."), "block_latency_us.csv: no such file"),
        (("profiles", "export", "t"), "poolpipe.duckdb: no such warehouse"),
        (("profile", "--cluster", "cluster.yaml"), "none has a `runtime"),
        (("quickstart", "--slo-ms", "5"), "--model and --slo-ms go together"),
        (("quickstart", "--model=none.onnx", "--slo-ms=5"), "none.onnx: no such file"),
        (("report", "x"), "poolpipe.duckdb: no such warehouse"),
        (("status",), "nothing is being served from here"),
        (("warehouse", "check"), "poolpipe.duckdb: no such warehouse"),
        (("warehouse", "compact"), "poolpipe.duckdb: no such warehouse"),
        (("load", "--plan", "none.json"), "none.json: no such file"),
        (("serve", "none.json"), "none.json: no such file"),
        (("ui", "--address", "999.9.9.9"), "cannot be listened on at 999.9.9.9"),
        (("replan", "--cluster", "none.yaml", "--workload", "workload.yaml"), "none.yaml: no such"),
        (
            ("load", "--plan", "none.json", "--deadline-ms", "nan"),
            "'--deadline-ms': Input should be",
        ),
        (("serve", "none.json", "--noise", "inf"), "'--noise': Input should be less than or equal"),
    ],
)
def test_bad_input_is_refused_in_one_line(
    arguments: tuple[str, ...], reason: str, poolpipe: Command
) -> None:
    ran = poolpipe(*arguments)
    assert (ran.code, ran.out) == (2, "")
    assert reason in ran.err
    assert ran.err.count("\n") == 1
    assert not Path("poolpipe.duckdb").exists()


@pytest.mark.usefixtures("project")
def test_stopping_nothing_is_fine(poolpipe: Command) -> None:
    assert poolpipe("stop", "--json").document == {"stopped": False}


@pytest.mark.usefixtures("project")
def test_quickstart_names_a_port_in_use_before_it_starts_to_profile(poolpipe: Command) -> None:
    http, metrics = map(str, free_ports(2))
    with taken_port() as busy:
        ports = (f"--http-port={http}", f"--grpc-port={busy}", f"--metrics-port={metrics}")
        ran = poolpipe("quickstart", *ports)
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.startswith(f"poolpipe: --grpc-port {busy}: ")
    assert ran.err.count("\n") == 1


@pytest.mark.usefixtures("planned")
def test_a_port_in_use_is_named_and_nothing_stays_behind(poolpipe: Command) -> None:
    http, metrics = map(str, free_ports(2))
    with taken_port() as busy:
        ran = poolpipe(
            "serve",
            "plan.json",
            "--http-port",
            http,
            "--grpc-port",
            busy,
            "--metrics-port",
            metrics,
        )
    assert (ran.code, ran.out) == (2, "")
    assert f"--grpc-port {busy}" in ran.err
    assert ran.err.count("\n") == 1
    assert poolpipe("status").code == 2


@pytest.mark.usefixtures("planned")
def test_the_warehouse_is_checked_compacted_copied_and_exported(poolpipe: Command) -> None:
    sound = poolpipe("warehouse", "check", "--json").document
    assert sound["problems"] == []
    assert sound["rows"]["plans"] == 1
    assert poolpipe("warehouse", "compact", "--json").document["bytes_after"] > 0
    assert poolpipe("warehouse", "snapshot", "copy.duckdb").code == 0
    listed = poolpipe("warehouse", "plans", "--json", "--warehouse", "copy.duckdb").document
    assert len(listed["plans"]) == 1
    assert poolpipe("warehouse", "export", "parquet").code == 0
    assert Path("parquet/plans.parquet").is_file()
    assert poolpipe("warehouse", "prune", "--days", "30").code == 0


@pytest.mark.usefixtures("planned")
def test_a_warehouse_in_use_is_said_and_does_not_spoil_a_simulation() -> None:
    holder = (
        "import sys; from warehouse.db import open_warehouse;"
        "w = open_warehouse('poolpipe.duckdb'); print('held', flush=True); sys.stdin.read()"
    )
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])}
    with subprocess.Popen(
        [sys.executable, "-c", holder],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
    ) as held:
        assert held.stdout is not None
        assert held.stdout.readline() == "held\n"
        code = "from flows.cli.main import main; main()"
        ran = subprocess.run(
            [sys.executable, "-c", code, "simulate", "--plan", "plan.json", "--duration", "1"],
            capture_output=True,
            text=True,
            check=False,
            env=environment,
        )
        held.communicate()
    assert ran.returncode == 0
    assert "not stored" in ran.stderr
    assert f"is in use by process {held.pid}" in ran.stderr


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


@pytest.mark.usefixtures("planned")
@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ((), "takes a plan, --rollback or --status, one of them"),
        (("plan.json", "--rollback"), "one of them"),
        (("plan.json",), "nothing is being served from here"),
        (("--rollback",), "no finished rollout to go back from"),
        (("none.json",), "none.json: no such file"),
    ],
)
def test_a_rollout_that_cannot_be_is_refused(
    arguments: tuple[str, ...], reason: str, poolpipe: Command
) -> None:
    ran = poolpipe("rollout", *arguments)
    assert (ran.code, ran.out) == (2, "")
    assert reason in ran.err
    assert ran.err.count("\n") == 1


@pytest.mark.usefixtures("planned")
def test_the_history_of_rollouts_begins_empty(poolpipe: Command) -> None:
    assert poolpipe("rollout", "--status", "--json").document == {"rollouts": []}


@pytest.mark.usefixtures("profiled")
def test_replanning_is_tried_on_a_table_of_counts(poolpipe: Command) -> None:
    minutes = [30 + 20 * (minute // 30 % 2) for minute in range(180)]
    rows = "".join(f"{minute},{count}\n" for minute, count in enumerate(minutes))
    Path("counts.csv").write_text("minute,f1\n" + rows)
    ran = poolpipe(
        "replan", "--cluster", "cluster.yaml", "--workload", "workload.yaml", "--json",
        "--backtest", "counts.csv", "--map", "f1=net", "--warm-up-hours", "1",
        "--period-hours", "1", "--chart", "chart.png",
    )  # fmt: skip
    assert ran.code == 0, ran.err
    assert (ran.document["periods"], ran.document["models"]) == (2, ["net"])
    assert 0 < ran.document["served_fraction"] <= 1
    assert Path("chart.png").stat().st_size > 1000
    refused = poolpipe(
        "replan", "--cluster", "cluster.yaml", "--workload", "workload.yaml",
        "--backtest", "counts.csv",
    )  # fmt: skip
    assert refused.code == 2
    assert "no column 'net'; it has minute, f1" in refused.err
    for option, value, reason in (
        ("--peak", "moon=5", "'moon' is not a model of the workload"),
        ("--map", "f1=moon", "'moon' is not a model of the workload"),
        ("--chart", "chart.moon", "cannot be drawn: its type is none of"),
    ):
        refused = poolpipe(
            "replan", "--cluster", "cluster.yaml", "--workload", "workload.yaml",
            "--backtest", "counts.csv", option, value,
        )  # fmt: skip
        assert refused.code == 2
        assert reason in refused.err


@pytest.mark.usefixtures("planned")
def test_a_plan_is_rendered_for_containers(poolpipe: Command) -> None:
    found = poolpipe("render", "plan.json", "--target", "container", "-o", "bundle", "--json")
    assert found.code == 0, found.err
    assert found.document["containers"][0] == "gateway"
    assert Path("bundle", "compose.yaml").is_file()
    refused = poolpipe("render", "plan.json", "-o", "bundle", "--name", "Not A Label")
    assert (refused.code, refused.out) == (2, "")
    assert "is not a DNS label" in refused.err


@pytest.mark.usefixtures("planned")
def test_a_bundle_for_another_target_is_wrong_usage(poolpipe: Command) -> None:
    refused = poolpipe("render", "plan.json", "-o", "bundle", "--target", "moon")
    assert (refused.code, refused.out) == (2, "")
    assert "--target" in refused.err
