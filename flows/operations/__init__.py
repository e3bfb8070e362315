"""What keeps a running system on a plan that fits: measured minutes, replanning."""
