"""Clients that offload.

Heads on devices, uploads over recorded links, cuts decided from what they saw.
"""
