"""Who is alive, slow or silent."""
