"""Python steps of a workload, prepared as models of one block."""
