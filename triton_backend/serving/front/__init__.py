"""The front of one model: requests in, answers out."""
