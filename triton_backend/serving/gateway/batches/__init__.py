"""Batches that were sent, and the slots of shared memory that they hold."""
