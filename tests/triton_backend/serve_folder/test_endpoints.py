"""Addresses and ports, refused before anything listens."""

import pytest

from triton_backend.contract.errors import InputError
from triton_backend.serve_folder.endpoints import Endpoints


@pytest.mark.parametrize("address", ["", "nonsense", "300.1.1.1", "10.0.0", "::1", "a b"])
def test_what_is_no_address_to_listen_on_is_refused_by_its_option(address: str) -> None:
    reason = f": {address!r} is no IPv4 address to listen on"
    with pytest.raises(InputError, match=r"^--address" + reason):
        Endpoints(address=address)
    with pytest.raises(InputError, match=r"^--metrics-address" + reason):
        Endpoints(metrics_address=address)


def test_a_second_gateway_without_a_port_for_its_metrics_is_refused() -> None:
    with pytest.raises(InputError, match=r"^--metrics-port 65535: .* the port after it"):
        Endpoints(metrics=65_535).check_can_listen(gateways=2)
