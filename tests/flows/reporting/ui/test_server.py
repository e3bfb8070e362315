"""The page over a system.

Real metrics over HTTP, a real warehouse, a real browser where there is one.
"""

import html
import http.client
import json
import re
import shutil
import socket
import subprocess
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import duckdb
import pytest

from flows.reporting.ui.server import MOST_THREADS, PageServer, render_page
from flows.reporting.ui.watch import SystemWatch
from tests.fakes.applications import hand_application, hand_module, with_applications
from tests.fakes.minutes import model_minute
from tests.flows.reporting.example import LONG_NAME, example_plan
from tests.flows.reporting.test_html import read
from tests.flows.reporting.ui.test_live import metrics
from tests.flows.test_system_metrics import ANSWERS, answering
from triton_backend.contract.errors import InputError
from triton_backend.contract.plan import Plan
from triton_backend.contract.units import us_to_ms
from triton_backend.contract.workload import ModelDemand, Workload
from warehouse.db import open_warehouse
from warehouse.observations import (
    DropMinute,
    Rollout,
    StatisticsFile,
    add_statistics,
    begin_rollout,
)

NOW = datetime(2026, 3, 1, 12, 0, 30, tzinfo=UTC)


class Metrics(BaseHTTPRequestHandler):
    """Counters of the example's first model, ten requests further at every look."""

    looks = 0

    def do_GET(self) -> None:
        type(self).looks += 10
        name = example_plan().models[0].name
        body = metrics(self.looks).replace('model="m"', f'model="{name}"')
        body = body.replace('generation="3"', 'generation="1"').encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base's name
        pass


@pytest.fixture
def system(tmp_path: Path) -> Iterator[Path]:
    """A serve folder whose metrics can be fetched; gives its state file."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Metrics)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    (tmp_path / "generations" / "1").mkdir(parents=True)
    plan_path = tmp_path / "generations" / "1" / "plan.json"
    plan_path.write_text(json.dumps(example_plan().to_dict()))
    (tmp_path / "events").mkdir()
    ports = {"metrics": server.server_address[1]}
    state = {"address": "127.0.0.1", "ports": ports, "folder": str(tmp_path)}
    path = tmp_path / "state.json"
    path.write_text(json.dumps(state))
    yield path
    server.shutdown()
    server.server_close()
    thread.join()


def clock() -> Callable[[], datetime]:
    """Two seconds further at every look."""
    looks = iter(range(10_000))
    return lambda: NOW + timedelta(seconds=2 * next(looks))


@contextmanager
def serving(server: PageServer) -> Generator[None]:
    thread = threading.Thread(target=server.serve)
    thread.start()
    try:
        yield
    finally:
        server.close()
        thread.join()


@pytest.fixture
def watch(system: Path) -> SystemWatch:
    """The system, looked at twice."""
    watch = SystemWatch(system, now=clock())
    watch.sample()
    watch.sample()
    return watch


@pytest.fixture
def page(watch: SystemWatch) -> Iterator[PageServer]:
    """The page's server over the system."""
    server = PageServer(watch, port=0)
    with serving(server):
        yield server


def get(url: str, **headers: str) -> bytes:
    request = urllib.request.Request(url, headers=headers)
    with urllib.request.urlopen(request) as answer:
        assert "default-src 'none'" in answer.headers["Content-Security-Policy"]
        return answer.read()


def test_the_page_holds_the_plan_and_the_moment_and_needs_no_network(page: PageServer) -> None:
    text = get(page.url).decode()
    reader = read(text)
    assert reader.addresses == ["data:,"]
    assert "https://" not in text
    assert [h for h in reader.headings if h] == [
        "Models", "Pools and flows", "The last day", "vGPUs", "Drops", "Rollouts",
    ]  # fmt: skip
    assert LONG_NAME in "".join(reader.words)


def test_rows_are_what_clients_ask_for_and_swatches_of_pools_the_models_of_the_plan() -> None:
    plan = example_plan()
    app = hand_application("app", [hand_module("step", plan.models[0].name)], slo_us=400_000)
    asked = Workload(
        models=(ModelDemand(name=plan.models[1].name, slo_us=plan.models[1].slo_us),),
        applications=(app.application,),
    )
    text = render_page(with_applications(replace(plan, workload=asked), app), "{}", "{}")
    found = re.search(r'id="facts">(.*?)</script>', text)
    assert found is not None
    facts = json.loads(found[1])
    served = [(one["name"], one["slo_ms"], one["rate_rps"]) for one in facts["served"]]
    second = plan.models[1]
    assert served == [
        (second.name, us_to_ms(second.slo_us), second.throughput_rps),
        ("app", 400.0, 10.0),
    ]
    rows = re.findall(r'<tr class="whose">.*</i>(.*?)</td>', text)
    assert [html.unescape(row) for row in rows] == [second.name, "app"]
    assert [model["name"] for model in facts["models"]] == [model.name for model in plan.models]
    colours = [one["colour"] for one in facts["served"]]
    assert colours[0] == facts["models"][1]["colour"]
    assert colours[1] not in {model["colour"] for model in facts["models"]}


def test_live_values_are_served_as_json(page: PageServer) -> None:
    live = json.loads(get(page.url + "live.json"))
    assert live["problem"] is None
    assert live["models"][example_plan().models[0].name]["offered_rps"] == 5
    assert len(live["vgpus"]) == len(example_plan().vgpus())
    assert json.loads(get(page.url + "history.json"))["minutes"] == []


@pytest.mark.parametrize(("up", "warned"), [("1", False), ("0", True)])
def test_a_keeper_that_is_gone_is_a_warning(
    system: Path, monkeypatch: pytest.MonkeyPatch, up: str, warned: bool
) -> None:
    seen = {"keeper_up": {(): float(up)}}

    def read(_urls: list[str], _timeout_s: float) -> dict[str, dict[tuple[()], float]]:
        return seen

    monkeypatch.setattr("flows.reporting.ui.watch.read_all_metrics", read)
    watch = SystemWatch(system, now=clock())
    watch.sample()
    live = json.loads(watch.live_json)
    assert (live["problem"], "keeper of the server is gone" in str(live["warning"])) == (
        None,
        warned,
    )


def test_other_paths_and_foreign_hosts_are_refused(page: PageServer) -> None:
    with pytest.raises(urllib.error.HTTPError, match="404"):
        get(page.url + "state.json")
    with pytest.raises(urllib.error.HTTPError, match="403"):
        get(page.url, Host="evil.example:80")


@pytest.mark.parametrize(
    ("address", "hosts", "asked", "origin", "status"),
    [
        ("127.0.0.1", (), "localhost:{port}", None, 200),
        ("127.0.0.1", (), "[::1]", None, 200),
        ("127.0.0.1", (), "127.0.0.1:{port}", "http://127.0.0.1:{port}", 200),
        ("127.0.0.1", (), "127.0.0.1:{port}", "http://evil.example", 403),
        ("127.0.0.1", (), "127.0.0.1:{port}", "null", 403),
        ("127.0.0.1", (), "evil.example@127.0.0.1", None, 403),
        ("127.0.0.1", (), "[", None, 403),
        ("127.0.0.1", (), "", None, 403),
        ("127.0.0.2", (), "127.0.0.2:{port}", None, 200),
        ("127.0.0.2", (), "evil.example:{port}", None, 403),
        ("0.0.0.0", (), "127.0.0.1:{port}", None, 200),
        ("0.0.0.0", (), "evil.example:{port}", None, 403),
        ("0.0.0.0", (), "10.1.2.3", None, 403),
        ("0.0.0.0", ("Page.Example",), "page.example:{port}", "https://page.example", 200),
    ],
)
def test_only_this_machine_s_addresses_and_names_that_were_given_are_answered(
    tmp_path: Path,
    address: str,
    hosts: tuple[str, ...],
    asked: str,
    origin: str | None,
    status: int,
) -> None:
    server = PageServer(SystemWatch(tmp_path / "none"), address=address, port=0, hosts=hosts)
    port = int(server.url.rsplit(":", 1)[1].rstrip("/"))
    reached = "127.0.0.1" if address == "0.0.0.0" else address
    headers = {} if origin is None else {"Origin": origin.format(port=port)}
    with serving(server):
        client = http.client.HTTPConnection(reached, port)
        client.putrequest("GET", "/live.json", skip_host=True)
        for name, value in {"Host": asked.format(port=port), **headers}.items():
            client.putheader(name, value)
        client.endheaders()
        assert client.getresponse().status == status
        client.close()


def test_a_name_that_reaches_another_address_than_loopback_is_its_own_alone(
    tmp_path: Path,
) -> None:
    server = PageServer(SystemWatch(tmp_path / "none"), port=0)
    with serving(server):
        for host, status in (
            ("10.1.2.3:80", 200),
            ("10.1.2.4", 403),
            ("localhost", 403),
            ("a.b", 403),
        ):
            assert server.answer("/live.json", host, None, "10.1.2.3").status == status, host


def test_the_page_is_rendered_once_between_two_looks(
    page: PageServer, watch: SystemWatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    renderings: list[str] = []

    def counted(plan: Plan | None, live: str, history: str) -> str:
        renderings.append(live)
        return render_page(plan, live, history)

    monkeypatch.setattr("flows.reporting.ui.server.render_page", counted)
    assert get(page.url) == get(page.url)
    assert len(renderings) == 1
    watch.sample()
    get(page.url)
    assert len(renderings) == 2


@pytest.mark.long
def test_clients_that_say_nothing_take_no_more_than_their_threads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("flows.reporting.ui.server._Handler.timeout", 0.3)
    server = PageServer(SystemWatch(tmp_path / "none"), port=0)
    port = int(server.url.rsplit(":", 1)[1].rstrip("/"))
    with serving(server):
        silent = [socket.create_connection(("127.0.0.1", port)) for _ in range(MOST_THREADS + 4)]
        for one in silent:  # at once, or when its thread has waited for long enough
            assert one.recv(1) == b""
            one.close()
        assert get(server.url + "live.json") == b"{}"


@pytest.mark.parametrize("state", ["[]", '{"ports": [1]}', '"text"', '{"ports": {}, "folder": 3}'])
def test_a_state_file_of_another_form_is_told_and_the_watch_goes_on(
    system: Path, state: str
) -> None:
    sound = system.read_text()
    system.write_text(state)
    watch = SystemWatch(system)
    watch.sample()
    assert json.loads(watch.live_json)["problem"].startswith("The system cannot be re")
    system.write_text(sound)
    watch.sample()
    assert json.loads(watch.live_json)["problem"] is None


def test_a_warehouse_that_lacks_a_table_is_noted(tmp_path: Path, system: Path) -> None:
    path = tmp_path / "w.duckdb"
    with open_warehouse(path):
        pass
    with duckdb.connect(path) as raw:
        raw.execute("DROP TABLE rollouts")
    watch = SystemWatch(system, warehouse=path, now=clock())
    watch.sample()
    assert "rollouts" in json.loads(watch.history_json)["note"]


def test_a_taken_port_is_named(page: PageServer, tmp_path: Path) -> None:
    port = int(page.url.rsplit(":", 1)[1].rstrip("/"))
    with pytest.raises(InputError, match=f"--port {port}: cannot be listened on"):
        PageServer(SystemWatch(tmp_path / "state.json"), port=port)


@pytest.mark.parametrize("address", ["", "localhost", "::1", "127.1", "300.1.1.1", "*", "$(id)"])
def test_what_is_no_address_is_named(tmp_path: Path, address: str) -> None:
    said = f"--address: {address!r} is no IPv4 address to listen on"
    with pytest.raises(InputError, match=re.escape(said)):
        PageServer(SystemWatch(tmp_path / "state.json"), address=address, port=0)


@pytest.mark.parametrize("name", ["", "a b", "http://page.example", "page.example:80"])
def test_what_is_no_name_of_a_host_is_named(tmp_path: Path, name: str) -> None:
    said = f"--host-name: {name!r} is no IPv4 address and no name of a host"
    with pytest.raises(InputError, match=re.escape(said)):
        PageServer(SystemWatch(tmp_path / "state.json"), port=0, hosts=(name,))


def test_a_system_that_is_not_there_or_cannot_be_reached_is_told(
    tmp_path: Path, system: Path
) -> None:
    watch = SystemWatch(tmp_path / "none" / "state.json")
    watch.sample()
    assert "No system is running" in json.loads(watch.live_json)["problem"]
    state = json.loads(system.read_text())
    system.write_text(json.dumps(state | {"ports": {"metrics": 9}}))
    watch = SystemWatch(system)
    watch.start()
    watch.stop()
    assert "cannot be reached" in json.loads(watch.live_json)["problem"]


@pytest.mark.parametrize("answer", ANSWERS.values(), ids=ANSWERS.keys())
def test_a_bad_answer_is_told_and_the_watch_goes_on(answer: bytes, system: Path) -> None:
    """An exception that leaves the page's only thread would show stale data for ever."""
    state = json.loads(system.read_text())
    with answering(answer) as url:
        port = int(url.split(":")[2].split("/")[0])
        system.write_text(json.dumps(state | {"ports": {"metrics": port}}))
        watch = SystemWatch(system)
        watch.sample()
    assert "cannot be reached" in json.loads(watch.live_json)["problem"]
    system.write_text(json.dumps(state))
    watch.sample()
    assert json.loads(watch.live_json)["problem"] is None


def test_the_last_day_comes_from_the_warehouse(tmp_path: Path, system: Path) -> None:
    path = tmp_path / "w.duckdb"
    counts = {"offered": 60, "served": 50, "late": 0, "dropped": 10, "failed": 0}
    rows = [
        model_minute(
            NOW.replace(second=0) - timedelta(minutes=k),
            plan_id="p1",
            latency_sum_us=500_000,
            **counts,
        )
        for k in (2, 1, 3_000)
    ]  # fmt: skip
    drops = [
        DropMinute(instance="i", model="m", minute=rows[0].minute, reason="deadline", dropped=10)
    ]
    rollout = Rollout(
        rollout_id="r1", plan_id="p2", former_plan_id=None, state="bake", requested_by="me",
        reason="more load", outcome=None, started_at=NOW - timedelta(hours=1), changed_at=NOW,
    )  # fmt: skip
    with open_warehouse(path) as warehouse:
        file = StatisticsFile(path="f", digest="d", models=rows, drops=drops)
        add_statistics(warehouse, file, NOW)
        begin_rollout(warehouse, rollout)
    watch = SystemWatch(system, warehouse=path, now=clock())
    watch.sample()
    day = json.loads(watch.history_json)
    assert day["note"] == ""
    minute = int(rows[0].minute.timestamp())
    assert [row["minute"] for row in day["minutes"]] == [minute, minute + 60]
    assert day["minutes"][0]["models"]["m"] == counts | {"mean_ms": 10.0}
    assert day["drops"] == [{"model": "m", "reason": "deadline", "dropped": 10}]
    assert [(r["plan_id"], r["state"], r["outcome"]) for r in day["rollouts"]] == [
        ("p2", "bake", None)
    ]


def test_a_warehouse_that_cannot_be_read_is_noted(tmp_path: Path, system: Path) -> None:
    watch = SystemWatch(system, warehouse=tmp_path / "none.duckdb", now=clock())
    watch.sample()
    assert "no such warehouse" in json.loads(watch.history_json)["note"]


def test_wide_tables_scroll_within_their_sections_and_outcomes_wrap(page: PageServer) -> None:
    text = get(page.url).decode()
    assert text.count("<table>") == text.count('<div class="scroll"><table>') > 2
    assert 'text: ended(r), kind: "left said"' in text
    assert "td.said { white-space: normal" in text


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("chromium") is None, reason="chromium is not installed")
def test_a_browser_draws_the_page(page: PageServer, tmp_path: Path) -> None:
    options = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"]
    options += ["--disable-background-networking", "--disable-component-update", "--disable-sync"]
    options += [f"--user-data-dir={tmp_path}", "--dump-dom", page.url]
    done = subprocess.run(["chromium", *options], capture_output=True, check=True, timeout=60)
    dom = done.stdout.decode()
    assert "data-drawn-ms" in dom  # the script ran to its end
    assert ">5 rps</td>" in dom
    assert 'title="fast:0.0: idle"' in dom
