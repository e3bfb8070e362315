"""The discrete-event simulator around the shared scheduler core."""
