"""Begin here."""
