"""Planners of other systems, which plans of the product are compared with, by the paper that has them.

Nothing else of the product imports this package: the registry loads it when one of its planners is
asked for by name, or all planners are listed.
"""
