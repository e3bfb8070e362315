"""The gateway, the nodes and the workers: shells around the core."""
