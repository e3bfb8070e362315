"""Open-loop load against a live endpoint: when to send, what to send, what came back."""
