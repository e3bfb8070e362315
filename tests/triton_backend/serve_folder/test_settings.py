"""The settings of a running system, from what was chosen to what every process reads."""

import json
import stat
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest

from tests.triton_backend.serving.small_plans import plan, two_stage
from triton_backend.contract.errors import InputError
from triton_backend.serve_folder.beside import Beside
from triton_backend.serve_folder.settings import ServeOptions, ServeSettings

CHOSEN = ServeOptions(
    artifacts=Path("/artifacts"),
    policy="reservation",
    late_binding={"heads": "head"},
    nic="isolated",
    emulate_links=True,
    noise=0.25,
    seed=3,
    time_stretch=2.0,
    interference="overlap",
    guard_fraction=0.2,
    checksum_up_to_bytes=7,
    hosts={"SLOW": "10.0.0.2"},
    gateway_host="10.0.0.1",
    base_port=20_000,
    host_http_port=8100,
    standby=False,
    cut_models=True,
    beside=Beside(folders={"chat": Path("/models/chat")}, completes=True),
    quotas={"pair": {"shop": 50.5}},
    over_quota="refused",
)


def test_every_choice_arrives_where_it_is_read(tmp_path: Path) -> None:
    made = ServeSettings.begin(tmp_path, plan(two_stage()), CHOSEN)
    made.write(made.path)
    read = ServeSettings.read(tmp_path / "settings.json")
    assert read == made
    for field in fields(ServeOptions):
        if field.name == "gateways":  # which two of go with neither hosts nor without a standby
            continue
        value = getattr(CHOSEN, field.name)
        assert getattr(read, field.name) == value, field.name
        assert value != getattr(ServeOptions(), field.name), field.name
    assert stat.S_IMODE((tmp_path / "settings.json").stat().st_mode) == 0o600


@pytest.mark.parametrize(
    "host", ["", "a b", "x;y", "::1", "a\nb", "a" * 254, "-a", "a/b", "300.1.1.1", "10.0.0"]
)
def test_a_host_that_is_no_name_is_refused(host: str) -> None:
    with pytest.raises(InputError, match="is no IPv4 address and no name of a host"):
        ServeOptions(gateway_host=host)
    with pytest.raises(InputError, match="is no IPv4 address and no name of a host"):
        ServeOptions(hosts={"node": host})


def test_another_host_has_the_system_and_names_of_its_own(tmp_path: Path) -> None:
    gateway = ServeSettings.begin(tmp_path / "gateway", plan(two_stage()), CHOSEN)
    other = gateway.for_host(tmp_path / "other", None)
    differs = {
        f.name for f in fields(gateway) if getattr(gateway, f.name) != getattr(other, f.name)
    }
    assert differs == {"instance", "folder", "socket_folder", "artifacts", "beside"}


@pytest.mark.parametrize(
    "wrong",
    [
        {"guard_fraction": 1.0},
        {"noise": -0.1},
        {"time_stretch": 0.0},
        {"interference": "off"},
    ],
)
def test_values_that_make_no_sense_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="serve settings"):
        replace(ServeOptions(), **wrong)


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"over_quota": "late"}, "--over-quota: 'late' is neither low nor refused"),
        ({"quotas": {"m": {"a b": 1.0}}}, "--quota m:a b: 'a b' is no name"),
        ({"quotas": {"m": {"c": 0.0}}}, r"--quota m:c: 0 requests/s, 0\.001 to 1e\+12 are allowed"),
        ({"quotas": {"m": {"c": -1.0}}}, "--quota m:c: -1 requests/s"),
        ({"quotas": {"m": {"c": float("nan")}}}, "--quota m:c: nan requests/s"),
        ({"quotas": {"m": {"c": float("inf")}}}, "--quota m:c: inf requests/s"),
    ],
)
def test_quotas_that_make_no_sense_are_refused(wrong: dict[str, Any], told: str) -> None:
    with pytest.raises(InputError, match=told):
        replace(ServeOptions(), **wrong)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"folder": 1}', '{"no such": 1}'])
def test_settings_that_are_none_are_named(tmp_path: Path, text: str) -> None:
    path = tmp_path / "settings.json"
    path.write_text(text)
    with pytest.raises(InputError, match="not a settings file"):
        ServeSettings.read(path)


def test_a_setting_that_nobody_knows_is_not_a_settings_file(tmp_path: Path) -> None:
    made = ServeSettings.begin(tmp_path, plan(two_stage()), ServeOptions())
    path = tmp_path / "settings.json"
    path.write_text(json.dumps({**made.to_dict(), "colour": "blue"}))
    with pytest.raises(InputError, match="colour"):
        ServeSettings.read(path)


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"gateways": 3}, "--gateways 3: is neither 1 nor 2"),
        ({"gateways": 0}, "--gateways 0: is neither 1 nor 2"),
        ({"gateways": 2, "standby": False}, "--gateways 2: needs the standby"),
        ({"gateways": 2, "hosts": {"SLOW": "10.0.0.2"}}, "--gateways 2: all nodes .*SLOW do not"),
    ],
)
def test_two_gateways_that_could_not_stand_in_for_each_other_are_refused(
    wrong: dict[str, Any], told: str
) -> None:
    with pytest.raises(InputError, match=told):
        replace(ServeOptions(), **wrong)


def test_a_second_gateway_has_names_of_its_own_and_everything_else_in_common(
    tmp_path: Path,
) -> None:
    first = ServeSettings.begin(tmp_path, plan(two_stage()), ServeOptions(gateways=2))
    second = first.of_gateway(1)
    second.place.mkdir()
    second.write(second.path)
    assert ServeSettings.read(second.path) == second
    for name in ("segment_prefix", "token", "socket_folder", "folder"):
        assert getattr(first, name) == getattr(second, name)
    for name in ("place", "path", "server_id", "stub_prefix"):
        assert getattr(first, name) != getattr(second, name)
    assert not second.stub_prefix.startswith(first.stub_prefix)
    assert not first.stub_prefix.startswith(second.stub_prefix)
    alone = ServeSettings.begin(tmp_path, plan(two_stage()), ServeOptions())
    assert (alone.place, alone.server_id) == (tmp_path, None)
    assert alone.front_address("pair") != second.front_address("pair", 1)
