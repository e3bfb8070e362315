"""The pace of stages, and corrections of what is expected of them."""

import pytest

from triton_backend.scheduler.measured.paces import FEWEST_RUNS, LAST_RUNS, QUIET_US, StagePaces

STAGE = (0, 0, 0)
PLANNED_US = 10_000


def stage_ran(stages: StagePaces, vgpu: int, factor: float) -> None:
    for _ in range(FEWEST_RUNS):
        stages.ran(STAGE, vgpu, round(factor * PLANNED_US), PLANNED_US, 0)


@pytest.mark.parametrize(
    ("factors", "percent"),
    [
        ((1.0, 1.0), []),
        ((1.4, 1.4), []),
        ((3.0, 3.0), [(STAGE, 300)]),
        ((1.0, 4.0), []),  # one of two: it is taken out
        ((4.0,), [(STAGE, 400)]),  # the only one cannot be
    ],
)
def test_a_stage_is_corrected_where_all_of_its_pool_is_slow(
    factors: tuple[float, ...], percent: list[tuple[tuple[int, int, int], int]]
) -> None:
    stages = StagePaces({STAGE: PLANNED_US}, 0)
    for vgpu, factor in enumerate(factors):
        stage_ran(stages, vgpu, factor)
    up = set(range(len(factors)))
    assert stages.changes(1, up) == percent
    assert stages.changes(2, up) == []


def test_short_stages_on_a_busy_machine_are_left_alone() -> None:
    stages = StagePaces({STAGE: 1_000}, 0)
    for _ in range(FEWEST_RUNS):
        stages.ran(STAGE, 0, 2_500, 1_000, 0)
    assert stages.changes(1, {0}) == []


def test_a_correction_ends_when_the_stage_keeps_to_its_profile_again() -> None:
    stages = StagePaces({STAGE: PLANNED_US}, 0)
    stage_ran(stages, 0, 3.0)
    assert stages.changes(1, {0}) == [(STAGE, 300)]
    for _ in range(3):
        stage_ran(stages, 0, 1.0)
    assert stages.changes(2, {0}) == [(STAGE, 100)]


def test_slow_runs_are_forgotten_when_the_newest_were_as_planned() -> None:
    stages = StagePaces({STAGE: PLANNED_US}, 0)
    for _ in range(LAST_RUNS):
        stages.ran(STAGE, 0, 3 * PLANNED_US, PLANNED_US, 0)
    changes: list[list[tuple[tuple[int, int, int], int]]] = []
    for now_us in range(4):
        changes.append(stages.changes(now_us, {0}))
        stages.ran(STAGE, 0, PLANNED_US, PLANNED_US, 0)
    assert changes == [[(STAGE, 300)], [], [], [(STAGE, 100)]]
    for _ in range(2):  # of five
        stages.ran(STAGE, 0, 9 * PLANNED_US, PLANNED_US, 0)
        assert stages.changes(4, {0}) == []


def test_without_runs_a_correction_fades() -> None:
    """Else one that leaves no batch a chance would stay for good."""
    stages = StagePaces({STAGE: PLANNED_US}, 0)
    stage_ran(stages, 0, 5.0)
    assert stages.changes(1, {0}) == [(STAGE, 500)]
    faded = [stages.changes(n * (QUIET_US + 1), {0}) for n in range(1, 6)]
    assert faded == [[(STAGE, 300)], [(STAGE, 200)], [(STAGE, 150)], [(STAGE, 125)], [(STAGE, 100)]]


def test_stages_of_one_pool_have_paces_of_their_own() -> None:
    other = (1, 0, 0)
    stages = StagePaces({STAGE: PLANNED_US, other: PLANNED_US}, 0)
    for _ in range(FEWEST_RUNS):
        stages.ran(STAGE, 0, PLANNED_US, PLANNED_US, 0)
        stages.ran(other, 0, 3 * PLANNED_US, PLANNED_US, 0)
    assert stages.changes(1, {0}) == [(other, 300)]
