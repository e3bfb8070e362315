"""The policy `shepherd`: largest batches and preemption, by hand."""

from tests.triton_backend.simulator.papers.whole_runs import Use, one_pool, outcomes, run, uses

TABLE = (10, 12, 14, 16)


def test_a_free_vgpu_takes_the_largest_batch() -> None:
    # Two of model 1 against one of model 0 that came first; neither makes three times what runs.
    result = run(one_pool([TABLE, TABLE], [90, 90]), "shepherd", [0, 1], [2, 3])
    assert [(use.model, use.samples) for use in uses(result)] == [(0, 1), (1, 2), (0, 1)]


def test_a_batch_three_times_as_large_breaks_the_running_one_off() -> None:
    # At 6 three of model 1 wait; the one that ran for 6 µs begins again after them, at 20.
    result = run(one_pool([TABLE, TABLE], [90, 90]), "shepherd", [0], [4, 5, 6])
    assert uses(result) == [Use(0, 0, 1, 0, 6), Use(0, 1, 3, 6, 20), Use(0, 0, 1, 20, 30)]
    assert outcomes(result) == ["served"] * 4


def test_who_was_broken_off_may_be_too_late() -> None:
    result = run(one_pool([TABLE, TABLE], [25, 90]), "shepherd", [0], [4, 5, 6])
    assert uses(result) == [Use(0, 0, 1, 0, 6), Use(0, 1, 3, 6, 20)]
    assert outcomes(result) == ["dropped", "served", "served", "served"]


def test_the_smallest_batch_that_runs_is_broken_off() -> None:
    plan = one_pool([TABLE, TABLE], [90, 90], vgpus=2)
    result = run(plan, "shepherd", [0, 0, 0], [1, 2, 3])
    # At 0 one goes to each vGPU; the third waits. At 3 three of model 1 break off vGPU 0 (equal
    # sizes).
    assert uses(result)[0] == Use(0, 0, 1, 0, 3)
    assert Use(0, 1, 3, 3, 17) in uses(result)


def test_a_batch_is_as_large_as_its_head_allows() -> None:
    # At 10 two would end at 22, the head's deadline is 21; then the other one is too late.
    result = run(one_pool([TABLE], [20]), "shepherd", [0, 1, 2])
    assert uses(result) == [Use(0, 0, 1, 0, 10), Use(0, 0, 1, 10, 20)]
    assert outcomes(result) == ["served", "served", "dropped"]
