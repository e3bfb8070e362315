"""Jobs of applications: their rows, and the slots in which these lie."""
