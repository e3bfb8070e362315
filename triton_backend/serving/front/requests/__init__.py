"""A front's requests: how they are read, kept until they are answered, refused and logged."""
