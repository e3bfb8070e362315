"""How long a process may be silent or busy before it counts as hung, and then as dead.

Silence alone says little on busy cores: a process is taken for hung soon only where none of its
threads wants to run (it is stopped, or waits for what never comes); one that runs or waits for a
disk has more time.
"""

# Of a process that does not even want to run.
STUCK_US = 1_000_000
# Of one that wants to run, or waits for a disk.
SILENT_US = 8_000_000
# A batch that runs so many times its profile, and so much longer at least, never ends.
HUNG_FACTOR = 10
HUNG_AT_LEAST_US = 1_000_000
# A process that does not get on is killed after `SILENT_US`; a little later nothing of it writes.
DEAD_BY_NOW_US = SILENT_US + 2_000_000


def dead_after_us(latency_us: int) -> int:
    """How long a process that runs stages of a latency may be silent before it counts as dead."""
    return DEAD_BY_NOW_US + HUNG_FACTOR * latency_us


def written_until_us(now_us: int, end_us: int, *, slo_us: int, latency_us: int) -> int:
    """Until when a process may write what belongs to a batch that is given up now.

    A worker that is cut off lives, and runs the batch when its turn has come or its shared batch
    leaves.

    Args:
        now_us: when it is given up.
        end_us: of the last of its reservations.
        slo_us: the longest of the plan.
        latency_us: of the slowest of its stages.
    """
    return max(now_us, end_us + slo_us) + dead_after_us(latency_us)
