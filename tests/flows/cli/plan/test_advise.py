"""`advise` over a project with one profiled model."""

from pathlib import Path

import pytest
import yaml

from tests.flows.cli.conftest import Command

LINE = '[2024-11-24T{hour:02}:{minute:02}:00.000Z] "POST /v2/models/{name}/infer HTTP/2" 200\n'
ADVISE = ("advise", "--cluster", "cluster.yaml", "--workload", "workload.yaml")


def write_log(path: Path, name: str = "net") -> None:
    """Four hours, the third one busier."""
    times = [(h, m, 600 if h == 2 else 60) for h in range(4) for m in range(60)]
    path.write_text(
        "".join(LINE.format(hour=h, minute=m, name=name) * count for h, m, count in times)
    )


@pytest.mark.usefixtures("profiled")
def test_three_ways_are_compared(poolpipe: Command) -> None:
    write_log(Path("a.log"))
    found = poolpipe(*ADVISE, "--access-log", "a.log", "--json").document
    assert found["log"]["hours"] == 4
    assert found["log"]["requests"] == {"net": 3 * 3600 + 36_000}
    whole, split, replanned = found["ways"]
    assert whole["served_fraction"] == split["served_fraction"] == 1.0
    assert split["gpus"] <= whole["gpus"]
    assert replanned["gpus"] <= split["gpus"]
    assert split["cost_a_day"] is None
    shown = poolpipe(*ADVISE, "--access-log", "a.log")
    assert "GPU hours a day" in shown.out
    assert "46,800 requests in 4.0 h from 2024-11-24 00:00 UTC" in shown.out


@pytest.mark.usefixtures("profiled")
def test_requests_whose_time_cannot_be_read_are_said_to_be_left_out(poolpipe: Command) -> None:
    write_log(Path("a.log"))
    with Path("a.log").open("a") as log:
        log.write(LINE.format(hour=25, minute=1, name="net") * 3)
    ran = poolpipe(*ADVISE, "--access-log", "a.log")
    left_out = "3 requests without a time that can be read, or with one ahead, are left out"
    assert f"note: {left_out}" in ran.err


@pytest.mark.usefixtures("profiled")
def test_names_that_the_workload_lacks_are_said_with_their_requests(poolpipe: Command) -> None:
    write_log(Path("a.log"))
    with Path("a.log").open("a") as log:
        log.write(LINE.format(hour=3, minute=1, name="other") * 3)
        log.write(LINE.format(hour=3, minute=2, name="more") * 2)
    ran = poolpipe(*ADVISE, "--access-log", "a.log")
    said = "note: requests of names that the workload lacks are left out: 2 of more, 3 of other\n"
    assert said in ran.err


@pytest.mark.usefixtures("profiled")
@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("none.log", "none.log: cannot be read: No such file or directory"),
        ("other.log", "other.log: has no request of net; its models: other"),
        ("empty.log", "empty.log: has no request of a model"),
        ("short.log", "short.log: spans 1 min; "),
        ("grpc.log", "in 4 lines; 4 are of gRPC, which a log shows without the model"),
    ],
)
def test_bad_logs_are_one_line(poolpipe: Command, name: str, reason: str) -> None:
    write_log(Path("other.log"), "other")
    Path("empty.log").touch()
    Path("short.log").write_text(LINE.format(hour=3, minute=1, name="net"))
    http = LINE.format(hour=3, minute=1, name="net")
    grpc = http.replace("/v2/models/net/infer", "/inference.GRPCInferenceService/ModelInfer")
    Path("grpc.log").write_text(4 * grpc)
    ran = poolpipe(*ADVISE, "--access-log", name)
    assert (ran.code, ran.out, ran.err.count("\n")) == (2, "", 1)
    assert reason in ran.err


@pytest.mark.usefixtures("profiled")
def test_a_period_of_no_whole_minutes_is_refused_before_anything_is_planned(
    poolpipe: Command,
) -> None:
    write_log(Path("a.log"))
    ran = poolpipe(*ADVISE, "--access-log", "a.log", "--period-hours", "0.51")
    reason = "--period-hours: 1836 s is no whole number of minutes"
    assert (ran.code, ran.out, ran.err) == (2, "", f"poolpipe: {reason}\n")


@pytest.mark.usefixtures("profiled")
def test_a_workload_that_no_log_distinguishes_is_refused_before_the_log_is_read(
    poolpipe: Command,
) -> None:
    entry = {"name": "tails", "block": 1, "budget_ms": 12, "rate_rps": 5}
    asked = {"models": [{"name": "net", "slo_ms": 15, "entries": [entry]}]}
    Path("workload.yaml").write_text(yaml.safe_dump(asked))
    ran = poolpipe(*ADVISE, "--access-log", "none.log")
    reason = "workload model 'net', entries: are not distinguished in a log"
    assert (ran.code, ran.out, ran.err.count("\n")) == (2, "", 1)
    assert ran.err.startswith(f"poolpipe: {reason}")


@pytest.mark.usefixtures("profiled")
def test_an_application_counts_under_its_name(poolpipe: Command) -> None:
    asked = {"name": "traffic", "slo_ms": 60, "modules": [{"name": "detect", "model": "net"}]}
    Path("workload.yaml").write_text(yaml.safe_dump({"applications": [asked]}))
    write_log(Path("a.log"), "traffic")
    ran = poolpipe(*ADVISE, "--access-log", "a.log", "--json")
    assert (ran.code, ran.err) == (0, "")
    assert [way["served_fraction"] for way in ran.document["ways"]][:2] == [1.0, 1.0]
