"""One small web page over a running system."""
