"""What lies in a serve folder: settings, generations, model repository.

Both halves write and read it.
"""
