"""Client quotas: the rate at which a client that says its name may ask for a served name.

A token bucket per client, which is given the time and answers. It fills at the quota's rate up to
its burst; a request takes one token, and without one it is over the quota.

    time x rate --> [ tokens, at most the burst ] --> 1 for each request that passes

Fronts tell each other nothing. Where several serve one name, each holds an equal part of the rate
and of the burst: together they never let pass more than the quota, and a client that reaches one of
them alone has that part. A front that starts again begins with a full burst.

Here: decisions. Not here: how a client says its name (`pending`), what becomes of a request that is
over its quota (`service`).
"""

from collections.abc import Mapping
from typing import Self

from triton_backend.contract.units import US_PER_S
from triton_backend.serve_folder.settings import REFUSED, ServeSettings

# A client that asks at random, at 0.9 of its quota, is over it with 0.5 % of its requests.
BURST_REQUESTS = 16
# And one of many requests per second may come so late, all at once.
BURST_US = 100_000
TOKEN = 1_000_000_000  # levels count billionths: a thousandth of a request/s is one each µs


class Bucket:
    """A token bucket of integers; from one thread.

    In any time t it lets pass at most rate x t + burst requests, divided by `parts`; the burst is
    `BURST_US` at the rate, at least `BURST_REQUESTS`. It begins full.

    Args:
        rate_rps: requests per second, kept to a thousandth.
        now_us: when it begins.
        parts: how many buckets share the rate equally.
    """

    __slots__ = ("_at_us", "_cost", "_gain_per_us", "_level", "_most")

    def __init__(self, rate_rps: float, now_us: int, parts: int = 1) -> None:
        self._gain_per_us = round(rate_rps * TOKEN / US_PER_S)
        self._most = max(BURST_REQUESTS * TOKEN, BURST_US * self._gain_per_us)
        self._cost = parts * TOKEN
        self._level, self._at_us = self._most, now_us

    def take(self, now_us: int) -> bool:
        """True if a request of this instant passes; time that goes back fills nothing."""
        if now_us > self._at_us:
            gained = (now_us - self._at_us) * self._gain_per_us
            self._level = min(self._most, self._level + gained)
            self._at_us = now_us
        if self._level < self._cost:
            return False
        self._level -= self._cost
        return True


class Quotas:
    """The quotas of a served name in one gateway's front, or the fronts of its sizes.

    Args:
        rates_rps: by client, those of all gateways together.
        refuses: a request over its quota is refused. Else it becomes low, and requests that are low
            already take no tokens.
        now_us: when they begin.
        parts: how many gateways share each rate.

    Attributes:
        over: requests over the quota since then, by client.
    """

    def __init__(
        self, rates_rps: Mapping[str, float], *, refuses: bool, now_us: int, parts: int = 1
    ) -> None:
        self.refuses = refuses
        self.over = dict.fromkeys(rates_rps, 0)
        self._buckets = {
            client: Bucket(rate_rps, now_us, parts) for client, rate_rps in rates_rps.items()
        }

    @classmethod
    def of(cls, settings: ServeSettings, name: str, now_us: int) -> Self:
        """Of a served name, as the settings have them."""
        return cls(
            settings.quotas.get(name, {}),
            refuses=settings.over_quota == REFUSED,
            now_us=now_us,
            parts=settings.gateways,
        )

    def is_over(self, client: str, now_us: int, *, low: bool) -> bool:
        """True if a request of this instant is over its client's quota; counted then.

        A client without a quota, or without a name, has no limit.
        """
        bucket = self._buckets.get(client)
        if bucket is None or (low and not self.refuses) or bucket.take(now_us):
            return False
        self.over[client] += 1
        return True
