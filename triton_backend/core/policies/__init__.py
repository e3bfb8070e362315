"""Dispatch policies by name, one file each."""
