"""From a plan to a serving system: rendering, administration, migration."""
