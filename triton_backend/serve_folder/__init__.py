"""Content of a serve folder: settings, generations, model repository.

Both halves write and read it.
"""
