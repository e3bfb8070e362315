"""The workers of one node, and its share in a rollout."""
