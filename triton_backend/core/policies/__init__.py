"""Dispatch policies, one file each, chosen by name."""
