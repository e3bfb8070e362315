"""Latency of every block, GPU class, vGPU divisor and batch."""
