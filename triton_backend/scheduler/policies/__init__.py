"""Dispatch policies: every file here that states `POLICIES` adds what it lists (`registry`)."""
