"""The policy `round-robin`: each vGPU gathers a batch of its own, by hand."""

from tests.triton_backend.simulator.papers.whole_runs import Use, one_pool, outcomes, run, uses

TABLE = (10, 12)


def test_a_vgpu_waits_for_a_full_batch_though_another_could_be_filled_sooner() -> None:
    # Dealt in turns: 0 and 2 to vGPU 0, 1 and 3 to vGPU 1. Together, the first two would be full.
    result = run(one_pool([TABLE], [90], vgpus=2), "round-robin", [0, 1, 2, 3])
    assert uses(result) == [Use(0, 0, 2, 2, 14), Use(1, 0, 2, 3, 15)]


def test_a_lonely_head_goes_at_its_last_moment() -> None:
    result = run(one_pool([TABLE], [40]), "round-robin", [5])
    assert uses(result) == [Use(0, 0, 1, 35, 45)]
    assert outcomes(result) == ["served"]


def test_heads_that_no_batch_serves_in_time_are_dropped() -> None:
    result = run(one_pool([TABLE], [9]), "round-robin", [0, 1])
    assert uses(result) == []
    assert outcomes(result) == ["dropped", "dropped"]


def test_the_worst_case_of_steady_requests_is_twice_a_batch() -> None:
    # Two vGPUs that are just busy: each gets a request every 6, a batch of two every 12.
    instants = list(range(0, 240, 3))
    result = run(one_pool([TABLE], [1_000], vgpus=2, planned=[2]), "round-robin", instants)
    took = result.requests["finish_us"] - result.requests["arrival_us"]
    assert took.max() == 18  # half a gap less than 2 d = 24: the last of a batch comes at once
