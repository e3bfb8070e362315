"""Announcements of a client, and how rarely it makes them."""

from triton_backend.client.announcing import Announcement, Announcing

LEASE_US = 10_000_000
MS = 1_000


def sending(
    block: int, since_us: int, until_us: int, client: Announcing, budget_us: int = 80_000
) -> None:
    for at_us in range(since_us, until_us, 100 * MS):
        client.decided(at_us, block, budget_us)


def test_rate_and_least_budget_at_the_last_cut() -> None:
    client = Announcing(10.0)
    assert client.sends(0) is client.due(0) is None
    sending(1, 0, 1_000 * MS, client)
    client.decided(1_000 * MS, 1, 70_000)
    assert client.sends(1_000 * MS) == Announcement(1, 70_000, 10.0)
    client.decided(1_100 * MS, 2, 90_000)
    assert client.sends(1_100 * MS) == Announcement(2, 90_000, 10.0)  # it takes its rate along
    client.decided(1_200 * MS, 1, 80_000)
    client.decided(1_300 * MS, 2, 90_000)
    assert client.sends(1_300 * MS) == Announcement(2, 90_000, 2 / 3 * 10.0)  # here two of three
    assert client.sends(4_000 * MS) is None


def test_who_begins_announces_the_rate_since_then() -> None:
    client = Announcing(10.0)
    client.decided(0, 2, 90_000)
    assert client.sends(0) == Announcement(2, 90_000, 2.0)  # one in half a second
    sending(2, 100 * MS, 700 * MS, client, 90_000)
    assert client.sends(700 * MS) == Announcement(2, 90_000, 10.0)


def test_another_cut_at_once_other_numbers_now_and_then_the_rest_before_the_lease_ends() -> None:
    client = Announcing(10.0)
    sending(1, 0, 2_000 * MS, client)
    said = client.due(2_000 * MS)
    assert said is not None
    assert said == Announcement(1, 80_000, 10.0)
    client.announced(2_000 * MS, said, LEASE_US)
    client.decided(2_000 * MS, 1, 60_000)
    assert client.due(2_400 * MS) is None
    assert client.due(2_500 * MS) == Announcement(1, 60_000, 8.0)
    client.announced(2_500 * MS, said._replace(budget_us=60_000), LEASE_US)
    client.decided(2_600 * MS, 3, 60_000)
    moved = client.due(2_600 * MS)
    assert moved is not None
    assert moved.block == 3
    sending(3, 2_700 * MS, 9_000 * MS, client, 60_000)
    client.announced(7_000 * MS, Announcement(3, 60_000, 10.0), LEASE_US)
    assert client.due(8_900 * MS) is None
    sending(3, 9_000 * MS, 12_100 * MS, client, 60_000)
    assert client.due(11_900 * MS) is None
    assert client.due(12_000 * MS) == Announcement(3, 60_000, 10.0)


def test_who_sends_nothing_any_more_gives_the_lease_back_once() -> None:
    client = Announcing(10.0)
    sending(1, 0, 1_000 * MS, client)
    said = client.due(1_000 * MS)
    assert said is not None
    client.announced(1_000 * MS, said, LEASE_US)
    back = client.due(5_000 * MS)
    assert back == said._replace(rate_rps=0.0)
    assert back is not None
    client.announced(5_000 * MS, back, LEASE_US)
    assert client.due(5_000 * MS) is client.said is None


def test_after_an_announcement_that_nobody_took_it_waits_a_second() -> None:
    client = Announcing(10.0)
    sending(1, 0, 3_000 * MS, client)
    client.failed(1_000 * MS)
    assert client.due(1_999 * MS) is None
    assert client.due(2_000 * MS) is not None
