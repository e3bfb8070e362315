"""The scheduler process: the shared core between sockets."""
