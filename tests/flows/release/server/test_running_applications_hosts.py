"""Applications whose modules lie on two hosts, each with a real Triton.

TCP between them, one of them dies.
"""

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np
import pytest
from tritonclient.utils import InferenceServerException

from tests.fakes.plans import hand_model, hand_pipeline
from tests.flows.release.rollout.test_hosts import TwoHosts
from tests.flows.release.server.test_running import Client
from tests.triton_backend.serving import served_applications, small_plans
from tests.triton_backend.serving.served_applications import application, expected, module
from tests.triton_backend.serving.system import wait_for
from triton_backend.contract.plan import Plan
from triton_backend.serve_folder.settings import ServeSettings
from triton_backend.serving.deployment import Deployment
from triton_backend.serving.transport.shared_memory import Arrays

pytestmark = pytest.mark.slow
PATIENT_US = 4_000_000
NAMES = ("spared", "there", "through")
CLIENTS = 6
Asked = tuple[str, Arrays]


def served_plan() -> Plan:
    """Three applications over nodes `FAST` and `SLOW`.

    All of `spared` can run on FAST; `there` ends on SLOW alone; what `through` has in its midst
    is retained on SLOW.
    """

    def on(name: str, *classes: str) -> small_plans.HandModel:
        pipelines = [
            hand_pipeline(
                small_plans.stage((0, 10), gpu_class, ("FAST", "SLOW").index(gpu_class)),
                batch=small_plans.BATCH,
                rate_rps=small_plans.RATE_RPS,
            )
            for gpu_class in classes
        ]
        return hand_model(name, *pipelines, slo_us=small_plans.SLO_US)

    models = [on("m_a", "FAST"), on("m_b", "SLOW", "FAST"), on("m_c", "SLOW")]
    return served_applications.with_applications(
        small_plans.plan(*models, plan_id="hosts"),
        application("spared", module("x", model="m_a"), module("y", "x", model="m_b")),
        application("there", module("x", model="m_a"), module("y", "x", model="m_c")),
        application("through", module("x", model="m_c"), module("y", "x", model="m_a")),
    )


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TwoHosts]:
    made = TwoHosts(tmp_path_factory.mktemp("hosts"), served_plan(), None, port=22_160)
    yield made
    made.stop()


class Clients:
    """Some threads with a client each."""

    def __init__(self, hosts: TwoHosts) -> None:
        self._hosts = hosts
        self._threads = ThreadPoolExecutor(CLIENTS)
        settings = ServeSettings.read(hosts.gateway / "settings.json")
        self._deployment = Deployment.read(settings, 1)

    def requests(self, count: int, seed: int) -> list[Asked]:
        rng = np.random.default_rng(seed)
        names = [NAMES[i % len(NAMES)] for i in range(count)]
        return [
            (
                name,
                {
                    spec.name: rng.integers(0, 256, (1 + i % 3, *spec.shape[1:])).astype(np.uint8)
                    for spec in self._deployment.served[name].inputs
                },
            )
            for i, name in enumerate(names)
        ]

    def begin(self, asked: list[Asked]) -> list[Future[bool]]:
        return [self._threads.submit(self._served, *one) for one in asked]

    def served(self, asked: list[Asked]) -> list[bool]:
        """By request, True if it was served; every answer is right."""
        return [one.result() for one in self.begin(asked)]

    def _served(self, name: str, given: Arrays) -> bool:
        client = Client(self._hosts.state, "grpc")
        try:
            answer = client.infer(name, given, timeout=PATIENT_US)
        except InferenceServerException as error:
            if error.status() == "StatusCode.UNAVAILABLE":
                return False
            raise
        finally:
            client.close()
        for output, wanted in expected(self._deployment, name, given).items():
            np.testing.assert_array_equal(answer.as_numpy(output), wanted)
        return True


def test_modules_on_two_hosts_are_answered_as_one_after_the_other(hosts: TwoHosts) -> None:
    clients = Clients(hosts)
    assert all(clients.served(clients.requests(36, seed=1)))


def test_a_host_that_dies_takes_with_it_only_what_nobody_else_can_run(hosts: TwoHosts) -> None:
    clients = Clients(hosts)
    asked = clients.requests(90, seed=2)
    begun = clients.begin(asked)
    wait_for(begun[12].done)
    hosts.kill_there()
    answered = [one.result() for one in begun]
    spared = [done for (name, _), done in zip(asked, answered, strict=True) if name == "spared"]
    assert all(spared)
    assert not all(answered)
    wait_for(lambda: not hosts.state.control("status")["in_flight"])
    # Refused at once: no worker is up to run it.
    for name, given in clients.requests(3, seed=3):
        assert clients.served([(name, given)]) == [name == "spared"]
    hosts.start_there()
    wait_for(lambda: all(clients.served(clients.requests(9, seed=4))))
