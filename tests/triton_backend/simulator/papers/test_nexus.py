"""The policy `nexus`: round robin, turns and early drop, by hand."""

from tests.triton_backend.simulator.papers.whole_runs import Use, one_pool, outcomes, run, uses

TABLE = (10, 12, 14, 16)


def test_requests_go_round_robin_even_where_another_vgpu_is_free() -> None:
    # The second is vGPU 0's, which is busy until 10, though vGPU 1 is free.
    result = run(one_pool([(10,), (5,)], [90, 90], vgpus=2), "nexus", [0, 8], [1, 2])
    assert uses(result) == [
        Use(1, 1, 1, 2, 7),
        Use(0, 0, 1, 0, 10),
        Use(0, 1, 1, 10, 15),
        Use(1, 0, 1, 8, 18),
    ]


def test_models_take_turns_and_batches_are_at_most_planned() -> None:
    plan = one_pool([TABLE, (5,)], [90, 90], planned=[2, 1])
    result = run(plan, "nexus", [0, 1, 2, 3], [1, 2])
    assert uses(result) == [
        Use(0, 0, 1, 0, 10),
        Use(0, 1, 1, 10, 15),
        Use(0, 0, 2, 15, 27),
        Use(0, 1, 1, 27, 32),
        Use(0, 0, 1, 32, 42),
    ]


def test_a_head_goes_that_would_make_the_batch_small() -> None:
    # At 10 the head (deadline 23) could go alone (20), but two of them end at 12 + 10 = 22, three
    # at 24.
    plan = one_pool([TABLE], [22], planned=[3])
    result = run(plan, "nexus", [0, 1, 5, 6, 7])
    assert uses(result) == [Use(0, 0, 1, 0, 10), Use(0, 0, 3, 10, 24)]
    assert outcomes(result) == ["served", "dropped", "served", "served", "served"]
