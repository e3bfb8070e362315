"""Whole steps of the offline half, made of the step packages and the warehouse."""
