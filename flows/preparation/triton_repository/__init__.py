"""A Triton model repository as an operator tuned it: read for planning, never changed."""
