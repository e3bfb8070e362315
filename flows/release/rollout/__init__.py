"""From the plan in force to another one."""
