"""Templates that are rendered into a Triton model repository."""
