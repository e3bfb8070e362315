"""A plan as a bundle for stock Triton containers."""
