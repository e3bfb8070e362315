"""The planner `pool` for applications: time, GPUs and cuts decided together, with a proof."""
