"""From profiles, cluster and workload to a certified plan."""
