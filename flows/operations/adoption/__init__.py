"""Adoption: from a server that was tuned by hand to a first plan beside it."""
