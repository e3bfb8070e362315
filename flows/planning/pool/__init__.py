"""The planner `pool`: enumerate, bound, screen, solve."""
