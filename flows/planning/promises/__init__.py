"""Promises of finished plans: what they attain in the simulator, and headroom with which it holds.

No planner is here.
"""
