"""Traces of requests, made from the gateway's event files and request logs."""
