"""The inputs of a model: sizes that its file leaves open, state it carries, values to check it with."""
