"""Clients that offload: heads on devices, uploads over recorded links, cuts decided from what they saw."""
