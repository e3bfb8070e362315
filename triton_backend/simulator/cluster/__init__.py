"""The simulated cluster: batches on their way, the vGPUs and the links that carry them."""
