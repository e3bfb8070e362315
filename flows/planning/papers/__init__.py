"""Planners of other systems for comparison, by the paper that describes them.

Nothing else of the product imports this package: the registry loads it when one of its planners is
asked for by name, or all planners are listed.
"""
