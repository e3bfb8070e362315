"""The policy `triton`: sizes, delays and instances of the dynamic batcher, by hand."""

from tests.triton_backend.simulator.papers.whole_runs import Use, one_pool, outcomes, run, uses

TABLE = (10, 12, 14, 16)


def test_without_a_delay_a_free_instance_takes_what_there_is() -> None:
    # Of the three that wait at 10 the preferred two go first, then the one that is left.
    result = run(one_pool([TABLE], [90], planned=[2]), "triton", [0, 1, 2, 3])
    assert uses(result) == [Use(0, 0, 1, 0, 10), Use(0, 0, 2, 10, 22), Use(0, 0, 1, 22, 32)]


def test_the_largest_preferred_size_goes_first() -> None:
    result = run(one_pool([TABLE], [90], planned=[2]), "triton", [0, 1, 2, 3, 4, 5])
    assert uses(result)[1] == Use(0, 0, 4, 10, 26)


def test_a_batch_waits_for_the_delay_of_its_oldest() -> None:
    result = run(one_pool([TABLE], [90]), "triton", [0, 5], batch_timeout_ms=0.02)
    assert uses(result) == [Use(0, 0, 2, 20, 32)]


def test_a_preferred_size_ends_the_wait() -> None:
    plan = one_pool([TABLE], [90], planned=[2])
    result = run(plan, "triton", [0, 5, 6], batch_timeout_share=0.5)
    assert uses(result) == [Use(0, 0, 2, 5, 17), Use(0, 0, 1, 51, 61)]


def test_deadlines_change_nothing_but_who_waits_past_his_own_is_rejected() -> None:
    # 1 ends at 20, 3 late; 2 would have headed a batch at 20, when its 18 µs are over.
    result = run(one_pool([(10,)], [18]), "triton", [0, 1, 1, 3])
    assert uses(result) == [Use(0, 0, 1, 0, 10), Use(0, 0, 1, 10, 20), Use(0, 0, 1, 20, 30)]
    assert outcomes(result) == ["served", "late", "dropped", "late"]


def test_of_two_models_the_one_whose_oldest_came_first_goes() -> None:
    result = run(one_pool([(10,), (7,)], [90, 90]), "triton", [0, 2], [1])
    assert [use.model for use in uses(result)] == [0, 1, 0]


def test_every_vgpu_is_an_instance_the_lowest_number_first() -> None:
    result = run(one_pool([(10,)], [90], vgpus=2), "triton", [0, 1, 2])
    assert uses(result) == [Use(0, 0, 1, 0, 10), Use(1, 0, 1, 1, 11), Use(0, 0, 1, 10, 20)]
