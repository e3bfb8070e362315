"""Access logs of three servers become rates per minute."""

import gzip
import tracemalloc
from datetime import UTC, datetime
from pathlib import Path

import pytest

from flows.operations.adoption.access_log import read_access_log
from triton_backend.contract.errors import InputError

NOW = datetime(2026, 11, 25, 12, 0, tzinfo=UTC)
NGINX = '10.0.0.1 - - [25/Nov/2026:{clock} +0100] "POST {path} HTTP/1.1" 200 512 "-" "curl/8.5"\n'
ENVOY = '[2026-11-25T{clock}.123Z] "POST {path} HTTP/2" 200 - 602 146 7 6 "-" "py" "host"\n'
TRITON = 'I1125 {clock}.123456 4711 http_server.cc:4522] "HTTP request: 2 {path} "\n'


def infer(name: str, version: str = "") -> str:
    return f"/v2/models/{name}{version}/infer"


@pytest.mark.parametrize("form", [NGINX, ENVOY, TRITON])
def test_requests_are_counted_by_model_and_minute(tmp_path: Path, form: str) -> None:
    hour = "09" if form == NGINX else "08"  # nginx logs local time
    lines = [
        form.format(clock=f"{hour}:00:05", path=infer("net")),
        form.format(clock=f"{hour}:02:59", path=infer("net", "/versions/3")),
        form.format(clock=f"{hour}:02:00", path=infer("web")),
        form.format(clock=f"{hour}:00:07", path=infer("net")),
        form.format(clock=f"{hour}:01:00", path="/v2/health/ready"),
        "a line of something else\n",
    ]
    (tmp_path / "a.log").write_text("".join(lines))
    log = read_access_log(tmp_path / "a.log", now=NOW)
    assert log.history.names == ("net", "web")
    assert (log.history.rps * 60).tolist() == [[2, 0], [0, 0], [1, 1]]
    assert log.start == datetime(2026, 11, 25, 8, 0, tzinfo=UTC)
    assert (log.requests, log.others) == ({"net": 3, "web": 1}, 2)


def test_requests_without_a_time_are_counted_apart(tmp_path: Path) -> None:
    line = ENVOY.format(clock="08:00:00", path=infer("net"))
    (tmp_path / "a.log").write_text(line + line.replace("11-25", "13-45") * 2 + "else\n")
    log = read_access_log(tmp_path / "a.log", now=NOW)
    assert (log.requests, log.undated, log.others) == ({"net": 1}, 2, 3)


def test_a_log_may_be_gzipped(tmp_path: Path) -> None:
    line = ENVOY.format(clock="08:00:00", path=infer("net"))
    (tmp_path / "a.log.gz").write_bytes(gzip.compress(line.encode() * 60))
    log = read_access_log(tmp_path / "a.log.gz", now=NOW)
    assert log.history.rps.tolist() == [[1.0]]


def test_a_last_line_may_have_no_end(tmp_path: Path) -> None:
    line = TRITON.format(clock="08:00:00", path=infer("net")).replace('"', "").strip()
    (tmp_path / "a.log").write_text(line)
    assert read_access_log(tmp_path / "a.log", now=NOW).requests == {"net": 1}


@pytest.mark.parametrize(
    ("day", "now", "year"),
    [
        ("1231", NOW, 2025),
        ("0229", datetime(2029, 1, 3, tzinfo=UTC), 2028),
        ("0101", datetime(2026, 12, 31, 23, 0, tzinfo=UTC), 2027),  # the server's clock is ahead
    ],
)
def test_lines_of_triton_are_of_the_last_year_where_they_would_be_in_the_future(
    tmp_path: Path, day: str, now: datetime, year: int
) -> None:
    line = TRITON.replace("I1125", f"I{day}").format(clock="08:00:00", path=infer("net"))
    (tmp_path / "a.log").write_text(line)
    assert read_access_log(tmp_path / "a.log", now=now).start.year == year


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "has no request of a model"),
        ("nothing here\n", r"has no request of a model \(/v2/models/NAME/infer\) in 1 lines"),
        (
            ENVOY.format(clock="08:00:00", path=infer("net"))
            + ENVOY.replace("2026", "1999").format(clock="08:00:00", path=infer("net")),
            "spans 9862 days",
        ),
        (
            ENVOY.replace("2026-11-25", "0001-01-01")
            .replace("Z]", "+09:00]")
            .format(clock="08:00:00", path=infer("net")),
            "has no time that can be read in any of 1 requests of models",
        ),
        (
            ENVOY.replace("2026-11-25", "9999-12-31")
            .replace("Z]", "-09:00]")
            .format(clock="23:00:00", path=infer("net")),
            "has no time that can be read in any of 1 requests",
        ),
        (
            ENVOY.replace("11-25", "13-45").format(clock="08:00:00", path=infer("net")),
            "has no time that can be read in any of 1 requests",
        ),
        (
            NGINX.replace("+0100", "+9999").format(clock="08:00:00", path=infer("net")) * 2,
            "has no time that can be read in any of 2 requests",
        ),
    ],
)
def test_a_log_that_says_nothing_is_refused(tmp_path: Path, text: str, reason: str) -> None:
    (tmp_path / "a.log").write_text(text)
    with pytest.raises(InputError, match=reason):
        read_access_log(tmp_path / "a.log", now=NOW)


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"none\.log: cannot be read"):
        read_access_log(tmp_path / "none.log", now=NOW)
    (tmp_path / "a.log.gz").write_bytes(b"no gzip")
    with pytest.raises(InputError, match=r"a\.log\.gz: cannot be read"):
        read_access_log(tmp_path / "a.log.gz", now=NOW)


def test_damaged_gzip_is_named(tmp_path: Path) -> None:
    lines = "".join(
        ENVOY.format(clock=f"08:{n // 60:02}:{n % 60:02}", path=infer(f"net{n * 7919 % 997}"))
        for n in range(3_600)
    )
    packed = bytearray(gzip.compress(lines.encode()))
    path = tmp_path / "a.log.gz"
    for place in range(10, len(packed), 997):  # which checks notice depends on the place
        damaged = packed.copy()
        damaged[place : place + 4] = b"\xff\xff\xff\xff"
        path.write_bytes(damaged)
        with pytest.raises(InputError, match=r"a\.log\.gz: cannot be read"):
            read_access_log(path, now=NOW)


def test_a_gzipped_log_may_have_any_name(tmp_path: Path) -> None:
    line = ENVOY.format(clock="08:00:00", path=infer("net"))
    (tmp_path / "a.log").write_bytes(gzip.compress(line.encode() * 60))
    assert read_access_log(tmp_path / "a.log", now=NOW).requests == {"net": 60}


def test_names_are_counted_as_they_are_without_the_signs_of_a_path(tmp_path: Path) -> None:
    lines = [ENVOY.format(clock="08:00:00", path=infer(name)) for name in ("net%401", "net@1")]
    (tmp_path / "a.log").write_text("".join(lines))
    assert read_access_log(tmp_path / "a.log", now=NOW).requests == {"net@1": 2}


@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be"])
def test_a_log_in_16_bits_is_said_to_be_one(tmp_path: Path, encoding: str) -> None:
    # As PowerShell writes what it redirects.
    line = "\N{ZERO WIDTH NO-BREAK SPACE}" + ENVOY.format(clock="08:00:00", path=infer("net"))
    (tmp_path / "a.log").write_bytes(line.encode(encoding))
    with pytest.raises(InputError, match=r"a\.log: is UTF-16 text: give it as UTF-8"):
        read_access_log(tmp_path / "a.log", now=NOW)


def test_days_that_are_too_far_apart_are_named(tmp_path: Path) -> None:
    line = ENVOY.format(clock="08:00:00", path=infer("net"))
    (tmp_path / "a.log").write_text(line + line.replace("2026", "1999"))
    with pytest.raises(
        InputError, match="from 1999-11-25 to 2026-11-25: is one of the dates wrong"
    ):
        read_access_log(tmp_path / "a.log", now=NOW)


def test_requests_that_are_to_come_are_left_out_as_without_a_time(tmp_path: Path) -> None:
    line = ENVOY.format(clock="08:00:00", path=infer("net"))
    tomorrow, later = line.replace("11-25", "11-26"), line.replace("11-25", "11-27")
    (tmp_path / "a.log").write_text(line + tomorrow + later)
    log = read_access_log(tmp_path / "a.log", now=NOW)
    assert (log.requests, log.undated, log.hours) == ({"net": 2}, 1, 24 + 1 / 60)


def test_a_line_without_an_end_takes_no_memory(tmp_path: Path) -> None:
    line = ENVOY.format(clock="08:00:00", path=infer("net"))
    long = 64 * 2**20
    with (tmp_path / "a.log").open("w") as file:
        file.write(line)
        file.seek(long)
        file.write("\n" + line)
    tracemalloc.start()
    try:
        log = read_access_log(tmp_path / "a.log", now=NOW)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert (log.requests, log.others) == ({"net": 2}, 1)
    assert most < long / 8


def test_names_and_minutes_together_are_refused_before_they_take_memory(tmp_path: Path) -> None:
    lines = [ENVOY.format(clock="08:00:00", path=infer(f"net{n}")) for n in range(200)]
    lines.append(lines[0].replace("2026-11", "2025-11"))
    (tmp_path / "a.log").write_text("".join(lines))
    with pytest.raises(InputError, match="names 200 models in 365 days"):
        read_access_log(tmp_path / "a.log", now=NOW)
    lines = [ENVOY.format(clock="08:00:00", path=infer(f"net{n}")) for n in range(1_001)]
    (tmp_path / "a.log").write_text("".join(lines) + "no line that is read\n")
    with pytest.raises(InputError, match="names more than 1000 models"):
        read_access_log(tmp_path / "a.log", now=NOW)
