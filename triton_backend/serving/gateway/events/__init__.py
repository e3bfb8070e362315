"""Fronts and workers say something, and it becomes events of the core, by the hub."""
