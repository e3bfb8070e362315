"""A proxy that the environment names is for other machines: this one is asked without it.

Libraries of HTTP and of gRPC obey `http_proxy` for addresses of this machine, too, where the
proxy finds nothing. Servers of PoolPipe and of Prefect listen there.
"""

from collections.abc import MutableMapping

_HERE = ("127.0.0.1", "localhost")
_EVERY_HOST = "*"  # alone: beside others it is none


def pass_proxies(environment: MutableMapping[str, str]) -> None:
    """Add this machine to the hosts that are asked past a proxy, here and in processes to come."""
    stated = environment.get("no_proxy") or environment.get("NO_PROXY") or ""
    if stated.strip() == _EVERY_HOST:
        return
    hosts = [host.strip() for host in stated.split(",") if host.strip()]
    # The name in small letters wins over the other one, and gRPC reads it alone.
    environment["no_proxy"] = ",".join(dict.fromkeys((*hosts, *_HERE)))
