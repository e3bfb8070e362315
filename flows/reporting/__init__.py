"""Pictures, pages and words for people."""
