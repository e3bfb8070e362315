"""From stage files to what a runtime loads."""
