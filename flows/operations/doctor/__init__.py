"""What is old, exposed or missing: on this machine, and in the system that is served from here."""
