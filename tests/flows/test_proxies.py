"""Hosts that are asked past the proxy; that a command does so is seen in `cli/test_main.py`."""

import pytest

from flows.proxies import pass_proxies


@pytest.mark.parametrize(
    ("stated", "known"),
    [
        ({}, {"no_proxy": "127.0.0.1,localhost"}),
        ({"no_proxy": "a.example,localhost"}, {"no_proxy": "a.example,localhost,127.0.0.1"}),
        (
            {"NO_PROXY": "a.example"},
            {"NO_PROXY": "a.example", "no_proxy": "a.example,127.0.0.1,localhost"},
        ),
        ({"no_proxy": "*"}, {"no_proxy": "*"}),
    ],
)
def test_this_machine_joins_the_hosts_that_are_asked_past_a_proxy(
    stated: dict[str, str], known: dict[str, str]
) -> None:
    pass_proxies(stated)
    assert stated == known
