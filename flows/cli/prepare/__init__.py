"""From a model to measured latencies."""
