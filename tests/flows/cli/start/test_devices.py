from pathlib import Path

import pytest
import yaml

from flows.preparation.profiling import devices
from tests.fakes.devices import ListedDevices
from tests.flows.cli.conftest import Command

GPU = devices.Device(
    index=0,
    name="NVIDIA L4",
    uuid="GPU-a",
    compute_capability="8.9",
    memory_mib=23034,
    driver="550.54",
    mps="stopped",
)


@pytest.mark.usefixtures("project")
def test_the_stated_rate_of_the_link_is_that_of_the_proposal(
    poolpipe: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(devices, "NvmlSource", lambda: ListedDevices((GPU,)))
    ran = poolpipe("devices", "--nic-gbps", "2.5", "--cluster-file", "found.yaml", "--json")
    written = yaml.safe_load(Path("found.yaml").read_text())
    assert written == ran.document["cluster"]
    assert [nodes["nic_gbps"] for nodes in written["nodes"]] == [2.5]


@pytest.mark.usefixtures("project")
def test_a_rate_of_nothing_is_refused(poolpipe: Command) -> None:
    ran = poolpipe("devices", "--nic-gbps", "0")
    assert (ran.code, ran.err.count("\n")) == (2, 1)
    assert "--nic-gbps" in ran.err
