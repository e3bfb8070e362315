"""The planners that a pool plan is compared with."""
