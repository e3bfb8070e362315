"""The process of one vGPU."""
