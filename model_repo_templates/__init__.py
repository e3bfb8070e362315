"""What is rendered into a Triton model repository."""
