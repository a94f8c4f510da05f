"""Comparing with the last one: what a lane remembers of its IDs, and what it says of the next."""
