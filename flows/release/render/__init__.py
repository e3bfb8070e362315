"""A plan as a Triton model repository, for this machine or for containers."""
