import json
from pathlib import Path
from typing import Any

import pytest

from flows.files import read_plan
from flows.release.server.admin import starting
from flows.state import project_state
from tests.flows.cli.conftest import Command
from tests.flows.preparation.triton_repository.repositories import TOKENS, digest
from tests.ports import free_ports, taken_port
from tests.triton_backend.serve_folder.state_files import LEFT
from triton_backend.serve_folder.settings import ServeOptions, ServeSettings
from triton_backend.serve_folder.state import STATE_NAME


@pytest.mark.usefixtures("project")
def test_stopping_nothing_is_fine(poolpipe: Command) -> None:
    assert poolpipe("stop", "--json").document == {"stopped": False}


@pytest.mark.usefixtures("project")
@pytest.mark.parametrize("command", ["status", "stop", "advice"])
@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("{", "state.json: is no state file of a system"),
        ("{}", "state.json: pid: is missing"),
        ('{"pid": 1}', "state.json: triton_pid: is missing"),
        # A process number that `kill` takes for every process.
        ('{"pid": -1}', "state.json: pid: -1 is not within 1 and"),
        ({"arguments": "start"}, "state.json: arguments: 'start' is not a list"),
        ({"token": 7}, "state.json: token: 7 is not a text"),
        ({"ready": "yes"}, "state.json: ready: 'yes' is neither true nor false"),
        ({"ports": []}, "state.json: ports: [] is not an object"),
        ({"ports": {"http": 8000, "grpc": "8001"}}, "state.json: ports.grpc: '8001' is not"),
        ({"restarts": "x"}, "state.json: restarts: 'x' is not"),
        ({"retry_us": []}, "state.json: retry_us: [] is not"),
        ({"plan_id": 3}, "state.json: plan_id: 3 is not a text"),
        ({"servers": {}}, "state.json: servers: is not a list"),
        ({"servers": [None, 5]}, "state.json: servers[1]: 5 is not an object"),
        ({"servers": [{"triton_pid": 0}]}, "state.json: servers[0].triton_pid: 0 is not within"),
    ],
)
def test_a_state_file_that_no_keeper_wrote_is_named(
    poolpipe: Command, command: str, text: str | dict[str, Any], reason: str
) -> None:
    folder = project_state().serve
    folder.mkdir(parents=True)
    written = text if isinstance(text, str) else json.dumps({**LEFT, **text})
    (folder / STATE_NAME).write_text(written)
    ran = poolpipe(command)
    assert (ran.code, ran.out, ran.err.count("\n")) == (2, "", 1)
    assert reason in ran.err


@pytest.mark.usefixtures("planned")
def test_a_folder_that_somebody_starts_a_system_in_is_left_alone(poolpipe: Command) -> None:
    folder = project_state().serve
    with starting(folder):
        ran = poolpipe("serve", "plan.json")
    assert (ran.code, ran.out, ran.err.count("\n")) == (2, "", 1)
    assert f"{folder}: another `poolpipe serve` is starting from there" in ran.err
    assert list(folder.iterdir()) == []


@pytest.mark.slow
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


@pytest.mark.slow
@pytest.mark.usefixtures("planned")
def test_stretched_times_guard_rules_and_the_port_of_other_hosts_reach_the_server(
    poolpipe: Command,
) -> None:
    names = ("--http-port", "--grpc-port", "--metrics-port")
    ports = [each for pair in zip(names, map(str, free_ports(3)), strict=True) for each in pair]
    stretched = ("--time-stretch", "100", "--host-http-port", "8123", "--guard", "0.3")
    late = ("--policy", "deferred", "--heads", "head", "--lead-us", "150")
    try:
        assert poolpipe("serve", "plan.json", *ports, *stretched, *late).code == 0
        settings = json.loads((project_state().serve / "settings.json").read_text())
        assert (settings["host_http_port"], settings["guard_fraction"]) == (8123, 0.3)
        assert settings["late_binding"] == {"heads": "head", "lead_us": 150}
        sent = ("--load-factor", "0.02", "--duration", "2", "--url", f"127.0.0.1:{ports[3]}")
        slow = poolpipe("load", "plan.json", *sent, "--json").document["models"]["net"]
    finally:
        poolpipe("stop")
    # An emulated GPU that is a hundred times slower than planned answers nothing in time.
    assert slow["offered"] > slow["served"] == 0


def write_tokens(project: Path) -> Path:
    """A repository of one model that has no weights."""
    folder = project / "models" / "tokens" / "1"
    folder.mkdir(parents=True)
    (folder.parent / "config.pbtxt").write_text(TOKENS)
    (folder / "model.py").write_text('raise RuntimeError("no weights")\n')
    return project / "models"


@pytest.mark.slow
@pytest.mark.usefixtures("planned")
def test_a_model_beside_the_plan_that_cannot_be_loaded_is_named(
    poolpipe: Command, project: Path
) -> None:
    models = write_tokens(project)
    before = digest(models)
    names = ("--http-port", "--grpc-port", "--metrics-port")
    ports = [each for pair in zip(names, map(str, free_ports(3)), strict=True) for each in pair]
    ran = poolpipe("serve", "plan.json", "--beside", "models", *ports)
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.splitlines()[-1].startswith("poolpipe: model 'tokens' beside the plan: load fa")
    assert ran.err.splitlines()[-1].endswith("no weights")
    assert poolpipe("status").code == 2
    assert digest(models) == before


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        (
            ("--gateway-host", "no such host"),
            "--gateway-host: 'no such host' is no IPv4 address and no name of a host",
        ),
        (("--gateway-host", "a" * 80), "is no IPv4 address and no name of one"),
        (("--gateway-host", "192.0.2.1"), "192.0.2.1: is no address of this machine"),
        ((), "--gateway-host 127.0.0.1: fast-0 on 192.0.2.2 cannot reach it"),
    ],
)
def test_an_address_that_nodes_elsewhere_would_not_reach_is_refused(
    planned: Path, poolpipe: Command, given: tuple[str, ...], reason: str
) -> None:
    plan = json.loads(planned.read_text())
    plan["cluster"]["nodes"][0] |= {"host": "192.0.2.2"}
    planned.write_text(json.dumps(plan))
    ran = poolpipe("serve", "plan.json", *given)
    assert (ran.code, ran.out, ran.err.count("\n")) == (2, "", 1)
    assert reason in ran.err


@pytest.mark.usefixtures("planned")
def test_quotas_that_cannot_hold_are_named_in_one_line(poolpipe: Command) -> None:
    for quotas, reason in (
        (("net",), "--quota: 'net' is not NAME=VALUE with a new name"),
        (("net=5",), "--quota: 'net' is not NAME:NAME, a served name and a client"),
        (("net:=5",), "--quota: 'net:' is not NAME:NAME"),
        (("net:shop=fast",), "--quota: 'fast' is not a number"),
        (("net:shop=5", "net:shop=6"), "--quota: 'net:shop=6' is not NAME=VALUE with a new name"),
        (("net:shop=0",), "--quota net:shop: 0 requests/s, 0.001 to 1e+12 are allowed"),
        (("net:a/b=5",), "--quota net:a/b: 'a/b' is no name"),
        (("other:shop=5",), "--quota: 'other' is none of "),
    ):
        options = [each for quota in quotas for each in ("--quota", quota)]
        for command in (("serve", "plan.json"), ("render", "plan.json", "-o", "bundle")):
            ran = poolpipe(*command, *options)
            assert (ran.code, ran.out, ran.err.count("\n")) == (2, "", 1)
            assert reason in ran.err
    assert poolpipe("serve", "plan.json", "--over-quota", "late").code == 2


@pytest.mark.usefixtures("planned")
def test_rules_of_late_binding_that_change_nothing_are_named_in_one_line(poolpipe: Command) -> None:
    both = ("--batch-timeout-ms", "5", "--batch-timeout-share", "0.1")
    for options, reason in (
        (("--heads", "head"), "heads: is of late binding, and no model of the plan is bound late"),
        (("--rank", "first"), "rank: 'first' is none of latest, deadline, efficiency"),
        (("--policy", "timeout", *both), "--batch-timeout-share: stands beside --batch-timeout-ms"),
    ):
        for command in (("serve", "plan.json"), ("render", "plan.json", "-o", "bundle")):
            ran = poolpipe(*command, *options)
            assert (ran.code, ran.out, ran.err.count("\n")) == (2, "", 1)
            assert reason in ran.err


@pytest.mark.usefixtures("planned")
def test_models_beside_the_plan_go_with_one_gateway_of_this_host(
    poolpipe: Command, project: Path
) -> None:
    write_tokens(project)
    for arguments, reason in (
        (("--beside", "none"), "/none: cannot be read: No such file or directory"),
        (("--beside", "plan.json"), "/plan.json: cannot be read: Not a directory"),
        (("--beside", "models", "--gateways", "2"), "--gateways 2: does not go with --beside"),
        (
            ("--beside", "models", "--join", "settings.json", "--host", "10.0.0.2"),
            "--beside: goes with the gateway's server, not with --join",
        ),
    ):
        ran = poolpipe("serve", "plan.json", *arguments)
        assert (ran.code, ran.out, ran.err.count("\n")) == (2, "", 1)
        assert reason in ran.err
    assert not project_state().serve.exists()


def test_a_host_that_joins_by_a_name_is_asked_for_an_address_to_listen_on(
    poolpipe: Command, planned: Path, tmp_path: Path
) -> None:
    plan = read_plan(planned)
    settings = ServeSettings.begin(tmp_path / "gateway", plan, ServeOptions())
    settings.write(tmp_path / "settings.json")
    ran = poolpipe("serve", "plan.json", "--join", "settings.json", "--host", "gpu-2.lan")
    assert (ran.code, ran.out, ran.err.count("\n")) == (2, "", 1)
    assert "--host gpu-2.lan: is no address to listen on; give this host's IPv4 address" in ran.err
