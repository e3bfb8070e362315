from pathlib import Path

import pytest

from tests.flows.cli.conftest import Command


@pytest.mark.usefixtures("planned")
def test_a_plan_is_rendered_for_containers(poolpipe: Command) -> None:
    found = poolpipe("render", "plan.json", "--target", "container", "-o", "bundle", "--json")
    assert found.code == 0, found.err
    assert found.document["containers"][0] == "gateway"
    assert Path("bundle", "compose.yaml").is_file()
    refused = poolpipe("render", "plan.json", "-o", "bundle", "--name", "Not A Label")
    assert (refused.code, refused.out) == (2, "")
    assert "is not a DNS label" in refused.err
    refused = poolpipe("render", "plan.json", "-o", "bundle", "--namespace", "a" * 59)
    assert (refused.code, refused.out) == (2, "")
    assert "like 'poolpipe', of at most 58 characters" in refused.err
    refused = poolpipe("render", "plan.json", "-o", "bundle", "--gateways", "2")
    assert (refused.code, refused.out) == (2, "")
    assert "--gateways 2: the plan has vGPUs on" in refused.err
    refused = poolpipe("render", "plan.json", "-o", "bundle", "--kserve", "--tls", "server")
    assert (refused.code, refused.out) == (2, "")
    assert "--tls server: KServe asks the gateway over HTTP" in refused.err


@pytest.mark.usefixtures("planned")
def test_kubernetes_is_asked_as_the_options_say(poolpipe: Command) -> None:
    found = poolpipe("render", "plan.json", "-o", "bundle", "--kserve", "--gpu-claims")
    assert found.code == 0, found.err
    texts = "".join(path.read_text() for path in Path("bundle", "kubernetes").iterdir())
    assert "kind: InferenceService" in texts
    assert "kind: ResourceClaimTemplate" in texts
    found = poolpipe("render", "plan.json", "-o", "bundle", "--mig-strategy", "single")
    assert found.code == 0, found.err


@pytest.mark.usefixtures("planned")
def test_a_bundle_for_another_target_is_wrong_usage(poolpipe: Command) -> None:
    refused = poolpipe("render", "plan.json", "-o", "bundle", "--target", "moon")
    assert (refused.code, refused.out) == (2, "")
    assert "--target" in refused.err


@pytest.mark.usefixtures("planned")
@pytest.mark.parametrize(
    ("given", "reason"),
    [
        (("--metrics-address", "nonsense"), "--metrics-address: 'nonsense' is no IPv4 address"),
        (("--gateway-host", "300.1.1.1"), "--gateway-host: '300.1.1.1' is no IPv4 address and no"),
        (("--host", "slow-0=300.1.1.1"), "host of slow-0: '300.1.1.1' is no IPv4 address and no"),
    ],
)
def test_an_address_that_is_none_is_refused(
    poolpipe: Command, given: tuple[str, str], reason: str
) -> None:
    refused = poolpipe("render", "plan.json", "-o", "bundle", *given)
    assert (refused.code, refused.out, refused.err.count("\n")) == (2, "", 1)
    assert reason in refused.err
    assert not Path("bundle").exists()
