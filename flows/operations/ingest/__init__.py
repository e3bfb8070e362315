"""The gateway's event files into minutes of the warehouse."""
