"""The processes that the scheduler speaks to: their addresses, and frames for them."""
