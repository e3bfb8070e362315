"""Starting, stopping and asking a running system."""
