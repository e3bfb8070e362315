"""Checks for old, exposed or missing parts of this machine and of the system served here."""
