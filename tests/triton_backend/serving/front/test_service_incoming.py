"""Whatever a request of Triton's holds: it is answered once, nothing is raised, nothing is left."""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.triton_backend.serving.small_plans import BATCH, SLO_US, plan, two_stage
from tests.triton_backend.serving.system import LocalSystem, wait_for
from triton_backend.contract.entries import Entry
from triton_backend.serving.front.replies import Refusal, Result
from triton_backend.serving.front.requests.reading import MAX_TIMEOUT_US, RequestReader
from triton_backend.serving.front.requests.request import Request
from triton_backend.serving.front.service import FrontService
from triton_backend.serving.transport.shared_memory import Arrays

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


class Broken(Exception):  # noqa: N818  # not an error of this project
    """Triton's own."""


def broken(*_: object) -> Any:
    raise Broken


@dataclass
class Tensor:
    """A tensor of Triton's."""

    called: str
    array: Any

    def name(self) -> str:
        return self.called

    def as_numpy(self) -> Any:
        return self.array() if callable(self.array) else self.array


def picture(samples: int = 1) -> Arrays:
    return {
        "image": np.ones((samples, 3, 16), np.float32),
        "mask": np.ones((samples, 4), np.uint8),
    }


@dataclass
class Incoming:
    """A request of Triton's; it fills a batch, so that it waits for no other."""

    tensors: Any = field(default_factory=lambda: picture(BATCH))
    timeout_us: Any = 2_000_000
    headers: Any = "{}"
    named: Any = "7"

    def inputs(self) -> list[Any]:
        if self.tensors is broken:
            raise Broken
        return [Tensor(name, array) for name, array in self.tensors.items()]

    def timeout(self) -> Any:
        return self.timeout_us

    def request_id(self) -> Any:
        return self.named

    def parameters(self) -> Any:
        return self.headers() if callable(self.headers) else self.headers

    def is_cancelled(self) -> bool:
        return False


@pytest.fixture(scope="module")
def system(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalSystem]:
    made = LocalSystem(tmp_path_factory.mktemp("incoming") / "serve", plan(two_stage()))
    yield made
    made.stop()


@pytest.fixture
def front(system: LocalSystem) -> Iterator[FrontService]:
    made = system.fronts["pair"]
    yield made
    wait_for(lambda: made.unanswered == 0)


def answer_to(front: FrontService, incoming: Incoming) -> Result:
    answers: list[Result] = []
    front.take(incoming, answers.append)
    wait_for(lambda: bool(answers))
    (answer,) = answers
    return answer


def changed(**tensors: Any) -> Arrays:
    return {name: array for name, array in {**picture(), **tensors}.items() if array is not None}


INPUT = "model 'pair', input"
ALLOWED = f"0 (the SLO) to {MAX_TIMEOUT_US} are allowed"


@pytest.mark.parametrize(
    ("incoming", "message"),
    [
        (Incoming(tensors={}), "inputs [], not ['image', 'mask']"),
        (Incoming(tensors=changed(mask=None)), "inputs ['image'], not ['image', 'mask']"),
        (Incoming(tensors=picture(0)), f"{INPUT} 'image': 0 samples: the tensor or the request"),
        (
            Incoming(tensors=picture(BATCH + 1)),
            f"{INPUT} 'image': 5 samples, at most 4 fit one request (the plan's largest batch)",
        ),
        (
            Incoming(tensors=changed(mask=np.ones((2, 4), np.uint8))),
            f"{INPUT} 'mask': 2 samples, but 'image' has 1",
        ),
        (
            Incoming(tensors=changed(mask=np.ones((1, 5), np.uint8))),
            f"{INPUT} 'mask': uint8 of shape (1, 5), not uint8 of (samples, 4)",
        ),
        (
            Incoming(tensors=changed(mask=np.array([b"x"], object))),
            f"{INPUT} 'mask': object of shape (1,), not uint8 of (samples, 4)",
        ),
        (
            Incoming(tensors=changed(mask=np.array(3, np.uint8))),
            f"{INPUT} 'mask': uint8 of shape (), not uint8 of (samples, 4)",
        ),
        (Incoming(timeout_us=-1), f"parameter 'timeout': -1 microseconds, {ALLOWED}"),
        (Incoming(timeout_us=2**63), f"parameter 'timeout': {2**63} microseconds, {ALLOWED}"),
        (Incoming(timeout_us=2**64 - 1), f"parameter 'timeout': {2**64 - 1} microseconds"),
    ],
)
def test_what_makes_no_sense_is_named(
    front: FrontService, incoming: Incoming, message: str
) -> None:
    refused = front.counters.refused
    answer = answer_to(front, incoming)
    assert isinstance(answer, Refusal)
    assert answer.status == "INVALID_ARG"
    assert message in answer.message
    assert front.counters.refused == refused + 1


def not_utf8() -> str:
    return b'{"poolpipe-client": "caf\xe9"}'.decode()


def test_a_text_that_is_no_utf8_is_the_clients_fault(
    front: FrontService, caplog: pytest.LogCaptureFixture
) -> None:
    answer = answer_to(front, Incoming(headers=not_utf8))
    assert isinstance(answer, Refusal)
    assert answer.status == "INVALID_ARG"
    assert answer.message == (
        "model 'pair': its id, a parameter or a header is no UTF-8: byte 0xe9"
    )
    assert not caplog.text


@pytest.mark.parametrize(
    "incoming",
    [
        Incoming(tensors=broken),
        Incoming(tensors=changed(mask=broken)),
        Incoming(tensors=changed(mask=lambda: None)),
        Incoming(timeout_us="x"),
        Incoming(timeout_us=None),
        Incoming(headers=broken),
        Incoming(headers=None),
    ],
)
def test_what_cannot_be_read_is_an_error_of_one_request(
    front: FrontService, incoming: Incoming, caplog: pytest.LogCaptureFixture
) -> None:
    answer = answer_to(front, incoming)
    assert answer == Refusal("INTERNAL", "model 'pair': the request cannot be read")
    assert "Traceback" in caplog.text
    assert not isinstance(answer_to(front, Incoming()), Refusal)


@pytest.mark.parametrize(
    "headers",
    [
        "",
        "{",
        "[]",
        '"traceparent"',
        '{"traceparent": {}}',
        "traceparent" * 1000,
        '{"traceparent": ' + "[" * 100_000,
    ],
)
def test_what_nobody_can_trace_is_served(front: FrontService, headers: str) -> None:
    assert not isinstance(answer_to(front, Incoming(headers=headers)), Refusal)


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    named=st.text(max_size=200),
    trace=st.text(max_size=50),
    timeout_us=st.integers(-(2**70), 200_000) | st.integers(MAX_TIMEOUT_US + 1, 2**70),
    samples=st.integers(0, 6),
)
def test_any_request_is_answered_once(
    front: FrontService, named: str, trace: str, timeout_us: int, samples: int
) -> None:
    incoming = Incoming(picture(samples), timeout_us, f'{{"traceparent": "{trace}"}}', named)
    answer_to(front, incoming)
    wait_for(lambda: front.unanswered == 0)


def test_a_reply_that_fails_ends_nothing(front: FrontService) -> None:
    front.take(Incoming(tensors={}), broken)
    front.take(Incoming(), broken)
    assert not isinstance(answer_to(front, Incoming()), Refusal)


def test_a_request_is_read_with_its_deadline_and_its_trace(system: LocalSystem) -> None:
    reader = RequestReader(system.deployment, system.deployment.plan.models[0])
    reply: Callable[[Result], None] = lambda _: None  # noqa: E731
    incoming = Incoming(picture(2), 1_000, f'{{"traceparent": "{PARENT}", "x": 1}}', "id")
    request = reader.read(incoming, 50, reply)
    assert request.tensors.keys() == {"image", "mask"}
    without = Request({}, 2, 50, 1_050, reply, incoming.is_cancelled, "id", PARENT)
    for name in ("samples", "arrival_us", "deadline_us", "reply", "client_id", "trace"):
        assert getattr(request, name) == getattr(without, name)
    assert reader.read(Incoming(timeout_us=0), 50, reply).deadline_us == 50 + SLO_US


def test_entries_take_requests_in_turns_of_their_shares(system: LocalSystem) -> None:
    served = system.deployment.plan
    (model, *others) = served.models
    entries = tuple(
        Entry(name=name, block=0, budget_us=SLO_US, rate_rps=1.0, share=share)
        for name, share in (("former", 0.8), ("canary", 0.2))
    )
    lines = tuple(replace(model.pipelines[0], entry=entry.name) for entry in entries)
    shared = replace(model, entries=entries, pipelines=lines)
    deployment = replace(
        system.deployment, plan=replace(served, models=(shared, *others)), batches=None
    )
    reader = RequestReader(deployment, shared)
    read = [reader.read(Incoming(), 50, lambda _: None) for _ in range(10)]
    assert [request.entry for request in read].count(1) == 2
    assert {(request.entry, request.shared_by) for request in read} == {
        (0, "former"),
        (1, "canary"),
    }
    named = reader.read(Incoming(headers='{"entry": "canary"}'), 50, lambda _: None)
    assert (named.entry, named.plan_tag) == (1, system.deployment.tag)


@pytest.mark.parametrize(
    ("parameters", "low"),
    [
        ("{}", False),
        ('{"poolpipe-priority": 0}', False),
        ('{"poolpipe-priority": 1}', False),
        ('{"poolpipe-priority": 2}', True),
        ('{"Poolpipe-Priority": "7"}', True),
        ('{"priority": 2}', False),
    ],
)
def test_a_priority_of_two_or_more_is_low(system: LocalSystem, parameters: str, low: bool) -> None:
    reader = RequestReader(system.deployment, system.deployment.plan.models[0])
    assert reader.read(Incoming(headers=parameters), 50, lambda _: None).low is low


@pytest.mark.parametrize("named", ["-1", "low", "", "2.5", "[2]", "9" * 40, "²"])
def test_a_priority_that_is_no_whole_number_is_named(front: FrontService, named: str) -> None:
    answer = answer_to(front, Incoming(headers=json.dumps({"poolpipe-priority": named})))
    if not named:
        assert not isinstance(answer, Refusal)
        return
    assert isinstance(answer, Refusal)
    assert (answer.status, "parameter 'poolpipe-priority'" in answer.message) == (
        "INVALID_ARG",
        True,
    )


@pytest.mark.parametrize(
    ("parameters", "client"),
    [
        ("{}", ""),
        ('{"poolpipe-client": ""}', ""),
        ('{"poolpipe-client": "shop"}', "shop"),
        ('{"Poolpipe-Client": "a.b@c", "poolpipe-priority": 2}', "a.b@c"),
        ('{"poolpipe-client": 7}', "7"),
        ('{"client": "shop"}', ""),
    ],
)
def test_a_client_says_its_name(system: LocalSystem, parameters: str, client: str) -> None:
    reader = RequestReader(system.deployment, system.deployment.plan.models[0])
    assert reader.read(Incoming(headers=parameters), 50, lambda _: None).client == client


@pytest.mark.parametrize("named", ["a b", "shop:1", "../up", "a..b", "n" * 129, "\n", "é", ["x"]])
def test_a_client_whose_name_is_none_is_refused(front: FrontService, named: Any) -> None:
    answer = answer_to(front, Incoming(headers=json.dumps({"poolpipe-client": named})))
    assert isinstance(answer, Refusal)
    assert answer.status == "INVALID_ARG"
    assert answer.message.startswith("model 'pair', parameter 'poolpipe-client': ")
    assert " is no name: at most 128 of A-Z a-z 0-9" in answer.message
    assert "\n" not in answer.message


# Loops of the front that fail


def test_a_request_that_cannot_be_asked_keeps_no_other_waiting(
    system: LocalSystem, caplog: pytest.LogCaptureFixture
) -> None:
    system.control("flush")
    asked: list[int] = []

    def ask_and_fail() -> bool:
        asked.append(1)
        raise Broken

    first = system.ask("pair", picture(BATCH), 2_000_000, cancelled=ask_and_fail)
    answer = system.ask("pair", picture(), 100_000)()
    assert isinstance(answer, Refusal)
    assert "after the deadline, in the queue" in answer.message
    system.control("abort")
    assert not isinstance(first(), Refusal)
    assert asked == [1]
    assert "cannot be asked" in caplog.text


@pytest.mark.parametrize(("part", "method"), [("_loop", "poll"), ("_watch", "_look")])
def test_a_loop_that_fails_pauses_is_counted_and_goes_on(
    system: LocalSystem,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    part: str,
    method: str,
) -> None:
    front = system.fronts["pair"]
    before = front.counters.internal_errors
    monkeypatch.setattr(getattr(front, part), method, broken)
    answer = system.ask("pair", picture(BATCH), 60_000_000)  # it wakes a loop that rests
    wait_for(lambda: caplog.text.count("goes on in") >= 4)
    assert front.counters.internal_errors >= before + 4
    alive_us = front.alive_us()
    monkeypatch.undo()
    wait_for(lambda: front.alive_us() > alive_us)
    assert not isinstance(answer(), Refusal)
    assert not isinstance(answer_to(front, Incoming()), Refusal)
