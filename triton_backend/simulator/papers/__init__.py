"""Comparison policies: other systems, and changed rules of late binding.

`scenario.from_papers` loads a module of this package when its name is asked for; nothing else
imports one. A policy is a module of its name with a function `simulate`.
"""
