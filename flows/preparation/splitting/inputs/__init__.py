"""The inputs of a model: open sizes, state it carries, values to check it with."""
