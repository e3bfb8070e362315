"""Rules that follow what is measured of served requests and runs."""
