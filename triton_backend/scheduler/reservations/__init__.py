"""When a batch runs where: gaps and intervals, paths of a batch, joint runs."""
