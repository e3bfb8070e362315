"""Frames, sockets and shared memory between the processes of a running system."""
