"""Access to a real Triton server by certificate, token and address."""

import json
import socket
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.error import HTTPError

import numpy as np
import pytest
import tritonclient.grpc as grpc_client
import tritonclient.http as http_client
from tritonclient.utils import InferenceServerException

from flows.release.server.admin import start, stop
from flows.release.server.running import ServerState, read_state
from tests.flows.release.certificates import Authority, Pair
from tests.ports import free_ports
from tests.triton_backend.serving.small_plans import model, plan, stage
from triton_backend.contract.errors import InputError
from triton_backend.contract.plan import Plan
from triton_backend.serve_folder.endpoints import Endpoints, Tls, is_loopback
from triton_backend.serve_folder.repository import (
    CONTROL_MODEL,
    STANDBY_MODEL,
    node_model,
    render_repository,
)
from triton_backend.serve_folder.settings import ServeOptions

GRPC_HEADER = "triton-grpc-protocol-poolpipe-token"
HTTP_HEADER = "poolpipe-token"
MODEL = "bare"
PATIENT_US = 2_000_000


def emulated() -> Plan:
    return plan(model(MODEL, (stage((0, 10), "FAST", 0),)))


def server_ports(**fields: Any) -> Endpoints:
    http, grpc, metrics = free_ports(3)
    return Endpoints(http=http, grpc=grpc, metrics=metrics, **fields)


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("ours"), "ours")


@pytest.fixture(scope="module")
def clients_authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("clients"), "clients")


@pytest.fixture(scope="module")
def state(
    tmp_path_factory: pytest.TempPathFactory, authority: Authority, clients_authority: Authority
) -> Iterator[ServerState]:
    """A server open on every address, with mutual TLS."""
    folder = tmp_path_factory.mktemp("serve")
    render_repository(folder, emulated(), ServeOptions())
    pair = authority.pair("server")
    tls = Tls(
        certificate=pair.certificate,
        key=pair.key,
        client_authority=clients_authority.certificate,
    )
    yield start(folder, server_ports(address="0.0.0.0", tls=tls, accept_old_server=True))
    stop(folder)


def own_address() -> str:
    """An address of this machine that is not loopback."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
        except OSError:
            pytest.skip("this machine has no address but loopback")
        return str(probe.getsockname()[0])


def over_tls(
    state: ServerState, authority: Authority, pair: Pair | None
) -> grpc_client.InferenceServerClient:
    files: dict[str, Any] = (
        {}
        if pair is None
        else {"private_key": str(pair.key), "certificate_chain": str(pair.certificate)}
    )
    return grpc_client.InferenceServerClient(
        state.grpc_url, ssl=True, root_certificates=str(authority.certificate), **files
    )


def infer(client: Any, module: Any, **more: Any) -> Any:
    samples = np.zeros((1, 4096), np.uint8)
    given = module.InferInput("input", list(samples.shape), "UINT8")
    given.set_data_from_numpy(samples)
    return client.infer(MODEL, [given], timeout=PATIENT_US, **more)


def ask(client: Any, module: Any, name: str, token: bytes) -> Any:
    given: list[Any] = []
    for tensor, text in (("request", b'{"command": "status"}'), ("token", token)):
        given.append(module.InferInput(tensor, [1], "BYTES"))
        given[-1].set_data_from_numpy(np.array([text], dtype=np.object_))
    return client.infer(name, given).as_numpy("state")[0]


@pytest.mark.slow
def test_a_client_whose_certificate_the_authority_signed_infers(
    state: ServerState, authority: Authority, clients_authority: Authority
) -> None:
    with over_tls(state, authority, clients_authority.pair("client")) as client:
        assert infer(client, grpc_client).as_numpy("output").shape[0] == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    "who", ["no certificate", "another authority's", "a wrong server", "plain"]
)
def test_everybody_else_is_refused_in_the_handshake(
    state: ServerState,
    authority: Authority,
    clients_authority: Authority,
    tmp_path: Path,
    who: str,
) -> None:
    stranger = Authority(tmp_path, "stranger")
    clients = {
        "no certificate": lambda: over_tls(state, authority, None),
        "another authority's": lambda: over_tls(state, authority, stranger.pair("client")),
        "a wrong server": lambda: over_tls(state, stranger, clients_authority.pair("client")),
        "plain": lambda: grpc_client.InferenceServerClient(state.grpc_url),
    }
    with clients[who]() as client, pytest.raises(InferenceServerException) as error:
        infer(client, grpc_client)
    assert error.value.status() == "StatusCode.UNAVAILABLE"


RESTRICTED: dict[str, Callable[[Any, dict[str, str]], Any]] = {
    "repository index": lambda c, h: c.get_model_repository_index(headers=h),
    "unload": lambda c, h: c.unload_model("nobody", headers=h),
    "load": lambda c, h: c.load_model(MODEL, headers=h),
    "statistics": lambda c, h: c.get_inference_statistics(headers=h),
    "model config": lambda c, h: c.get_model_config(MODEL, headers=h),
    "shared memory": lambda c, h: c.get_system_shared_memory_status(headers=h),
    "map shared memory": lambda c, h: c.register_system_shared_memory("r", "/none", 8, headers=h),
    "trace": lambda c, h: c.get_trace_settings(headers=h),
    "log settings": lambda c, h: c.get_log_settings(headers=h),
}


@pytest.mark.slow
@pytest.mark.parametrize("protocol", ["grpc", "http"])
def test_all_but_inference_needs_the_token(
    state: ServerState, authority: Authority, clients_authority: Authority, protocol: str
) -> None:
    if protocol == "grpc":
        client: Any = over_tls(state, authority, clients_authority.pair("client"))
        header = GRPC_HEADER
    else:
        client, header = http_client.InferenceServerClient(state.http_url), HTTP_HEADER
    try:
        for call in RESTRICTED.values():
            for given in ({}, {header: "guess"}, {header: ""}):
                with pytest.raises(InferenceServerException, match="restricted"):
                    call(client, given)
        right = {header: str(state.data["token"])}
        for name in ("repository index", "statistics", "model config", "shared memory"):
            assert RESTRICTED[name](client, right) is not None
        assert client.is_server_ready()
        assert client.get_model_metadata(MODEL)
    finally:
        client.close()


@pytest.mark.slow
@pytest.mark.parametrize("name", [CONTROL_MODEL, STANDBY_MODEL, node_model("FAST")])
def test_control_and_node_models_answer_only_to_the_token(state: ServerState, name: str) -> None:
    schedules = {CONTROL_MODEL, STANDBY_MODEL}
    idle = schedules - {state.control("status")["scheduler"]["active"]}
    with http_client.InferenceServerClient(state.http_url) as client:
        token = str(state.data["token"]).encode()
        for wrong in (b"", b"guess", b"\xff\xfe", "ä".encode(), token[:-1], token + b"x"):
            with pytest.raises(InferenceServerException, match="wrong token"):
                ask(client, http_client, name, wrong)
        missing = http_client.InferInput("request", [1], "BYTES")
        missing.set_data_from_numpy(np.array([b"{}"], dtype=np.object_))
        with pytest.raises(InferenceServerException, match="expected 2 inputs"):
            client.infer(name, [missing])
        if name in idle:
            with pytest.raises(InferenceServerException, match="another process is the scheduler"):
                ask(client, http_client, name, token)
        else:
            assert b'"generation": 1' in ask(client, http_client, name, token)


@pytest.mark.slow
def test_what_a_page_of_another_origin_can_send_does_nothing(state: ServerState) -> None:
    """A browser sends these without asking first; other headers and types it asks for, in vain."""
    texts = [
        {"name": name, "shape": [1], "datatype": "BYTES", "data": [text]}
        for name, text in (("request", '{"command": "status"}'), ("token", ""))
    ]
    for path, body, told in (
        (f"repository/models/{MODEL}/unload", "", b"restricted"),
        ("repository/index", "", b"restricted"),
        *(
            (f"models/{name}/infer", json.dumps({"inputs": texts}), b"wrong token")
            for name in (CONTROL_MODEL, STANDBY_MODEL, node_model("FAST"))
        ),
    ):
        status, allowed, answer = sent("POST", f"http://{state.http_url}/v2/{path}", body)
        assert (status >= 400, allowed) == (True, None), path
        assert told in answer, path
    status, allowed, _ = sent("OPTIONS", f"http://{state.http_url}/v2/repository/index", "")
    assert (status >= 400, allowed) == (True, None)
    with http_client.InferenceServerClient(state.http_url) as client:
        assert client.is_model_ready(MODEL)


def sent(method: str, url: str, body: str) -> tuple[int, str | None, bytes]:
    """Status, origins that may read the answer, and the answer to a page elsewhere."""
    headers = {
        "Origin": "http://attacker.example",
        "Content-Type": "text/plain",
        "Access-Control-Request-Method": "POST",
        "Access-Control-Request-Headers": HTTP_HEADER,
    }
    request = urllib.request.Request(url, method=method, data=body.encode(), headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            return answer.status, answer.headers.get("Access-Control-Allow-Origin"), answer.read()
    except HTTPError as error:
        return error.code, error.headers.get("Access-Control-Allow-Origin"), error.read()


@pytest.mark.slow
def test_from_outside_only_grpc_is_reached(state: ServerState) -> None:
    address, ports = own_address(), state.data["ports"]
    with socket.create_connection((address, ports["grpc"]), timeout=5):
        pass
    for name in ("http", "metrics"):
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection((address, ports[name]), timeout=5)


@pytest.mark.slow
def test_the_token_never_enters_a_log(state: ServerState) -> None:
    token = str(state.data["token"])
    logs = list((state.folder / "logs").glob("*"))
    assert logs
    assert not [path.name for path in logs if token in path.read_text(errors="replace")]


@pytest.mark.slow
def test_files_that_are_no_pair_are_named_before_anything_starts(tmp_path: Path) -> None:
    one, other = Authority(tmp_path, "one"), Authority(tmp_path, "other")
    pair = Pair(one.pair("a").certificate, other.pair("b").key)
    folder = tmp_path / "serve"
    render_repository(folder, emulated(), ServeOptions())
    for tls, told in (
        (Tls(certificate=pair.certificate, key=pair.key), "not a certificate and its key"),
        (Tls(certificate=tmp_path / "none", key=pair.key), "No such file"),
        (
            Tls(certificate=one.certificate, key=tmp_path / "one.key", client_authority=pair.key),
            "not a certificate",
        ),
    ):
        with pytest.raises(InputError, match=told):
            start(folder, server_ports(tls=tls))
    with pytest.raises(InputError, match="nothing is being served"):
        read_state(folder)


def test_half_a_pair_is_refused() -> None:
    some = Path("some.pem")
    for files in ((some, None, None), (None, some, None)):
        with pytest.raises(InputError, match="one needs the other"):
            Tls.from_files(*files)
    with pytest.raises(InputError, match="--tls-client-ca"):
        Tls.from_files(None, None, some)
    assert Tls.from_files(None, None, None) is None
    assert Tls.from_files(some, some, None) == Tls(certificate=some, key=some)


def test_whoever_opens_a_server_is_told_what_that_means() -> None:
    tls = Tls(certificate=Path("c"), key=Path("k"))
    mutual = Tls(certificate=Path("c"), key=Path("k"), client_authority=Path("ca"))

    def cautions(address: str, metrics: str, tls: Tls | None, *opened: str) -> list[str]:
        given = Endpoints(address=address, metrics_address=metrics, tls=tls, opened=opened)
        return given.cautions()

    assert cautions("127.0.0.1", "127.0.0.1", None, "shared-memory") == []
    assert "unencrypted" in cautions("0.0.0.0", "127.0.0.1", None)[0]
    assert "may infer" in cautions("10.0.0.1", "127.0.0.1", tls)[0]
    assert cautions("10.0.0.1", "127.0.0.1", mutual) == []
    assert "/dev/shm" in cautions("10.0.0.1", "127.0.0.1", mutual, "shared-memory")[0]
    assert "metrics" in cautions("127.0.0.1", "0.0.0.0", None)[0]
    assert is_loopback("127.8.8.8")
    assert is_loopback("localhost")
    assert is_loopback("::1")
    assert is_loopback("::ffff:127.0.0.1")
    assert not is_loopback("::ffff:10.0.0.5")
    assert not is_loopback("gateway.example")
