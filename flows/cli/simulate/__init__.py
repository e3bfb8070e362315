"""Try out."""
